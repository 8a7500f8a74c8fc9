import numpy as np
import torch

from fedseed.attacks.labels import flip_labels
from fedseed.tasks.chats import chat_of
from fedseed.tasks.data import ChatStyle, Choice, ClientData, Example, Picture


def test_no_example_keeps_its_own_response_and_none_is_lost():
    client = ClientData("c", [Example(f"q{i}", f"a{i}") for i in range(9)])
    flipped = flip_labels(client, 1, 3)
    assert [e.prompt for e in flipped.examples] == [e.prompt for e in client.examples]
    assert all(a.response != b.response for a, b in zip(client.examples, flipped.examples, strict=True))
    assert {e.response for e in flipped.examples} == {e.response for e in client.examples}
    assert flip_labels(client, 1, 3) == flipped != flip_labels(client, 1, 4)
    assert client.examples[0] == Example("q0", "a0")  # the honest data is left alone


def test_chats_get_the_last_answer_of_another():
    def chat(i):
        turns = [{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": f"a{i}"}]
        return chat_of(turns, [], ChatStyle(), f"line {i}")

    client = ClientData("c", [chat(i) for i in range(5)])
    flipped = flip_labels(client, 1, 3).examples
    for old, new in zip(client.examples, flipped, strict=True):
        assert new.messages[0] == old.messages[0] and new.messages[1]["content"] != old.messages[1]["content"]
        assert new.response == f" {new.messages[1]['content']}" and new.where == old.where


def test_pairs_of_tensors():
    client = ClientData("c", [(torch.tensor(float(i)), torch.tensor(i)) for i in range(4)])
    flipped = flip_labels(client, 1, 0)
    assert all(int(x) != int(y) for x, y in flipped.examples)
    assert sorted(int(y) for _, y in flipped.examples) == [0, 1, 2, 3]


def test_choices_get_another_option():
    client = ClientData("c", [Choice(f"q{i}", ("a", "b", "c"), i % 3) for i in range(6)])
    flipped = flip_labels(client, 1, 0)
    assert all(
        a.gold != b.gold and a.prompt == b.prompt for a, b in zip(client.examples, flipped.examples, strict=True)
    )


def test_pictures_get_the_next_class():
    client = ClientData("c", [Picture(np.full((2, 2, 1), i, dtype=np.uint8), i) for i in range(3)])
    flipped = flip_labels(client, 1, 0, classes=5)  # this client holds three of five
    assert [p.label for p in flipped.examples] == [1, 2, 3]
    assert all(a.pixels is b.pixels for a, b in zip(client.examples, flipped.examples, strict=True))
    assert [p.label for p in flip_labels(client, 1, 0, classes=3).examples] == [1, 2, 0]
