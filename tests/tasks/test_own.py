"""The user's own files: forms, folders, partitions, and messages about what is wrong."""

import json

import pytest

from fedseed.errors import RecipeError
from fedseed.tasks.data import Choice, Example
from fedseed.tasks.own import FilesTask
from fedseed.tasks.partition import IID, ByField, Dirichlet


def load(path, **settings):
    return FilesTask(path=str(path), **settings).load()


def pairs(count, text="q", **more):
    return [{"prompt": f"{text} {i}", "completion": f" a {i}", **more} for i in range(count)]


def one_file(folder, rows, name="data.jsonl"):
    path = folder / name
    as_list = name.endswith(".json")
    path.write_text(json.dumps(rows) if as_list else "".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def example(tmp_path, row, **settings):
    """What a row becomes, of a file with that row only and another to hold out."""
    data = load(one_file(tmp_path, [row, row]), evaluation=0.5, clients=1, **settings)
    assert data.clients[0].examples == list(data.evaluation[""])
    return data.clients[0].examples[0]


def test_each_file_of_a_folder_is_a_client(own_folder):
    folder = own_folder(anna=pairs(30, "anna"), bert=pairs(7, "bert"), cem=pairs(1, "cem"))
    (folder / "notes.txt").write_text("no data")
    data = load(folder)
    assert [(c.name, len(c.examples)) for c in data.clients] == [("anna", 27), ("bert", 6), ("cem", 1)]
    assert all(e.prompt.startswith(c.name) for c in data.clients for e in c.examples)
    assert len(data.evaluation[""]) == 4  # a tenth of each, one at least, but nobody's only example
    prompts = [e.prompt for c in data.clients for e in c.examples] + [e.prompt for e in data.evaluation[""]]
    assert len(set(prompts)) == len(prompts) == 38
    assert data == load(folder) and data.evaluation != load(folder, seed=1).evaluation
    assert data.notes == (
        "34 training, 0 validation and 4 held-out examples (prompt, completion)",
        "3 clients hold 1 to 27 examples",
    )
    tuning = load(folder, validation=0.2, evaluate_on="validation")
    assert tuning.evaluation[""] == tuning.validation and len(tuning.validation) == 7
    assert not {e.prompt for e in tuning.validation} & {e.prompt for e in data.evaluation[""]}


def test_an_evaluation_file_is_no_client(own_folder):
    folder = own_folder(anna=pairs(5, "anna"), bert=pairs(5, "bert"), test=pairs(3, "test"))
    data = load(folder, evaluation_file=str(folder / "test.jsonl"))
    assert [(c.name, len(c.examples)) for c in data.clients] == [("anna", 5), ("bert", 5)]
    assert [e.prompt for e in data.evaluation[""]] == ["test 0", "test 1", "test 2"]


@pytest.mark.parametrize("name", ["data.jsonl", "data.json"])
def test_one_file_is_dealt(tmp_path, name):
    rows = [{"prompt": f"{i}", "completion": "a", "town": ("Bonn", "Ulm", "Kiel")[i % 3]} for i in range(60)]
    path = one_file(tmp_path, rows, name)
    towns = {f"{i}": row["town"] for i, row in enumerate(rows)}
    assert [len(c.examples) for c in load(path).clients] == [11, 11, 11, 11, 10]
    by_town = load(path, partition=ByField(field="town"))
    assert [c.name for c in by_town.clients] == ["Bonn", "Kiel", "Ulm"]
    assert all(towns[e.prompt] == c.name for c in by_town.clients for e in c.examples)
    skewed = load(path, clients=4, label_field="town", partition=Dirichlet(alpha=0.3, minimum=5))
    assert len(skewed.clients) == 4 and min(len(c.examples) for c in skewed.clients) >= 5
    assert all(towns[e.prompt] == label for c in skewed.clients for e, label in zip(c.examples, c.labels, strict=True))
    with pytest.raises(RecipeError, match=r"dirichlet.*name its field with task.label_field"):
        load(path, partition=Dirichlet())
    with pytest.raises(RecipeError, match=r'(line|item) \d+: no "city"'):
        load(path, partition=ByField(field="city"))


def test_the_forms(tmp_path):
    assert example(tmp_path, {"prompt": "P", "completion": "C"}) == Example("P", "C")
    made = example(tmp_path, {"instruction": "Do.", "input": "this", "output": "Done."})
    assert made.response == "Done." and made.prompt.startswith("Below is") and "### Input:\nthis\n" in made.prompt
    short = example(tmp_path, {"instruction": "Do.", "context": "this", "response": "Done."}, template="short")
    assert short == Example("### Instruction:\nDo.\n\n### Input:\nthis\n\n### Response:\n", "Done.")
    without = example(tmp_path, {"instruction": "Do.", "output": "Done."}, template="short")
    assert without.prompt == "### Instruction:\nDo.\n\n### Response:\n"


def test_of_a_chat_the_last_answer_is_learnt(tmp_path):
    turns = [("system", "Be short."), ("user", "Hi"), ("assistant", "Hello"), ("user", "Bye"), ("assistant", "Ciao")]
    messages = [{"role": role, "content": content} for role, content in turns]
    begin = "System: Be short.\n\nUser: Hi\n\nAssistant:"
    made = example(tmp_path, {"messages": messages})
    assert (made.prompt, made.response) == (f"{begin} Hello\n\nUser: Bye\n\nAssistant:", " Ciao")
    made = example(tmp_path, {"messages": messages[:4]})
    assert (made.prompt, made.response) == (begin, " Hello")  # nobody answered the last one


def test_labels_are_chosen_among_all_of_them(own_folder):
    folder = own_folder(
        anna=[{"text": f"t{i}", "label": "good"} for i in range(4)],
        bert=[{"text": f"u{i}", "label": "bad"} for i in range(4)],
    )
    data = load(folder)
    number = data.clients[0].examples[0].prompt[1]
    assert data.clients[0].examples[0] == Choice(f"t{number}\nLabel:", (" bad", " good"), 1)
    given = load(folder, labels=["good", "fair", "bad"])
    assert [(e.options, e.gold) for e in given.clients[1].examples] == [((" good", " fair", " bad"), 2)] * 3
    with pytest.raises(RecipeError, match=r"bert.jsonl line 1: \"label\" = 'bad': task.labels has good, fair"):
        load(folder, labels=["good", "fair"])
    with pytest.raises(RecipeError, match=r"anna.jsonl line 1: all labels are 'good'; there must be two"):
        (folder / "bert.jsonl").unlink()
        load(folder)


def test_a_file_of_labels_is_dealt_by_them(tmp_path):
    path = one_file(tmp_path, [{"text": f"{i}", "label": i % 2} for i in range(40)])
    data = load(path, clients=3, partition=Dirichlet(alpha=0.3, minimum=2))
    assert all(label == str(e.gold) for c in data.clients for e, label in zip(c.examples, c.labels, strict=True))
    by_label = load(path, partition=ByField(field="label"))
    assert [c.name for c in by_label.clients] == ["0", "1"]


def test_examples_without_an_answer_are_left_out_and_counted(own_folder):
    rows = [*pairs(5), {"prompt": "x", "completion": " "}]
    data = load(own_folder(anna=rows, bert=rows))
    assert data.notes[0] == "2 examples left out (nothing to answer)" and len(data.clients[0].examples) == 4
    with pytest.raises(RecipeError, match=r"carl.jsonl: none of its examples has anything to answer"):
        load(own_folder(carl=rows[5:]))


GOOD = json.dumps({"prompt": "p", "completion": "c"})


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            [GOOD, '{"prompt": "p", "completion": '],
            r"anna.jsonl line 2: not valid JSON: Expecting value at column \d+; each",
        ),
        (
            [GOOD, "p"],
            r"anna.jsonl line 2: not valid JSON: Expecting value at column 1; each line must be one JSON object",
        ),
        ([GOOD, "", '["p"]'], r"anna.jsonl line 3: a JSON object is expected, not \['p'\]"),
        ([GOOD, '{"prompt": "p"}'], r'anna.jsonl line 2: no "completion"'),
        ([GOOD, '{"completion": "c"}'], r'anna.jsonl line 2: no "prompt"'),
        ([GOOD, '{"prompt": "p", "completion": 7}'], r'line 2: "completion" = 7: text is expected'),
        (['{"instruction": "i"}'], r'line 1: no "output"'),
        (
            ['{"question": "q", "reply": "r"}'],
            r"line 1: it has question, reply, which is none of the known forms: prompt, ",
        ),
        (["{}"], r"line 1: it has no field, which is none of the known forms"),
        (
            [GOOD, '{"text": "t", "label": "l"}'],
            r"line 2: it has text, label, but .*line 1 has prompt, completion; all lines",
        ),
        ([], r"anna.jsonl: it is empty"),
        (["", " "], r"anna.jsonl: it is empty"),
        (['{"messages": [{"role": "user", "content": "x"}]}'], r'line 1: "messages" has no message of the assistant'),
        (['{"messages": [{"role": "bot", "content": "x"}]}'], r"messages\[0\]: \"role\" = 'bot': one of system, user"),
        (['{"messages": [{"role": "user"}]}'], r'messages\[0\]: no "content"'),
        (['{"messages": "hello"}'], r"line 1: \"messages\" = 'hello': a list is expected"),
        (
            ['{"text": "t", "label": 0.5}'],
            r'line 1: "label" = 0.5: text or a whole number or true or false is expected',
        ),
    ],
)
def test_what_is_wrong_in_a_file_is_named(own_folder, lines, message):
    folder = own_folder(bert=pairs(3))
    (folder / "anna.jsonl").write_text("\n".join(lines))
    with pytest.raises(RecipeError, match=message):
        load(folder)


def test_other_encodings_are_named_with_their_place_and_a_way_out(own_folder):
    folder = own_folder(anna=pairs(3))
    text = f"{GOOD}\n" + json.dumps({"prompt": "Größe?", "completion": "groß"}, ensure_ascii=False)
    (folder / "anna.jsonl").write_bytes(text.encode("latin-1"))
    with pytest.raises(RecipeError) as caught:
        load(folder)
    message = str(caught.value)
    assert "anna.jsonl line 2: not UTF-8 text: byte 0xf6 at the line's byte 15" in message
    assert "if it is Latin-1, convert it: iconv -f ISO-8859-1 -t UTF-8 anna.jsonl > anna.converted && mv " in message
    (folder / "anna.jsonl").write_bytes(text.encode("utf-16"))
    with pytest.raises(RecipeError, match=r"anna.jsonl line 1: not UTF-8.*iconv -f UTF-16 "):
        load(folder)
    (folder / "anna.jsonl").write_bytes(text.replace("\n", "\r\n").encode("utf-8-sig"))  # as editors on Windows do
    assert load(folder).evaluation[""][0].prompt in ("p", "Größe?")


def test_what_a_path_may_be(own_folder, tmp_path):
    with pytest.raises(
        RecipeError, match=r"task.path = .*nowhere.*: there is no such file or folder; give a folder with"
    ):
        load(tmp_path / "nowhere")
    (tmp_path / "other").mkdir()
    with pytest.raises(RecipeError, match=r"has no file for a client \(it has nothing\)"):
        load(tmp_path / "other")
    (tmp_path / "other" / "data.xlsx").write_text("a,b")
    with pytest.raises(RecipeError, match=r"has no file for a client \(it has data.xlsx\)"):
        load(tmp_path / "other")
    with pytest.raises(RecipeError, match=r"data.xlsx: a file that ends in .jsonl, .csv, .* is expected"):
        load(tmp_path / "other" / "data.xlsx")
    with pytest.raises(RecipeError, match=r'task.path = "": it is empty; give a folder'):
        load("")
    folder = own_folder(anna=pairs(3))
    for name, value in (("clients", 3), ("partition", IID()), ("label_field", "x")):
        with pytest.raises(
            RecipeError, match=rf"task.{name}: task.path = .* is a folder, and each file in it is a client"
        ):
            load(folder, **{name: value})
    with pytest.raises(RecipeError, match=r"gone.jsonl: there is no such file"):
        load(folder, evaluation_file=str(folder / "gone.jsonl"))
    with pytest.raises(RecipeError, match=r"nothing is held out to evaluate on; raise task.evaluation, or give"):
        load(folder, evaluation=0.0)
    with pytest.raises(RecipeError, match=r"data.json: not valid JSON"):
        path = tmp_path / "data.json"
        path.write_text("[1,")
        load(path)
    path.write_text("[]")
    with pytest.raises(RecipeError, match=r"data.json: it is empty"):
        load(path)
    path.write_text("[1]")
    with pytest.raises(RecipeError, match=r"data.json item 1: a JSON object is expected, not 1"):
        load(path)
