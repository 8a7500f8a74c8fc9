"""What is measured of a run: each metric is declared once, and whatever shows or compares metrics
reads it here.

A metric that nobody has declared, such as a plug-in's, is one that is better when it is higher,
with its name as title. Its name may begin with the examples that it is of: "unseen_loss",
"validation_rouge_l"; without such a beginning it is of the run's held-out examples.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

HELD_OUT = "held-out"
# chooses rates and stops runs; tables and charts are about other examples
VALIDATION = "validation"


@dataclass(frozen=True)
class Metric:
    """How a metric is called, compared and shown.

    Args:
        name: as lines of metrics have it.
        title: for people.
        unit: "%" or "".
        better: "up" where more is better, "down" where less is.
        digits: how many stand behind the point.
        shown: whether tables, charts, progress, status and Prometheus show it.
        held_out: it is measured on held-out examples.
    """

    name: str
    title: str
    unit: Literal["", "%"] = ""
    better: Literal["up", "down"] = "up"
    digits: int = 1
    shown: bool = True
    held_out: bool = True


METRICS: dict[str, Metric] = {}


def declare(*metrics: Metric) -> None:
    """Declare metrics."""
    METRICS.update({metric.name: metric for metric in metrics})


declare(
    Metric("loss", "loss", better="down", digits=3),
    Metric("perplexity", "perplexity", better="down", digits=3, shown=False),  # the loss once more
    Metric("rouge_l", "Rouge-L", "%"),
    Metric("accuracy", "accuracy", "%"),
    Metric("macro_f1", "macro F1", "%"),
    Metric("f1", "F1", "%"),
    Metric("exact_match", "exact match", "%"),
    Metric("final_number", "final numbers", "%"),
    Metric("reward", "reward", digits=3),
    Metric("reward_accuracy", "reward accuracy", "%"),
    Metric("reward_margin", "reward margin", digits=3),
    Metric("pearson", "Pearson", digits=3),
    Metric("spearman", "Spearman", digits=3),
    Metric("train_loss", "local loss", better="down", digits=3, held_out=False),
    Metric("epsilon", "epsilon", better="down", digits=3, held_out=False),
    Metric(
        "step_over_weights",
        "step's length beside the weights'",
        better="down",
        shown=False,
        held_out=False,
    ),
    Metric("weights_moved", "share of weights that moved", shown=False, held_out=False),
)


def metric_of(name: str) -> tuple[str, Metric]:
    """Return the examples that a metric is of, and its declaration.

    Args:
        name: in a line of metrics, such as "unseen_rouge_l".
    """
    for suffix in sorted(METRICS, key=len, reverse=True):
        if name == suffix or name.endswith(f"_{suffix}"):
            metric = METRICS[suffix]
            return name.removesuffix(suffix).rstrip("_") or (
                HELD_OUT if metric.held_out else ""
            ), metric
    examples, _, rest = name.partition("_")
    if examples not in (VALIDATION, "unseen"):
        examples, rest = HELD_OUT, name
    return examples, Metric(rest, rest.replace("_", " "))


def metric_title(name: str, unit: bool = False) -> str:
    """Return a metric in words: "held-out loss", "unseen Rouge-L".

    Args:
        name: in a line of metrics.
        unit: with its unit: "held-out accuracy, %".
    """
    examples, metric = metric_of(name)
    # a count of held-out examples says itself what it is of
    measured = examples
    if metric.title.replace("-", " ").startswith(examples.replace("-", " ")):
        measured = ""
    words = " ".join(filter(None, (measured, metric.title)))
    if unit and metric.unit:
        return f"{words}, {metric.unit}"
    return words


def metric_text(name: str, value: float | None) -> str:
    """Return a metric's value with its digits; "-" where there is none."""
    if value is None:
        return "-"
    return f"{value:.{metric_of(name)[1].digits}f}"


def lower_is_better(name: str) -> bool:
    """Return whether a metric is better when it is lower."""
    return metric_of(name)[1].better == "down"


def shown_metrics(names: Iterable[str]) -> list[str]:
    """Return those of some metrics that people are shown: not perplexity, and nothing of
    validation examples.
    """
    return [
        name for name in names if (about := metric_of(name))[1].shown and about[0] != VALIDATION
    ]
