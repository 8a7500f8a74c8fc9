"""A run that is to have more rounds than it was to have: its folder becomes that of one that was interrupted.

What it will leave are the weights, steps and metrics of a run that had all rounds from the start. Nothing in a round
depends on how many there will be: sampling, data order, directions and schedules know the round's number only. What the
end of the run has added is taken back: the evaluation of its last round, if a longer run has none there, and the
orbit's end. A step-by-step method's line of metrics for its last rounds stays a line of its own.

Each file is replaced as a whole, and summary.json goes last: whoever is interrupted here does it again.
"""

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import tomli_w

from fedseed.durable import sync_folder, write_whole
from fedseed.errors import OrbitError, RecipeError
from fedseed.orbit import NO_DIGEST, Orbit
from fedseed.orbit.file import scan, write_orbit
from fedseed.reports.results import RoundLine, read_summary
from fedseed.runs.folder import compare_recipes
from fedseed.runs.spec import RunSpec


def extend(settings: RunSpec) -> str | None:
    """Let the run in a folder have the rounds that the settings say, if it was to have fewer.

    Args:
        settings: what the run is to be; its `folder` holds the run.

    Returns:
        What was done, for a person; None: nothing (there is no run yet, or it has so many rounds already).

    Raises:
        RecipeError: another recipe, or fewer rounds than the run has.
        OrbitError: the orbit is damaged, or compacted.
    """
    path = settings.folder
    if path is None or not (path / "metrics.jsonl").is_file():
        return None
    if settings.recipe_text is not None and (path / "recipe.toml").is_file():
        compare_recipes(path, settings.recipe_text, besides=("rounds",))
    summary = read_summary(path) if (path / "summary.json").is_file() else {}
    had = int(summary.get("rounds", 0))
    if had > settings.rounds:
        raise RecipeError(
            f"--rounds {settings.rounds}: the run in {path} has had {had}; fedseed export --upto goes back"
        )
    if summary and (had == settings.rounds or (summary.get("stopped") or {}).get("early")):
        return None  # one that stopped early would stop at the same round
    orbit = _orbit(path / "model.orbit")
    _write_rounds(path / "recipe.toml", settings.rounds)
    _take_back_evaluation(path / "metrics.jsonl", settings)
    if orbit is not None:
        _open_orbit(path / "model.orbit", orbit, settings)
    if not summary:  # it was interrupted, and goes on anyhow
        return None
    (path / "summary.json").unlink()
    sync_folder(path)
    return f"the run in {path} had {had} rounds: it goes on to {settings.rounds}"


def _write_rounds(file: Path, rounds: int) -> None:
    if file.is_file():
        recipe = tomllib.loads(file.read_text(encoding="utf-8"))
        if recipe.get("rounds") != rounds:
            write_whole(file, tomli_w.dumps({**recipe, "rounds": rounds}).encode())


def _take_back_evaluation(file: Path, settings: RunSpec) -> None:
    """Take what was measured after the last round out of its line, if a longer run measures nothing there."""
    texts = file.read_bytes().split(b"\n")[:-1]  # whole lines
    try:
        first, last = (RoundLine.from_json(json.loads(texts[at])) for at in (0, -1))
    except (ValueError, LookupError, TypeError):
        return  # a damaged file: taking the run up says so
    if settings.evaluates(last.round):
        return
    last.metrics = {name: value for name, value in last.metrics.items() if name not in first.metrics}
    last.seconds.pop("evaluation", None)
    if not settings.digests(last.round):
        last.weights_digest = None
    write_whole(file, b"".join(text + b"\n" for text in [*texts[:-1], json.dumps(last.to_json()).encode()]))


def _orbit(path: Path) -> Orbit | None:
    """The orbit whose end is to be taken off; None: there is none, or an interrupted write, which resuming cuts off."""
    if not path.is_file():
        return None
    orbit, damage = scan(path.read_bytes(), str(path))
    if damage is not None and not damage.torn:
        raise OrbitError(damage.text)
    if orbit.header.first > 1:
        raise OrbitError(f"{path} is compacted: a run can't go on from it")
    return orbit if damage is None else None


def _open_orbit(path: Path, orbit: Orbit, settings: RunSpec) -> None:
    """Take the end off an orbit, and the last digest if a longer run has none there."""
    parts = list(orbit.parts)
    if parts and not settings.digests(orbit.last):
        parts[-1] = replace(parts[-1], digest=NO_DIGEST)
    write_orbit(path, orbit.start, parts)
