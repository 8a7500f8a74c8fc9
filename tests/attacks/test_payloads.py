"""Byzantine clients that change what they send or learn from: well formed, and what the methods
withstand.
"""

import numpy as np
import pytest
import torch

from fedseed import FeedSign, ZOFedSGD
from fedseed.attacks.updates import false_scalars, false_signs, flip_labels
from fedseed.randomness import Domain
from fedseed.randomness.stream import words
from fedseed.tasks.chats import chat_of
from fedseed.tasks.data import ChatStyle, Choice, ClientData, Example, Picture
from support.zeroth_order import federation


@pytest.mark.long
def test_attacks_bite_and_feedsign_withstands_one_of_five():
    """Random projections of one client of five wreck ZO-FedSGD, not FeedSign.

    Both are named in the metrics.
    """
    settings = {"rounds": 150, "evaluate_every": 150, "attack": "random", "attackers": [4]}
    honest = {"rounds": 150, "evaluate_every": 150}
    sign, zo = (
        FeedSign(learning_rate=0.01, batch=8),
        ZOFedSGD(learning_rate=0.01, batch=8, seeds="shared"),
    )
    results = {
        (m.name, "attack" in s): federation(m, **s).run()
        for m in (sign, zo)
        for s in (honest, settings)
    }
    final = {which: result.summary["final"]["loss"] for which, result in results.items()}
    start = results["feedsign", False].summary["baseline"]["loss"]
    assert final["feedsign", False] < start and final["zo-fedsgd", False] < start
    assert final["feedsign", True] < start  # still learns
    assert final["zo-fedsgd", True] > start  # destroyed
    result = results["feedsign", True]
    assert result.metrics[-1]["attacked"] == ["client-4"]
    assert result.summary["attack"] == {"kind": "random", "clients": 1}


def test_a_multiplier_is_one_plus_a_normal_number_and_reverses_votes_where_it_is_negative():
    drawn = words(3, Domain.ATTACK, 0, 0, 10_000).reshape(-1)
    honest = np.full(len(drawn) // 2, 2.0, dtype=np.float32)
    sent = false_scalars("multiplier", honest, drawn)
    assert sent.dtype == np.float32 and len(sent) == 20_000
    assert (sent / 2).mean() == pytest.approx(1, abs=0.03) and (sent / 2).std() == pytest.approx(
        1, abs=0.03
    )
    votes = false_signs("multiplier", np.where(np.arange(20_000) % 2, 1, -1).astype(np.int8), drawn)
    reversed_ = votes != np.where(np.arange(20_000) % 2, 1, -1)
    np.testing.assert_array_equal(reversed_, sent < 0)  # the vote of the multiplied projection
    assert reversed_.mean() == pytest.approx(0.1587, abs=0.01)  # Phi(-1)


def flipped(examples, number=0, **more):
    return flip_labels(ClientData("c", examples), 1, number, **more).examples


def test_no_example_keeps_its_own_response_and_none_is_lost():
    examples = [Example(f"q{i}", f"a{i}") for i in range(9)]
    found = flipped(examples, 3)
    assert [e.prompt for e in found] == [f"q{i}" for i in range(9)]
    assert all(e.response != f"a{i}" for i, e in enumerate(found))
    assert {e.response for e in found} == {f"a{i}" for i in range(9)}
    assert flipped(examples, 3) == found != flipped(examples, 4)
    assert examples[0] == Example("q0", "a0")  # the honest data is left alone
    pairs = flipped([(torch.tensor(float(i)), torch.tensor(i)) for i in range(4)])
    assert all(int(x) != int(y) for x, y in pairs) and sorted(int(y) for _, y in pairs) == [
        0,
        1,
        2,
        3,
    ]


def test_chats_get_the_last_answer_of_another():
    turns = [
        [{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": f"a{i}"}]
        for i in range(5)
    ]
    chats = [chat_of(said, [], ChatStyle(), f"line {i}") for i, said in enumerate(turns)]
    for old, new in zip(chats, flipped(chats), strict=True):
        assert (
            new.messages[0] == old.messages[0]
            and new.messages[1]["content"] != old.messages[1]["content"]
        )
        assert new.response == f" {new.messages[1]['content']}" and new.place == old.place


def test_choices_get_another_option_and_pictures_the_next_class():
    choices = [Choice(f"q{i}", ("a", "b", "c"), i % 3) for i in range(6)]
    assert all(
        a.gold != b.gold and a.prompt == b.prompt
        for a, b in zip(choices, flipped(choices), strict=True)
    )
    pictures = [Picture(np.full((2, 2, 1), i, dtype=np.uint8), i) for i in range(3)]
    found = flipped(pictures, classes=5)  # this client holds three of five
    assert [p.label for p in found] == [1, 2, 3] and [
        p.label for p in flipped(pictures, classes=3)
    ] == [1, 2, 0]
    assert all(a.pixels is b.pixels for a, b in zip(pictures, found, strict=True))
