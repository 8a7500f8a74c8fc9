"""What private runs tell: their data, and what of files and messages is compared."""

import json
import re
from collections import defaultdict
from pathlib import Path

import torch

PAGE = Path(__file__).parents[2] / "docs" / "trust.md"
CLIENTS = 4


def data(kind):
    """Clients' examples: of one kind all alike, of the other none, few, many, and one whose losses
    are no numbers.
    """
    g = torch.Generator().manual_seed({"plain": 1, "odd": 2}[kind])
    sizes = {"plain": [40] * CLIENTS, "odd": [40, 0, 9, 130]}[kind]
    made = []
    for size in sizes:
        x = torch.randn(size, 10, generator=g) * {"plain": 1, "odd": 3}[kind]
        made.append([(row, torch.tensor(int(row.sum() > 0))) for row in x])
    if kind == "odd":
        made[0] = [(row * float("nan"), y) for row, y in made[0]]
    return made


def fields(value, prefix=""):
    """The fields of a JSON value, those of tables and of lists' members with dots."""
    if isinstance(value, dict):
        for key, inner in value.items():
            name = f"{prefix}{'NAME' if re.fullmatch('client-[0-9]+', key) else key}"
            yield from (
                fields(inner, f"{name}.") if isinstance(inner, dict | list) and inner else [name]
            )
    elif isinstance(value, list):
        for inner in value:
            yield from fields(inner, prefix) if isinstance(inner, dict) else [prefix.rstrip(".")]
    else:
        yield prefix.rstrip(".")


CHANCE = {
    "epoch",
    "at",
    "seconds",
    "seconds_per_client",
    "began",
    "started",
    "ended",
    "peak_memory_bytes",
    "waits",
    "memory_bytes",
    "command",
    "refused",
    "refusals",  # a plan goes out once more where all is slow
}


def still(value):
    """A JSON value without what time and chance alone decide."""
    if isinstance(value, dict):
        return {key: still(inner) for key, inner in value.items() if key not in CHANCE}
    return [still(inner) for inner in value] if isinstance(value, list) else value


def listed(page=PAGE):
    """The tables of a page: fields by place."""
    part = (
        page.read_text(encoding="utf-8")
        .split("<!-- told: begin -->")[1]
        .split("<!-- told: end -->")[0]
    )
    found = defaultdict(set)
    for line in part.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:]]
        if cells and cells[0].startswith("`"):
            found[cells[0].strip("`")] |= set(re.findall(r"`([^`]+)`", cells[1]))
    return found


def in_files(folder):
    """Fields by file of a run's folder; none of what is no table of them."""
    found = {}
    for file in sorted(folder.iterdir()):
        text = file.read_text(encoding="utf-8") if file.suffix in (".jsonl", ".json") else ""
        found[file.name] = set()
        if file.suffix == ".jsonl":
            found[file.name] = {
                field for line in text.splitlines() for field in fields(json.loads(line))
            }
        elif file.name == "summary.json":
            found[file.name] = set(fields(json.loads(text)))
    return found


def contents(folder):
    """The files of a run, without what time and chance alone decide.

    Report.html shows the others.
    """
    found = {}
    for file in sorted(folder.iterdir()):
        if file.suffix == ".jsonl":
            found[file.name] = [still(json.loads(line)) for line in file.read_text().splitlines()]
        elif file.name == "summary.json":
            found[file.name] = still(json.loads(file.read_text()))
        elif file.name == "log.txt":
            lines = [line.split(" ", 1)[1] for line in file.read_text().splitlines()]
            # an answer to a plan that went out once more comes too late, where all is slow
            busy = ("began", "note    waiting for clients", "warning a message of")
            found[file.name] = [line for line in lines if not line.startswith(busy)]
        elif file.suffix == ".html":
            found[file.name] = None
        else:
            found[file.name] = file.read_bytes()
    return found
