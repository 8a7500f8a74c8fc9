"""Makes items of the catalogue: files and a page for each, an index of all.

What is made already is taken up.

OUT/PAPER/ITEM/SCALE/   page.html, data.csv, picture.png, table-1.csv, tables.txt, result.json
OUT/index.html          all results that lie there
OUT/runs/SWEEP/         the runs of sweeps, which items share
"""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path
from typing import Any

from fedseed.durable import write_whole
from fedseed.errors import FedseedError
from fedseed.experiments.sweeps import (
    How,
    Sweep,
    Sweeping,
    SweepLine,
    SweepRun,
    find_sweep,
    read_sweep,
)
from fedseed.recipe.reading import read_recipe
from fedseed.reports.results import read_summary
from fedseed_papers import fedkseed, feedsign, ferret, theorems
from fedseed_papers.catalogue import SCALES, Item, Scale, catalogue
from fedseed_papers.findings import (
    Finding,
    Subject,
    finding_json,
    surroundings,
)
from fedseed_papers.measuring import SEEDS, SMALL_MAKERS, made_small, opt_125m
from fedseed_papers.records import write_files, write_index
from fedseed_papers.training import as_mapping, finding

EXACT: Mapping[str, Mapping[str, Callable[..., Finding]]] = {
    "ferret": {**ferret.EXACT, **theorems.FERRET},
    "fedkseed": {**fedkseed.EXACT, **theorems.FEDKSEED},
    "feedsign": {**feedsign.EXACT, **theorems.FEEDSIGN},
    "fedmezo": theorems.FEDMEZO,
}
RESULT = "result.json"
getloadavg = getattr(os, "getloadavg", None)  # Windows has none
Say = Callable[[str], None]
Result = dict[str, Any]


@dataclass(frozen=True)
class Making:
    """How items are made.

    Args:
        out: the folder.
        say: shows a line of progress.
        jobs: runs of a sweep at a time.
        settings: for all runs of sweeps, "key=value".
        seeds: of sweeps' runs; None: the sweeps' own.
    """

    out: Path
    say: Say = print
    jobs: int = 1
    settings: Sequence[str] = ()
    seeds: Sequence[int] | None = None

    def folder(self, item: Item, scale: Scale) -> Path:
        """Return where an item's files go."""
        return self.out / item.paper / item.key / scale

    def make(self, item: Item, scale: Scale) -> Result:
        """Make an item, unless it is there.

        Returns:
            What result.json holds.

        Raises:
            RecipeError: data or a model is missing, or a setting is wrong.
            FedseedError: every run of its sweep failed.
        """
        folder = self.folder(item, scale)
        inputs = {
            "settings": list(self.settings),
            "seeds asked": None if self.seeds is None else list(self.seeds),
        }
        stored = _read_json(folder / RESULT)
        if stored is not None and {key: stored.get(key) for key in inputs} == inputs:
            self.say(f"{item.name} ({scale}): {stored['verdict']} (there already)")
            return stored
        self.say(f"{item.name} ({scale}): {item.shows}")
        began = time.perf_counter()
        finding, extra = self._make_finding(item, scale)
        # items share the runs of a sweep: what those took counts for each, whichever was made first
        seconds = extra.pop("runs took", time.perf_counter() - began)
        subject = Subject(
            item.name, item.title, item.shows, scale, _facts(item, scale, self.settings)
        )
        result = {
            **finding_json(subject, finding, seconds, f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"),
            **inputs,
            **extra,
        }
        write_files(folder, subject, finding, seconds)
        # last: all is there
        write_whole(folder / RESULT, (json.dumps(result, indent=1) + "\n").encode())
        self.say(
            f"{item.name} ({scale}): {finding.verdict} ({seconds:.0f} s); {folder / 'page.html'}"
        )
        return result

    def make_all(self, items: Sequence[Item], scale: Scale | None) -> list[Result]:
        """Make several items and the index; one that can't be made is told of and left out.

        Args:
            items: of them those are made that have the scale.
            scale: None: each at its best one.

        Raises:
            FedseedError: an item could not be made; says how many, after all others were made.
        """
        results, missing = [], []
        for item in items:
            if not item.scales or (scale is not None and scale not in item.scales):
                continue
            try:
                results.append(self.make(item, item.scales[0] if scale is None else scale))
            except FedseedError as error:
                missing.append((item.name, str(error)))
                self.say(f"{item.name}: not made: {error}")
            self.write_index(missing)  # whatever stops this, the index has what is there
        self.write_index(missing)
        if missing:
            raise FedseedError(
                f"{len(missing)} of {len(missing) + len(results)} items were not made: "
                f"{', '.join(name for name, _ in missing)}"
            )
        return results

    def write_index(self, missing: Sequence[tuple[str, str]] = ()) -> Path:
        """Write OUT/index.html with every result that lies there."""
        results = []
        for item in catalogue():
            for scale in SCALES:
                result = _read_json(self.folder(item, scale) / RESULT)
                if result is not None:
                    results.append(result)
        return write_index(self.out, results, missing)

    def _make_finding(self, item: Item, scale: Scale) -> tuple[Finding, dict[str, Any]]:
        if scale == "exact":
            return EXACT[item.paper][item.key](), {}
        sources = item.sources(scale)
        if sources[0] in SMALL_MAKERS:
            return made_small(sources[0], tuple(self.seeds or SEEDS)), {}
        sweeps = [self._sweep(source) for source in sources]
        lines = list(chain.from_iterable(sweep_lines for _, sweep_lines in sweeps))
        if not any(line.folders for line in lines):
            reason = next(chain.from_iterable(line.failed.values() for line in lines), "")
            raise FedseedError(f"every run of {', '.join(sources)} failed: {reason}")
        runs = list(
            chain.from_iterable(
                (self.out / "runs" / source).rglob("summary.json") for source in sources
            )
        )
        took = sum(read_summary(run.parent)["seconds"]["total"] for run in runs)
        return finding(item, scale, sweeps), {"lines": as_mapping(lines), "runs took": took}

    def _sweep(self, source: str) -> tuple[Sweep, list[SweepLine]]:
        """Return a sweep's lines, or those of a recipe over five seeds, run as far as they are
        missing.
        """
        path = find_sweep(source)
        if path is None:
            sweep = Sweep(runs=[SweepRun(label=source, recipe=source)], seeds=[1, 2, 3])
        else:
            sweep = read_sweep(path)
        base = []
        if source == "small-memory":
            base = [f"model.base={json.dumps(str(opt_125m(self.out)))}"]
        changes: dict[str, Any] = {"set": [*base, *sweep.set, *self.settings]}
        if self.seeds is not None:
            changes["seeds"] = list(self.seeds)
        sweep = sweep.model_copy(update=changes)
        folder = self.out / "runs" / source
        description = sweep.model_dump_json(exclude={"seeds"})  # more of them add runs
        earlier = _read_json(folder / "sweep.json")
        # its numbers would be mixed with ours
        if earlier is not None and earlier != json.loads(description):
            aside = next(
                p for n in count(1) if not (p := folder.with_name(f"{source}.{n}")).exists()
            )
            folder.rename(aside)
            self.say(f"Runs of {source} with other settings were there: they are in {aside} now")
        sweeping = Sweeping(sweep, folder, self.say, How(self.jobs))
        if not any(folder.rglob("summary.json")):
            load_data(sweep)
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "sweep.json", description.encode())
        return sweeping.sweep, sweeping.run()


def load_data(sweep: Sweep) -> None:
    """Load the first run's data, so that what is missing is said once, and not by every run.

    Raises:
        RecipeError: it can't be had; says what is needed.
    """
    first = sweep.runs[0]
    settings = [
        *sweep.set,
        *sweep.scenarios[0].set,
        *first.set,
        *sweep.scenarios[0].also.get(first.label, []),
    ]
    read_recipe(first.recipe, settings).task.load()


def _facts(item: Item, scale: Scale, settings: Sequence[str]) -> dict[str, str]:
    """Return what a page says of where its numbers come from."""
    facts = {
        "paper wants": "-" if scale == "exact" else item.wants,
        "sweep or recipe": ", ".join(item.sources(scale)) or "-",
        "settings": " ".join(settings) or "-",
        "load": f"{getloadavg()[2]:.1f} over the last quarter of an hour, this included"
        if getloadavg
        else "-",
        **surroundings(),
    }
    return {name: value for name, value in facts.items() if value not in ("-", "nothing")}


def _read_json(path: Path) -> Result | None:
    """Return a file of JSON, if there is one that is whole."""
    try:
        result: Result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return result
