"""What a reconstruction attack found, for people and programs."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from fedseed.errors import plural
from fedseed.reports.charts import Axis, Panel, Series
from fedseed.reports.tables import Sheet, human_bytes
from fedseed_papers.audits.page import Answer, Audit, embedded
from fedseed_papers.audits.reconstruct import COUNTED, Attempt, Reconstruction

NAMES = {
    "ferret": "Ferret",
    "fedkseed": "FedKSeed",
    "feedsign": "FeedSign",
    "fedsgd": "FedSGD",
    "fedavg": "FedAvg",
}
LIMITS = (
    "No published attack on projected updates was found. Two were tried, linear inversion and "
    "matching; others may do better.",
    "It is the attack's best case: one local step of plain SGD, on the pictures alone, in the "
    "first round. More steps, "
    "larger batches, momentum and Adam were not attacked, which does not make them safe.",
    "The attack is the coordinator's, or of whoever sees one client's message. Who gets the orbit "
    "sees the clients' "
    "sum, as if all their pictures were one batch; with secure sums the coordinator sees no more.",
    "Matching knows the model, and is given how many pictures there are, not their labels.",
)
NUMBERS = (
    "method",
    "count",
    "payload_bytes",
    "batch",
    "example",
    "gradient_error",
    "gradient_cosine",
    "label_right",
    "input_error",
    "error",
    "identified",
    "labels_right",
    "left",
)


def numbers(found: Reconstruction) -> dict[str, Any]:
    """Returns what audit.json holds of this."""
    attempts = [{name: getattr(a, name) for name in NUMBERS} for a in found.attempts]
    return {"parameters": found.size, "told_apart_from": found.others - 1, "attempts": attempts}


def attempts_csv(found: Reconstruction) -> str:
    """Returns every attempt, a line each."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(NUMBERS)
    writer.writerows([[getattr(a, name) for name in NUMBERS] for a in found.attempts])
    return out.getvalue()


def audit(found: Reconstruction, name: str, facts: Mapping[str, str], picture: Path) -> Audit:
    """Returns the page's content.

    Args:
        found: what came of it.
        name: of the recipe.
        facts: where the numbers come from.
        picture: what `draw_pictures` wrote.
    """
    methods = list(dict.fromkeys(a.method for a in found.attempts))
    examples = len({a.example for a in found.attempts if a.batch == 1})
    return Audit(
        "reconstruct",
        f"Reconstruction from messages: {name}",
        "A client has one picture and answers the first plan; the attack reads its message as the "
        "coordinator does, "
        f"and looks for the picture. {found.size:,} parameters train; {plural(examples, 'picture')}"
        f"{', each' if examples > 1 else ''} told apart from {found.others - 1} others.",
        [_answer(found, method) for method in methods],
        [
            _panel(found, methods, "Picture", "error (1: the mean picture)", lambda a: a.error),
            _panel(found, methods, "Identified", "share of pictures", lambda a: a.identified),
            _panel(
                found,
                methods,
                "Gradient, by linear inversion",
                "cosine",
                lambda a: a.gradient_cosine,
            ),
            *_batches(found, methods),
        ],
        [_table(found, methods), *_batch_table(found)],
        [("The true picture, and what was found from so many numbers", embedded(picture))],
        LIMITS,
        {"parameters that train": f"{found.size:,}", **facts},
    )


def _answer(found: Reconstruction, method: str) -> Answer:
    """From how many numbers on a method's messages give the picture away."""
    asks, attempts = f"What does a message of {NAMES[method]} give away?", found.of(method)
    if not attempts:
        return Answer(asks, "Nothing was tried.", "not tried")
    by_count = {
        count: [a for a in attempts if a.count == count]
        for count in sorted({a.count for a in attempts})
    }
    shares = {count: fmean(a.identified for a in some) for count, some in by_count.items()}
    first = next((count for count, share in shares.items() if share > 0.5), None)
    said = [
        f"{count:,} numbers ({human_bytes(some[0].payload_bytes)}): {100 * shares[count]:.0f}% "
        f"identified, error {fmean(a.error for a in some):.2f}, gradient's cosine "
        f"{fmean(a.gradient_cosine for a in some):.2f}"
        for count, some in by_count.items()
        if count in (min(by_count), first, max(by_count))
    ]
    text = (
        f"{'; '.join(said)}. At chance 1 of {found.others} is identified, and the error is 1 "
        "or more."
    )
    if first is None:
        return Answer(asks, text, "not by this attack", "good")
    return Answer(asks, text, f"the picture, from {first:,} numbers on", "warn")


def _panel(found: Reconstruction, methods: Sequence[str], title: str, label: str, of: Any) -> Panel:
    """Returns means over pictures, with the least and the largest; a line for each method."""
    lines, counts = [], [a.count for a in found.attempts if a.method in COUNTED and a.batch == 1]
    for number, method in enumerate(methods):
        attempts = found.of(method)
        points, band = [], []
        for count in sorted({a.count for a in attempts}):
            values = [of(a) for a in attempts if a.count == count]
            # a method that sends all is a line across
            at = (
                [float(min(counts)), float(max(counts))]
                if method not in COUNTED and counts
                else [float(count)]
            )
            points += [(x, fmean(values)) for x in at]
            band += [(x, min(values), max(values)) for x in at]
        lines.append(
            Series(
                NAMES[method] + ("" if method in COUNTED else ", all numbers"), points, band, number
            )
        )
    return Panel(title, lines, Axis("numbers in the message, K", log=True), Axis(label))


def _batches(found: Reconstruction, methods: Sequence[str]) -> list[Panel]:
    """Errors over the batch, at the largest K."""
    lines = []
    for number, method in enumerate(methods):
        attempts = [a for a in found.attempts if a.method == method and a.example == 0]
        most = max(a.count for a in attempts)
        points = sorted((float(a.batch), a.error) for a in attempts if a.count == most)
        if len(points) > 1:
            lines.append(Series(f"{NAMES[method]}, {most:,} numbers", points, number=number))
    return (
        [
            Panel(
                "Several pictures",
                lines,
                Axis("pictures in the batch", whole=True),
                Axis("error (1: the mean picture)"),
            )
        ]
        if lines
        else []
    )


def _table(found: Reconstruction, methods: Sequence[str]) -> Sheet:
    head = [
        "method",
        "numbers",
        "bytes",
        "gradient's error",
        "cosine",
        "label by the bias",
        "layer's input, error",
        "picture's error",
        "identified",
        "label",
    ]
    rows = []
    for method in methods:
        attempts = found.of(method)
        for count in sorted({a.count for a in attempts}):
            some = [a for a in attempts if a.count == count]
            inputs = [a.input_error for a in some if a.input_error is not None]
            labels = [a.label_right for a in some if a.label_right is not None]
            rows.append(
                [
                    NAMES[method],
                    f"{count:,}",
                    f"{some[0].payload_bytes:,}",
                    *_figures(some),
                    f"{100 * fmean(labels):.0f}%" if labels else "-",
                    f"{fmean(inputs):.2g}" if inputs else "-",
                    *_pictures(some),
                ]
            )
    return Sheet(
        "One picture",
        head,
        rows,
        "Means over the pictures. Linear inversion: gradient, label by the bias, "
        "layer's input; matching: picture, identified, label. Errors are relative; a vote has no "
        "length, so of FeedSign's gradient only the cosine says anything.",
    )


def _batch_table(found: Reconstruction) -> list[Sheet]:
    some = [a for a in found.attempts if a.batch > 1]
    if not some:
        return []
    head = [
        "method",
        "numbers",
        "pictures",
        "gradient's error",
        "cosine",
        "picture's error",
        "identified",
        "labels",
    ]
    rows = [
        [NAMES[a.method], f"{a.count:,}", str(a.batch), *_figures([a]), *_pictures([a])]
        for a in some
    ]
    return [Sheet("Several pictures in a batch", head, rows)]


def _figures(some: Sequence[Attempt]) -> list[str]:
    return [
        f"{fmean(a.gradient_error for a in some):.2g}",
        f"{fmean(a.gradient_cosine for a in some):.3f}",
    ]


def _pictures(some: Sequence[Attempt]) -> list[str]:
    error, shares = (
        fmean(a.error for a in some),
        (fmean(a.identified for a in some), fmean(a.labels_right for a in some)),
    )
    return [f"{error:.2f}", *(f"{100 * share:.0f}%" for share in shares)]


def draw_pictures(found: Reconstruction, path: Path) -> None:
    """Draws what was found beside the truth: a row for each method and picture, K from left to
    right.

    Args:
        found: what came of it.
        path: PNG file to write.
    """
    from matplotlib import pyplot as plt

    from fedseed.reports.plots import save

    counts = sorted({a.count for a in found.attempts if a.batch == 1 and a.method in COUNTED})
    methods = [m for m in dict.fromkeys(a.method for a in found.attempts) if m in COUNTED]
    rows = [(m, e) for m in methods for e in sorted({a.example for a in found.of(m)})]
    whole = {a.example: a for a in found.attempts if a.batch == 1 and a.method not in COUNTED}
    titles = ["true", *(f"{count:,}" for count in counts), *(["all"] if whole else [])]
    figure, grid = plt.subplots(
        len(rows), len(titles), figsize=(0.95 * len(titles) + 0.9, 1.05 * len(rows)), squeeze=False
    )
    for row, (method, example) in zip(grid, rows, strict=True):
        shown = {a.count: a.pictures[0] for a in found.of(method) if a.example == example}
        images = [found.truths[example][0], *(shown.get(count) for count in counts)]
        images += [whole[example].pictures[0] if example in whole else None] if whole else []
        for axes, image in zip(row, images, strict=True):
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set_visible(False)
            if image is not None:
                colours = np.moveaxis(image, 0, -1)
                axes.imshow(
                    colours if colours.shape[2] == 3 else colours[..., 0],
                    cmap="gray_r",
                    vmin=0,
                    vmax=1,
                )
        row[0].set_ylabel(NAMES[method], fontsize=9)
    for axes, title in zip(grid[0], titles, strict=True):
        axes.set_title(title, fontsize=9)
    save(figure, path)
