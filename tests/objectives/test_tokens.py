"""What is cut from examples with too many tokens, and what a person is told of it."""

import pytest

from fedseed.objectives.kinds import short_answers
from fedseed.objectives.losses import CausalLM, Choices
from fedseed.objectives.prepared import (
    Prepared,
    describe_changes,
    describe_idle,
    prepare,
    prepare_sets,
)
from fedseed.objectives.rewarded import Rewarded
from fedseed.objectives.settings import EvaluationSettings
from fedseed.objectives.tokens import Tokens, fit_to_limit
from fedseed.tasks.chats import chat_of
from fedseed.tasks.data import ChatStyle, Choice, ClientData, Example

LONG = Tokens(tuple(range(20)), 15, ((5, 8), (15, 20)))


@pytest.mark.parametrize(
    ("how", "limit", "kept", "expected"),
    [
        ("drop", 19, 1, []),
        ("drop", 20, 1, [LONG]),
        # of the first answer one token is left
        ("left", 14, 1, [((0, *range(7, 20)), 9, ((1, 2), (9, 14)))]),
        # a first token has nothing before it
        ("left", 14, 0, [(tuple(range(6, 20)), 9, ((1, 2), (9, 14)))]),
        ("left", 10, 1, [((0, *range(11, 20)), 5, ((5, 10),))]),
        ("left", 5, 1, []),  # not into the last answer
        ("right", 17, 1, [(tuple(range(17)), 15, ((5, 8), (15, 17)))]),
        ("right", 10, 1, [(tuple(range(10)), 5, ((5, 8),))]),
        ("right", 5, 1, []),  # nothing is left to learn
        ("split", 10, 1, []),  # it has a prompt
    ],
)
def test_the_rules(how, limit, kept, expected):
    assert fit_to_limit(LONG, limit, how, kept) == [
        one if one is LONG else Tokens(*one, cut=20 - limit) for one in expected
    ]


def test_texts_are_cut_or_split_without_losing_a_token(small):
    tokenizer = small[1]
    text = Example("", "Sort these words : b a c " * 5)
    (whole,) = CausalLM(tokenizer).prepare([text])
    assert (
        whole.response_start == 1
        and whole.ids[0] == tokenizer.bos_token_id
        and whole.terms == len(whole.ids) - 1
    )
    pieces = CausalLM(tokenizer, 16, "split").prepare([text])
    assert all(len(piece.ids) <= 16 and piece.ids[0] == tokenizer.bos_token_id for piece in pieces)
    assert [i for piece in pieces for i in piece.ids[1:]] == list(whole.ids[1:])
    assert sum(piece.terms for piece in pieces) == whole.terms
    (left,) = CausalLM(tokenizer, 16, "left").prepare([text])
    assert left.ids == (whole.ids[0], *whole.ids[-15:]) and left.terms == 15
    (right,) = CausalLM(tokenizer, 16, "right").prepare([text])
    assert right.ids == whole.ids[:16] and right.terms == 15


def test_what_was_done_is_said_once_with_whose_it_is(small):
    short, long = Example("a", "b"), Example("a b c d e f g h i j" * 4, "k")
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    chat = chat_of(turns, [], ChatStyle(), "")
    clients = [
        ClientData("anna", [short, long, long, chat]),
        ClientData("bert", [long]),
        ClientData("cem", [short]),
    ]
    objective = CausalLM(small[1], 30)
    prepared = [prepare(objective, client.name, client.examples) for client in clients]
    assert [(c.name, len(c.items), c.dropped) for c in prepared] == [
        ("anna", 2, 2),
        ("bert", 0, 1),
        ("cem", 1, 0),
    ]
    assert describe_idle(prepared) == (
        "1 of 3 clients has no usable example and sends nothing: bert",
    )
    assert describe_changes(prepared, "30 tokens") == (
        "3 of the clients' examples left out (over 30 tokens); by client: anna 2, bert 1",
        '1 of the clients\' examples are written as plain text ("User: ...", "Assistant: '
        "...\"), because the base's tokenizer has no chat template",
    )
    cut = [
        prepare(CausalLM(small[1], 30, "left"), client.name, client.examples) for client in clients
    ]
    assert (
        describe_idle(cut) == ()
        and describe_changes(cut, "12")[0]
        == "3 of the clients' examples cut (over 12); by client: anna 2, bert 1"
    )
    sets, told = prepare_sets(objective, {"": [short, long], "unseen_": [short]}, "30 tokens")
    assert told == ["1 of 2 examples of the evaluation set left out (over 30 tokens)"]
    assert sets[""].examples == [short] and len(sets["unseen_"].items) == 1
    with pytest.raises(
        ValueError,
        match=r'none of the 1 examples of the evaluation set "unseen" is usable \(over 30',
    ):
        prepare_sets(objective, {"": [short], "unseen_": [long]}, "30 tokens")


def test_answers_that_get_too_few_tokens_are_counted_where_answers_are_written(small):
    settings = EvaluationSettings(max_new_tokens=20)

    def told(objective, example):
        return short_answers(objective, {"": prepare(objective, "", [example])}, 24, settings)

    language, example = CausalLM(small[1]), Example("a b c d e f g h i j", "k")
    for objective in (language, Rewarded(language, lambda *_: 1.0)):
        assert told(objective, example) == [
            (
                "1 answers are shorter than evaluation.max_new_tokens = 20, because the model has "
                "only 24 positions"
            )
        ]
        assert told(objective, Example("a", "b")) == []
    assert told(Choices(small[1]), Choice("a b c d e f g h i j", (" k", " l"), 0)) == []


def test_an_example_of_several_parts_counts_once_in_the_notes():
    part = Tokens((1, 2), 1, remarks=("apart",))
    items = [[part, part, part], [part], [Tokens((1, 2), 1)]]
    prepared = Prepared("anna", ["a", "b", "c"], items, 0)
    assert describe_changes([prepared], "30 tokens") == (
        "2 of the clients' examples are learnt answer by answer, because the chat template "
        "rewrites earlier answers",
    )
