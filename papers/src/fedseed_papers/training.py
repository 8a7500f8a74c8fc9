"""Figures and tables that need runs: a sweep's lines as curves, a table, and claims with verdicts."""

from collections.abc import Callable, Mapping, Sequence
from math import isfinite, nan
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from fedseed import metrics
from fedseed.experiments.sweeps import Sweep, SweepLine, sheets
from fedseed.metrics import shown_metrics
from fedseed.reports import charts
from fedseed.reports.charts import Axis, Panel, Series
from fedseed.reports.results import read_lines, read_metrics, read_summary
from fedseed.reports.tables import Sheet, mean_and_deviation
from fedseed_papers.catalogue import Form, Item, Scale
from fedseed_papers.findings import UNKNOWN, Claim, Finding, Verdict, judged

CONVERGED = 0.95  # of the whole improvement of a run
FEWEST = 3  # runs of a line, or differences between lines are no evidence
DEVIATIONS = 2  # of the mean's difference, for lines to differ
SHARE = 0.1  # of a process's memory that float32 weights must take, or it says nothing of the method
ALIKE = 0.1  # of the larger mean: a difference that must have shown, for lines to be alike
SLIGHT = 0.01  # of the larger mean: so small a difference leaves lines alike, however sure it is


# -- numbers of a run --------------------------------------------------------------------------------------------------


def rounds_to_converge(lines: Sequence[Mapping[str, Any]], metric: str = "loss") -> float:
    """Returns the first evaluated round with 95% of the run's improvement; NaN if nothing became better.

    Args:
        lines: of metrics.jsonl.
        metric: a loss, or a score, of which more is better.
    """
    sign = 1 if lower_is_better(metric) else -1
    measured = [(line["round"], sign * line[metric]) for line in lines if metric in line and isfinite(line[metric])]
    if not measured:
        return nan
    first, best = measured[0][1], min(value for _, value in measured)
    if best >= first:
        return nan
    return float(next(at for at, value in measured if first - value >= CONVERGED * (first - best)))


def _phase(*names: str) -> Callable[[Path], float]:
    def of(folder: Path) -> float:
        found = read_summary(folder).get("seconds_per_client") or {}
        return sum(float(found.get(name, nan)) for name in names)

    return of


def _exchanged(folder: Path) -> float:
    found = read_summary(folder).get("exchanged") or {}
    return float(found.get("scalars_up", nan) + found.get("scalars_down", nan))


def probabilities(folder: Path) -> Sequence[float]:
    """FedKSeed-Pro's probabilities after the last round, from its orbit, the largest first; none of other methods."""
    from fedseed.orbit.file import Orbit

    path = folder / "model.orbit"
    orbit = Orbit.open(path) if path.exists() else None
    if orbit is None or not len(orbit):
        return ()
    method = orbit.header.method
    state = method.start(orbit.header.layout, orbit.header.seed)
    last = orbit.records[-1]
    found = method.figures(method.advance(state, method.decode_step(state, last.payload))).get("probabilities")
    return () if found is None else sorted(found.tolist(), reverse=True)


def _probability_ratio(folder: Path) -> float:
    found = probabilities(folder)
    return found[0] / found[-1] if found else nan


MEASURES: dict[str, Callable[[Path], float]] = {
    "bytes": lambda f: float(read_summary(f)["payload_bytes_up"] + read_summary(f)["payload_bytes_down"]),
    "memory": lambda f: float(read_summary(f)["peak_memory_bytes"]),
    "seconds": _phase("local", "projection", "aggregation", "rebuild"),
    "local seconds": _phase("local", "projection"),  # Ferret's paper counts the projection in (Appendix C.2)
    "projection seconds": _phase("projection"),
    "aggregation seconds": _phase("aggregation", "rebuild"),
    "parameters": _exchanged,
    "probability ratio": _probability_ratio,
    "trainable": lambda f: float(read_summary(f)["parameters"]),
    "rounds to converge": lambda f: rounds_to_converge(read_metrics(f)),
}


def lower_is_better(metric: str) -> bool:
    """Returns whether less is better: of losses, and of everything that is spent."""
    return metric in MEASURES or metrics.lower_is_better(metric)


def measured(folder: Path, metric: str) -> float:
    """Returns a number of a finished run: one of `MEASURES`, or a metric after its last round.

    NaN: it has none, or is the loss of a run that has diverged: thousands or millions, by chance.
    """
    if metric in MEASURES:
        return MEASURES[metric](folder)
    summary = read_summary(folder)
    if metric.endswith("loss") and summary.get("diverged") is not None:
        return nan
    return float(summary["final"].get(metric, nan))


# -- claims ------------------------------------------------------------------------------------------------------------


def judge(says: str, form: Form, item_metric: str, lines: Sequence[SweepLine]) -> Claim:
    """Returns a claim with its verdict.

    Args:
        says: what the paper says.
        form: what decides it.
        item_metric: what it is about, if the form does not say.
        lines: of the sweep.
    """
    metric = form.metric or item_metric
    folders = {label: folders_of(form, label, lines) for label in form.labels}
    values = {label: [measured(folder, metric) for folder in found] for label, found in folders.items()}
    missing = [label for label in form.labels if not values[label]]
    if missing:
        return Claim(says, f"Not measured: no run of {', '.join(missing)} was finished.", UNKNOWN)
    here = f"{metric}: " + ", ".join(f"{label} {_shown(metric, values[label])}" for label in form.labels)
    if metric == "memory":  # float32 weights' part of a process's peak, the largest of the lines'
        share = max(4 * measured(f, "trainable") / measured(f, "memory") for found in folders.values() for f in found)
        if share < SHARE:
            return Claim(says, f"{here}. The weights are {share:.1%} of that: the rest is libraries.", UNKNOWN)
    return Claim(says, here + ".", _verdict(form, metric, [values[label] for label in form.labels]))


def folders_of(form: Form, named: str, lines: Sequence[SweepLine]) -> list[Path]:
    """Returns the finished runs of a line that a form names."""
    label, _, scenario = named.partition(" @ ")
    scenario = scenario or (form.scenario if form.scenario is not None else lines[0].scenario if lines else "")
    return [f for line in lines if (line.scenario, line.label) == (scenario, label) for f in line.folders.values()]


def _verdict(expected: Form, metric: str, values: Sequence[Sequence[float]]) -> Verdict:
    if expected.of is not None or expected.ratio:
        number = fmean(values[0]) if expected.of is not None else fmean(values[0]) / fmean(values[1])
        if not isfinite(number):
            return UNKNOWN
        return judged(number >= (expected.least or 0.0), kind=True)
    if expected.alike:
        pairs = [(a, b) for i, a in enumerate(values) for b in values[i + 1 :]]
        if not all(_enough(a, b) for a, b in pairs):
            return UNKNOWN
        if any(_apart(a, b) and not _slight(a, b) for a, b in pairs):
            return judged(False)
        return judged(all(_alike(a, b) for a, b in pairs), UNKNOWN, kind=True)
    best, worst = values[0], values[-1]
    if not _enough(best, worst):
        return UNKNOWN
    sign = 1 if lower_is_better(metric) else -1
    gain = sign * (_mean(worst) - _mean(best))
    if not _apart(best, worst):
        return judged(expected.ties and _alike(best, worst), UNKNOWN, kind=True)
    return judged(gain > 0, kind=True)


def _enough(a: Sequence[float], b: Sequence[float]) -> bool:
    known = min(len(a), len(b)) >= FEWEST and all(map(isfinite, (*a, *b)))
    return known or _diverged(a) != _diverged(b)


def _diverged(values: Sequence[float]) -> bool:
    """Returns whether all runs ended without a number."""
    return not any(map(isfinite, values))


def _mean(values: Sequence[float]) -> float:
    finite = [v for v in values if isfinite(v)]
    return fmean(finite) if finite else float("inf")


def _apart(a: Sequence[float], b: Sequence[float]) -> bool:
    """Returns whether the means differ by more than twice the deviation of their difference."""
    if _diverged(a) or _diverged(b):
        return _diverged(a) != _diverged(b)
    return abs(fmean(a) - fmean(b)) > DEVIATIONS * _error(a, b)


def _alike(a: Sequence[float], b: Sequence[float]) -> bool:
    """Returns whether means that are not apart are known well enough: a difference of a tenth would have shown."""
    return DEVIATIONS * _error(a, b) <= ALIKE * _largest(a, b)


def _slight(a: Sequence[float], b: Sequence[float]) -> bool:
    return not _diverged(a) and not _diverged(b) and abs(fmean(a) - fmean(b)) <= SLIGHT * _largest(a, b)


def _largest(a: Sequence[float], b: Sequence[float]) -> float:
    return max(abs(fmean(a)), abs(fmean(b)))


def _error(a: Sequence[float], b: Sequence[float]) -> float:
    """Returns the deviation of the means' difference."""
    return float((stdev(a) ** 2 / len(a) + stdev(b) ** 2 / len(b)) ** 0.5)


def _shown(metric: str, values: Sequence[float]) -> str:
    if _diverged(values):
        return "diverged with every seed" if metric.endswith("loss") else "-"
    largest = max((abs(v) for v in values if isfinite(v)), default=0.0)
    return mean_and_deviation(values, 0 if largest >= 1000 else 1 if largest >= 20 else 3 if largest >= 0.1 else 5)


# -- curves ------------------------------------------------------------------------------------------------------------


def curves(lines: Sequence[SweepLine], metric: str, scenario: str) -> list[Panel]:
    """Returns a metric over rounds, bytes, passes and seconds: means over seeds, with their deviation."""
    runs = {
        line.label: [read_lines(folder) for folder in line.folders.values()]
        for line in lines
        if line.scenario == scenario and line.folders
    }
    return charts.curves(runs, scenario, [metric])


# -- all of it ---------------------------------------------------------------------------------------------------------


def finding(item: Item, scale: Scale, sweep: Sweep, lines: Sequence[SweepLine]) -> Finding:
    """Returns what a sweep's runs say about an item at a scale."""
    forms, metric = item.claims_at(scale), item.metric_at(scale)
    claims = [judge(says, form, metric, lines) for says, form in forms]
    asked = (metric, *(form.metric for _, form in forms), "loss")
    metrics = dict.fromkeys(m for m in asked if m is not None and m not in MEASURES)
    scenarios = list(dict.fromkeys(line.scenario for line in lines))
    panels = [panel for metric in metrics for scenario in scenarios for panel in curves(lines, metric, scenario)]
    if "probability ratio" in asked:
        panels.insert(0, _probability_panel(lines))
    failed = sum(len(line.failed) for line in lines)
    searched = [line for line in lines if line.tried]
    reason = (
        f"{sum(len(line.folders) for line in lines)} runs finished"
        + (f", {failed} failed" if failed else "")
        + f"; lines differ if their means are more than {DEVIATIONS} deviations of the difference apart, over "
        f"{FEWEST} seeds at least, and are alike if a difference of {ALIKE:.0%} would have shown and none "
        f"of more than {SLIGHT:.0%} did. "
        + (f"Settings of {len(searched)} lines were searched on validation examples." if searched else
           "Nothing was searched: the recipes' settings were.")
    )  # fmt: skip
    spent = _spent_sheet(lines)
    return Finding(claims, reason, panels, [*sheets(sweep, lines), spent], sweep.seeds,
                   item.differs if scale == "small" else ())  # fmt: skip


def _probability_panel(lines: Sequence[SweepLine]) -> Panel:
    """Returns probabilities by rank, of each line's first run."""
    series = []
    for number, line in enumerate(lines):
        found = probabilities(next(iter(line.folders.values()), Path()))
        series.append(Series(line.label, [(i + 1.0, p * len(found)) for i, p in enumerate(found)], number=number))
    return Panel("Probabilities of candidates", series, Axis("candidate, by rank"), Axis("probability times K"))


def _spent_sheet(lines: Sequence[SweepLine]) -> Sheet:
    rows = []
    for line in lines:
        found = [rounds_to_converge(read_metrics(folder)) for folder in line.folders.values()]
        said = [read_summary(folder) for folder in line.folders.values()]
        if not said:
            continue
        names = ", ".join(f"{m} {mean_and_deviation([s['final'][m] for s in said], 3)}" for m in shown_metrics(
            said[0]["final"]))  # fmt: skip
        rows.append([" ".join(filter(None, (line.scenario, line.label))), names, mean_and_deviation(found, 1),
                     f"{fmean(s['forward_passes'] for s in said):,.0f}",
                     mean_and_deviation([s["seconds"]["total"] for s in said], 1)])  # fmt: skip
    note = (
        f"Rounds to converge: the first evaluation with {CONVERGED:.0%} of the run's whole improvement of the loss. "
        "Rounds between evaluations are not looked at."
    )
    head = ("line", "after the last round", "rounds to converge", "forward passes", "seconds")
    return Sheet("Rounds to converge", head, rows, note)


def as_mapping(lines: Sequence[SweepLine]) -> Mapping[str, Any]:
    """Returns each line's folders and failures, for programs."""
    return {
        " ".join(filter(None, (line.scenario, line.label))): {
            "chosen": list(line.point),
            "folders": [str(folder) for folder in line.folders.values()],
            "failed": {str(seed): why for seed, why in line.failed.items()},
        }
        for line in lines
    }
