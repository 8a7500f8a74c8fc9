"""docs/glossary.md: few entries in order, and the code has each name."""

import importlib
import re

import pytest

from support.documents import ROOT

TEXT = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
ENTRIES = re.findall(
    r"^- \*\*(.+?)\*\*(?: \((key )?`([\w.]+)`\))?: (.+(?:\n  .+)*)$", TEXT, re.MULTILINE
)
KEYS = (ROOT / "tests" / "runs" / "recipe_keys.txt").read_text(encoding="utf-8").split()


def find(path):
    """The module, class, function or method at a dotted path."""
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError as error:
            if error.name is None or not path.startswith(error.name):
                raise  # a library that is missing is no wrong name
            continue
        for name in parts[count:]:
            found = getattr(found, name)
        return found
    raise AssertionError(path)


def test_entries_are_few_in_order_and_short():
    terms = [term for term, *_ in ENTRIES]
    assert len(terms) == TEXT.count("\n- ") <= 60
    assert terms == sorted(terms, key=str.lower) and len(set(terms)) == len(terms)
    for term, _, _, definition in ENTRIES:
        assert 1 <= len(re.findall(r"\.(?=\s|$)", definition)) <= 3, term


@pytest.mark.parametrize(
    ("term", "key", "name"), [(term, key, name) for term, key, name, _ in ENTRIES if name]
)
def test_the_code_has_the_name(term, key, name):
    if key:
        assert name in KEYS
    else:
        assert find(name) is not None
