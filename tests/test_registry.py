from importlib.metadata import EntryPoint
from typing import ClassVar, Literal

import pytest

import fedseed
from fedseed import registry as registries
from fedseed.errors import RecipeError
from fedseed.extension import REGISTRIES
from fedseed.methods import FeedSign
from fedseed.registry import BUILT_IN, Registry, load_plugin

RULE = """
from typing import ClassVar, Literal
import fedseed
from fedseed.aggregation import AggregationRule

class Rule(AggregationRule):
    name: Literal["{name}"] = "{name}"
    about: ClassVar[str] = "a rule"

    def combine(self, vectors, weights):
        return vectors[0]

{extra}
fedseed.register_aggregation(Rule)
"""


@pytest.fixture(autouse=True)
def put_back(monkeypatch):
    """What a test registers is gone afterwards."""
    monkeypatch.setattr(registries, "_loaded", {})
    for registry in REGISTRIES.values():
        # what is looked for when first needed is there: it must not be put away with the rest
        registry.names()
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
        monkeypatch.setattr(registry, "_broken", dict(registry._broken))


@pytest.fixture
def plugin(tmp_path):
    def write(name="other", file="rule.py", extra=""):
        path = tmp_path / file
        path.write_text(RULE.format(name=name, extra=extra))
        return path

    return write


def things(monkeypatch, **points):
    """A registry of numbers with entry points of a package."""
    found = [EntryPoint(name, f"{__name__}:{value}", "group") for name, value in points.items()]
    if found:
        monkeypatch.setattr(EntryPoint, "load", lambda self: eval(self.value.partition(":")[2]))
    monkeypatch.setattr(registries, "entry_points", lambda group: found)
    registry = Registry(
        "thing", "group", [("one", 1), ("two", 2)], marks=lambda thing: {"code": abs(thing)}
    )
    registries._registries.remove(registry)
    return registry


def test_own_things_come_first_and_entry_points_when_they_are_asked_for(monkeypatch):
    registry = things(monkeypatch, three="3")
    monkeypatch.setattr(registries, "entry_points", lambda group: pytest.fail("not needed yet"))
    assert registry.find("one") == 1 and registry._entries["one"].origin == BUILT_IN
    registry = things(monkeypatch, three="3")
    assert registry.find("three") == 3 and registry.names() == ["one", "two", "three"]
    assert (
        registry.find("four") is None and registry.find(None) is None and registry.find([]) is None
    )
    with pytest.raises(
        RecipeError,
        match=r"thing 'four': choose one of one, two, three, or give the file .* --plugin",
    ):
        registry.get("four")


def test_a_broken_entry_point_is_told_of_to_those_who_ask_for_it_only(monkeypatch):
    registry = things(monkeypatch, bad="1 / 0", good="5", one="7", clash="-2")
    assert registry.names() == ["one", "two", "good"] and registry.find("one") == 1
    assert registry.find("bad") is None
    assert "bad" not in registry.unknown("nobody")
    assert (
        "entry point of an installed package can't be loaded: ZeroDivisionError: division"
        in registry.unknown("bad")
    )
    reasons = registry.broken()
    assert (
        "taken by fedseed itself" in reasons["one"] and "code 2 is that of two" in reasons["clash"]
    )
    assert set(reasons) == {"bad", "one", "clash"}


def test_a_file_is_run_once_and_again_when_it_has_changed(plugin):
    registry = REGISTRIES["aggregation"]
    path = plugin(extra="fedseed.count = getattr(fedseed, 'count', 0) + 1")
    try:
        assert load_plugin(path) == load_plugin(str(path)) == str(path.resolve())
        assert fedseed.count == 1 and registry._entries["other"].origin == str(path)
        first = registry.find("other")
        plugin(extra="fedseed.count += 10")
        load_plugin(path)
        assert fedseed.count == 11 and registry.find("other") is not first
    finally:
        del fedseed.count


def test_two_files_with_a_name_are_told_both(plugin):
    load_plugin(plugin())
    with pytest.raises(
        RecipeError, match=r"second.py: .*'other' can't be registered: .*taken by .*rule.py; choose"
    ):
        load_plugin(plugin(file="second.py"))
    with pytest.raises(
        RecipeError, match="'mean' can't be registered: the name is taken by fedseed itself"
    ):
        load_plugin(plugin("mean", "third.py"))


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        ("1 / 0", "--plugin .*rule.py: ZeroDivisionError: division by zero"),
        ("Rule.about = None", "Rule.about is missing"),
        (
            "Rule = Mean = int",
            "<class 'int'> is no subclass of fedseed.aggregation.base.AggregationRule",
        ),
        (
            "class Rule(AggregationRule):\n    name: str = 'x'\n    about: ClassVar[str] = ''",
            "leaves out combine",
        ),
        ("Rule = fedseed.aggregation.Mean", "taken by fedseed itself"),
    ],
)
def test_a_file_that_fails_leaves_nothing(plugin, extra, text):
    before = {what: registry.names() for what, registry in REGISTRIES.items()}
    more = "fedseed.register_metric('length', lambda said, right: 0.0)\n"
    with pytest.raises(RecipeError, match=text) as caught:
        load_plugin(plugin(extra=more + extra))
    assert "\n" not in str(caught.value)
    assert before == {what: registry.names() for what, registry in REGISTRIES.items()}


def method(code_=200, name_="mine"):
    class Mine(FeedSign):
        name: Literal[name_] = name_
        code: ClassVar[int] = code_

    return Mine


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (5, "code 5 is that of feedsign .fedseed itself.; .* 128 to 255 are free"),
        (256, "code = 256: must be a number"),
        ("x", "that no other method has"),
    ],
)
def test_a_methods_code_is_a_free_byte(code, text):
    with pytest.raises(RecipeError, match=text):
        fedseed.register_method(method(code))
    assert "mine" not in REGISTRIES["methods"].names()


def test_a_cell_of_a_notebook_may_run_twice():
    for _ in range(2):
        newest = fedseed.register_method(method())
    assert REGISTRIES["methods"].find("mine") is newest
    with pytest.raises(RecipeError, match=r"code 200 is that of mine .*test_registry"):
        fedseed.register_method(method(name_="another"))
