"""How a command begins: what it imports, and what a terminal shows meanwhile."""

import json
import os
import pty
import subprocess
import sys

import pytest

from fedseed.cli.app import IN_PAPERS, OWN, load_command
from fedseed.threads import CHOSEN_BY_USERS, WAITING, let_waiting_threads_sleep

IMPORTS = """
import json, sys
from fedseed.cli.app import app
try:
    app(sys.argv[1:], prog_name="fedseed")
except SystemExit:
    pass
print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""
HEAVY = {"numpy", "torch", "transformers", "matplotlib", "numba"}


def modules_of(*words: str) -> set[str]:
    """What a process of its own has imported after a command."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, *words], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize("words", ["--help", "--version"])
def test_help_imports_no_command_no_recipe_and_no_numpy(words):
    modules = modules_of(words)
    assert not modules & (HEAVY | {"pydantic", "asyncio", "jinja2"})
    ours = {name for name in modules if name.startswith("fedseed.")}
    commands = {f"fedseed.cli.{own.module}" for own in OWN.values()}
    rooms = {"runs", "methods", "tasks", "randomness", "weights", "federation", "reports"}
    assert not ours & commands
    assert not ours & {f"fedseed.{room}" for room in rooms}


@pytest.mark.parametrize("what", ["models", "recipes", "sweeps"])
def test_lists_of_files_import_neither_numpy_nor_recipes(what):
    modules = modules_of("list", what)
    assert not modules & (HEAVY | {"fedseed.recipe.settings", "fedseed.methods", "fedseed.tasks"})


def test_what_needs_recipes_imports_no_torch():
    assert not modules_of("explain", "method.basis") & {"torch", "transformers"}


def first_paragraph(text: str) -> str:
    return " ".join(text.split("\n\n")[0].split())


@pytest.mark.parametrize("name", OWN)
def test_the_list_says_what_the_command_itself_says(name):
    command = load_command(name)
    assert first_paragraph(command.help) == OWN[name].about and command.name == name
    assert command.rich_help_panel == OWN[name].group


def test_the_list_says_what_the_papers_commands_say():
    from fedseed_papers import audit_command, reproduce_command

    assert first_paragraph(audit_command.app.info.help) == IN_PAPERS["audit"]
    assert first_paragraph(reproduce_command.reproduce.__doc__) == IN_PAPERS["reproduce"]


def test_a_terminal_shows_at_once_what_is_waited_for_and_a_pipe_nothing(tmp_path):
    """The first line comes before the command's own module is imported."""
    words = [sys.executable, "-m", "fedseed", "explain", "method.basis"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=theirs, env=environment, cwd=tmp_path
    ) as process:
        os.close(theirs)
        seen = b""
        try:
            while part := os.read(ours, 1 << 16):
                seen += part
        except OSError:  # the other end is closed
            pass
        said = process.stdout.read()
    os.close(ours)
    assert process.returncode == 0
    assert seen.index(b"fedseed explain") < seen.index(b"reading the keys of recipes")
    piped = subprocess.run(words, capture_output=True, env=environment, cwd=tmp_path, check=True)
    assert piped.stderr == b"" and piped.stdout == said


def test_waiting_threads_sleep_unless_somebody_has_chosen():
    environment: dict[str, str] = {}
    let_waiting_threads_sleep(environment)
    assert environment == WAITING
    for name in CHOSEN_BY_USERS:
        chosen = {name: "active" if name == "OMP_WAIT_POLICY" else "7"}
        let_waiting_threads_sleep(chosen)
        assert list(chosen) == [name]


def test_the_command_line_says_how_threads_wait_before_torch_is_there():
    script = (
        "import os, sys\nimport fedseed.cli.app\n"
        "assert 'torch' not in sys.modules\nprint(os.environ['GOMP_SPINCOUNT'])"
    )
    clean = {key: value for key, value in os.environ.items() if key not in CHOSEN_BY_USERS}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=clean
    )
    assert done.stdout.strip() == WAITING["GOMP_SPINCOUNT"]
