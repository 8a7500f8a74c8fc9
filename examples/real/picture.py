"""One picture of the stored runs on real text: what each method gains over the base, by task and
deal.

    python examples/real/picture.py --out docs/pictures/real-text.png

A dot is a run of one seed, a bar their mean; beside a method's name stand the bytes that a client
sends a round. Subspace and the first line have rates that fall to zero. Of each line the rate with
the least validation loss with the first seed counts, as in the tables (table.py).
"""

import argparse
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from table import chosen, gained, panel, stored

from fedseed.experiments.sweeps import slug
from fedseed.reports.tables import human_bytes

FIGURES = Path(__file__).parents[2] / "docs" / "figures"
PANELS = (
    # title, deal, its files: of constant rates, with the deal in which rates were chosen, and of
    # rates that fall to zero
    (
        "Debian's sections, dealt alike",
        "IID",
        ("real-debian.csv", "by-maintainer"),
        ("real-subspace-debian-iid.csv", "IID"),
    ),
    (
        "by maintainer, a step each",
        "by-maintainer",
        ("real-skew.csv", "by-maintainer"),
        ("real-subspace-debian.csv", "by-maintainer"),
    ),
    (
        "sentiment, dealt alike",
        "IID",
        ("real-sentiment.csv", "by-domain"),
        ("real-subspace-sentiment-iid.csv", "IID"),
    ),
    (
        "sentiment, by domain",
        "by-domain",
        ("real-sentiment.csv", "by-domain"),
        ("real-subspace-sentiment.csv", "by-domain"),
    ),
)
FALLING = "FedAvg, falling rates"
FALLING_LINES = {
    FALLING: "FedAvg",
    "subspace": "Subspace 28 kB",
    "subspace, rank 2": "Subspace 3.5 kB",
}
LINES = (
    FALLING,
    "FedAvg",
    "LoRA",
    "subspace",
    "subspace, rank 2",
    "Ferret, bits",
    "Ferret, floats",
    "ZO-FedSGD",
    "FedMeZO",
    "FedKSeed",
    "FeedSign",
)


def runs_of(
    deal: str, constant: tuple[str, str], falling: tuple[str, str]
) -> dict[str, dict[int, dict[str, Any]]]:
    """Return the runs of each line that has some, by seed."""
    with_constant_rates = chosen(stored(FIGURES / constant[0]), constant[1])
    with_falling_rates = chosen(stored(FIGURES / falling[0]), falling[1])
    runs = {}
    for line in LINES:
        if line in FALLING_LINES:
            key, found = slug(FALLING_LINES[line]), with_falling_rates
        else:
            key, found = slug(line), with_constant_rates
        if (deal, key) in found:
            runs[line] = found[deal, key]
    return runs


def draw(path: Path) -> None:
    """Draw a panel for each task and deal."""
    figure = Figure(figsize=(9.6, 6.6))
    grid = figure.subplots(2, 2, sharex=True)
    for axes, (title, deal, constant, falling) in zip(grid.flat, PANELS, strict=True):
        gains = {}
        for line, by_seed in runs_of(deal, constant, falling).items():
            size = human_bytes(next(iter(by_seed.values()))["bytes up"])
            gains[f"{line}  {size}"] = gained(by_seed)
        panel(axes, gains, title)
    for axes in grid[1]:
        axes.set_xlabel("accuracy gained over the base, points")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Draw what is stored."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=FIGURES.parent / "pictures" / "real-text.png")
    draw(parser.parse_args().out)


if __name__ == "__main__":
    main()
