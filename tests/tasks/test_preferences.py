"""Rows with a chosen and a rejected answer: each form, what is wrong, and what is said."""

import json

import pytest

from fedseed.errors import RecipeError
from fedseed.tasks.data import Chat, Example, Preference
from fedseed.tasks.forms import examples_in
from fedseed.tasks.own import FilesTask
from support.instruction_files import write_lines

USER = {"role": "user", "content": "2 + 2?"}
AGAIN = {"role": "user", "content": "sure?"}
RIGHT = {"role": "assistant", "content": "4"}
WRONG = {"role": "assistant", "content": "5"}
CHATS = [
    {"prompt": [USER], "chosen": [RIGHT], "rejected": [WRONG]},
    {"prompt": "2 + 2?", "chosen": [RIGHT], "rejected": [WRONG]},
    {"prompt": [USER], "chosen": "4", "rejected": "5"},
    {"chosen": [USER, RIGHT], "rejected": [USER, WRONG]},  # what is common is the prompt
    {"prompt": "2 + 2?", "chosen": [USER, RIGHT], "rejected": [USER, WRONG]},
    {"prompt": [USER], "chosen": [USER, RIGHT], "rejected": [USER, WRONG]},
    # with what is learnt otherwise beside it
    {"messages": [USER, RIGHT], "chosen": [USER, RIGHT], "rejected": [USER, WRONG]},
    {
        name: json.dumps(turns)
        for name, turns in (("chosen", [USER, RIGHT]), ("rejected", [USER, WRONG]))
    },
    {
        "conversations": [{"from": "human", "value": "2 + 2?"}],
        "chosen": {"from": "gpt", "value": "4"},
        "rejected": {"from": "gpt", "value": "5"},
    },
]


def read(row):
    (made,) = examples_in({"n": [row]})[0]["n"]
    return made


@pytest.mark.parametrize("row", CHATS, ids=range(len(CHATS)))
def test_conversations_in_each_form_are_the_same(row):
    made = read(row)
    assert isinstance(made.chosen, Chat) and isinstance(made.rejected, Chat)
    assert made.chosen.messages == (USER, RIGHT) and made.rejected.messages == (USER, WRONG)
    assert made.chosen.learnt_answers == made.rejected.learnt_answers == [1]


def test_earlier_answers_and_what_stands_beside_them():
    tools = [{"type": "function", "function": {"name": "add"}}]
    begin = [USER, RIGHT, AGAIN]
    row = {"chosen": [*begin, RIGHT], "rejected": [*begin, WRONG], "tools": tools, "system": "Be."}
    made = read(row)
    system = {"role": "system", "content": "Be."}
    assert made.chosen.messages == (system, *begin, RIGHT)
    assert made.chosen.learnt_answers == [4] and made.rejected.tools == tuple(tools)
    # all that is answered is learnt where conversations part earlier
    parted = read({"chosen": [USER, RIGHT, AGAIN, RIGHT], "rejected": [USER, WRONG]})
    assert parted.chosen.learnt_answers == [1, 3] and parted.rejected.learnt_answers == [1]
    # one goes on where the other one ends
    longer = read({"chosen": [USER, RIGHT], "rejected": [USER, RIGHT, AGAIN, WRONG]})
    assert (longer.chosen.learnt_answers, longer.rejected.learnt_answers) == ([1], [1, 3])


@pytest.mark.parametrize(
    ("row", "prompt", "chosen", "rejected"),
    [
        ({"prompt": "2 + 2 =", "chosen": " 4", "rejected": " 5"}, "2 + 2 =", " 4", " 5"),
        ({"prompt": "Say:", "chosen": " 4", "rejected": ""}, "Say:", " 4", ""),
        (
            {
                "chosen": "\n\nHuman: say 1\n\nAssistant: 1",
                "rejected": "\n\nHuman: say 1\n\nAssistant: no",
            },
            "\n\nHuman: say 1\n\nAssistant:",
            " 1",
            " no",
        ),
        # a word is not cut into two, and one may be the other one's beginning
        ({"chosen": "I was walking", "rejected": "I was walked"}, "I was", " walking", " walked"),
        ({"chosen": "Yes it is", "rejected": "Yes it is so"}, "Yes it", " is", " is so"),
        ({"prompt": "[INST] a", "chosen": "b", "rejected": "[{c"}, "[INST] a", "b", "[{c"),
    ],
)
def test_texts(row, prompt, chosen, rejected):
    assert read(row) == Preference(Example(prompt, chosen), Example(prompt, rejected))


def test_instructions_are_put_into_the_template():
    row = {"instruction": "Add.", "input": "2, 2", "chosen": "4", "rejected": "5"}
    made, learnt = read(row), {"instruction": "Add.", "input": "2, 2", "output": "4"}
    assert made.chosen == read(learnt) and made.rejected.prompt == made.chosen.prompt


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"question": "a", "chosen": "b c", "rejected": "b d"},
            r'fields = \{prompt = "question"\}',
        ),
        ({"chosen": "b", "rejected": "c"}, "do not begin with the same words"),
        ({"prompt": "a", "chosen": "b", "rejected": 3}, '"rejected" = 3: expected text'),
        ({"prompt": "a", "chosen": None, "rejected": "c"}, '"chosen" = null: expected text'),
        ({"chosen": [USER, RIGHT], "rejected": [AGAIN, WRONG]}, "begin differently"),
        ({"prompt": [USER], "chosen": [AGAIN], "rejected": [WRONG]}, "begin differently"),
        ({"chosen": [RIGHT], "rejected": [WRONG]}, '"prompt" needs a message'),
        (
            {"chosen": [USER, RIGHT], "rejected": [USER, AGAIN]},
            ('"rejected" must end with one of the assistant'),
        ),
        ({"chosen": [], "rejected": [USER, WRONG]}, "each need a message"),
        (
            {"prompt": "Be kind.", "chosen": [USER, RIGHT], "rejected": [USER, WRONG]},
            '"prompt" is not among the messages',
        ),
    ],
)
def test_what_is_wrong_is_named(row, message):
    with pytest.raises(RecipeError, match=message):
        examples_in({"n": [row]})


def test_pairs_that_say_nothing_are_counted():
    same = {"prompt": "a", "chosen": " b", "rejected": "b "}
    chats = {"prompt": [USER], "chosen": [RIGHT], "rejected": [RIGHT]}
    repeated = {"prompt": "a", "chosen": "a b", "rejected": "a c"}
    found, notes = examples_in({"n": [same, repeated], "m": [chats, CHATS[0]]})
    assert (len(found["n"]), len(found["m"])) == (1, 1)
    assert any("2 examples left out (the chosen and the rejected answer are" in n for n in notes)
    assert any('1 pairs repeat their prompt in "chosen" and "rejected"' in n for n in notes)


def test_a_recipe_may_learn_the_chosen_answers_as_they_are(tmp_path):
    rows = [{"prompt": f"{i} =", "chosen": f" {i}", "rejected": " no"} for i in range(4)]
    path = str(write_lines(tmp_path / "a.jsonl", rows))
    chosen = FilesTask(path=path, clients=1, evaluation=0.25, fields={"completion": "chosen"})
    data = chosen.load()
    assert {type(one) for one in data.clients[0].examples} == {Example}
    data = FilesTask(path=path, clients=1, evaluation=0.25, beta=0.5).load()
    assert {type(one) for one in data.clients[0].examples} == {Preference}
    assert (data.beta, data.scores) == (0.5, ())
    assert data.notes[0].endswith("rejected answers: DPO, task.beta = 0.5")
    with pytest.raises(
        RecipeError, match=r"task.beta = 0.5: beta is for preferences, but the data"
    ):
        chosen.model_copy(update={"beta": 0.5}).load()


def test_texts_of_preferences_can_be_chats(tmp_path):
    rows = [{"prompt": f"{i}?", "chosen": f"{i}", "rejected": "no"} for i in range(2)]
    path = str(write_lines(tmp_path / "a.jsonl", rows))
    data = FilesTask(path=path, clients=1, evaluation=0.5, template="chat").load()
    (made,) = data.clients[0].examples
    assert [turn["role"] for turn in made.rejected.messages] == ["user", "assistant"]
    assert made.rejected.response == " no" and made.chosen.prompt == made.rejected.prompt
