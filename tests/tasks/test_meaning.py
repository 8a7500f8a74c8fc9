"""What rows mean: the same chat by every way that rows come, marks of what is learnt, tools,
labels.

And what is said of a row of no known form.
"""

import decimal
import json
from dataclasses import replace

import datasets
import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import parquet

from fedseed.errors import RecipeError
from fedseed.objectives.losses import CausalLM
from fedseed.tasks.data import Choice, Example
from fedseed.tasks.files import each_row, hub_rows
from fedseed.tasks.forms import examples_in
from fedseed.tasks.hints import suggest_fields
from fedseed.tasks.own import FilesTask
from support.chat_bases import chat_tokenizer
from support.instruction_files import write_lines

WEATHER = {
    "name": "weather",
    "parameters": {"type": "object", "properties": {"town": {"type": "string"}}},
}
CONVERT = {"name": "convert", "parameters": {"required": ["amount"], "type": "object"}}


@pytest.fixture(autouse=True)
def _quietly():
    datasets.disable_progress_bars()


def chat_with_call(name, arguments, tools=()):
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    turns = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "b"},
        {"role": "assistant", "content": "c"},
    ]
    described = [{"type": "function", "function": tool} for tool in tools]
    return {"messages": turns, **({"tools": described} if tools else {})}


CALLS = [
    chat_with_call("weather", {"town": "Ulm", "days": {"from": 1}}, [WEATHER]),
    chat_with_call("convert", {"amount": 3}, [CONVERT]),
    chat_with_call("weather", {}, [WEATHER, CONVERT]),
]


def ways(folder, rows):
    """Yields each way by which rows come through Arrow, and their examples."""
    made = datasets.Dataset.from_list(rows)
    made.to_parquet(folder / "rows.parquet")
    made.save_to_disk(folder / "saved")
    hub = folder / "hub"
    hub.mkdir()
    made.to_parquet(hub / "train.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "plain.parquet")

    def loaded(path):
        return FilesTask(path=str(path), evaluation=0.0).load_party("north").clients[0].examples

    yield "parquet", loaded(folder / "rows.parquet")
    yield "another program's parquet", loaded(folder / "plain.parquet")
    yield "save_to_disk", loaded(folder / "saved")
    for name, given in (("Dataset", made), ("IterableDataset", made.to_iterable_dataset())):
        yield name, examples_in({"north": given})[0]["north"]
    yield (
        "hub",
        examples_in({"north": [row.values for row in hub_rows(str(hub), "train", None, "")]})[0][
            "north"
        ],
    )


def test_arrow_adds_nothing_to_calls_and_schemas(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    expected, _ = examples_in({"north": CALLS})
    assert '"arguments": {"town": "Ulm", "days": {"from": 1}}' in expected["north"][0].prompt
    for way, found in ways(tmp_path, CALLS):
        assert [one.messages for one in found] == [one.messages for one in expected["north"]], way
        assert [one.tools for one in found] == [one.tools for one in expected["north"]], way


def test_nulls_that_json_has_stay(tmp_path):
    rows = [chat_with_call("weather", {"town": "Ulm", "unit": None})] * 2
    as_text = [
        {"messages": [{**turn, "content": turn["content"]} for turn in row["messages"]]}
        for row in rows
    ]
    for row in as_text:
        function = row["messages"][1]["tool_calls"][0]["function"]
        row["messages"][1]["tool_calls"] = [
            {
                "type": "function",
                "function": {**function, "arguments": json.dumps(function["arguments"])},
            }
        ]
    datasets.Dataset.from_list(as_text).to_parquet(tmp_path / "text.parquet")
    for path in (write_lines(tmp_path / "rows.jsonl", rows), tmp_path / "text.parquet"):
        (one, _) = FilesTask(path=str(path), evaluation=0.0).load_party("n").clients[0].examples
        assert one.messages[1]["tool_calls"][0]["function"]["arguments"] == {
            "town": "Ulm",
            "unit": None,
        }


def test_parquet_with_columns_of_json(tmp_path):
    """As datasets 5 writes objects whose fields have several types."""
    rows = [chat_with_call("a", {"x": 1, "y": None}), chat_with_call("a", {"x": "text"})]
    made = datasets.Dataset.from_list(rows, on_mixed_types="use_json")
    made.to_parquet(tmp_path / "mixed.parquet")
    kind = parquet.read_schema(tmp_path / "mixed.parquet").field("messages").type
    assert "json" in str(kind)
    made.save_to_disk(tmp_path / "mixed")
    expected, _ = examples_in({"n": rows})
    for path in (tmp_path / "mixed.parquet", tmp_path / "mixed"):
        found = FilesTask(path=str(path), evaluation=0.0).load_party("n").clients[0].examples
        assert list(found) == expected["n"]


def test_a_map_of_arrow_is_an_object(tmp_path):
    kind = pyarrow.map_(pyarrow.string(), pyarrow.string())
    column = pyarrow.array([[("town", "Ulm")], [("unit", "C"), ("day", None)]], kind)
    parquet.write_table(pyarrow.table({"arguments": column}), tmp_path / "maps.parquet")
    found = [row.values["arguments"] for row in each_row(tmp_path / "maps.parquet")]
    assert found == [{"town": "Ulm"}, {"unit": "C", "day": None}]


def test_rows_that_have_been_in_arrow_are_the_rows_that_went_in(tmp_path):
    """As files of `to_json` and lists of a data set's rows have them."""
    expected, notes = examples_in({"n": CALLS})
    assert notes == []
    made = datasets.Dataset.from_list(CALLS)
    made.to_json(tmp_path / "rows.jsonl")
    assert '"amount":null' in (tmp_path / "rows.jsonl").read_text()
    data = FilesTask(path=str(tmp_path / "rows.jsonl"), evaluation=0.0).load_party("n")
    found, notes = examples_in({"n": list(made)})
    for rows in (data.clients[0].examples, found["n"]):
        assert [one.messages for one in rows] == [one.messages for one in expected["n"]]
        assert [one.tools for one in rows] == [one.tools for one in expected["n"]]
    assert any("null fields" in note and "to_json" in note for note in notes)
    assert any("null fields" in note for note in data.notes)
    # without descriptions it is seen by the calls
    bare = [chat_with_call("weather", {"town": "Ulm"}), chat_with_call("convert", {"amount": 3})]
    assert (
        examples_in({"n": list(datasets.Dataset.from_list(bare))})[0]
        == (examples_in({"n": bare})[0])
    )


def test_nulls_of_one_function_are_its_author_s():
    rows = [
        chat_with_call("weather", {"town": "Ulm", "unit": None}),
        chat_with_call("weather", {"town": "Bonn", "unit": None}),
        chat_with_call("convert", {"amount": 3}),
    ]
    found, notes = examples_in({"n": rows})
    call = found["n"][0].messages[1]["tool_calls"][0]
    assert call["function"]["arguments"] == {"town": "Ulm", "unit": None} and notes == []


def test_a_column_of_a_data_set_is_texts():
    made = datasets.Dataset.from_list([{"text": "one"}, {"text": "two"}])
    assert examples_in({"n": made["text"]})[0]["n"] == [Example("", "one"), Example("", "two")]


def marked(*turns):
    """A chat of (role, content, mark) with the mark's name and value."""
    return {"messages": [{"role": role, "content": text, **mark} for role, text, mark in turns]}


def learnt(row):
    """Returns the texts of a row that carry loss by a chat template, the items, and the notes."""
    tokenizer = chat_tokenizer("qwen2")
    found, notes = examples_in({"n": [row]})
    items = CausalLM(tokenizer).prepare(found["n"])
    texts = [tokenizer.decode(item.ids[a:b]) for item in items for a, b in item.learnt]
    return [text.removesuffix("<|im_end|>") for text in texts], items, notes


@pytest.mark.parametrize(
    ("skip", "keep"),
    [
        ({"weight": 0}, {"weight": 1}),
        ({"weight": 0.0}, {"weight": None}),
        ({"train": False}, {"train": True}),
        ({"loss": False}, {}),
        ({"train": True, "weight": 0}, {"train": True, "weight": 1}),
        ({"loss_mask": 0}, {"loss_mask": 1}),
        ({"trainable": False}, {"trainable": True}),
        ({"masked": True}, {"masked": False}),  # torchtune's means the opposite
        ({"weight": 0}, {"weight": float("nan")}),  # where a table has no value
    ],
)
def test_answers_marked_as_not_learnt_carry_no_loss(skip, keep):
    user = ("user", "1 + 1?", {})
    first = marked(user, ("assistant", "WRONG", skip), user, ("assistant", "two", keep))
    texts, (item,), _ = learnt(first)
    assert texts == ["two"] and "WRONG" in chat_tokenizer("qwen2").decode(item.ids)
    last = marked(user, ("assistant", "two", keep), user, ("assistant", "WRONG", skip))
    texts, (item,), _ = learnt(last)
    assert texts == ["two"] and "WRONG" not in chat_tokenizer("qwen2").decode(item.ids)
    texts, items, notes = learnt(marked(user, ("assistant", "WRONG", skip)))
    assert (texts, items) == ([], [])
    assert notes == ["1 examples left out (all answers are marked as not to be learnt)"]


def test_marks_of_sharegpt_and_of_the_plain_form():
    names = {"user": "human", "assistant": "gpt"}
    turns = [("user", "a", {}), ("assistant", "no", {"weight": 0}), ("user", "b", {})]
    turns.append(("assistant", "yes", {"weight": 1}))
    row = {
        "conversations": [
            {"from": names[role], "value": text, **mark} for role, text, mark in turns
        ]
    }
    (chat,) = examples_in({"n": [row]})[0]["n"]
    assert learnt(row)[0] == ["yes"]
    assert chat.learnt_answers == [3] and chat.unlearnt == (1,)
    plain = replace(chat, style=replace(chat.style, writing="plain", loss_on="all"))
    tokenizer = chat_tokenizer("qwen2")
    items = CausalLM(tokenizer).prepare([plain])
    assert [tokenizer.decode(i.ids[a:b]) for i in items for a, b in i.learnt] == [" yes<|im_end|>"]


def test_marks_hold_where_a_template_marks_its_answers():
    template = (
        "{% for m in messages %}{{ m.role }}:"
        "{% if m.role == 'assistant' %}{% generation %}{{ m.content + eos_token }}"
        "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    tokenizer = chat_tokenizer("qwen2", template)
    user = ("user", "1 + 1?", {})
    row = marked(user, ("assistant", "WRONG", {"train": False}), user, ("assistant", "two", {}))
    (chat,) = examples_in({"n": [row]})[0]["n"]
    (item,) = CausalLM(tokenizer).prepare([chat])
    assert [tokenizer.decode(item.ids[a:b]) for a, b in item.learnt] == ["two<|im_end|>"]


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        (
            {"weight": 0.5},
            r'messages\[1\]: "weight" = 0.5: expected 1 or true \(learn it\), 0 or false',
        ),
        ({"train": "no"}, r'"train" = \'no\': expected 1 or true'),
        (
            {"train_detail": [{"begin_offset": 0}]},
            (r'"train_detail": fedseed can.t learn single parts'),
        ),
    ],
)
def test_marks_that_say_something_else_are_refused(mark, message):
    with pytest.raises(RecipeError, match=message):
        examples_in({"n": [marked(("user", "a", {}), ("assistant", "b", mark))]})


def test_marks_of_parts_are_refused():
    parts = [{"type": "text", "text": "b", "train": False}, {"type": "text", "text": "c"}]
    with pytest.raises(RecipeError, match=r"messages\[1\]: content\[0\]: .*single parts"):
        examples_in({"n": [marked(("user", "a", {}), ("assistant", parts, {}))]})


def test_flags_that_may_be_marks_are_said():
    row = marked(("user", "a", {}), ("assistant", "b", {"skip_loss": True}))
    assert learnt(row)[1][0].remarks == ("flags",)
    assert (
        learnt(marked(("user", "a", {}), ("assistant", "b", {"prefix": True})))[1][0].remarks == ()
    )


def test_marked_messages_of_others_are_said():
    row = marked(("user", "a", {"train": True}), ("assistant", "b", {"train": True}))
    assert learnt(row)[1][0].remarks == ("others",)


@pytest.mark.parametrize("name", ["functions", "tool_defs"])
@pytest.mark.parametrize("as_text", [False, True])
def test_tools_of_other_names_are_tools(name, as_text):
    row = chat_with_call("weather", {"town": "Ulm"}, [WEATHER])
    tools = row.pop("tools")
    given = json.dumps([WEATHER]) if as_text else [WEATHER]
    (chat,) = examples_in({"n": [{**row, name: given}]})[0]["n"]
    assert list(chat.tools) == tools and chat.remarks == ()
    (item,) = CausalLM(chat_tokenizer("qwen2")).prepare([chat])
    assert '"name": "weather"' in chat_tokenizer("qwen2").decode(item.ids)
    with pytest.raises(RecipeError, match="tools and functions describe different functions"):
        examples_in({"n": [{**row, "tools": tools, "functions": [CONVERT]}]})


def test_calls_that_nothing_describes_are_said():
    (chat,) = examples_in({"n": [chat_with_call("weather", {})]})[0]["n"]
    assert chat.remarks == ("undescribed",)


def test_an_older_function_call_is_a_call():
    call = {"name": "weather", "arguments": '{"town": "Ulm"}'}
    turns = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "function_call": call},
    ]
    (chat,) = examples_in({"n": [{"messages": turns, "functions": [WEATHER]}]})[0]["n"]
    (made,) = chat.messages[1]["tool_calls"]
    assert made["function"] == {"name": "weather", "arguments": {"town": "Ulm"}}
    assert "function_call" not in chat.messages[1] and chat.remarks == ()


def test_conversational_rows_are_the_chats_of_their_messages():
    asked, said = {"role": "user", "content": "Say 1"}, {"role": "assistant", "content": "1"}
    rows = [{"prompt": [asked], "completion": [said]}, {"messages": [asked, said]}]
    one, other = (examples_in({"n": [row]})[0]["n"][0] for row in rows)
    assert one == other
    longer = {"prompt": [asked, said, asked], "completion": [{**said, "content": "2"}]}
    assert learnt(longer)[0] == ["2"]  # what stands in a prompt is given
    mixed = examples_in({"n": [{"prompt": "Say 1", "completion": [said]}]})[0]["n"][0]
    assert mixed == one
    with pytest.raises(RecipeError, match='"completion" one of the assistant'):
        examples_in({"n": [{"prompt": [asked], "completion": [asked]}]})


@pytest.mark.parametrize("name", ["completion", "response", "output", "chosen"])
def test_what_stands_beside_a_prompt_is_in_its_chat(name, tmp_path):
    tools = [{"type": "function", "function": WEATHER}]
    asked = {"instruction" if name == "output" else "prompt": "Say 1", name: "1"}
    if name == "chosen":
        asked["rejected"] = "no"
    row = {**asked, "system": "Be short.", "tools": tools}
    path = write_lines(tmp_path / "rows.jsonl", [row] * 2)
    task = FilesTask(path=str(path), evaluation=0.0, template="chat")
    (one, _) = task.load_party("n").clients[0].examples
    chat = one.chosen if name == "chosen" else one
    assert [turn["content"] for turn in chat.messages] == ["Be short.", "Say 1", "1"]
    assert list(chat.tools) == tools
    # without a chat template it is not used, and a line says so
    plain = FilesTask(path=str(path), evaluation=0.0).load_party("n")
    assert [note for note in plain.notes if "not used" in note] == [
        f'2 rows have "{field}", which is not used, because their prompts are no chats '
        '(task.template = "chat" uses it)'
        for field in ("system", "tools")
    ]


def test_earlier_turns_beside_an_instruction(tmp_path):
    row = {"instruction": "And 2?", "output": "4", "history": [["1 + 1?", "2"]]}
    path = write_lines(tmp_path / "rows.jsonl", [row])
    task = FilesTask(path=str(path), evaluation=0.0, template="chat")
    (one,) = task.load_party("n").clients[0].examples
    assert [turn["content"] for turn in one.messages] == ["1 + 1?", "2", "And 2?", "4"]
    write_lines(path, [{**row, "history": ["1 + 1?"]}])
    with pytest.raises(RecipeError, match='line 1: "history": expected a list of pairs'):
        task.load_party("n")


def test_a_conversation_has_its_system_message():
    row = {
        "prompt": [{"role": "user", "content": "Say 1"}],
        "completion": [{"role": "assistant", "content": "1"}],
        "system": "Be short.",
    }
    (one,) = examples_in({"n": [row]})[0]["n"]
    assert [turn["role"] for turn in one.messages] == ["system", "user", "assistant"]


TABLE = "text,label\nfine,{}\nbad,{}\nso so,\ngood,{}\n"


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (("pos", "neg ", "pos"), (" neg", " pos")),
        (("1.0", "0.0", "1.0"), (" 0", " 1")),
        (("1,0", "0,0", "1,0"), (" 0", " 1")),
    ],
)
def test_a_table_with_missing_labels(tmp_path, labels, classes):
    quoted = [f'"{label}"' for label in labels]
    (tmp_path / "data.csv").write_text(TABLE.format(*quoted))
    data = FilesTask(path=str(tmp_path / "data.csv"), clients=1, evaluation=0.4).load()
    made = [*data.clients[0].examples, *data.evaluation[""]]
    assert {one.options for one in made} == {classes} and len(made) == 3
    assert data.notes[0] == "1 examples left out (no label)"


@pytest.mark.parametrize("label", ["0.25", "-3.8", "0,25", "1.5e-1", ".5"])
def test_a_score_is_no_class(tmp_path, label):
    (tmp_path / "data.csv").write_text(TABLE.format("1.0", f'"{label}"', "2.0"))
    with pytest.raises(RecipeError, match='csv line 3: "label" is a number with a fraction'):
        FilesTask(path=str(tmp_path / "data.csv"), clients=1).load()
    named = FilesTask(path=str(tmp_path / "data.csv"), clients=1, labels=["1.0", label, "2.0"])
    assert named.load().clients[0].examples[0].options == (" 1.0", f" {label}", " 2.0")


def labelled(*labels):
    rows = [{"text": f"text {i}", "label": label} for i, label in enumerate(labels)]
    found, notes = examples_in({"n": rows})
    return [one.options[one.gold].strip() for one in found["n"]], notes


def test_labels_that_may_be_the_same_are_said():
    labels, notes = labelled("Pos", "pos", "neg", "1", "01")
    assert labels == ["Pos", "pos", "neg", "1", "01"]
    (note,) = notes
    assert note.startswith("01 and 1, Pos and pos are different labels; if they mean the same")
    assert labelled("a", "b")[1] == []
    (note,) = labelled("NA", "yes", "no")[1]
    assert note.startswith("taken for classes: NA; if a text has no label, leave its field empty")
    (note,) = labelled(*(i * 7 for i in range(30)))[1]
    assert note.startswith("there are 30 classes for 30 texts: is the label a score?")
    assert labelled(*(i % 30 for i in range(90)))[1] == []


def test_labels_and_scores_of_other_kinds_of_numbers():
    numbers = [decimal.Decimal("1.00"), np.int64(0), np.float64(1.0), torch.tensor(0), True]
    assert labelled(*numbers)[0] == ["1", "0", "1", "0", "True"]
    with pytest.raises(RecipeError, match="looks like a score"):
        labelled(float("inf"), 1.0)
    rows = [{"text": "a", "s": one} for one in (decimal.Decimal("1.25"), np.float32(0.5))]
    assert [one.value for one in examples_in({"n": rows}, score_field="s")[0]["n"]] == [1.25, 0.5]
    rows = [{"text": "a", "label": True}, {"text": "b", "label": False}]
    found = examples_in({"n": rows}, labels=("true", "false"))[0]["n"]
    assert [one.gold for one in found] == [0, 1]


def test_class_numbers_of_a_data_set_have_their_names(tmp_path):
    names = ["world", "sports", "business"]
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=names)}
    )
    rows = [{"text": f"text {i}", "label": (0, 1, 1, -1, 0)[i]} for i in range(5)]
    made = datasets.Dataset.from_list(rows, features=features)
    made.to_parquet(tmp_path / "rows.parquet")
    made.save_to_disk(tmp_path / "saved")
    for path in (tmp_path / "rows.parquet", tmp_path / "saved"):
        data = FilesTask(path=str(path), clients=1, evaluation=0.2).load()
        made_of = {one.text: one for one in (*data.clients[0].examples, *data.evaluation[""])}
        # all classes in the data set's order, one that no row has too; -1 is no class
        assert {one.options for one in made_of.values()} == {(" world", " sports", " business")}
        assert {text: one.gold for text, one in made_of.items()} == {
            "text 0": 0,
            "text 1": 1,
            "text 2": 1,
            "text 4": 0,
        }
        assert data.notes[0] == "1 examples left out (no label)"
    found, _ = examples_in({"n": made})
    assert found["n"][0] == Choice("text 0\nLabel:", (" world", " sports", " business"), 0)


def test_the_classes_of_a_renamed_column(tmp_path):
    features = datasets.Features(
        {"sentence": datasets.Value("string"), "mood": datasets.ClassLabel(names=["sad", "gay"])}
    )
    rows = [{"sentence": f"text {i}", "mood": i % 2} for i in range(4)]
    datasets.Dataset.from_list(rows, features=features).to_parquet(tmp_path / "rows.parquet")
    task = FilesTask(
        path=str(tmp_path / "rows.parquet"),
        clients=1,
        evaluation=0.25,
        fields={"text": "sentence", "label": "mood"},
    )
    assert task.load().clients[0].examples[0].options == (" sad", " gay")


@pytest.mark.parametrize(
    ("row", "hint"),
    [
        (
            {"id": "q1", "question": "a", "answer": "b"},
            '{prompt = "question", completion = "answer"}',
        ),
        ({"idx": 3, "sentence": "a", "label": 1}, '{text = "sentence"}'),
        (
            {"review_id": "x", "review": "a", "sentiment": "b"},
            '{text = "review", label = "sentiment"}',
        ),
        ({"uid": "x", "dialogue": [{"role": "user", "content": "a"}]}, '{messages = "dialogue"}'),
        (
            {"article": "a", "highlights": "b", "id": "c"},
            '{prompt = "article", completion = "highlights"}',
        ),
        ({"first": "a", "second": "b"}, '{prompt = "first", completion = "second"}'),
        ({"id": "a", "story": "b"}, '{text = "story"}'),
        ({"qid": "a", "lang": "de", "story": "b"}, '{text = "story"}'),
        (
            {"qid": "3", "query": "q", "positive": "p", "negative": "n"},
            '{prompt = "query", chosen = "positive", rejected = "negative"}',
        ),
        (
            {"prompt": "q", "better": [], "worse": []},
            '{chosen = "better", rejected = "worse"}',
        ),
        ({"question": "q", "chosen": "a", "rejected": "b"}, '{prompt = "question"}'),
        (
            {"sentence1": "a", "sentence2": "b", "score": 0.5},
            '{text = "sentence1", text_pair = "sentence2"} and task.score_field = "score"',
        ),
        ({"sentence": "a", "label": "3,8"}, '{text = "sentence"} and task.score_field = "label"'),
    ],
)
def test_what_is_suggested_for_unknown_rows(row, hint):
    assert f"task.fields = {hint}" in suggest_fields(row)
    with pytest.raises(RecipeError) as error:
        examples_in({"n": [row]})
    assert hint in str(error.value)


def test_a_suggestion_works(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [{"id": 1, "question": "a", "answer": "b"}] * 2)
    fields = {"prompt": "question", "completion": "answer"}
    data = FilesTask(path=str(path), clients=1, evaluation=0.5, fields=fields).load()
    assert data.clients[0].examples == [Example("a", "b")]
    assert suggest_fields({"id": 1, "number": 2.5}) == ""


def test_answers_that_nobody_wants_are_said():
    row = {"prompt": "a", "completion": "b", "label": False}
    found, notes = examples_in({"n": [row, {**row, "label": True}]})
    assert len(found["n"]) == 2 and '1 examples have "label" = false' in notes[0]


@pytest.mark.parametrize(
    ("outputs", "names", "expected"),
    [
        (("LABEL_0", "LABEL_1"), ["bad", "good"], ("bad", "good")),  # by its numbers
        (("POSITIVE", "NEGATIVE"), ["negative", "positive"], ("positive", "negative")),
        (("bad", "good"), ["bad", "good"], ("bad", "good")),
    ],
)
def test_a_classifier_is_given_the_classes_of_a_data_set(outputs, names, expected):
    """Rows in memory: each class is the output that the model has for it."""
    from transformers import BertConfig, BertForSequenceClassification

    from fedseed import Federation, FedSGD
    from support.text_bases import word_tokenizer

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    tokenizer = word_tokenizer()
    config = BertConfig(
        vocab_size=len(tokenizer),
        num_attention_heads=2,
        pad_token_id=0,
        id2label=dict(enumerate(outputs)),
        label2id={name: number for number, name in enumerate(outputs)},
        **sizes,
    )
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=names)}
    )
    rows = [{"text": "a good film", "label": 1}, {"text": "a bad film", "label": 0}]
    rows.append({"text": "a film", "label": -1})
    made = datasets.Dataset.from_list(rows, features=features)
    federation = Federation(
        BertForSequenceClassification(config),
        datasets=[made],
        method=FedSGD(learning_rate=0.1),
        tokenizer=tokenizer,
    )
    (items,) = federation.hosted.items.values()
    assert [item.gold for item in items] == [expected.index(names[1]), expected.index(names[0])]
