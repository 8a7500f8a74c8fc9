"""Classes and functions have no more names than a reader can keep in mind, and only the transport knows NATS."""

import ast
from functools import cache
from pathlib import Path

import pytest

import fedseed

SOURCE = Path(fedseed.__file__).parent
MOST_ATTRIBUTES, MOST_PARAMETERS = 20, 8
FILES = sorted(
    [*(SOURCE / "federation").glob("*.py"), *(SOURCE / "transport").glob("*.py")]
    + [SOURCE / "runs" / f"{name}.py" for name in ("loop", "simulation", "network", "joining", "assembly", "equipment")]
)


@cache
def nodes():
    """All imports and classes of the package, by their files."""
    kinds = ast.ClassDef | ast.Import | ast.ImportFrom
    walked = {path: ast.walk(ast.parse(path.read_text())) for path in SOURCE.rglob("*.py")}
    return {path: [node for node in found if isinstance(node, kinds)] for path, found in walked.items()}


@cache
def classes():
    """All classes of the package, by name."""
    return {node.name: node for found in nodes().values() for node in found if isinstance(node, ast.ClassDef)}


def assigned(target):
    """The attributes of self that an assignment to a target sets."""
    if isinstance(target, ast.Tuple | ast.List):
        return {name for part in target.elts for name in assigned(part)}
    if isinstance(target, ast.Starred):
        return assigned(target.value)
    on_self = isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
    return {target.attr} if on_self else set()


def attributes(name, known):
    """The instance attributes of a class and its bases."""
    node = known.get(name)
    if node is None:
        return set()
    found = set()
    for base in node.bases:
        found |= attributes(base.id if isinstance(base, ast.Name) else getattr(base, "attr", ""), known)
    for inner in ast.walk(node):
        if isinstance(inner, ast.Assign):
            found |= {name for target in inner.targets for name in assigned(target)}
        elif isinstance(inner, ast.AnnAssign | ast.AugAssign):
            found |= assigned(inner.target)
    if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        found |= {part.target.id for part in node.body if isinstance(part, ast.AnnAssign)}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_classes_are_small(path):
    known = classes()
    inside = [node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
    counts = {name: len(attributes(name, known)) for name in inside}
    assert max(counts.values(), default=0) <= MOST_ATTRIBUTES, counts


def test_only_the_transport_knows_nats():
    for path, found in nodes().items():
        modules = [
            name
            for node in found
            if not isinstance(node, ast.ClassDef)
            for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names])
        ]
        outside = path.parent != SOURCE / "transport"
        assert not outside or not any(name.split(".")[0] in ("nats", "nkeys") for name in modules), path
        if path.parent == SOURCE / "federation":  # it knows what a transport is, and none of them
            assert not any(name.startswith(("fedseed.transport.nats", "fedseed.transport.memory")) for name in modules)
            assert not any(name.startswith(("fedseed.runs", "fedseed.cli", "fedseed.experiments")) for name in modules)
        if path.parent == SOURCE / "transport":
            allowed = ("fedseed.transport", "fedseed.errors", "fedseed.durable", "fedseed.registry", "fedseed.text")
            assert all(name.startswith(allowed) for name in modules if name.startswith("fedseed")), path


def test_no_function_takes_more_than_eight_parameters():
    """Triton's kernels neither."""
    long = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                taken = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
                if len([name for name in taken if name not in ("self", "cls")]) > MOST_PARAMETERS:
                    long[f"{path.relative_to(SOURCE)}: {node.name}"] = taken
    assert not long
