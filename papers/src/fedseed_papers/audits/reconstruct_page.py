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
    "first round. More steps, larger batches, momentum and Adam were not attacked, which does not "
    "make them safe.",
    "The attack is the coordinator's, or of whoever sees one client's message. Who gets the orbit "
    "sees the clients' sum, as if all their pictures were one batch; with secure sums the "
    "coordinator sees no more.",
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


def reconstruction_data(result: Reconstruction) -> dict[str, Any]:
    """Return what audit.json holds of this."""
    attempts = []
    for a in result.attempts:
        attempts.append({name: getattr(a, name) for name in NUMBERS})
    return {"parameters": result.size, "told_apart_from": result.others - 1, "attempts": attempts}


def attempts_csv(result: Reconstruction) -> str:
    """Return every attempt, a line each."""
    text_buffer = io.StringIO()
    writer = csv.writer(text_buffer, lineterminator="\n")
    writer.writerow(NUMBERS)
    for attempt in result.attempts:
        writer.writerow([getattr(attempt, name) for name in NUMBERS])
    return text_buffer.getvalue()


def build_reconstruction_page(
    result: Reconstruction, name: str, facts: Mapping[str, str], picture: Path
) -> Audit:
    """Return the page's content.

    Args:
        result: what came of it.
        name: of the recipe.
        facts: where the numbers come from.
        picture: what `draw_pictures` wrote.
    """
    methods = list(dict.fromkeys(a.method for a in result.attempts))
    examples = len({a.example for a in result.attempts if a.batch == 1})
    return Audit(
        "reconstruct",
        f"Reconstruction from messages: {name}",
        "A client has one picture and answers the first plan; the attack reads its message as the "
        f"coordinator does, and looks for the picture. {result.size:,} parameters train; "
        f"{plural(examples, 'picture')}{', each' if examples > 1 else ''} told apart from "
        f"{result.others - 1} others.",
        [_answer(result, method) for method in methods],
        [
            _panel(result, methods, "Picture", "error (1: the mean picture)", lambda a: a.error),
            _panel(result, methods, "Identified", "share of pictures", lambda a: a.identified),
            _panel(
                result,
                methods,
                "Gradient, by linear inversion",
                "cosine",
                lambda a: a.gradient_cosine,
            ),
            *_batches(result, methods),
        ],
        [_table(result, methods), *_batch_table(result)],
        [("The true picture, and what was found from so many numbers", embedded(picture))],
        LIMITS,
        {"parameters that train": f"{result.size:,}", **facts},
    )


def _answer(result: Reconstruction, method: str) -> Answer:
    """From how many numbers on a method's messages give the picture away."""
    asks, attempts = (
        f"What does a message of {NAMES[method]} give away?",
        result.attempts_of(method),
    )
    if not attempts:
        return Answer(asks, "Nothing was tried.", "not tried")
    by_count = {}
    for count in sorted({a.count for a in attempts}):
        by_count[count] = [a for a in attempts if a.count == count]
    shares = {count: _share_identified(attempts) for count, attempts in by_count.items()}
    first = next((count for count, share in shares.items() if share > 0.5), None)
    sentences = []
    for count in by_count:
        if count in (min(by_count), first, max(by_count)):
            sentences.append(_describe_attempts(by_count[count]))
    text = (
        f"{'; '.join(sentences)}. At chance 1 of {result.others} is identified, and the error is 1 "
        "or more."
    )
    if first is None:
        return Answer(asks, text, "not by this attack", "good")
    return Answer(asks, text, f"the picture, from {first:,} numbers on", "warn")


def _share_identified(attempts: Sequence[Attempt]) -> float:
    return fmean(attempt.identified for attempt in attempts)


def _describe_attempts(attempts: Sequence[Attempt]) -> str:
    """Return in words what attempts with one count of numbers have found."""
    error = fmean(attempt.error for attempt in attempts)
    cosine = fmean(attempt.gradient_cosine for attempt in attempts)
    return (
        f"{attempts[0].count:,} numbers ({human_bytes(attempts[0].payload_bytes)}): "
        f"{100 * _share_identified(attempts):.0f}% identified, error {error:.2f}, gradient's "
        f"cosine {cosine:.2f}"
    )


def _panel(
    result: Reconstruction, methods: Sequence[str], title: str, label: str, value_of: Any
) -> Panel:
    """Return means over pictures, with the least and the largest; a line for each method."""
    lines, counts = [], [a.count for a in result.attempts if a.method in COUNTED and a.batch == 1]
    for number, method in enumerate(methods):
        attempts = result.attempts_of(method)
        points, band = [], []
        for count in sorted({a.count for a in attempts}):
            values = [value_of(a) for a in attempts if a.count == count]
            # a method that sends all is a line across
            if method not in COUNTED and counts:
                point_values = [float(min(counts)), float(max(counts))]
            else:
                point_values = [float(count)]
            points += [(x, fmean(values)) for x in point_values]
            band += [(x, min(values), max(values)) for x in point_values]
        lines.append(
            Series(
                NAMES[method] + ("" if method in COUNTED else ", all numbers"), points, band, number
            )
        )
    return Panel(title, lines, Axis("numbers in the message, K", log=True), Axis(label))


def _batches(result: Reconstruction, methods: Sequence[str]) -> list[Panel]:
    """Errors over the batch, at the largest K."""
    lines = []
    for number, method in enumerate(methods):
        attempts = [a for a in result.attempts if a.method == method and a.example == 0]
        largest = max(a.count for a in attempts)
        points = sorted((float(a.batch), a.error) for a in attempts if a.count == largest)
        if len(points) > 1:
            lines.append(Series(f"{NAMES[method]}, {largest:,} numbers", points, number=number))
    if lines:
        return [
            Panel(
                "Several pictures",
                lines,
                Axis("pictures in the batch", whole=True),
                Axis("error (1: the mean picture)"),
            )
        ]
    return []


def _table(result: Reconstruction, methods: Sequence[str]) -> Sheet:
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
        attempts = result.attempts_of(method)
        for count in sorted({a.count for a in attempts}):
            attempts_there = [a for a in attempts if a.count == count]
            inputs = [a.input_error for a in attempts_there if a.input_error is not None]
            labels = [a.label_right for a in attempts_there if a.label_right is not None]
            rows.append(
                [
                    NAMES[method],
                    f"{count:,}",
                    f"{attempts_there[0].payload_bytes:,}",
                    *_figures(attempts_there),
                    f"{100 * fmean(labels):.0f}%" if labels else "-",
                    f"{fmean(inputs):.2g}" if inputs else "-",
                    *_pictures(attempts_there),
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


def _batch_table(result: Reconstruction) -> list[Sheet]:
    batch_attempts = [a for a in result.attempts if a.batch > 1]
    if not batch_attempts:
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
        for a in batch_attempts
    ]
    return [Sheet("Several pictures in a batch", head, rows)]


def _figures(attempts: Sequence[Attempt]) -> list[str]:
    return [
        f"{fmean(a.gradient_error for a in attempts):.2g}",
        f"{fmean(a.gradient_cosine for a in attempts):.3f}",
    ]


def _pictures(attempts: Sequence[Attempt]) -> list[str]:
    error, shares = (
        fmean(a.error for a in attempts),
        (fmean(a.identified for a in attempts), fmean(a.labels_right for a in attempts)),
    )
    return [f"{error:.2f}", *(f"{100 * share:.0f}%" for share in shares)]


def _draw_image(axes: Any, image: Any) -> None:
    """Draw a picture, channels first, without ticks or frame; nothing for None."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    if image is None:
        return
    pixels = np.moveaxis(image, 0, -1)
    if pixels.shape[2] != 3:
        pixels = pixels[..., 0]
    axes.imshow(pixels, cmap="gray_r", vmin=0, vmax=1)


def draw_pictures(result: Reconstruction, path: Path) -> None:
    """Draw what was found beside the truth: a row for each method and picture, K from left to
    right.

    Args:
        result: what came of it.
        path: PNG file to write.
    """
    from matplotlib import pyplot as plt

    from fedseed.reports.plots import save

    counts = sorted({a.count for a in result.attempts if a.batch == 1 and a.method in COUNTED})
    rows = []
    for method in dict.fromkeys(attempt.method for attempt in result.attempts):
        if method in COUNTED:
            examples = sorted({attempt.example for attempt in result.attempts_of(method)})
            rows += [(method, example) for example in examples]
    whole = {a.example: a for a in result.attempts if a.batch == 1 and a.method not in COUNTED}
    titles = ["true", *(f"{count:,}" for count in counts), *(["all"] if whole else [])]
    figure, grid = plt.subplots(
        len(rows), len(titles), figsize=(0.95 * len(titles) + 0.9, 1.05 * len(rows)), squeeze=False
    )
    for row, (method, example) in zip(grid, rows, strict=True):
        pictures_by_count = {
            a.count: a.pictures[0] for a in result.attempts_of(method) if a.example == example
        }
        images = [result.truths[example][0], *(pictures_by_count.get(count) for count in counts)]
        images += [whole[example].pictures[0] if example in whole else None] if whole else []
        for axes, image in zip(row, images, strict=True):
            _draw_image(axes, image)
        row[0].set_ylabel(NAMES[method], fontsize=9)
    for axes, title in zip(grid[0], titles, strict=True):
        axes.set_title(title, fontsize=9)
    save(figure, path)
