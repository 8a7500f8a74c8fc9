"""Count a task's examples by client and label, and show them as a table. It needs no torch."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from fedseed.errors import plural
from fedseed.reports.tables import plain_table
from fedseed.tasks.data import Choice, Cloze, Picture, TaskData
from fedseed.text import natural, show_text

SHOWN_CLIENTS = 24  # most clients that are listed; for more only the summary is shown


@dataclass(frozen=True)
class PartitionStatistics:
    """The number of examples of each label at each client."""

    clients: tuple[str, ...]  # their names
    labels: tuple[str, ...]  # in ascending order; one empty label if the data has none
    counts: NDArray[np.int64]  # shape (clients, labels)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Return the examples of each client, shape (clients,)."""
        return self.counts.sum(axis=1)

    @property
    def skew(self) -> float:
        """Return the distance of clients' label mixtures from that of all: mean total variation,
        from 0 to 1.
        """
        whole = self.counts.sum(axis=0) / self.counts.sum()
        counts_held = self.counts[self.sizes > 0]
        shares = counts_held / counts_held.sum(axis=1, keepdims=True)
        return float(np.abs(shares - whole).sum(axis=1).mean() / 2)


def partition_statistics(data: TaskData) -> PartitionStatistics:
    """Count a task's examples by client and label: the task's label, or the right option, word or
    class.
    """

    def label(example: Any) -> str:
        if isinstance(example, Choice):
            return example.options[example.gold].strip()
        if isinstance(example, Cloze):
            return example.words[example.gold].strip()
        if isinstance(example, Picture):
            if data.classes:
                return data.classes[example.label]
            return f"{example.label}"
        return ""

    counted = [Counter(client.labels or map(label, client.examples)) for client in data.clients]
    labels = sorted(set().union(*counted), key=natural)
    rows = [list(map(count.__getitem__, labels)) for count in counted]
    counts = np.array(rows, dtype=np.int64)
    return PartitionStatistics(tuple(client.name for client in data.clients), tuple(labels), counts)


def partition_table(statistics: PartitionStatistics) -> list[Table | str]:
    """Return lines for a terminal: each client, or a summary if there are many."""
    labelled = statistics.labels != ("",)
    sizes, kinds = statistics.sizes, (statistics.counts > 0).sum(axis=1)
    labels_text = ""
    if labelled:
        labels_text = f" of {plural(len(statistics.labels), 'label')}"
    parts: list[Table | str] = [
        f"{plural(len(statistics.clients), 'client')}, "
        f"{plural(int(sizes.sum()), 'example')}{labels_text}"
    ]
    if len(statistics.clients) <= SHOWN_CLIENTS:
        # only the column of labels is shortened
        room = 80 - min(32, max(map(len, statistics.clients))) - 14
        rows = []
        for name, size, row in zip(statistics.clients, sizes, statistics.counts, strict=True):
            largest = sorted(
                (-count, label)
                for count, label in zip(row, statistics.labels, strict=True)
                if count
            )
            listed = show_text(", ".join(f"{label}: {-count:,}" for count, label in largest), room)
            rows.append((name, f"{size:,}", listed)[: 2 + labelled])
        table = plain_table(("client", "examples", "labels")[: 2 + labelled], rows)
        if labelled:
            table.columns[2].justify = "left"
        parts.append(table)
    line = f"A client holds {_span(sizes, 'example')}"
    if labelled:
        line += (
            f" of {_span(kinds, 'label')}; its mixture is {statistics.skew:.2f} from the whole's "
            "(0: equal, 1: disjoint)"
        )
    return [*parts, f"{line}."]


def _span(values: NDArray[np.int64], one: str) -> str:
    low, middle, high = int(values.min()), np.median(values), int(values.max())
    if low == high:
        return plural(low, one)
    return f"{low:,} to {high:,} {one}s (median {middle:,.0f})"
