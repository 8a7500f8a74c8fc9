"""The user's own data: forms, formats, folders, partitions, and messages about what is wrong."""

import csv
import json
import shutil
import subprocess
import sys

import pyarrow
import pytest
from pyarrow import parquet

from fedseed.errors import RecipeError
from fedseed.tasks.data import Choice, Example
from fedseed.tasks.files import read_text
from fedseed.tasks.own import FilesTask
from fedseed.tasks.partition import IID, ByField, Dirichlet
from support.instruction_files import write_clients, write_lines

ROWS = [
    {"prompt": f"q {i}", "completion": f' "a", {i}\nand more', "town": ("Bonn", "Ulm")[i % 2]}
    for i in range(20)
]


def load(path, **settings):
    return FilesTask(path=str(path), **settings).load()


def pairs(count, text="q", **more):
    return [{"prompt": f"{text} {i}", "completion": f" a {i}", **more} for i in range(count)]


def refused(message):
    return pytest.raises(RecipeError, match=message)


def example(tmp_path, row, **settings):
    """What a row becomes, of a file with that row only and another to hold out."""
    data = load(
        write_lines(tmp_path / "data.jsonl", [row, row]), evaluation=0.5, clients=1, **settings
    )
    assert data.clients[0].examples == list(data.evaluation[""])
    return data.clients[0].examples[0]


def test_each_file_of_a_folder_is_a_client(tmp_path):
    folder = write_clients(
        tmp_path / "own", anna=pairs(30, "anna"), bert=pairs(7, "bert"), cem=pairs(1, "cem")
    )
    (folder / "notes.txt").write_text("no data")
    data = load(folder)
    assert [(c.name, len(c.examples)) for c in data.clients] == [
        ("anna", 27),
        ("bert", 6),
        ("cem", 1),
    ]
    assert all(e.prompt.startswith(c.name) for c in data.clients for e in c.examples)
    assert len(data.evaluation[""]) == 4  # a tenth of each, one at least, but nobody's only example
    prompts = [e.prompt for c in data.clients for e in c.examples] + [
        e.prompt for e in data.evaluation[""]
    ]
    assert len(set(prompts)) == len(prompts) == 38
    assert data == load(folder) and data.evaluation != load(folder, seed=1).evaluation
    assert data.notes == (
        "34 training, 0 validation and 4 held-out examples (prompt, completion)",
        "3 clients hold 1 to 27 examples",
    )
    tuning = load(folder, validation=0.2, evaluate_on="validation")
    assert tuning.evaluation[""] == tuning.validation and len(tuning.validation) == 7
    assert not {e.prompt for e in tuning.validation} & {e.prompt for e in data.evaluation[""]}


def test_one_file_is_dealt(tmp_path):
    towns = {f"{i}": ("Bonn", "Ulm", "Kiel")[i % 3] for i in range(60)}
    rows = [{"prompt": i, "completion": "a", "town": town} for i, town in towns.items()]
    path = write_lines(tmp_path / "data.jsonl", rows)
    assert [len(c.examples) for c in load(path).clients] == [11, 11, 11, 11, 10]
    by_town = load(path, partition=ByField(field="town"))
    assert [c.name for c in by_town.clients] == ["Bonn", "Kiel", "Ulm"]
    assert all(towns[e.prompt] == c.name for c in by_town.clients for e in c.examples)
    skewed = load(path, clients=4, label_field="town", partition=Dirichlet(alpha=0.3, minimum=5))
    assert len(skewed.clients) == 4 and min(len(c.examples) for c in skewed.clients) >= 5
    assert all(
        towns[e.prompt] == label
        for c in skewed.clients
        for e, label in zip(c.examples, c.labels, strict=True)
    )
    with refused(r"dirichlet.*name its field in task.label_field"):
        load(path, partition=Dirichlet())
    with refused(r'line \d+: no "city"'):
        load(path, partition=ByField(field="city"))


def test_the_forms(tmp_path):
    assert example(tmp_path, {"prompt": "P", "response": "R"}) == Example("P", "R")
    assert example(tmp_path, {"prompt": "P", "options": [" a", " b"], "gold": 1}) == Choice(
        "P", (" a", " b"), 1
    )
    assert example(tmp_path, {"text": "All of it."}) == Example("", "All of it.")
    assert load(tmp_path / "data.jsonl", clients=1).scores == ()
    made = example(tmp_path, {"instruction": "Do.", "input": "this", "output": "Done."})
    assert (
        made.response == "Done."
        and made.prompt.startswith("Below is")
        and "### Input:\nthis\n" in made.prompt
    )
    short = example(
        tmp_path, {"instruction": "Do.", "context": "this", "response": "Done."}, template="short"
    )
    assert short == Example("### Instruction:\nDo.\n\n### Input:\nthis\n\n### Response:\n", "Done.")
    without = example(tmp_path, {"instruction": "Do.", "output": "Done."}, template="short")
    assert without.prompt == "### Instruction:\nDo.\n\n### Response:\n"


def test_labels_are_chosen_among_all_of_them(tmp_path):
    anna = [{"text": f"t{i}", "label": "good"} for i in range(4)]
    folder = write_clients(
        tmp_path / "own", anna=anna, bert=[{"text": f"u{i}", "label": "bad"} for i in range(4)]
    )
    data = load(folder)
    number = data.clients[0].examples[0].prompt[1]
    assert data.clients[0].examples[0] == Choice(f"t{number}\nLabel:", (" bad", " good"), 1)
    given = load(folder, labels=["good", "fair", "bad"])
    assert [(e.options, e.gold) for e in given.clients[1].examples] == [
        ((" good", " fair", " bad"), 2)
    ] * 3
    with refused(r"bert.jsonl line 1, .*: \"label\" = 'bad': not in task.labels \(good, fair"):
        load(folder, labels=["good", "fair"])
    (folder / "bert.jsonl").unlink()
    with refused("anna.jsonl line 1: all labels are 'good'; at least two"):
        load(folder)


GOOD = json.dumps({"prompt": "p", "completion": "c"})
CHAT = '{"messages": %s}'
WRONG = [
    (
        [GOOD, "p"],
        r"anna.jsonl line 2: not valid JSON: Expecting value at column 1; each line must be one "
        r"JSON object",
    ),
    ([GOOD, "", '["p"]'], r"anna.jsonl line 3: expected a JSON object, not \['p'\]"),
    ([GOOD, '{"prompt": "p"}'], r'anna.jsonl line 2: no "completion"'),
    ([GOOD, '{"prompt": "p", "completion": 7}'], r'line 2: "completion" = 7: expected text'),
    (
        ['{"question": "q", "reply": "r"}'],
        r"line 1: its fields \(question, reply\) are not one of the known forms: prom",
    ),
    (
        [GOOD, '{"text": "t", "label": "l"}'],
        r"line 2: it has text, label, but .*line 1 has prompt, completion; all",
    ),
    (
        [CHAT % '[{"role": "user", "content": "x"}]'],
        r'line 1: "messages" has no assistant message',
    ),
    (
        [CHAT % '[{"role": "bot", "content": "x"}]'],
        r"messages\[0\]: \"role\" = 'bot': expected one of system, user",
    ),
    (
        [CHAT % '[{"role": "user", "content": [{"type": "image_url"}]}]'],
        r"\"type\" = 'image_url': fedseed can learn only",
    ),
    ([CHAT % '"[{"'], r'"messages" is not valid JSON'),
    (
        [
            CHAT % '[{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '
            '"{"}}]}]'
        ],
        r'tool_calls\[0\]: function: "arguments" is not valid JSON',
    ),
    (
        ['{"conversations": [{"from": "cat", "value": "x"}]}'],
        r"\[0\]: \"from\" = 'cat': expected one of system, human",
    ),
    (
        ['{"text": "t", "label": 0.5}'],
        r'line 1: "label" is a number with a fraction, so it looks like a score: .*score_field',
    ),
]


@pytest.mark.parametrize(("lines", "message"), WRONG)
def test_what_is_wrong_in_a_file_is_named(tmp_path, lines, message):
    folder = write_clients(tmp_path / "own", bert=pairs(3))
    (folder / "anna.jsonl").write_text("\n".join(lines))
    with refused(message):
        load(folder)


@pytest.mark.skipif(shutil.which("iconv") is None, reason="needs iconv")
def test_the_conversion_that_an_error_names_keeps_windows_characters(tmp_path):
    text = '{"prompt": "„Käse“: wie viel?", "completion": "3 €"}\n'
    (tmp_path / "anna.jsonl").write_bytes(text.encode("windows-1252"))
    with pytest.raises(RecipeError) as caught:
        read_text(tmp_path / "anna.jsonl")
    line = str(caught.value).partition("convert it: ")[2]
    subprocess.run(["sh", "-c", line], cwd=tmp_path, check=True)
    assert read_text(tmp_path / "anna.jsonl") == text


def test_other_encodings_are_named_with_their_place_and_a_way_out(tmp_path):
    folder = write_clients(tmp_path / "own", anna=pairs(3))
    text = f"{GOOD}\n" + json.dumps({"prompt": "Größe?", "completion": "groß"}, ensure_ascii=False)
    (folder / "anna.jsonl").write_bytes(text.encode("latin-1"))
    place = (
        "anna.jsonl line 2: not UTF-8 text: byte 0xf6 at the line's byte 15; if it is "
        "Windows-1252 or Latin-1, convert it: "
    )
    with refused(f"{place}iconv -f WINDOWS-1252 -t UTF-8 anna.jsonl > anna.converted && mv "):
        load(folder)
    (folder / "anna.jsonl").write_bytes(text.encode("utf-16"))
    with pytest.raises(RecipeError, match=r"anna.jsonl line 1: not UTF-8.*iconv -f UTF-16 "):
        load(folder)
    # in Windows-1252 there is no character with this byte
    (folder / "anna.jsonl").write_bytes(f"{GOOD}\n".encode() + b"\x81")
    with refused("convert it from the encoding that it has: iconv -f ENCODING -t UTF-8 "):
        load(folder)
    # as editors on Windows do
    (folder / "anna.jsonl").write_bytes(text.replace("\n", "\r\n").encode("utf-8-sig"))
    assert load(folder).evaluation[""][0].prompt in ("p", "Größe?")


def test_what_a_path_may_be(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "data.xlsx").write_text("a,b")
    folder = write_clients(tmp_path / "own", anna=pairs(3))
    alone = ": task.path = .* is a folder in which each file is a client"
    for path, settings, message in (
        (tmp_path / "empty", {}, r"has no client's file \(it has nothing\)"),
        (tmp_path / "data.xlsx", {}, "data.xlsx: expected a file that ends in .jsonl, .csv"),
        (
            tmp_path / "nowhere",
            {},
            "task.path = .*: there is no such file or folder; give a folder",
        ),
        (folder, {"clients": 3}, f"task.clients{alone}"),
        (folder, {"partition": IID()}, f"task.partition{alone}"),
        (folder, {"label_field": "x"}, f"task.label_field{alone}"),
        (
            folder,
            {"evaluation_file": str(folder / "gone.jsonl")},
            "gone.jsonl: there is no such file",
        ),
        (
            folder,
            {"evaluation": 0.0},
            "there are no held-out examples to evaluate on; raise task.evaluation, or give",
        ),
    ):
        with refused(message):
            load(path, **settings)


def everything(data):
    return sorted(
        [e.prompt, e.response]
        for part in (*(c.examples for c in data.clients), data.evaluation[""])
        for e in part
    )


# -- formats
# ------------------------------------------------------------------------------------------------


def write_table(path, rows, between=","):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=between)
        writer.writeheader()
        writer.writerows(rows)


FORMATS = {
    "data.jsonl": write_lines,
    "data.json": lambda path, rows: path.write_text(json.dumps(rows)),
    "data.csv": write_table,
    "excel.csv": lambda path, rows: write_table(path, rows, ";"),
    "data.tsv": lambda path, rows: write_table(path, rows, "\t"),
    "data.parquet": lambda path, rows: parquet.write_table(pyarrow.Table.from_pylist(rows), path),
}


@pytest.mark.parametrize("name", FORMATS)
def test_the_same_rows_in_every_format_are_the_same_examples(tmp_path, name):
    FORMATS[name](tmp_path / name, ROWS)
    data = load(tmp_path / name, partition=ByField(field="town"))
    assert everything(data) == sorted([row["prompt"], row["completion"]] for row in ROWS)
    assert data == load(
        write_lines(tmp_path / "lines.jsonl", ROWS), partition=ByField(field="town")
    )
    assert [client.name for client in data.clients] == ["Bonn", "Ulm"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "prompt,completion\na,b\nc\n",
            r"t.csv line 3: found 1 columns, expected 2: prompt, completion",
        ),
        ('prompt,completion\na,"b\nc', r"t.csv line 2: not valid CSV: unexpected end of data"),
        ("prompt,completion\n", r"t.csv: none of its examples has an answer"),
    ],
)
def test_what_is_wrong_in_a_table(tmp_path, text, message):
    (tmp_path / "t.csv").write_text(text)
    with refused(message):
        load(tmp_path / "t.csv")


def test_a_damaged_parquet_file_and_one_without_its_library(tmp_path, monkeypatch):
    (tmp_path / "t.parquet").write_bytes(b"PAR1 but not really")
    with refused(r"t.parquet: not a parquet file, or damaged"):
        load(tmp_path / "t.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with refused(r"needs pyarrow: pip install '\.\[parquet\]'"):
        load(tmp_path / "t.parquet")


def test_saved_data_sets_and_their_parts(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list(ROWS)
    rows.save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict({"train": rows, "test": rows.select(range(3))}).save_to_disk(
        str(tmp_path / "parts")
    )
    assert everything(load(tmp_path / "one")) == sorted(
        [row["prompt"], row["completion"]] for row in ROWS
    )
    data = load(tmp_path / "parts", evaluation_split="test")
    assert len(data.evaluation[""]) == 3 and sum(len(c.examples) for c in data.clients) == 20
    assert data.notes[-1].startswith("3 of 3 held-out examples are also in the training data: ")
    with pytest.raises(
        RecipeError, match=r'it has no part "dev" \(task.split\); its parts are train, test'
    ):
        load(tmp_path / "parts", split="dev")
    (tmp_path / "sites").mkdir()
    for site in ("north", "south"):
        rows.save_to_disk(str(tmp_path / "sites" / site))
    assert [client.name for client in load(tmp_path / "sites").clients] == ["north", "south"]


def test_a_name_on_the_hub_that_can_not_be_had_says_so(monkeypatch):
    pytest.importorskip("datasets")
    monkeypatch.setattr("fedseed.tasks.files.getproxies", dict)
    # a name that nobody has
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "https://hub.invalid")
    with pytest.raises(
        RecipeError, match=r'task.path = "some/where": no such file or folder here, nor on the hub'
    ):
        load("some/where")


# -- folders
# ------------------------------------------------------------------------------------------------


def test_a_folder_for_each_client(tmp_path):
    write_lines(tmp_path / "anna" / "a.jsonl", ROWS[:6])
    write_table(tmp_path / "anna" / "b.csv", ROWS[6:10])
    write_lines(tmp_path / "bert" / "notes.jsonl", ROWS[10:])
    (tmp_path / "empty").mkdir()
    (tmp_path / "settings.json").write_text("{}")
    task = FilesTask(path=str(tmp_path))
    data = task.load()
    assert task.client_names() == [c.name for c in data.clients] == ["anna", "bert"]
    assert [len(c.examples) for c in data.clients] == [9, 9] and len(data.evaluation[""]) == 2
    assert data.notes[0] == "not used, because it is no client's data: settings.json"
    only = task.load_part(["bert"], evaluate=False)
    assert [(c.name, c.examples) for c in only.clients] == [("bert", data.clients[1].examples)]
    write_lines(tmp_path / "cem.jsonl", ROWS)  # files go first, and what is left aside is said
    assert task.client_names() == ["cem"]
    assert (
        task.load().notes[0]
        == "not used, because it is no client's data: anna, bert, settings.json"
    )
    write_table(tmp_path / "cem.csv", ROWS)
    with pytest.raises(
        RecipeError, match=r'two files are named like the client "cem": cem.csv, cem.jsonl'
    ):
        task.load()


def test_a_party_alone_does_not_know_all_labels(tmp_path):
    """What else its own data may be: tests/runs/test_site.py."""
    write_lines(tmp_path / "l.jsonl", [{"text": f"t {i}", "label": "ab"[i % 2]} for i in range(8)])
    with pytest.raises(RecipeError, match=r"task.labels: not set; list all labels"):
        FilesTask(path=f"{tmp_path}/l.jsonl").load_party("own")
    labelled = FilesTask(path=f"{tmp_path}/l.jsonl", labels=["b", "a", "c"]).load_party("own")
    assert labelled.clients[0].examples[0].options == (" b", " a", " c")


# -- forms
# ------------------------------------------------------------------------------------------------


def test_fields_may_be_called_otherwise_in_the_data(tmp_path):
    row = {"question": "P", "answer": "R", "prompt": "not this"}
    fields = {"prompt": "question", "completion": "answer"}
    assert example(tmp_path, row, fields=fields) == Example("P", "R")
    with pytest.raises(
        RecipeError,
        match=r'line 1, .* line 2: no "reply", which task.fields names for "completion"',
    ):
        example(tmp_path, row, fields={"prompt": "question", "completion": "reply"})


def test_chats_of_both_forms_are_the_same(tmp_path):
    call = {"name": "weather", "arguments": '{"city": "Bonn"}'}
    tools = [{"type": "function", "function": {"name": "weather"}}]
    openai = [
        {"role": "developer", "content": "Be short."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "And "}, {"type": "text", "text": "Bonn?"}],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": call}],
        },
        {"role": "tool", "content": "sun", "tool_call_id": "1", "name": None},
        {"role": "assistant", "content": "Sunny."},
        {"role": "user", "content": "Thanks."},
    ]
    shared = [
        {"from": "human", "value": "And Bonn?"},
        {"from": "function_call", "value": json.dumps(call)},
        {"from": "observation", "value": "sun"},
        {"from": "gpt", "value": "Sunny."},
    ]
    first = example(tmp_path, {"messages": openai, "tools": tools})
    other = example(
        tmp_path, {"conversations": shared, "system": "Be short.", "tools": json.dumps(tools)}
    )
    said = [
        ("system", "Be short."),
        ("user", "And Bonn?"),
        ("assistant", ""),
        ("tool", "sun"),
        ("assistant", "Sunny."),
    ]
    for made in (first, other):
        assert [(m["role"], m["content"]) for m in made.messages] == said
        assert made.messages[2]["tool_calls"][0]["function"] == {
            "name": "weather",
            "arguments": {"city": "Bonn"},
        }
        assert made.tools == tuple(tools) and made.answers == ("Sunny.",)
        assert made.prompt.endswith(
            'Assistant: {"name": "weather", "arguments": {"city": "Bonn"}}\n\nTool: '
            "sun\n\nAssistant:"
        )
    assert "name" not in first.messages[3]  # what is null is not there
    write_table(
        tmp_path / "t.csv", [{"messages": json.dumps(openai), "tools": json.dumps(tools)}] * 2
    )
    assert load(tmp_path / "t.csv", clients=1).clients[0].examples[0] == first


# -- what is wrong, and what is there twice
# ----------------------------------------------------------------------------


def test_all_bad_lines_are_in_one_report(tmp_path):
    good = [json.dumps(row) for row in ROWS]
    lines = [
        *good,
        '{"prompt": "p"}',
        "no JSON",
        '{"prompt": "p", "completion": null}',
        "[]",
        '{"text": "t"}',
    ]
    (tmp_path / "anna.jsonl").write_text("\n".join(lines))
    (tmp_path / "bert.jsonl").write_text("\n".join([*good, '{"prompt": 3, "completion": "c"}']))
    with pytest.raises(RecipeError) as caught:
        load(tmp_path)
    text = str(caught.value)
    assert text.startswith('6 bad lines (task.on_bad_line = "skip" ignores them): ')
    for part in (
        'anna.jsonl line 21: no "completion"',
        "line 22: not valid JSON",
        'line 23: "completion" = null',
        "line 24: expected a JSON object",
        "line 25: it has text, but",
        "; and 1 more",
    ):
        assert part in text
    data = load(tmp_path, on_bad_line="skip")
    assert (
        data.notes[0].startswith("6 bad lines skipped, the first: ")
        and "anna.jsonl line 21" in data.notes[0]
    )
    assert [len(client.examples) for client in data.clients] == [18, 18]


def test_held_out_examples_that_are_in_the_training_data_are_named(tmp_path):
    write_lines(tmp_path / "train.jsonl", ROWS)
    test = [
        {"prompt": "new", "completion": "x"},
        {"prompt": "q  3", "completion": '"a", 3 and more\n'},
        ROWS[7],
    ]
    write_lines(tmp_path / "test.jsonl", test)
    data = load(tmp_path / "train.jsonl", evaluation_file=str(tmp_path / "test.jsonl"))
    found = data.notes[-1]
    assert found.startswith("2 of 3 held-out examples are also in the training data: ")
    assert f"{tmp_path}/test.jsonl line 2 is {tmp_path}/train.jsonl line 4; " in found
    assert found.endswith(f"{tmp_path}/test.jsonl line 3 is {tmp_path}/train.jsonl line 8")
    write_lines(tmp_path / "test.jsonl", test[:1])
    alone = load(tmp_path / "train.jsonl", evaluation_file=str(tmp_path / "test.jsonl"))
    assert not any("too" in note for note in alone.notes)
