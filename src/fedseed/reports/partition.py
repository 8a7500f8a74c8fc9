"""Who holds what: a task's clients by label, as a table and as a picture. Free of torch."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from fedseed.errors import plural
from fedseed.reports.tables import plain_table
from fedseed.tasks.data import Choice, Cloze, Picture, TaskData
from fedseed.text import natural

SHOWN_CLIENTS = 24  # more are summed up
SHOWN_LABELS = 16  # more are summed up


@dataclass(frozen=True)
class PartitionStatistics:
    """How many examples of each label each client has.

    Args:
        clients: their names.
        labels: in ascending order; one empty label if the data has none.
        counts: shape (clients, labels).
    """

    clients: tuple[str, ...]
    labels: tuple[str, ...]
    counts: NDArray[np.int64]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Returns the examples of each client, shape (clients,)."""
        return self.counts.sum(axis=1)

    @property
    def skew(self) -> float:
        """Returns how far clients' mixtures of labels are from the whole's: mean total variation, from 0 to 1."""
        whole = self.counts.sum(axis=0) / self.counts.sum()
        held = self.counts[self.sizes > 0]
        shares = held / held.sum(axis=1, keepdims=True)
        return float(np.abs(shares - whole).sum(axis=1).mean() / 2)


def partition_statistics(data: TaskData) -> PartitionStatistics:
    """Count a task's examples by client and label: the one the task gives, or the right option, word or class."""

    def label(example: Any) -> str:
        if isinstance(example, Choice):
            return example.options[example.gold].strip()
        if isinstance(example, Cloze):
            return example.words[example.gold].strip()
        if isinstance(example, Picture):
            return data.classes[example.label] if data.classes else f"{example.label}"
        return ""

    counted = [Counter(client.labels or map(label, client.examples)) for client in data.clients]
    labels = sorted(set().union(*counted), key=natural)
    counts = np.array([[count[label] for label in labels] for count in counted], dtype=np.int64)
    return PartitionStatistics(tuple(client.name for client in data.clients), tuple(labels), counts)


def partition_table(held: PartitionStatistics) -> list[Table | str]:
    """Returns what a terminal shows: clients, or labels if there are many clients; then a summary."""
    labelled = held.labels != ("",)
    sizes, kinds = held.sizes, (held.counts > 0).sum(axis=1)
    about = f" of {plural(len(held.labels), 'label')}" if labelled else ""
    parts: list[Table | str] = [f"{plural(len(held.clients), 'client')}, {plural(int(sizes.sum()), 'example')}{about}"]
    if len(held.clients) <= SHOWN_CLIENTS:
        room = 80 - min(32, max(map(len, held.clients))) - 14  # the labels give way, the other columns don't
        rows = []
        for name, size, row in zip(held.clients, sizes, held.counts, strict=True):
            most = sorted((-count, label) for count, label in zip(row, held.labels, strict=True) if count)
            listed = _short(", ".join(f"{label}: {-count:,}" for count, label in most), room)
            rows.append((name, f"{size:,}", listed)[: 2 + labelled])
        table = plain_table(("client", "examples", "labels")[: 2 + labelled], rows)
        if labelled:
            table.columns[2].justify = "left"
        parts.append(table)
    elif labelled:
        totals, holders, largest = held.counts.sum(axis=0), (held.counts > 0).sum(axis=0), held.counts.max(axis=0)
        order = sorted(range(len(held.labels)), key=lambda i: -totals[i])
        rows = [(held.labels[i], f"{totals[i]:,}", f"{holders[i]:,}", f"{largest[i]:,}") for i in order[:SHOWN_LABELS]]
        if len(order) > SHOWN_LABELS:
            rest = sum(totals[i] for i in order[SHOWN_LABELS:])
            rows.append((f"{len(order) - SHOWN_LABELS:,} more", f"{rest:,}", "", ""))
        parts.append(plain_table(("label", "examples", "clients", "most with one"), rows))
    line = f"A client holds {_span(sizes, 'example')}"
    if labelled:
        line += f" of {_span(kinds, 'label')}; its mixture is {held.skew:.2f} from the whole's (0: equal, 1: disjoint)"
    return [*parts, f"{line}."]


def _span(values: NDArray[np.int64], one: str) -> str:
    low, middle, high = int(values.min()), np.median(values), int(values.max())
    return plural(low, one) if low == high else f"{low:,} to {high:,} {one}s (median {middle:,.0f})"


def draw_partition(held: PartitionStatistics, title: str, path: Path) -> None:
    """Draw stacked bars of each client by label: how many, and which share.

    Many clients are put in the order of their most frequent label and its share, so that the whole can be read.

    Args:
        held: who holds what.
        title: above the picture.
        path: PNG file to write.
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    from fedseed.reports.plots import COLOURS, save  # takes a second to import

    many = len(held.clients) > SHOWN_CLIENTS
    shares = held.counts / np.maximum(held.sizes, 1)[:, None]
    top = np.where(held.sizes > 0, shares.argmax(axis=1), len(held.labels))  # clients with nothing come last
    order = np.lexsort((-shares.max(axis=1), top)) if many else np.arange(len(held.clients))
    labelled = held.labels != ("",)
    figure = Figure(figsize=(8.5, 5.4 if labelled else 3))
    axes = figure.subplots(2 if labelled else 1, 1, squeeze=False, sharex=True)
    few = len(held.labels) <= len(COLOURS)
    colours = COLOURS if few else colormaps["turbo"](np.linspace(0.02, 0.98, len(held.labels)))
    x = np.arange(len(held.clients))
    for row, (values, heading) in enumerate(((held.counts, "examples"), (100 * shares, "share, %"))[: len(axes)]):
        bottom = np.zeros(len(x))
        for i, label in enumerate(held.labels):
            each = values[order, i]
            # without a gap between many bars, and no edges: they would be wider than the bars
            axes[row][0].bar(x, each, 1.0 if many else 0.85, bottom, color=colours[i], label=label, linewidth=0)
            bottom += each
        axes[row][0].set_ylabel(heading)
        axes[row][0].yaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes[row][0].set_xlim(-0.6, len(x) - 0.4)
        axes[row][0].grid(axis="x", visible=False)
    last = axes[-1][0]
    if many:
        last.set_xlabel(f"{len(x):,} clients" + (", by their most frequent label" if labelled else ""))
        last.set_xticks([])
    else:
        crowded = len(x) * max(map(len, held.clients)) > 80
        last.set_xticks(x, [_short(name) for name in held.clients], rotation=90 if crowded else 0, fontsize=8)
    if len(axes) > 1:
        axes[1][0].set_ylim(0, 100)
    axes[0][0].set_title(f"{title} (mixtures {held.skew:.2f} apart)" if labelled else title, loc="left")
    if labelled and few:
        handles, names = axes[0][0].get_legend_handles_labels()
        shown = [_short(name) for name in names[::-1]]
        figure.legend(handles[::-1], shown, loc="center left", bbox_to_anchor=(1.0, 0.5))
    elif labelled:
        figure.text(1.0, 0.5, f"{len(held.labels):,} labels,\na colour each", fontsize=8, va="center")
    save(figure, path)


def _short(text: str, length: int = 28) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
