"""Classes and functions have no more names than a reader can keep in mind, and only the transport knows NATS."""

import ast
from functools import cache
from pathlib import Path

import grimp
import pytest

import fedseed

SOURCE = Path(fedseed.__file__).parent
MOST_ATTRIBUTES, MOST_PARAMETERS = 20, 8
FILES = sorted(
    [*(SOURCE / "federation").glob("*.py"), *(SOURCE / "transport").glob("*.py")]
    + [SOURCE / "runs" / f"{name}.py" for name in ("loop", "simulation", "network", "joining", "assembly", "equipment")]
)


@cache
def classes():
    """All classes of the package, by name."""
    walked = (node for path in SOURCE.rglob("*.py") for node in ast.walk(ast.parse(path.read_text())))
    return {node.name: node for node in walked if isinstance(node, ast.ClassDef)}


def attributes(name):
    """The instance attributes of a class and its bases."""
    node, found = classes().get(name), set()
    if node is None:
        return found
    for base in node.bases:
        found |= attributes(ast.unparse(base).rpartition(".")[2])
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store) and ast.unparse(inner.value) == "self":
            found.add(inner.attr)
    if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        found |= {part.target.id for part in node.body if isinstance(part, ast.AnnAssign)}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_classes_are_small(path):
    inside = [node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
    counts = {name: len(attributes(name)) for name in inside}
    assert max(counts.values(), default=0) <= MOST_ATTRIBUTES, counts


def test_only_the_transport_knows_nats():
    """And it knows little else; what talks over it knows what a transport is, and none of them."""
    graph = grimp.build_graph("fedseed", include_external_packages=True, cache_dir=None)
    users = {module for library in ("nats", "nkeys") for module in graph.find_modules_that_directly_import(library)}
    assert users and all(module.startswith("fedseed.transport.") for module in users)
    allowed = ("fedseed.transport", "fedseed.errors", "fedseed.durable", "fedseed.registry", "fedseed.text")
    for module in graph.modules:
        needs = graph.find_modules_directly_imported_by(module)
        if module.startswith("fedseed.transport."):
            assert all(name.startswith(allowed) for name in needs if name.startswith("fedseed")), module
        if module.startswith("fedseed.federation."):
            assert not any(name.startswith(("fedseed.transport.nats", "fedseed.transport.memory")) for name in needs)


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
