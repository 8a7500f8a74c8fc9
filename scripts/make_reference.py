"""Writes docs/recipe.md, the reference of a recipe's keys, from the settings' classes.

    python scripts/make_reference.py [--check]

With --check nothing is written: the exit code is 1 if the file is not what it should be.

It also records the defaults of methods' and adapters' settings in tests/orbit/golden/defaults.json.
Orbits leave out what is as by default, so a recorded default may not change: then nothing is
written, and the reason is printed.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from fedseed.methods import METHODS
from fedseed.models.adapters import AnyAdapter
from fedseed.privacy import PrivacySettings
from fedseed.recipe.keys import Key, list_keys, possible_models
from fedseed.recipe.settings import Recipe
from fedseed.text import flat

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docs" / "recipe.md"
DEFAULTS = ROOT / "tests" / "orbit" / "golden" / "defaults.json"
BEGINNING = """# Recipe reference

<!-- made by scripts/make_reference.py: change the settings' docstrings, then run it again -->

Every key that a recipe may have: its type, its default, its meaning, and the method, task or kind of table that has
it. `fedseed explain KEY` shows the same in a terminal, also for keys of plug-ins; `fedseed new DIR` writes a recipe to
begin with. A key is given in its table (`[method.training]`, then `learning_rate = 0.1`), or on the command line
(`--set method.training.learning_rate=0.1`).

An unknown key is an error, and so is a value of another type. Numbers are finite. Whole numbers are at most
4,294,967,295; seeds go up to 2^64 - 1. Relative paths begin in the recipe's folder or, if nothing is there, in the
current folder; those of `--set` begin in the current folder.
"""
TABLES = {
    "": "These keys come before the first table.",
    "model": "The base, its device and precision, what of it is trained.",
    "task": "The data. `task.name` chooses one of the tasks below.",
    "federation": "The clients of a round, and the network.",
    "method": "The method. `method.name` chooses one of the methods below.",
    "aggregation": "How the answers of a round are combined. What a robust rule costs: "
    "docs/robustness.md.",
    "bounds": "How far a client's update, or a step, may differ from others (docs/trust.md).",
    "privacy": "Noise for privacy ([privacy](privacy.md)). Without this table only "
    "DP-FeedSign is private.",
    "secure_sums": "Sums in place of answers (docs/secure-sums.md). Without this table the "
    "coordinator reads each answer.",
    "attack": "Byzantine clients, in simulation. Without this table there are none.",
    "reward": "Rewards of generated answers in place of a loss (docs/evolution.md). Without this "
    "table there are none.",
    "evaluation": "When and how the model is evaluated.",
    "stopping": "Early stopping. Without this table there is none.",
    "tracking[]": "Further places for metrics: one `[[tracking]]` for each.",
}

# Each table's keys stand in three groups. What is in neither list is an expert's: a new key needs
# no line here.
EVERYBODY = """
    title seed rounds model.base model.device model.dtype model.trainable model.adapter.kind model.adapter.rank
    task.name task.path task.clients task.examples task.evaluation task.partition.kind task.partition.alpha
    federation.per_round federation.fraction federation.clients federation.nats federation.key federation.ca
    method.name method.learning_rate method.batch method.steps method.directions method.training.optimizer
    method.training.learning_rate method.training.steps method.training.epochs method.training.batch
    aggregation.name aggregation.liars privacy.level privacy.clip privacy.noise privacy.budget
    secure_sums.threshold reward.name reward.function evaluation.every evaluation.max_new_tokens
    stopping.patience tracking[].name tracking[].project
"""
PAPERS = """
    task.families_per_client task.unseen task.evaluate_on task.families task.prompt task.max_input_chars
    task.fraction task.test_category task.k
    task.scrambled task.classes method.scalars method.allocation method.exact method.streaming
    method.blocks method.weighting method.basis_rank method.basis_size method.importance method.importance_clip
    method.normalize method.horizon method.divide_by method.decay method.estimator method.estimates
    method.travel method.combine method.personal method.alpha method.block_rate method.every
    aggregation.iterations aggregation.smoothing secure_sums.masks attack.kind attack.clients attack.strength
"""
GROUPS = ("What everybody sets:", "What an expert sets:", "What a paper needs:")


def main() -> int:
    """Write the file, or say whether it is up to date."""
    text = reference()
    if problems := changed_defaults():
        print("\n".join(problems), file=sys.stderr)
        return 1
    if "--check" in sys.argv[1:]:
        return 0 if FILE.read_text(encoding="utf-8") == text else 1
    FILE.write_text(text, encoding="utf-8")
    DEFAULTS.write_text(json.dumps(defaults(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 0


def changed_defaults() -> list[str]:
    """Returns a line for each recorded setting that orbits leave out and that does not mean the
    same any more.
    """
    now = defaults()
    lines = []
    for name, settings in json.loads(DEFAULTS.read_text(encoding="utf-8")).items():
        for key, value in settings.items():
            found = now.get(name, {}).get(key, "gone")
            if found != value:
                lines.append(
                    f"{name}.{key} was {value!r} by default and is {found!r}. Orbits that leave it "
                    f"out mean {value!r}, "
                    "so they would be replayed to other weights, or not be read: keep it, and call "
                    "a new setting by "
                    "another name; or raise FORMAT in orbit/header.py, and let decode() fill it in "
                    "for older orbits."
                )
    return lines


def defaults() -> dict[str, dict[str, Any]]:
    """Returns the defaults of all settings that an orbit's header may have, by class and key."""
    found: dict[str, dict[str, Any]] = {}
    for kind in _with_tables([*METHODS, *possible_models(AnyAdapter, ()), PrivacySettings]):
        table: dict[str, Any] = {}
        for key, field in kind.model_fields.items():
            if not field.is_required() and field.json_schema_extra is None:  # internal ones have it
                value = field.get_default(call_default_factory=True)
                table[key] = (
                    value.model_dump(mode="json") if isinstance(value, BaseModel) else value
                )
        found[kind.__name__] = flat(table)
    return found


def _with_tables(kinds: list[type[BaseModel]]) -> Iterator[type[BaseModel]]:
    for kind in kinds:
        yield kind
        for field in kind.model_fields.values():
            yield from _with_tables(possible_models(field.annotation, field.metadata))


def reference() -> str:
    """The whole page."""
    # by what they are called: several methods or tasks may have one
    keys: dict[str, list[Key]] = {}
    for key in list_keys(Recipe):
        keys.setdefault(key.key, []).append(key)
    parts = [BEGINNING]
    for table in dict.fromkeys(_table(same[0]) for same in keys.values()):
        several = table.endswith("[]")
        heading = f"[[{table[:-2]}]]" if several else f"[{table}]" if table else "Outside of tables"
        parts.append(f"## {heading}\n\n{TABLES[table]}\n")
        for number, group in enumerate(GROUPS):
            rows = [
                _row(same)
                for same in keys.values()
                if _table(same[0]) == table and _group(same[0].key) == number
            ]
            if rows:
                head = "| key | type | default | meaning |\n|---|---|---|---|"
                parts.append("\n".join([group, "", head, *rows, ""]))
    return "\n".join(parts)


def _table(key: Key) -> str:
    """Returns a key's first part, "" of one that stands outside of tables."""
    return key.key.partition(".")[0] if "." in key.key else ""


def _group(key: str) -> int:
    return 0 if key in EVERYBODY.split() else 2 if key in PAPERS.split() else 1


def _row(same: list[Key]) -> str:
    """Returns the row of a key, with what differs between its tables."""
    table = _table(same[0])
    name = same[0].key.removeprefix(f"{table}.") if table else same[0].key
    about = [
        f"{key.meaning.rstrip('.')}.{f' *{_whose(key)}*' if key.owners else ''}" for key in same
    ]
    cells = (
        f"`{name}`",
        _each([key.kind for key in same], same),
        _each(list(map(_default, same)), same),
        " ".join(about),
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _each(cells: list[str], same: list[Key]) -> str:
    """Returns what all say, or what each says and of what."""
    if len(set(cells)) == 1:
        return cells[0]
    return "; ".join(f"{cell} (*{_whose(key)}*)" for cell, key in zip(cells, same, strict=True))


def _whose(key: Key) -> str:
    return ", ".join(key.owners)


def _default(key: Key) -> str:
    return key.default if key.default in ("must be given", "not set") else f"`{key.default}`"


if __name__ == "__main__":
    sys.exit(main())
