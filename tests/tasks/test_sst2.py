import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedseed.errors import RecipeError
from fedseed.tasks.data import Choice
from fedseed.tasks.mezo import SST2Task

SIZES = {"examples": 30, "validation": 10, "evaluation": 12}


def load(folder, **changed):
    return SST2Task(path=str(folder), **{**SIZES, **changed}).load()


def test_mezos_prompt_and_words(sst2):
    folder = sst2()
    (folder / "dev.tsv").write_text('sentence\tlabel\n"quoted" , \u2028and odd \t1\nbad . \t0\n', encoding="utf-8")
    found = sorted(load(folder).evaluation[""], key=lambda c: c.gold)
    options = (" terrible", " great")
    assert found == [Choice("bad . It was", options, 0), Choice('"quoted" , \u2028and odd It was', options, 1)]


@pytest.fixture
def folder(sst2):
    return sst2()


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(clients=st.integers(1, 30), examples=st.integers(30, 50), validation=st.integers(1, 10), seed=st.integers(0, 99))
def test_nobody_shares_an_example_and_none_is_lost(folder, clients, examples, validation, seed):
    data = load(folder, clients=clients, examples=examples, validation=validation, seed=seed)
    held = [[e.prompt for e in c.examples] for c in data.clients]
    everything = [p for prompts in held for p in prompts] + [e.prompt for e in data.validation]
    assert len(everything) == len(set(everything)) == examples + validation
    assert len(held) == clients and max(map(len, held)) - min(map(len, held)) <= 1
    assert all(p.startswith("train") for p in everything)
    assert all(e.prompt.startswith("dev") for e in data.evaluation[""])


def test_jsonl_gives_the_same(sst2, tmp_path):
    folder = sst2()
    other = tmp_path / "jsonl"
    other.mkdir()
    for source, target in (("train.tsv", "train.jsonl"), ("dev.tsv", "validation.jsonl")):
        lines = (folder / source).read_text().splitlines()[1:]
        pairs = [line.split("\t") for line in lines]
        text = "".join(json.dumps({"sentence": s, "label": int(y), "idx": i}) + "\n" for i, (s, y) in enumerate(pairs))
        (other / target).write_text(text)
    assert load(other) == load(folder)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("train.tsv", "sentence\tlabel\ngood \t1\nbad\n", r"train.tsv line 3: 1 columns, the header has 2: sentence"),
        ("train.tsv", "text\tlabel\ngood \t1\n", r'train.tsv line 2: no "sentence"'),
        ("train.tsv", "sentence\tlabel\ngood \t2\n", r"train.tsv line 2: \"label\" = '2': 0 or 1 is expected"),
        ("train.tsv", "sentence\tlabel\n", r"train.tsv: it has no row"),
        ("train.tsv", "", r"train.tsv: it is empty"),
        ("dev.tsv", "index\tsentence\n0\tgood\n", r'dev.tsv line 2: no "label"'),
    ],
)
def test_what_is_wrong_in_a_file_is_named(sst2, name, text, message):
    folder = sst2()
    (folder / name).write_text(text)
    with pytest.raises(RecipeError, match=message):
        load(folder)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"sentence": "x"', r"dev.jsonl line 2: not valid JSON"),
        ("[1]", r"dev.jsonl line 2: a JSON object is expected, not \[1\]"),
        ('{"sentence": "x", "label": true}', r'"label" = true: text or a whole number is expected'),
        ('{"sentence": "x", "label": -1}', r'"label" = -1: 0 or 1 is expected'),
    ],
)
def test_what_is_wrong_in_a_jsonl_is_named(sst2, line, message):
    folder = sst2()
    (folder / "dev.tsv").unlink()
    (folder / "dev.jsonl").write_text('{"sentence": "fine", "label": 1}\n' + line + "\n")
    with pytest.raises(RecipeError, match=message):
        load(folder)


def test_missing_files_and_too_few_rows(sst2, tmp_path):
    with pytest.raises(RecipeError, match=r"task.path = .*nowhere.*no such folder; .*SST-2"):
        load(tmp_path / "nowhere")
    folder = sst2()
    with pytest.raises(
        RecipeError, match=r"task.examples = 55 and task.validation = 10: 65 rows are needed, .* has 60"
    ):
        load(folder, examples=55)
    with pytest.raises(RecipeError, match=r"task.clients = 31: 30 examples are not enough"):
        load(folder, clients=31)
    (folder / "dev.tsv").unlink()
    with pytest.raises(RecipeError, match=r"the folder has no dev.tsv or dev.jsonl or validation.jsonl"):
        load(folder)


def test_a_choice_has_its_right_option():
    with pytest.raises(ValueError, match="gold = 2: there are 2 options"):
        Choice("x", ("a", "b"), 2)
