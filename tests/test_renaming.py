import json
import warnings
import zlib
from typing import Any, ClassVar

import pytest
from pydantic import ConfigDict, Field, ValidationError

from fedseed import FedAvg, Ferret
from fedseed.orbit import Header
from fedseed.renaming import Renamed, later_names, old_names, orbit_dump, quietly
from fedseed.training.settings import LocalTraining
from fedseed.weights.layout import Layout, TensorEntry


class Inner(Renamed):
    model_config = ConfigDict(extra="forbid")
    renamed: ClassVar[dict[str, str]] = {"rate": "learning_rate"}

    learning_rate: float = 1.0


class Outer(Inner):
    renamed: ClassVar[dict[str, str]] = {"share": "weight"}
    later: ClassVar[frozenset[str]] = frozenset({"extra"})

    weight: float = 0.5
    inner: Inner = Inner()
    many: list[Inner] = Field(default_factory=list)
    named: dict[str, Inner] = Field(default_factory=dict)
    other: Any = None
    extra: int = 7


def test_old_names_are_read_and_said():
    with pytest.warns(FutureWarning, match="Inner: rate is called learning_rate now; the old name works in this"):
        assert Inner(rate=0.1) == Inner(learning_rate=0.1)
    with pytest.warns(FutureWarning):
        outer = Outer(rate=0.1, share=0.2, inner={"rate": 0.3})
    assert (outer.learning_rate, outer.weight, outer.inner.learning_rate) == (0.1, 0.2, 0.3)
    assert old_names(Outer) == {"rate": "learning_rate", "share": "weight"}


def test_new_names_and_files_are_read_without_a_word():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Inner(learning_rate=0.1)
        with quietly():
            assert Inner.model_validate({"rate": 0.1}).learning_rate == 0.1


def test_both_names_at_once_are_an_error_at_the_old_one():
    with pytest.raises(ValidationError) as caught:
        Outer(inner={"rate": 0.1, "learning_rate": 0.2})
    [error] = caught.value.errors()
    assert error["loc"] == ("inner", "rate") and error["input"] == 0.1
    assert error["msg"] == "rate is the old name of learning_rate, which is given too"


def test_orbits_keep_the_old_names_all_the_way_down():
    outer = Outer(many=[Inner(learning_rate=2.0)], named={"a": Inner()}, other=(1, 2))
    assert orbit_dump(outer) == {
        "rate": 1.0, "share": 0.5, "inner": {"rate": 1.0}, "many": [{"rate": 2.0}], "named": {"a": {"rate": 1.0}},
        "other": (1, 2),
    }  # fmt: skip
    with quietly():
        assert Outer.model_validate(orbit_dump(outer)) == outer


def test_orbits_have_later_settings_only_where_they_are_not_as_by_default():
    assert "extra" not in orbit_dump(Outer()) and "extra" not in orbit_dump(Outer(extra=7))
    assert orbit_dump(Outer(extra=8))["extra"] == 8
    assert later_names(Outer) == {"extra"} and later_names(Inner) == set()

    class Child(Outer):
        later: ClassVar[frozenset[str]] = frozenset({"more"})

        more: str = ""

    assert later_names(Child) == {"extra", "more"}
    with pytest.raises(TypeError, match=r"Wrong.later: it has no field nothing"):

        class Wrong(Renamed):
            later: ClassVar[frozenset[str]] = frozenset({"nothing"})


def test_what_is_renamed_has_to_be_there():
    with pytest.raises(TypeError, match=r"Wrong.renamed: 'a' -> 'b' does not fit"):

        class Wrong(Renamed):
            renamed: ClassVar[dict[str, str]] = {"a": "b"}


@pytest.mark.parametrize("method", [Ferret(), FedAvg(), Ferret(training=LocalTraining(learning_rate=0.5))])
def test_headers_are_written_with_old_names_and_read_with_either(method):
    layout = Layout((TensorEntry("w", (3,), "float32"),), (0, 3))
    header = Header("small", "00" * 16, "float32", layout, method, 1)
    packed = header.encode()[16:]  # after magic, versions and length
    table = json.loads(zlib.decompress(packed))
    assert "rate" in table["method"]["training"] and "learning_rate" not in table["method"]["training"]
    assert not {"small_steps", "autocast", "loss_scale"} & table["method"]["training"].keys()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Header.decode(packed) == header
        table["method"]["training"]["learning_rate"] = table["method"]["training"].pop("rate")
        assert Header.decode(zlib.compress(json.dumps(table).encode())) == header
