"""Writes small data sets of instructions in their original forms."""

import json


def write_lines(path, rows):
    """Write a jsonl file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8"
    )
    return path


def write_clients(folder, **clients):
    """Write a jsonl file for each client, by its name and rows, and return the folder."""
    for name, of_client in clients.items():
        write_lines(folder / f"{name}.jsonl", of_client)
    return folder


def rows(name, count):
    """Prompts that say whose they are, each with a digit to answer."""
    return [{"prompt": f"{name} {i}:", "completion": f" {i * 7 % 10}"} for i in range(count)]


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
                "Instance License": ["Unknown"],
                "Positive Examples": [{"input": "a", "output": "b", "explanation": "c"}],
                "Negative Examples": [],
                "Instances": [
                    {"id": f"{name}-{i}", "input": x, "output": y} for i, (x, y) in enumerate(rows)
                ],
            }
            (folder / "tasks" / f"{name}.json").write_text(json.dumps(content, indent=4))
    return folder


def numbered(count, text):
    return [(f"{text}, number {i}", [f"answer {i}", "second"]) for i in range(count)]


CATEGORIES = (
    "brainstorming",
    "classification",
    "closed_qa",
    "creative_writing",
    "general_qa",
    "information_extraction",
    "open_qa",
    "summarization",
)


def write_dolly(folder, each=12):
    """Write databricks-dolly-15k.jsonl, so many rows of each category in turn, and return the
    file.
    """
    rows = [
        {
            "instruction": f"{c} {i}?",
            "context": f"About {i}." if i % 2 else "",
            "response": f"So {i}.",
            "category": c,
        }
        for i in range(each)
        for c in reversed(CATEGORIES)
    ]
    return write_lines(folder / "databricks-dolly-15k.jsonl", rows)


def write_alpaca(folder, count=40, input=""):
    """Write alpaca_data.json, a list with an object per example, and return the file."""
    path = folder / "alpaca_data.json"
    rows = [{"instruction": f"Say {i}.", "input": input, "output": f"{i}"} for i in range(count)]
    path.write_text(json.dumps(rows, indent=4), encoding="utf-8")
    return path


LANGUAGES = ("C", "C#", "C++", "Go", "Java", "PHP", "Pascal", "Python", "Scala", "X86-64 Assembly")


def write_code_alpaca(folder, each=6):
    """Write rosetta_alpaca.json, in which the language is the input, and return the file."""
    path = folder / "rosetta_alpaca.json"
    said = [(i, language) for i in range(each) for language in LANGUAGES]
    rows = [
        {"instruction": f"Print {i}.", "input": name, "output": f"print\u00a0{i}"}
        for i, name in said
    ]
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def write_gsm8k(folder, train=30, test=6):
    """Write a folder in the form of GSM8K: train.jsonl and test.jsonl."""
    for name, count in (("train", train), ("test", test)):
        answers = [
            f"It is {i}+{i} = <<{i}+{i}={2 * i}>>{2 * i}.\n#### {2 * i}" for i in range(count)
        ]
        rows = [
            {"question": f"{name}: {i} and {i}?", "answer": answer}
            for i, answer in enumerate(answers)
        ]
        write_lines(folder / f"{name}.jsonl", rows)
    return folder


WRITERS = {
    "dolly-15k": write_dolly,
    "alpaca": write_alpaca,
    "code-alpaca": write_code_alpaca,
    "gsm8k": write_gsm8k,
}
