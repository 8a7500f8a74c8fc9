import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedseed.errors import RecipeError
from fedseed.transport.base import check_run
from fedseed.transport.subjects import Subjects, name_of, token


@given(st.text(min_size=1, max_size=30), st.text(min_size=1, max_size=30))
def test_different_names_have_different_tokens(a, b):
    if not any(0xD800 <= ord(c) < 0xE000 for c in a + b):
        assert (token(a) == token(b)) == (a == b)
        assert name_of(token(a)) == a
        assert not set(" .*>\t\r\n") & set(token(a))
        one, other = Subjects("r").bucket(a), Subjects("r").bucket(b)
        assert (one == other) == (a == b) and "=" not in one


@pytest.mark.parametrize("name", ["", "a.b", "a b", "a--b", "-a", "a-", "a*", ">", "ä"])
def test_run_names(name):
    with pytest.raises(RecipeError, match="run name"):
        check_run(name)


@pytest.mark.parametrize("part", ["a b", "=41", "=4", "=FF", "a=", "é", "a.b"])
def test_what_is_nobodys_token(part):
    assert name_of(part) is None


def test_the_names_on_a_server_stay_what_they_are():
    """Clients and coordinators of earlier versions meet under these."""
    subjects = Subjects("run-1")
    names = {name: getattr(subjects, name) for name in ("log", "down", "status", "entries")}
    assert names == {name: f"fedseed.run-1.{name}" for name in names}
    assert subjects.up("a b", "update") == "fedseed.run-1.up.a=20b.update"
    assert (subjects.inbox("a b"), subjects.stream) == ("fedseed.run-1.in.a=20b", "fedseed--run-1")
    assert (subjects.bucket(), subjects.bucket("c_1")) == ("fedseed--run-1--down", "fedseed--run-1--up--c_1")
    assert subjects.bucket("a b") == "fedseed--run-1--up--f8ead3ec60da789524652385"
