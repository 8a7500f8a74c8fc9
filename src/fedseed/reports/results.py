"""Reading what a run has left in its folder."""

import json
from pathlib import Path
from typing import Any

MetricsLine = dict[str, Any]
SCORES = {
    "rouge_l": "Rouge-L", "accuracy": "accuracy", "macro_f1": "macro F1", "f1": "F1", "final_number": "numbers",
    "exact_match": "exact",
}  # fmt: skip
PHASES = ("local", "projection", "aggregation", "rebuild")  # of a round, from a client's data to new weights


def read_metrics(folder: Path) -> list[MetricsLine]:
    """The lines of a run's metrics.jsonl."""
    with open(folder / "metrics.jsonl", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def read_summary(folder: Path) -> MetricsLine:
    """A finished run's summary.json."""
    summary: MetricsLine = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return summary
