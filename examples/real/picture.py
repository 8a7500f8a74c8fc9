"""One picture of the stored runs on real text: what each method gains over the base, by task and
deal.

    python examples/real/picture.py --out docs/pictures/real-text.png
    python examples/real/picture.py --skewed --out docs/pictures/real-text-skewed.png    (README)

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
        "Debian's sections, by maintainer",
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
            key, candidates = slug(FALLING_LINES[line]), with_falling_rates
        else:
            key, candidates = slug(line), with_constant_rates
        if (deal, key) in candidates:
            runs[line] = candidates[deal, key]
    return runs


def draw(path: Path, is_skewed: bool = False) -> None:
    """Draw a panel for each task and deal.

    Args:
        path: the picture's file.
        is_skewed: leave out the deals in which all clients have alike data.
    """
    panels = [entry for entry in PANELS if not (is_skewed and entry[1] == "IID")]
    row_count = len(panels) // 2
    figure = Figure(figsize=(9.6, 3.3 * row_count))
    grid = figure.subplots(row_count, 2, sharex=True, squeeze=False)
    for axes, (title, deal, constant, falling) in zip(grid.flat, panels, strict=True):
        gains = {}
        for line, by_seed in runs_of(deal, constant, falling).items():
            size = human_bytes(next(iter(by_seed.values()))["bytes up"])
            gains[f"{line}  {size}"] = gained(by_seed)
        panel(axes, gains, title)
    for axes in grid[-1]:
        axes.set_xlabel("accuracy gained over the base, points")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Draw what is stored."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=FIGURES.parent / "pictures" / "real-text.png")
    parser.add_argument(
        "--skewed", action="store_true", help="only the deals in which clients' data differ"
    )
    options = parser.parse_args()
    draw(options.out, options.skewed)


if __name__ == "__main__":
    main()
