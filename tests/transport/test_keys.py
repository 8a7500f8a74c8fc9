"""What `fedseed keys` takes: names that are names, everywhere, also on a server.

Else nothing reaches a file.
"""

import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedseed.errors import RecipeError
from fedseed.recipe.settings import FederationSettings
from fedseed.transport.keys import make
from fedseed.transport.subjects import Subjects, name_of, name_problem, token
from support.command import fedseed

NAMES = ["north", "a.b-c_d", "größe", "东京", "क्षेत्र", "c d", "x@y+z", "1"]
NO_NAMES = [
    "a\n    { nkey: UEVIL }\n#",
    "../a",
    "/a",
    "a/b",
    "..",
    ".a",
    "-a",
    "--out",
    'a"b',
    "a'b",
    "a*",
    "a>b",
    "a;b",
    "a{b",
    "a\tb",
    "a\0b",
    "a\x1b[2J",
    "a\u202eb",
    "a\u2028b",
    " a",
    "a ",
    "a  b",
    "",
    " ",
    "a" * 200,
    "coordinator",
    "watcher",
    "a`b",
    "a|b",
    "a\\b",
    "\ud800",
    "a#b",
    "a$b",
]
USER = re.compile(
    r"    # \S.*\n    \{ nkey: U[A-Z2-7]{55}\n      permissions: \{\n        publish: .*\n        "
    r"subscribe: .* \} \}\n"
)


@pytest.mark.parametrize("name", NO_NAMES)
def test_what_is_no_name_is_refused_everywhere(name, tmp_path):
    assert name_problem(name)
    with pytest.raises(RecipeError, match="--client") as error:
        make("run", tmp_path / "keys", ["good", name], ["localhost"], 4222)
    assert "\x1b" not in str(error.value) and len(str(error.value)) < 500
    with pytest.raises(RecipeError, match="--client"):
        make("run", tmp_path / "keys", [f"host=good,{name or ' '}"], ["localhost"], 4222)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match=r"federation\.clients"):
        FederationSettings(clients=["good", name])


def test_names_are_names_everywhere(tmp_path):
    make("run", tmp_path / "keys", NAMES, ["localhost", "::1"], 4222)
    assert {path.stem for path in (tmp_path / "keys").glob("*.nk")} == {
        "coordinator",
        "watcher",
        *NAMES,
    }
    assert FederationSettings(clients=NAMES).clients == NAMES


@given(
    st.lists(
        st.text(st.characters() | st.sampled_from('./-=," \n{}#'), max_size=12),
        min_size=1,
        max_size=3,
    )
)
@settings(deadline=None, max_examples=80)
def test_a_configuration_has_the_users_that_were_asked_for_and_no_others(clients):
    with tempfile.TemporaryDirectory() as made:
        out = Path(made) / "keys"
        try:
            make("run", out, clients, ["localhost"], 4222)
        except RecipeError:
            assert not out.exists() and list(Path(made).iterdir()) == []
            return
        assert (
            list(Path(made).iterdir()) == [out] and len(list(out.glob("*.nk"))) == len(clients) + 2
        )
        text = (out / "nats-server.conf").read_text()
        users = text.partition("  users: [\n")[2].partition("  ]\n}\n")
        assert (
            not users[2]
            and not USER.sub("", users[0])
            and len(USER.findall(users[0])) == len(clients) + 2
        )


def test_a_server_for_this_machine_listens_here_alone(tmp_path):
    make("run", tmp_path / "here", ["a"], ["127.0.0.1", "localhost"], 4222)
    make("run", tmp_path / "there", ["a"], ["127.0.0.1", "example.org"], 4222)
    here, there = ((tmp_path / made / "nats-server.conf").read_text() for made in ("here", "there"))
    assert here.startswith('host: "127.0.0.1"\n') and "host:" not in there


def test_runs_hosts_ports_and_folders_stay_out_of_the_configuration(tmp_path):
    make("run", tmp_path / "long", ["a"], ["h" * 63 + ".example.org"], 4222)
    for host in ("a b", "a\nb", chr(34), "", "h" * 300):
        with pytest.raises(RecipeError, match="--host"):
            make("run", tmp_path / "keys", ["a"], [host], 4222)
    for run in ("a\nb", "a\r}", "a b", "a.>", "", "a.b", "a--b", "-a", "a-", "a*", ">", "ä"):
        with pytest.raises(RecipeError, match="run name"):
            make(run, tmp_path / "keys", ["a"], ["h"], 4222)
    for days in (-1, 0, 36_501, 100_000_000):
        with pytest.raises(RecipeError, match=rf"--days {days}: a number of days from 1 to 36500"):
            make("mine", tmp_path / "none", ["north"], ["localhost"], 4222, days=days)
    assert not (tmp_path / "none").exists()
    with pytest.raises(RecipeError, match="--port 0"):
        make("run", tmp_path / "keys", ["a"], ["h"], 0)
    with pytest.raises(RecipeError, match="has no quotes"):
        make("run", tmp_path / 'k"\n}' / "keys", ["a"], ["h"], 4222)
    with pytest.raises(RecipeError, match=r"c has the key x\.nk already"):
        make("run", tmp_path / "keys", ["x=c", "y=c"], ["h"], 4222)
    said = fedseed("keys", "run", "--out", tmp_path / "keys", "--client", "a\nb")
    assert said.returncode == 2 and "a name has none of" in said.stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "long"]


# -- on a server
# ------------------------------------------------------------------------------------------------


@given(st.text(min_size=1, max_size=30), st.text(min_size=1, max_size=30))
def test_different_names_have_different_tokens(a, b):
    if not any(0xD800 <= ord(c) < 0xE000 for c in a + b):
        assert (token(a) == token(b)) == (a == b)
        assert name_of(token(a)) == a
        assert not set(" .*>\t\r\n") & set(token(a))
        one, other = Subjects("r").bucket(a), Subjects("r").bucket(b)
        assert (one == other) == (a == b) and "=" not in one


@pytest.mark.parametrize("part", ["a b", "=41", "=4", "=FF", "a=", "é", "a.b"])
def test_what_is_nobodys_token(part):
    assert name_of(part) is None


def test_the_names_on_a_server_stay_what_they_are():
    """Clients and coordinators of earlier versions meet under these."""
    subjects = Subjects("run-1")
    names = {name: getattr(subjects, name) for name in ("log", "down", "status", "entries")}
    assert names == {name: f"fedseed.run-1.{name}" for name in names}
    assert subjects.from_client("a b", "update") == "fedseed.run-1.up.a=20b.update"
    assert (subjects.inbox("a b"), subjects.stream) == ("fedseed.run-1.in.a=20b", "fedseed--run-1")
    assert (subjects.bucket(), subjects.bucket("c_1")) == (
        "fedseed--run-1--down",
        "fedseed--run-1--up--c_1",
    )
    assert subjects.bucket("a b") == "fedseed--run-1--up--f8ead3ec60da789524652385"
