"""What a message and a node's state hold."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedseed.errors import MessageError, RecipeError
from fedseed.flower import wire
from fedseed.flower.config import place_of, recipe_of


@given(st.lists(st.binary(max_size=40)))
def test_steps_come_back(payloads):
    assert wire.unpack(wire.pack(payloads)) == payloads


@pytest.mark.parametrize("cut", [1, 7, 8, 10])
def test_steps_that_are_cut_short_are_refused(cut):
    with pytest.raises(MessageError, match="cut short at byte"):
        wire.unpack(wire.pack([b"abc"])[:cut])


def test_a_nodes_state_takes_each_step_once():
    pytest.importorskip("flwr", reason="Flower is missing: extra flower")
    from flwr.app import RecordDict

    from fedseed.flower.held import Held

    def brings(since, *steps):
        return {"since": since, "at": since + len(steps), "steps": wire.pack(steps)}

    state = RecordDict()
    assert Held(state, replacing=False).take(brings(0, b"1", b""))
    assert not Held(state, replacing=False).take(brings(3, b"4"))  # the third is missing
    assert Held(state, replacing=False).take(brings(1, b"", b"3"))  # the second is known
    assert Held(state, replacing=False).take(brings(0, b"1"))  # an older message
    held = Held(state, replacing=False)
    assert (held.at, held.payloads, held.after(1)) == (3, [b"1", b"", b"3"], [b"", b"3"])
    state = RecordDict()
    for asked in (brings(0, b"old"), {"since": 1, "at": 4, "steps": wire.pack([b"new"])}, brings(4)):
        assert Held(state, replacing=True).take(asked)
    held = Held(state, replacing=True)
    assert (held.payloads, held.after(3), held.after(4)) == ([b"new"], [b"new"], [])


def test_configurations(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text('rounds = 3\n[method]\nname = "ferret"\n')
    config = {"set": "rounds=4; method.directions=50", "recipe": "", "out": "x", "data": ""}
    recipe = recipe_of(path, config)
    assert (recipe.rounds, recipe.method.directions) == (4, 50)
    assert recipe_of(path, {"recipe": "quickstart-ferret"}).rounds != 3
    with pytest.raises(RecipeError, match="run config: unknown key 'rounds'"):
        recipe_of(path, {"rounds": 3})
    place = place_of({"client": "north, south", "data": "/d"})
    assert (place.clients, str(place.own.path), place.own.evaluation_file) == (("north", "south"), "/d", None)
    found = [place_of({"partition-id": n, "num-partitions": 2}).mine(["a", "b", "c"]) for n in range(2)]
    assert found == [["a", "c"], ["b"]]
    with pytest.raises(RecipeError, match="node config: whose work does this node do"):
        place_of({"data": "/d"})


def test_a_message_of_another_app_is_told_apart():
    other = SimpleNamespace(content=SimpleNamespace(config_records={}))
    with pytest.raises(MessageError, match="are not of one app"):
        wire.table(other)
