"""The names that users rely on, compared with the list in stable_names.txt.

The list has the public names of `fedseed`, the commands with their arguments and options, and the
names by which recipes and addresses select methods, tasks and the like. The keys of recipes have a
list of their own (tests/runs/recipe_keys.txt).

    python tests/test_stable_names.py      prints the present names in the form of the list
"""

import re
import sys
from pathlib import Path

import pytest
import typer.main

import fedseed
from fedseed.cli.app import app
from fedseed.cli.looking import ROWS
from fedseed.extension import REGISTRIES
from fedseed.recipe.keys import list_keys
from fedseed.recipe.settings import Recipe
from fedseed.registry import BUILT_IN, classes_in
from fedseed.transport.base import Transport

FILE = Path(__file__).with_name("stable_names.txt")
BEGINNING = """\
# Names that users have in programs, scripts and recipes. tests/test_stable_names.py compares them
# with what there is. Add new names in order; python tests/test_stable_names.py prints all.
"""


def parameter_words(parameter):
    """Return the words of a command line that stand for one parameter."""
    if parameter.param_type_name == "argument":
        return [f"<{parameter.name}>"]
    return [*parameter.opts, *parameter.secondary_opts]


def list_commands(command, context, path):
    """Yield a line for each parameter of the commands below a click command.

    A command without parameters has a line with its name alone.
    """
    name = " ".join(path)
    words = sorted(word for parameter in command.params for word in parameter_words(parameter))
    if not hasattr(command, "list_commands") and not words:
        yield name
    for word in words:
        yield f"{name} {word}".strip()
    if hasattr(command, "list_commands"):
        for inner_name in command.list_commands(context):
            inner = command.get_command(context, inner_name)
            yield from list_commands(
                inner, typer.Context(inner, parent=context), [*path, inner_name]
            )


def list_values():
    """Yield a line for each value that a recipe's key names in quotes, such as `a.kind = flip`."""
    for key in list_keys(Recipe):
        for value in re.findall(r'"([^"]+)"', key.kind):
            yield f"{key.key} = {value}"


def current_sections():
    """Return the present names, in the sections of the stored list."""
    command = typer.main.get_command(app)
    sections = {
        "public names": set(fedseed.__all__),
        "commands": set(list_commands(command, typer.Context(command), [])),
        "values of recipe keys": set(list_values()),
    }
    for kind, registry in REGISTRIES.items():
        entries = registry.entries()
        sections[kind] = {entry.name for entry in entries if entry.origin == BUILT_IN}
    # fedseed's own transports are not in the registry: their modules are imported when needed
    sections["transports"] = {
        f"{scheme}://"
        for kind in classes_in("fedseed.transport", Transport)
        for scheme in kind.schemes
    }
    for kind in ("models", "bases", "recipes", "sweeps"):
        sections[kind] = {row[0] for row in ROWS[kind]()}
    return {section: sorted(names) for section, names in sections.items()}


def stored_sections():
    """Return the names of the stored list, in its sections."""
    sections = {}
    for line in FILE.read_text(encoding="utf-8").splitlines():
        if line.startswith("[") and line.endswith("]"):
            names = sections.setdefault(line[1:-1], [])
        elif line and not line.startswith("#"):
            names.append(line)
    return sections


def describe_problems(stored, current):
    """Return a text for each section whose names differ."""
    problems = []
    for section in sorted({*stored, *current}):
        names, present = stored.get(section, []), current.get(section, [])
        if missing := sorted({*names} - {*present}):
            problems.append(
                f"[{section}] no longer has {', '.join(missing)}. Users rely on these names: keep "
                "them. If one has to go, keep it for a release as another name for the new one, "
                "write in CHANGELOG.md what to use in its place, then take it out of "
                f"tests/{FILE.name}."
            )
        if added := sorted({*present} - {*names}):
            problems.append(
                f"[{section}] has new names: {', '.join(added)}. A name that is published has to "
                f"stay. If it is right, add it to tests/{FILE.name}, in order."
            )
        if names != sorted(names):
            problems.append(f"[{section}] of tests/{FILE.name} is not in order.")
    return problems


def test_the_names_that_users_rely_on_are_there():
    problems = describe_problems(stored_sections(), current_sections())
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("section", ["public names", "commands", "methods", "transports"])
def test_a_removed_or_a_new_name_is_reported(section):
    stored = stored_sections()
    name = stored[section][0]
    without = stored | {section: stored[section][1:]}
    [removed] = describe_problems(stored, without)
    assert removed.startswith(f"[{section}] no longer has {name}. ") and "CHANGELOG" in removed
    [added] = describe_problems(without, stored)
    assert added.startswith(f"[{section}] has new names: {name}. ")


if __name__ == "__main__":
    parts = [BEGINNING]
    parts += [
        "\n".join([f"[{section}]", *names, ""]) for section, names in current_sections().items()
    ]
    sys.stdout.write("\n".join(parts))
