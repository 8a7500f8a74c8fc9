"""Writes the reference of a recipe's keys from the settings' classes: docs/recipe.md, and a page in
docs/recipe for each table.

    python scripts/make_reference.py [--check]

With --check nothing is written: the exit code is 1 if a page is not up to date.

It also records the defaults of methods' and adapters' settings in tests/orbit/golden/defaults.json.
Orbits leave out what is as by default, so a recorded default may not change: then nothing is
written, and the reason is printed.
"""

import json
import re
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
DOCS = ROOT / "docs"
DEFAULTS = ROOT / "tests" / "orbit" / "golden" / "defaults.json"
MADE = (
    "<!-- made by scripts/make_reference.py: change the settings' docstrings, then run it again -->"
)
BEGINNING = f"""# Recipe reference

{MADE}

Each table of a recipe has a page. It lists every key of the table: its type, its default, its meaning, and the method,
task or kind of table to which it belongs. `fedseed explain KEY` shows the same in a terminal, also for keys of plug-ins; `fedseed new DIR` writes a recipe to
begin with. A key is given in its table (`[method.training]`, then `learning_rate = 0.1`), or on the command line
(`--set method.training.learning_rate=0.1`).

An unknown key is an error, and so is a value of another type. Numbers are finite. Whole numbers are at most
4,294,967,295; seeds go up to 2^64 - 1. Relative paths begin in the recipe's folder or, if nothing is there, in the
current folder; those of `--set` begin in the current folder.
"""
TABLES = {
    "": "Keys that come before the first table.",
    "model": "The base, its device and precision, and the weights that are trained.",
    "task": "The data. `task.name` selects the task.",
    "federation": "The clients of a round, and the network.",
    "method": "The method. `method.name` selects it.",
    "aggregation": "How the answers of a round are combined ([what a robust rule costs](robustness.md)).",
    "bounds": "How far a client or a step may be from the others ([trust](trust.md)).",
    "privacy": "Noise for privacy ([privacy](privacy.md)). Without this table, only DP-FeedSign adds "
    "noise.",
    "secure_sums": "The coordinator sees only sums of answers ([secure sums](secure-sums.md)). "
    "Without this table it reads each answer.",
    "attack": "Byzantine clients, in a simulation. Without this table there are none.",
    "reward": "Rewards of generated answers in place of a loss ([rewards](evolution.md)). Without "
    "this table the loss is used.",
    "evaluation": "When and how the model is evaluated.",
    "stopping": "Early stopping. Without this table there is none.",
    "tracking[]": "Other places for metrics ([watching runs](tracking.md)): one `[[tracking]]` for "
    "each place.",
}

# Each table's keys are in three groups. A key in neither list is for experts, so a new key needs no
# line here.
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
GROUPS = ("Common keys", "Keys for experts", "Keys that the papers need")


def main() -> int:
    """Write the pages, or check whether they are up to date. Return the exit code."""
    pages = reference_pages()
    if problems := changed_defaults():
        print("\n".join(problems), file=sys.stderr)
        return 1
    if "--check" in sys.argv[1:]:
        return 1 if outdated_pages(pages) else 0
    for name in outdated_pages(pages):
        if name in pages:
            (DOCS / name).parent.mkdir(exist_ok=True)
            (DOCS / name).write_text(pages[name], encoding="utf-8")
        else:
            (DOCS / name).unlink()
    DEFAULTS.write_text(json.dumps(defaults(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 0


def outdated_pages(pages: dict[str, str]) -> list[str]:
    """Return the names of pages whose files are missing, differ, or belong to no table any more.

    Args:
        pages: the text of each page, by its path in docs/.
    """
    files = [DOCS / "recipe.md", *(DOCS / "recipe").glob("*.md")]
    stored = {
        file.relative_to(DOCS).as_posix(): file.read_text(encoding="utf-8")
        for file in files
        if file.exists()
    }
    return sorted(name for name in {*pages, *stored} if pages.get(name) != stored.get(name))


def changed_defaults() -> list[str]:
    """Return a line for each recorded setting that orbits leave out and whose default has changed."""
    now = defaults()
    lines = []
    for name, settings in json.loads(DEFAULTS.read_text(encoding="utf-8")).items():
        for key, value in settings.items():
            current = now.get(name, {}).get(key, "gone")
            if current != value:
                lines.append(
                    f"{name}.{key} was {value!r} by default and is {current!r}. Orbits that leave it "
                    f"out mean {value!r}, "
                    "so they would be replayed to other weights, or not be read: keep it, and call "
                    "a new setting by "
                    "another name; or raise FORMAT in orbit/header.py, and let decode() fill it in "
                    "for older orbits."
                )
    return lines


def defaults() -> dict[str, dict[str, Any]]:
    """Return the defaults of all settings that an orbit's header may have, by class and key."""
    settings: dict[str, dict[str, Any]] = {}
    for kind in _with_tables([*METHODS, *possible_models(AnyAdapter, ()), PrivacySettings]):
        table: dict[str, Any] = {}
        for key, field in kind.model_fields.items():
            if not field.is_required() and field.json_schema_extra is None:  # internal ones have it
                value = field.get_default(call_default_factory=True)
                table[key] = (
                    value.model_dump(mode="json") if isinstance(value, BaseModel) else value
                )
        settings[kind.__name__] = flat(table)
    return settings


def _with_tables(kinds: list[type[BaseModel]]) -> Iterator[type[BaseModel]]:
    for kind in kinds:
        yield kind
        for field in kind.model_fields.values():
            yield from _with_tables(possible_models(field.annotation, field.metadata))


def reference_pages() -> dict[str, str]:
    """Return the text of each page, by its path in docs/."""
    # several methods or tasks may have a key of the same name
    keys: dict[str, list[Key]] = {}
    for key in list_keys(Recipe):
        keys.setdefault(key.key, []).append(key)
    pages, rows = {}, []
    for table in dict.fromkeys(_table(same[0]) for same in keys.values()):
        same_table = [same for same in keys.values() if _table(same[0]) == table]
        name = table.removesuffix("[]") or "run"
        pages[f"recipe/{name}.md"] = _table_page(table, same_table)
        rows.append(
            f"| [{_title(table)}](recipe/{name}.md) | {len(same_table)} | {TABLES[table]} |"
        )
    overview = ["| table | keys | purpose |", "|---|---|---|", *rows, ""]
    return {"recipe.md": BEGINNING + "\n" + "\n".join(overview), **pages}


def _title(table: str) -> str:
    if not table:
        return "outside of tables"
    if table.endswith("[]"):
        return f"`[[{table[:-2]}]]`"
    return f"`[{table}]`"


def _table_page(table: str, keys: list[list[Key]]) -> str:
    """Return the page of one table, with its keys in groups."""
    title = _title(table)
    heading = f"Recipe: keys {title}" if not table else f"Recipe: {title}"
    about = re.sub(r"\]\((?=[\w-]+\.md)", "](../", TABLES[table])
    parts = [
        f"# {heading}\n\n{MADE}\n\n{about} [All tables, and what holds for every key](../recipe.md).\n"
    ]
    for number, group in enumerate(GROUPS):
        rows = [_row(same) for same in keys if _group(same[0].key) == number]
        if rows:
            head = "| key | meaning | type | default |\n|---|---|---|---|"
            parts.append("\n".join([f"## {group}", "", head, *rows, ""]))
    return "\n".join(parts)


def _table(key: Key) -> str:
    """Return a key's first part; "" for one outside of tables."""
    return key.key.partition(".")[0] if "." in key.key else ""


def _group(key: str) -> int:
    if key in EVERYBODY.split():
        return 0
    if key in PAPERS.split():
        return 2
    return 1


def _row(same: list[Key]) -> str:
    """Return the row of a key, with the differences between its owners."""
    table = _table(same[0])
    name = same[0].key.removeprefix(f"{table}.") if table else same[0].key
    about = [
        f"{key.meaning.rstrip('.')}.{f' *{_whose(key)}*' if key.owners else ''}" for key in same
    ]
    cells = (
        f"`{name}`",
        " ".join(about),
        _each([key.kind for key in same], same),
        _each(list(map(_default, same)), same),
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _each(cells: list[str], same: list[Key]) -> str:
    """Return the common cell, or each cell with its owners."""
    if len(set(cells)) == 1:
        return cells[0]
    return "; ".join(f"{cell} (*{_whose(key)}*)" for cell, key in zip(cells, same, strict=True))


def _whose(key: Key) -> str:
    return ", ".join(key.owners)


def _default(key: Key) -> str:
    return key.default if key.default in ("must be given", "not set") else f"`{key.default}`"


if __name__ == "__main__":
    sys.exit(main())
