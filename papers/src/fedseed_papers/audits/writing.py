"""An audit's files: page.html, data.csv, picture.png, table-1.csv, ..., and audit.json, last."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedseed.durable import write_whole
from fedseed.errors import FedseedError, RecipeError
from fedseed.reports.machine import command, host, versions
from fedseed.runs.recipe import Recipe
from fedseed_papers.audits.page import Audit, audit_json, audit_page
from fedseed_papers.findings import Finding, data_csv, table_csv

RESULT = "audit.json"


def check_free(out: Path, overwrite: bool) -> None:
    """Whether an audit may be written there.

    Raises:
        RecipeError: it is a file.
        FedseedError: an audit is there, and it is not to be replaced.
    """
    if out.exists() and not out.is_dir():
        raise RecipeError(f"--out {out}: this is a file; name a folder")
    if (out / RESULT).exists() and not overwrite:
        raise FedseedError(f"{out} holds an audit; name another folder with --out, or --overwrite replaces it")


def facts_of(name: str, recipe: Recipe, settings: list[str]) -> dict[str, str]:
    """What a page says of where its numbers come from."""
    made = host()
    return {
        "recipe": name,
        "settings": " ".join(settings) or "as the recipe has them",
        "method": recipe.method.name,
        "rounds": str(recipe.rounds),
        "command": command(),
        "machine": f"{made['processor'] or made['machine']}, {made['cores']} cores, {made['system']}",
        "versions": ", ".join(f"{package} {number}" for package, number in versions().items()),
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
    }


def write_audit(out: Path, audit: Audit, numbers: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Write an audit's files.

    Args:
        out: the folder.
        audit: the audit.
        numbers: what was measured, for audit.json.
        seconds: how long it took.

    Returns:
        What audit.json holds.
    """
    from fedseed.reports.plots import draw  # matplotlib takes a while to import

    out.mkdir(parents=True, exist_ok=True)
    result = audit_json(audit, numbers, seconds)
    write_whole(out / "data.csv", data_csv(Finding([], "", audit.panels)).encode())
    draw(audit.panels, out / "picture.png")
    for number, sheet in enumerate(audit.sheets, start=1):
        write_whole(out / f"table-{number}.csv", table_csv(sheet).encode())
    write_whole(out / "page.html", audit_page(audit, seconds).encode())
    write_whole(out / RESULT, (json.dumps(result, indent=1) + "\n").encode())
    return result
