"""Who holds what: a task's clients by label, as a table. Free of torch."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from fedseed.errors import plural
from fedseed.reports.tables import plain_table
from fedseed.tasks.data import Choice, Cloze, Picture, TaskData
from fedseed.text import natural, shown

SHOWN_CLIENTS = 24  # of more only the summary is shown


@dataclass(frozen=True)
class PartitionStatistics:
    """How many examples of each label each client has."""

    clients: tuple[str, ...]  # their names
    labels: tuple[str, ...]  # in ascending order; one empty label if the data has none
    counts: NDArray[np.int64]  # shape (clients, labels)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Returns the examples of each client, shape (clients,)."""
        return self.counts.sum(axis=1)

    @property
    def skew(self) -> float:
        """Returns how far clients' mixtures of labels are from the whole's: mean total variation,
        from 0 to 1.
        """
        whole = self.counts.sum(axis=0) / self.counts.sum()
        held = self.counts[self.sizes > 0]
        shares = held / held.sum(axis=1, keepdims=True)
        return float(np.abs(shares - whole).sum(axis=1).mean() / 2)


def partition_statistics(data: TaskData) -> PartitionStatistics:
    """Count a task's examples by client and label: the one the task gives, or the right option,
    word or class.
    """

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
    """Returns what a terminal shows: each client, unless there are many; then a summary."""
    labelled = held.labels != ("",)
    sizes, kinds = held.sizes, (held.counts > 0).sum(axis=1)
    about = f" of {plural(len(held.labels), 'label')}" if labelled else ""
    parts: list[Table | str] = [
        f"{plural(len(held.clients), 'client')}, {plural(int(sizes.sum()), 'example')}{about}"
    ]
    if len(held.clients) <= SHOWN_CLIENTS:
        # the labels give way, the other columns don't
        room = 80 - min(32, max(map(len, held.clients))) - 14
        rows = []
        for name, size, row in zip(held.clients, sizes, held.counts, strict=True):
            most = sorted(
                (-count, label) for count, label in zip(row, held.labels, strict=True) if count
            )
            listed = shown(", ".join(f"{label}: {-count:,}" for count, label in most), room)
            rows.append((name, f"{size:,}", listed)[: 2 + labelled])
        table = plain_table(("client", "examples", "labels")[: 2 + labelled], rows)
        if labelled:
            table.columns[2].justify = "left"
        parts.append(table)
    line = f"A client holds {_span(sizes, 'example')}"
    if labelled:
        line += (
            f" of {_span(kinds, 'label')}; its mixture is {held.skew:.2f} from the whole's (0: "
            "equal, 1: disjoint)"
        )
    return [*parts, f"{line}."]


def _span(values: NDArray[np.int64], one: str) -> str:
    low, middle, high = int(values.min()), np.median(values), int(values.max())
    return plural(low, one) if low == high else f"{low:,} to {high:,} {one}s (median {middle:,.0f})"
