"""Tables, a CSV of each run and a picture of what `fedseed compare examples/real/NAME-sweep.toml`
left.

    python examples/real/table.py runs/debian [--sweep NAME-sweep.toml] [--share 0.9] [--csv FILE]
    [--picture FILE] python examples/real/table.py runs/synopsis --sweep
    examples/real/synopsis-sweep.toml --measure rouge_l

Of each line the point with the least validation loss with the first seed counts, as in the sweep.
Differences to FedAvg are paired over seeds (`fedseed_papers.statistics`). What is not finished is
left out, and the number of seeds says so. Rows that stand in the CSV file already, of runs whose
folders are gone, count as well, and are kept. With --share 0.9 each line's gain over zero-shot less
0.9 of FedAvg's is printed, too: above 0, it keeps as much.
"""

import argparse
import csv
import itertools
import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from matplotlib.figure import Figure

from fedseed.experiments.sweeps import read_sweep, slug
from fedseed.reports.plots import COLOURS
from fedseed_papers import statistics

HEAD = (
    "deal",
    "line",
    "setting",
    "seed",
    "figure",
    "loss",
    "figure before",
    "validation loss",
    "bytes up",
    "passes",
)
Runs = Mapping[tuple[str, str], Mapping[int, dict[str, Any]]]


def read(folder: Path, measure: str = "accuracy") -> list[list[Any]]:
    """Returns a row as `HEAD` says of each finished run in a sweep's folder.

    The figure is its `measure`.
    """
    rows = []
    for path in sorted(folder.glob("*/*/**/seed-*/summary.json")):
        said, (deal, line, *point, seed, _) = (
            json.loads(path.read_text()),
            path.relative_to(folder).parts,
        )
        final, passes = said["final"], said["forward_passes"] + 2 * said["backward_passes"]
        rows.append(
            [
                deal,
                line,
                " ".join(point),
                int(seed.removeprefix("seed-")),
                final[measure],
                final["loss"],
                said["baseline"][measure],
                final["validation_loss"],
                said["payload_bytes_up"],
                passes,
            ]
        )
    return rows


def stored(path: Path | None) -> list[list[Any]]:
    """Returns the rows of a CSV file that was written before; none if there is none."""
    if path is None or not path.exists():
        return []
    with path.open(newline="") as file:
        return [
            [*row[:3], int(row[3]), *map(json.loads, row[4:])] for row in list(csv.reader(file))[1:]
        ]


def chosen(rows: list[list[Any]], choose_in: str) -> Runs:
    """Returns each line's runs at its best point, by deal and line, then by seed."""
    found: dict[tuple[str, str], dict[int, dict[str, Any]]] = defaultdict(dict)
    for line in {row[1] for row in rows}:
        tried = {row[2]: row[7] for row in rows if (row[0], row[1], row[3]) == (choose_in, line, 1)}
        best = min(tried, key=lambda point: tried[point], default=None)
        for row in rows:
            if row[1:3] == [line, best]:
                found[row[0], line][row[3]] = dict(zip(HEAD, row, strict=True))
    return found


def shown(values: list[float], digits: int = 1) -> str:
    """Returns mean, deviation and number of some values."""
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{spread} ({len(values)})" if values else "-"


def table(found: Runs, lines: list[str], deal: str, measure: str) -> str:
    """Returns a deal's table in Markdown; numbers of seeds stand in brackets."""
    rows = [
        f"| | rate | {measure} (seeds) | loss | bytes up | to FedAvg's {measure}, 95% interval |",
        "|---|---|---|---|---|---|",
    ]
    bound = {seed: run["figure"] for seed, run in found.get((deal, slug("FedAvg")), {}).items()}
    for label in lines:
        runs = found.get((deal, slug(label)), {})
        mine = {seed: run["figure"] for seed, run in runs.items() if seed in bound}
        evidence = (
            statistics.ahead(mine, {seed: bound[seed] for seed in mine})
            if label != "FedAvg"
            else statistics.NOTHING
        )
        said = (
            ""
            if evidence is statistics.NOTHING
            else statistics.describe_evidence(evidence, evidence.p).rstrip(".")
        )
        first = next(iter(runs.values()), None)
        rate, sent = (
            ("-", "-")
            if first is None
            else (first["setting"].rpartition("=")[2], f"{first['bytes up']:,.0f}")
        )
        figure = shown([run["figure"] for run in runs.values()])
        loss = shown([run["loss"] for run in runs.values()], 3).partition(" (")[0]
        rows.append(f"| {label} | {rate} | {figure} | {loss} | {sent} | {said} |")
    return "\n".join(rows)


def shares(found: Runs, lines: list[str], deal: str, share: float) -> str:
    """Returns of each line what part of FedAvg's gain it keeps, and its gain less a share of
    FedAvg's gain.
    """
    gains = {
        label: dict(zip(runs, gained(runs), strict=True))
        for label in lines
        if (runs := found.get((deal, slug(label))))
    }
    bound, said = gains.get("FedAvg", {}), []
    for label, mine in gains.items():
        both = sorted(mine.keys() & bound.keys())
        if label != "FedAvg" and both:
            kept = fmean(mine[seed] for seed in both) / fmean(bound[seed] for seed in both)
            evidence = statistics.ahead(
                {s: mine[s] for s in both}, {s: share * bound[s] for s in both}
            )
            told = statistics.describe_evidence(evidence, evidence.p)
            said.append(f"- {label} keeps {kept:.0%}; gain less {share:g} of FedAvg's: {told}")
    return "\n".join(said)


def panel(axes: Any, gains: Mapping[str, list[float]], title: str) -> None:
    """Draws what each line gains over the base, by its label: a dot for a run, a bar for the
    mean.
    """
    for row, (each, colour) in enumerate(
        zip(gains.values(), itertools.cycle(COLOURS), strict=False)
    ):
        axes.barh(row, fmean(each), color=colour, alpha=0.4)
        axes.plot(each, [row] * len(each), "o", color=colour, markersize=3.5)
    axes.set_yticks(range(len(gains)), list(gains))
    axes.invert_yaxis()
    axes.axvline(0, color="0.4", linewidth=0.8)
    axes.set_title(title, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)


def gained(runs: Mapping[int, dict[str, Any]]) -> list[float]:
    """Returns what each run gains over the base."""
    return [run["figure"] - run["figure before"] for run in runs.values()]


def draw(found: Runs, lines: list[str], deals: list[str], measure: str, path: Path) -> None:
    """Draws a panel for each deal."""
    deals = [deal for deal in deals if any(key[0] == slug(deal) for key in found)]
    figure = Figure(figsize=(5.2 * len(deals), 1 + 0.3 * len(lines)))
    for axes, deal in zip(
        figure.subplots(1, len(deals), sharex=True, squeeze=False)[0], deals, strict=True
    ):
        runs = {label: found.get((slug(deal), slug(label))) for label in lines}
        panel(axes, {label: gained(mine) for label, mine in runs.items() if mine}, deal)
        axes.set_xlabel(f"gain in {measure} over zero-shot, points")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Prints the tables and writes the files that are asked for."""
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    asked.add_argument("folder", type=Path)
    asked.add_argument("--sweep", type=Path, default=Path(__file__).parent / "debian-sweep.toml")
    asked.add_argument("--share", type=float, help="of FedAvg's gain that a line should keep")
    asked.add_argument("--measure", choices=("accuracy", "rouge_l"), default="accuracy")
    asked.add_argument("--csv", type=Path)
    asked.add_argument("--picture", type=Path)
    said = asked.parse_args()
    measure = {"rouge_l": "Rouge-L"}.get(said.measure, said.measure)
    sweep, rows = read_sweep(said.sweep), read(said.folder, said.measure)
    # the newer one
    rows = list({tuple(row[:4]): row for row in [*stored(said.csv), *rows]}.values())
    deals, lines = (
        [scenario.name for scenario in sweep.scenarios],
        [run.label for run in sweep.runs],
    )
    found = chosen(rows, slug(sweep.choose_in or deals[0]))
    if said.csv:
        said.csv.parent.mkdir(parents=True, exist_ok=True)
        with said.csv.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(
                [[name.replace("figure", said.measure) for name in HEAD], *rows]
            )
    for deal in deals:
        here = [runs for (where, _), runs in found.items() if where == slug(deal)]
        before = [run["figure before"] for runs in here for run in runs.values()]
        if not before:
            continue
        print(f"\n{deal}: zero-shot {before[0]:.1f}\n\n{table(found, lines, slug(deal), measure)}")
        if said.share:
            print(f"\n{shares(found, lines, slug(deal), said.share)}")
    if said.picture:
        draw(found, lines, deals, measure, said.picture)


if __name__ == "__main__":
    main()
