"""One picture of the stored runs on real text: what each method gains over the base, by task and
deal.

    python examples/real/picture.py --out docs/pictures/real-text.png

A dot is a run of one seed, a bar their mean; beside a method's name stand the bytes that a client
sends a round. Of each line the rate with the least validation loss with the first seed counts, as
in the tables (table.py).
"""

import argparse
from pathlib import Path

from matplotlib.figure import Figure
from table import Runs, chosen, gained, panel, stored

from fedseed.experiments.sweeps import slug
from fedseed.reports.tables import human_bytes

FIGURES = Path(__file__).parents[2] / "docs" / "figures"
PANELS = (  # file, deal, deal in which rates were chosen, title
    ("real-debian.csv", "IID", "by-maintainer", "Debian's sections, dealt alike"),
    (
        "real-skew.csv",
        "by-maintainer",
        "by-maintainer",
        "Debian's sections, by maintainer, a step each",
    ),
    ("real-sentiment.csv", "IID", "by-domain", "sentiment, dealt alike"),
    ("real-sentiment.csv", "by-domain", "by-domain", "sentiment, by domain"),
)
LINES = (
    "FedAvg",
    "LoRA",
    "Ferret, bits",
    "Ferret, floats",
    "ZO-FedSGD",
    "FedMeZO",
    "FedKSeed",
    "FeedSign",
)


def draw(panels: list[tuple[str, Runs, str]], path: Path) -> None:
    """Draws a panel for each title, runs and deal."""
    figure = Figure(figsize=(9.6, 5.6))
    grid = figure.subplots(2, 2, sharex=True)
    for axes, (title, found, deal) in zip(grid.flat, panels, strict=True):
        runs = {line: found.get((deal, slug(line))) for line in LINES}
        sent = {
            line: human_bytes(next(iter(mine.values()))["bytes up"])
            for line, mine in runs.items()
            if mine
        }
        panel(
            axes,
            {f"{line}  {size}": gained(runs[line] or {}) for line, size in sent.items()},
            title,
        )
    for axes in grid[1]:
        axes.set_xlabel("accuracy gained over the base, points")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Draws what is stored."""
    asked = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    asked.add_argument("--out", type=Path, default=FIGURES.parent / "pictures" / "real-text.png")
    said = asked.parse_args()
    draw(
        [
            (title, chosen(stored(FIGURES / file), rated), deal)
            for file, deal, rated, title in PANELS
        ],
        said.out,
    )


if __name__ == "__main__":
    main()
