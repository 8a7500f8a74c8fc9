import json
import os

os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # as the command line sets it; before torch is imported

import pytest
import torch

# Without a GPU, Triton's interpreter stands in for one. Triton reads this when a module with kernels is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def small():
    """The project's small base and its tokenizer; do not train this one."""
    from fedseed.models import load_model

    return load_model("small")


def write_natural_instructions(folder, train=None, test=None):
    """Write a folder in the form of Natural Instructions v2.8.

    Args:
        folder: to write into.
        train: instances of each train task by name, each (input, outputs).
        test: the same for test tasks.
    """
    tasks = {
        "train": train or {f"task{n:03d}_copy": numbered(25 + n, f"train {n}") for n in range(3)},
        "test": test or {"task900_test": numbered(30, "test")},
    }
    (folder / "splits" / "default").mkdir(parents=True)
    (folder / "tasks").mkdir()
    for split, of_split in tasks.items():
        names = "".join(f"{name}\n" for name in of_split)
        (folder / "splits" / "default" / f"{split}_tasks.txt").write_text(names)
        for name, rows in of_split.items():
            content = {
                "Contributors": ["nobody"],
                "Source": ["made by a test"],
                "Categories": ["Text Completion"],
                "Definition": [f"Do what {name} says.", "Another wording."],
                "Positive Examples": [{"input": "a", "output": "b", "explanation": "c"}],
                "Negative Examples": [],
                "Instances": [{"id": f"{name}-{i}", "input": x, "output": y} for i, (x, y) in enumerate(rows)],
                "Instance License": ["Unknown"],
            }
            (folder / "tasks" / f"{name}.json").write_text(json.dumps(content, indent=4))
    return folder


def numbered(count, text):
    return [(f"{text}, number {i}", [f"answer {i}", "second"]) for i in range(count)]


def write_sst2(folder, train=60, dev=20):
    """Write a folder in the form of GLUE's SST-2: a header, then sentence, tab, label."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count, end in (("train", train, " "), ("dev", dev, "")):  # the original's train sentences end in a space
        rows = "".join(f"{name} film {i} is so-so{end}\t{i % 2}\n" for i in range(count))
        (folder / f"{name}.tsv").write_text("sentence\tlabel\n" + rows)
    (folder / "test.tsv").write_text("index\tsentence\n0\tno label here\n")
    return folder


@pytest.fixture
def natural_instructions(tmp_path):
    """Writes a small Natural Instructions folder and returns it."""
    return lambda **tasks: write_natural_instructions(tmp_path / "natural-instructions-2.8", **tasks)


@pytest.fixture
def sst2(tmp_path):
    """Writes a small SST-2 folder and returns it."""
    return lambda **counts: write_sst2(tmp_path / "SST-2", **counts)
