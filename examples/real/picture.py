"""One picture of the stored runs on real text: what each method gains over the base, by task and deal.

    python examples/real/picture.py --out docs/pictures/real-text.png

A dot is a run of one seed, a bar their mean; beside a method's name stand the bytes that a client sends a round. Of
each line the rate with the least validation loss with the first seed counts, as in the tables (table.py).
"""

import argparse
from pathlib import Path
from statistics import fmean

from matplotlib.figure import Figure
from table import Runs, chosen, stored

from fedseed.experiments.sweeps import slug
from fedseed.reports.plots import COLOURS

FIGURES = Path(__file__).parents[2] / "docs" / "figures"
PANELS = (  # file, deal, deal in which rates were chosen, title
    ("real-debian.csv", "IID", "by-maintainer", "Debian's sections, dealt alike"),
    ("real-skew.csv", "by-maintainer", "by-maintainer", "Debian's sections, by maintainer, a step each"),
    ("real-sentiment.csv", "IID", "by-domain", "sentiment, dealt alike"),
    ("real-sentiment.csv", "by-domain", "by-domain", "sentiment, by domain"),
)  # fmt: skip
LINES = {slug(name): name for name in ("FedAvg", "LoRA", "Ferret, bits", "Ferret, floats", "ZO-FedSGD", "FedMeZO",
                                       "FedKSeed", "FeedSign")}  # fmt: skip


def size(count: float) -> str:
    """Returns bytes as people read them."""
    return f"{count / 1e6:.0f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB" if count >= 1e3 else f"{count:.0f} B"


def draw(panels: list[tuple[str, Runs, str]], path: Path) -> None:
    """Draws a panel for each title, runs and deal."""
    figure = Figure(figsize=(9.6, 5.6))
    grid = figure.subplots(2, 2, sharex=True)
    for axes, (title, found, deal) in zip(grid.flat, panels, strict=True):
        lines = [line for line in LINES if found.get((deal, line))]
        for row, line in enumerate(lines):
            gains = [run["figure"] - run["figure before"] for run in found[deal, line].values()]
            colour = COLOURS[list(LINES).index(line) % len(COLOURS)]
            axes.barh(row, fmean(gains), color=colour, alpha=0.4)
            axes.plot(gains, [row] * len(gains), "o", color=colour, markersize=3.5)
        sent = [size(next(iter(found[deal, line].values()))["bytes up"]) for line in lines]
        axes.set_yticks(range(len(lines)), [f"{LINES[line]}  {each}" for line, each in zip(lines, sent, strict=True)])
        axes.invert_yaxis()
        axes.axvline(0, color="0.4", linewidth=0.8)
        axes.set_title(title, fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in grid[1]:
        axes.set_xlabel("accuracy gained over the base, points")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Draws what is stored."""
    asked = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    asked.add_argument("--out", type=Path, default=FIGURES.parent / "pictures" / "real-text.png")
    said = asked.parse_args()
    draw([(title, chosen(stored(FIGURES / file), rated), deal) for file, deal, rated, title in PANELS], said.out)


if __name__ == "__main__":
    main()
