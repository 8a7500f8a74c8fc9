"""How many names a reader of a method must look up: `python scripts/count_names.py [class or
file:class ...]`.

Of the file that a class stands in, each name counts once:

    imported    what the file imports from fedseed, by name
    inherited   members that its classes use of themselves (`self.x`, `cls.x`, `super().x`) and that
    a base class in
                another file of fedseed defines; what they only declare (`name`, `code`,
                `update_type = ...`) does not
    used        attributes and methods of `client`, `state`, `plan` and `answers`, which are given
    to its functions

What the file's classes define themselves does not count, its plans and states included, nor what
comes from Python, NumPy or pydantic.
"""

import ast
import inspect
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from fedseed.methods.payload import Payload, State

GIVEN = ("client", "state", "plan", "answers")
USUAL = {
    **dict.fromkeys(("mezo:MeZO", "feedsign:FeedSign", "fedavg:FedAvg"), 25),
    **dict.fromkeys(("fedkseed:FedKSeed", "fedmezo:FedMeZO"), 35),
    "ferret:Ferret": 36,
}


class Names(NamedTuple):
    """The names of one file."""

    imported: frozenset[str]
    inherited: frozenset[str]
    used: frozenset[str]

    def __len__(self) -> int:
        return len(self.imported) + len(self.inherited) + len(self.used)


def names_in(kind: type) -> Names:
    """What a reader of a class' file must look up."""
    tree = ast.parse(Path(inspect.getfile(kind)).read_text(encoding="utf-8"))
    module = sys.modules[kind.__module__]
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    found = {name for node in classes for name in _inherited(node, getattr(module, node.name))}
    kinds = [getattr(module, node.name) for node in classes]
    own = {name for kind in kinds if issubclass(kind, (State, Payload)) for name in _defined(kind)}
    return Names(frozenset(_imported(tree)), frozenset(found), frozenset(_used(tree, own)))


def _defined(kind: type) -> Iterator[str]:
    """What a class defines itself: its fields and functions."""
    yield from (*vars(kind), *vars(kind).get("__annotations__", {}))


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "fedseed":
            yield from (alias.asname or alias.name for alias in node.names)


def _inherited(node: ast.ClassDef, kind: type) -> Iterator[str]:
    own = {
        name
        for parent in kind.__mro__
        if parent.__module__ == kind.__module__
        for name in _defined(parent)
    }
    theirs = {
        name
        for parent in kind.__mro__
        if parent.__module__.startswith("fedseed") and parent.__module__ != kind.__module__
        for name in _defined(parent)
    }
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and part.attr in theirs:
            whose = ast.unparse(part.value)
            if whose == "super()" or (whose in ("self", "cls") and part.attr not in own):
                yield part.attr


def _used(tree: ast.Module, own: set[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if (
            not isinstance(node, ast.Attribute)
            or not isinstance(node.value, ast.Name)
            or node.value.id not in GIVEN
        ):
            continue
        if node.value.id not in ("state", "plan") or node.attr not in own:
            yield f"{node.value.id}.{node.attr}"


def main(wanted: list[str]) -> int:
    """Print a table; 1 if a method takes more names than it may."""
    too_many = False
    print(f"{'class':16} {'imported':>8} {'inherited':>9} {'used':>5} {'all':>4}  at most")
    for one in wanted or USUAL:
        file, _, name = one.partition(":")
        found = names_in(
            getattr(import_module(file if "." in file else f"fedseed.methods.{file}"), name)
        )
        most, all_ = USUAL.get(one), sum(map(len, found))
        too_many |= most is not None and all_ > most
        print(
            f"{name:16} {len(found[0]):8} {len(found[1]):9} {len(found[2]):5} {all_:4}  "
            f"{most or ''}"
        )
        if wanted:
            print("  " + ", ".join(name for part in found for name in sorted(part)))
    return int(too_many)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
