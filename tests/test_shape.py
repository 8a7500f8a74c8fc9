"""What a reader meets: every public name says what it is, no function takes a page of arguments."""

import ast
from pathlib import Path

import fedseed

SOURCE = Path(fedseed.__file__).parent
TREES = {
    str(path.relative_to(SOURCE)): ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))
}
CLASSES = {
    node.name: (node, [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases])
    for tree in TREES.values()
    for node in ast.walk(tree)
    if isinstance(node, ast.ClassDef)
}
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def inherited(name, seen=()):
    """The names that a class' bases define; None: a base is another library's, and nobody here knows."""
    found = set()
    for base in CLASSES[name][1]:
        if base in ("ABC", "Protocol", "object", "Generic", "Exception") or base in seen:
            continue
        if base not in CLASSES:
            return None
        above = inherited(base, (*seen, name))
        if above is None:
            return None
        found |= above | {node.name for node in CLASSES[base][0].body if isinstance(node, FUNCTIONS)}
    return found


def test_every_public_function_that_overrides_none_says_what_it_does():
    missing = []
    for name, tree in TREES.items():
        for node in tree.body:
            if (
                isinstance(node, FUNCTIONS | ast.ClassDef)
                and not node.name.startswith("_")
                and not ast.get_docstring(node)
            ):
                missing.append(f"{name}: {node.name}")
            if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
                continue
            above = inherited(node.name)
            for inner in node.body:
                if (
                    isinstance(inner, FUNCTIONS)
                    and not inner.name.startswith("_")
                    and above is not None
                    and inner.name not in above
                    and not ast.get_docstring(inner)
                    and not any(ast.unparse(d).endswith(".setter") for d in inner.decorator_list)
                ):
                    missing.append(f"{name}: {node.name}.{inner.name}")
    assert missing == []
