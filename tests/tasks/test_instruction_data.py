"""Dolly-15k, Alpaca, CodeAlpaca and GSM8K from files in their original form."""

import sys
from collections import Counter

import pytest

from fedseed.errors import RecipeError
from fedseed.tasks import REGISTRY
from fedseed.tasks.instruction_data import LANGUAGES
from fedseed.tasks.partition import ByField, Dirichlet, Quantity

SMALL = {"dolly-15k": {"clients": 4, "partition": Dirichlet(alpha=0.5, minimum=3)}}
WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further "
    "context. Write a "
    "response that appropriately completes the request.\n\n### Instruction:\n{}\n\n### "
    "Input:\n{}\n\n### Response:"
)
WITHOUT = (
    "Below is an instruction that describes a task. Write a response that appropriately completes "
    "the request.\n\n"
    "### Instruction:\n{}\n\n### Response:"
)


def load(name, path, **settings):
    return REGISTRY.get(name)(path=str(path), **{**SMALL.get(name, {}), **settings}).load()


def pairs(*parts):
    return [(e.prompt, e.response) for part in parts for e in part]


def everything(data):
    return pairs(
        *(client.examples for client in data.clients), data.validation, data.evaluation[""]
    )


def test_dollys_last_category_is_evaluated_on_and_nobody_holds_it(instruction_data):
    path = instruction_data["dolly-15k"]()
    data = load("dolly-15k", path)
    assert len(data.evaluation[""]) == 12 and all(
        "summarization" in e.prompt for e in data.evaluation[""]
    )
    labels = Counter(label for client in data.clients for label in client.labels)
    assert (
        len(labels) == 7
        and "summarization" not in labels
        and sum(labels.values()) == 84 - len(data.validation)
    )
    for client in data.clients:
        assert len(client.labels) == len(client.examples) >= 3
        assert all(
            f"{label} " in e.prompt for label, e in zip(client.labels, client.examples, strict=True)
        )
    assert len(set(everything(data))) == 96  # a partition: nothing twice, nothing lost
    prompts = {e.prompt for e in data.evaluation[""]}
    paired = {WITH_INPUT.format(f"summarization {i}?", f"About {i}.") for i in range(1, 12, 2)}
    assert prompts == paired | {WITHOUT.format(f"summarization {i}?") for i in range(0, 12, 2)}
    assert data.scores == ("rouge_l",)
    assert data.notes[:2] == (
        "no client holds category summarization",
        "0 of 96 examples left out (no response)",
    )


def test_dollys_prompt_as_the_papers_fill_it(instruction_data):
    path = instruction_data["dolly-15k"]()
    ours, theirs = (
        everything(load("dolly-15k", path, prompt=prompt)) for prompt in ("alpaca", "paper")
    )
    opening = WITH_INPUT.partition("\n\n")[0]
    assert all(prompt.startswith(opening) for prompt, _ in theirs)
    without = [prompt for prompt, _ in theirs if "### Input:" not in prompt]
    assert without and len(without) == sum(
        prompt.startswith(WITHOUT.partition("\n\n")[0]) for prompt, _ in ours
    )
    strip = lambda pairs: sorted((p.partition("\n\n")[2], r) for p, r in pairs)  # noqa: E731
    assert strip(ours) == strip(theirs)


def test_alpaca(instruction_data):
    data = load("alpaca", instruction_data["alpaca"](count=200))
    assert [len(c.examples) for c in data.clients] == [66, 65, 65]
    assert (len(data.validation), len(data.evaluation[""])) == (2, 2)
    assert set(everything(data)) == {(WITHOUT.format(f"Say {i}."), f"{i}") for i in range(200)}
    assert all(not client.labels for client in data.clients)
    data = load("alpaca", instruction_data["alpaca"](count=200, input="now"))
    assert (WITH_INPUT.format("Say 7.", "now"), "7") in everything(data)
    path = instruction_data["alpaca"](count=200)
    path.write_text(path.read_text().replace('"output": "7"', '"output": ""'))
    # the folder will do
    assert "1 of 200 examples left out (no response)" in load("alpaca", path.parent).notes


def test_code_alpacas_languages_are_clients(instruction_data):
    path = instruction_data["code-alpaca"](each=20)
    data = load("code-alpaca", path, validation=0.0)
    assert [c.name for c in data.clients] == sorted(LANGUAGES)
    assert len(data.evaluation[""]) == 18  # 10% of nine languages
    assert all(set(c.labels) == {c.name} for c in data.clients)
    for client in data.clients:
        assert all(f"### Input:\n{client.name}\n" in prompt for prompt, _ in pairs(client.examples))
    assert not any("\u00a0" in response for _, response in everything(data))
    assert not any("X86" in prompt for prompt, _ in everything(data))
    assert data.notes[0] == "20 of 200 examples left out (X86-64 Assembly)"
    three = load("code-alpaca", path, clients=3, partition=Dirichlet(alpha=0.5))
    assert len(three.clients) == 3 and set(three.clients[0].labels) <= set(LANGUAGES)


def test_gsm8ks_test_file_is_evaluated_on(instruction_data):
    folder = instruction_data["gsm8k"](train=100)
    data = load("gsm8k", folder)
    assert [len(c.examples) for c in data.clients] == [33, 33, 32] and len(data.validation) == 2
    assert (
        all("\ntest: " in e.prompt for e in data.evaluation[""]) and len(data.evaluation[""]) == 6
    )
    assert data.evaluation[""][2].response == "It is 2+2 = <<2+2=4>>4.\n#### 4"
    assert data.scores == ("rouge_l", "final_number")
    assert load("gsm8k", folder / "train.jsonl") == data  # the test file lies beside it
    (folder / "test.jsonl").unlink()
    for path in (folder, folder / "train.jsonl"):
        with pytest.raises(
            RecipeError,
            match=r"the folder does not have test.jsonl; give the folder with train.jsonl and te",
        ):
            load("gsm8k", path)


@pytest.mark.parametrize("name", ["dolly-15k", "alpaca", "code-alpaca", "gsm8k"])
def test_settings_that_all_share(name, instruction_data):
    path = instruction_data[name]()
    data = load(name, path)
    assert data == load(name, path)
    assert everything(load(name, path, seed=1)) != everything(data)
    tuning = load(name, path, evaluate_on="validation", validation=0.1)
    assert tuning.evaluation[""] == tuning.validation and 0 < len(tuning.validation) < 10
    assert not set(pairs(tuning.validation, *(c.examples for c in tuning.clients))) & set(
        pairs(data.evaluation[""])
    )
    few = load(name, path, examples=20, evaluation=1)
    assert sum(len(c.examples) for c in few.clients) == 20 and len(few.evaluation[""]) == 1
    assert few.validation == data.validation  # fewer training examples leave the rest as it was
    with pytest.raises(
        RecipeError, match=r'evaluate_on = "validation": task.validation = 0 leaves no examples'
    ):
        load(name, path, evaluate_on="validation", validation=0.0)
    with pytest.raises(
        RecipeError,
        match=r'partition.field = "colour": "[a-z0-9-]+" has ("[a-z]+"|no fields for a partition)',
    ):
        load(name, path, partition=ByField(field="colour"))
    assert len(load(name, path, clients=2, partition=Quantity()).clients) == 2


def test_what_can_not_be_found_says_what_to_give(tmp_path, monkeypatch):
    with pytest.raises(
        RecipeError, match=r'task.path = "./nowhere": there is no such file or folder; give '
    ):
        load("gsm8k", "./nowhere")
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if it were not installed
    with pytest.raises(RecipeError, match=r"no such file or folder here.*pip install '.\[hub\]'"):
        load("gsm8k", "someone/somewhat")
    (tmp_path / "train-00000-of-00001.parquet").write_bytes(b"")
    with pytest.raises(RecipeError, match=r"reading parquet files needs the datasets library"):
        load("gsm8k", tmp_path)


def test_rows_from_the_hub(tmp_path):
    """Through the real library, from a folder in the hub's form."""
    pytest.importorskip("datasets")
    import pyarrow
    from pyarrow import parquet

    def write(split, answers):
        rows = [{"question": f"{split} {i}", "answer": answer} for i, answer in enumerate(answers)]
        parquet.write_table(
            pyarrow.Table.from_pylist(rows), tmp_path / f"{split}-00000-of-00001.parquet"
        )

    write("train", ["#### 4"] * 12)
    write("test", ["#### 5"] * 3)
    data = load("gsm8k", tmp_path)
    assert len(data.evaluation[""]) == 3 and sum(len(c.examples) for c in data.clients) == 11
    write("train", ["#### 4"] * 4 + ["none"])
    with pytest.raises(RecipeError, match=r'\(train\) row 5: "answer" must end in'):
        load("gsm8k", tmp_path)
