"""Figures and tables that need runs: a sweep's lines as curves, a table, and claims with
verdicts.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, product
from math import inf, isfinite, nan
from pathlib import Path
from statistics import fmean
from typing import Any

from fedseed import metrics
from fedseed.experiments.sweeps import Sweep, SweepLine, sheets
from fedseed.metrics import shown_metrics
from fedseed.reports import charts
from fedseed.reports.charts import Axis, Panel, Series
from fedseed.reports.results import read_lines, read_metrics, read_summary
from fedseed.reports.tables import Sheet, mean_and_deviation
from fedseed_papers import statistics
from fedseed_papers.catalogue import EVERY_SCENARIO, Evaluation, Form, Item, Scale
from fedseed_papers.findings import Claim, Finding
from fedseed_papers.statistics import NOTHING, Evidence

CONVERGED = 0.95  # of the whole improvement of a run
RULE = (
    "Differences are paired over seeds, with 95% intervals; p values are two-sided, by Holm over "
    "the item's claims; a claim is decided at p < 0.01 with five seeds, p < 0.04 with ten; alike: "
    "within a tenth of the gain over the base; a lead that is surely below that is none."
)
# of a process's memory that float32 weights must take, or it says nothing of the method
SHARE = 0.1


def rounds_to_converge(lines: Sequence[Mapping[str, Any]], metric: str = "loss") -> float:
    """Return the first evaluated round with 95% of the run's improvement.

    NaN if nothing became better.

    Infinity if that is the last one: the run still improves, and how long it would take is not
    known.

    Args:
        lines: of metrics.jsonl.
        metric: a loss, or a score, of which more is better.
    """
    sign = -1
    if lower_is_better(metric):
        sign = 1
    measured = [
        (line["round"], sign * line[metric])
        for line in lines
        if metric in line and isfinite(line[metric])
    ]
    if not measured:
        return nan
    first, best = measured[0][1], min(value for _, value in measured)
    if best >= first:
        return nan
    converged = next(
        number for number, value in measured if first - value >= CONVERGED * (first - best)
    )
    if converged == measured[-1][0]:
        return inf
    return float(converged)


def _phase(*names: str) -> Callable[[Path], float]:
    def measure_phases(folder: Path) -> float:
        seconds = read_summary(folder).get("seconds_per_client") or {}
        return sum(float(seconds.get(name, nan)) for name in names)

    return measure_phases


def _exchanged(folder: Path) -> float:
    numbers = read_summary(folder).get("exchanged") or {}
    return float(numbers.get("scalars_up", nan) + numbers.get("scalars_down", nan))


def probabilities(folder: Path) -> Sequence[float]:
    """FedKSeed-Pro's probabilities after the last round, from its orbit, the largest first.

    None of other methods.
    """
    from fedseed.methods import fedkseed
    from fedseed.orbit.file import Orbit

    path = folder / "model.orbit"
    orbit = None
    if path.exists():
        orbit = Orbit.open(path)
    if orbit is None or not len(orbit):
        return ()
    method = orbit.header.method
    state = method.start(orbit.header.layout, orbit.header.seed)
    last = orbit.records[-1]
    if not getattr(method, "importance", False):
        return ()
    return sorted(
        fedkseed.probabilities(method.decode_step(state, last.payload)).tolist(), reverse=True
    )


def _below_even(folder: Path) -> float:
    values = probabilities(folder)
    if values:
        return 100 * fmean(p * len(values) < 1 for p in values)
    return nan


MEASURES: dict[str, Callable[[Path], float]] = {
    "bytes": lambda f: float(
        read_summary(f)["payload_bytes_up"] + read_summary(f)["payload_bytes_down"]
    ),
    "memory": lambda f: float(read_summary(f)["peak_memory_bytes"]),
    "seconds": _phase("local", "projection", "aggregation", "rebuild"),
    # Ferret's paper counts the projection in (Appendix C.2)
    "local seconds": _phase("local", "projection"),
    "projection seconds": _phase("projection"),
    "aggregation seconds": _phase("aggregation", "rebuild"),
    "parameters": _exchanged,
    "candidates below 1 / K": _below_even,
    "trainable": lambda f: float(read_summary(f)["parameters"]),
    "rounds to converge": lambda f: rounds_to_converge(read_metrics(f)),
}


# what FeedSign's tables have: accuracy, or F1 where answers are generated (Appendix C.1)
SCORE = "score"


def score(folder: Path) -> float:
    """Return the accuracy of a finished run, or its F1 where answers are generated."""
    final = read_summary(folder)["final"]
    return float(final.get("accuracy", final.get("f1", nan)))


def lower_is_better(metric: str) -> bool:
    """Return whether less is better: of losses, and of everything that is spent."""
    if metric == SCORE:
        return False
    return metric in MEASURES or metrics.lower_is_better(metric)


def measured(folder: Path, metric: str, evaluation: Evaluation = "last") -> float:
    """Return a number of a finished run: one of `MEASURES`, or a metric of an evaluation.

    NaN: it has none, or is the loss of a run that has diverged: thousands or millions, by chance.

    Args:
        folder: of the run.
        metric: its name.
        evaluation: "last", or "best": the one with the lowest validation loss.
    """
    if metric in MEASURES:
        return MEASURES[metric](folder)
    if metric == SCORE:
        return score(folder)
    summary = read_summary(folder)
    if metric.endswith("loss") and summary.get("diverged") is not None:
        return nan
    if evaluation == "best":
        return _at_best_validation(folder, metric)
    return float(summary["final"].get(metric, nan))


def _at_best_validation(folder: Path, metric: str) -> float:
    """Return a metric of the round with the lowest validation loss; NaN of a run that has none."""
    stopped = read_summary(folder).get("stopped")
    if stopped is None:
        return nan
    for line in read_metrics(folder):
        if line["round"] == stopped["best_round"]:
            return float(line.get(metric, nan))
    return nan


def judge(
    claims: Sequence[tuple[str, Form]],
    item_metric: str,
    lines: Sequence[SweepLine],
    evaluation: Evaluation = "last",
) -> list[Claim]:
    """Return an item's claims with their verdicts, which share one error.

    Args:
        claims: what the paper says, and what decides it.
        item_metric: what a claim is about, if its form does not say.
        lines: of the sweep.
        evaluation: whose metrics are compared, the last or the best one.
    """
    evidence = []
    for says, form in claims:
        metric = form.metric or item_metric
        evidence.append((says, *_evidence(form, metric, lines, evaluation)))
    return statistics.concluded(evidence)


def runs_of(form: Form, label_named: str, lines: Sequence[SweepLine]) -> list[Mapping[int, Path]]:
    """Return the finished runs of a line that a form names, by seed, for each scenario it is about.

    An empty list: there is no such line, or a scenario without a finished run.
    """
    label, _, scenario = label_named.partition(" @ ")
    if not scenario:
        scenario = lines[0].scenario if lines else ""
        if form.scenario is not None:
            scenario = form.scenario
    runs = [
        line.folders
        for line in lines
        if line.label == label and scenario in (line.scenario, EVERY_SCENARIO)
    ]
    if not all(runs):
        return []
    return runs


def mean_by_seed(
    runs: Sequence[Mapping[int, Path]], metric: str, evaluation: Evaluation = "last"
) -> dict[int, float]:
    """Return a line's number for each seed that all scenarios have: the mean over scenarios."""
    if not runs:
        return {}
    means = {}
    for seed in runs[0]:
        if all(seed in run for run in runs):
            means[seed] = fmean(measured(run[seed], metric, evaluation) for run in runs)
    return means


def _negated(line: Mapping[int, float]) -> dict[int, float]:
    return {seed: -value for seed, value in line.items()}


def _weights_share(folders: Sequence[Path]) -> float:
    """Return the share of float32 weights in a process' peak memory, the largest of some runs."""
    return max(4 * measured(folder, "trainable") / measured(folder, "memory") for folder in folders)


def _evidence(
    form: Form, metric: str, lines: Sequence[SweepLine], evaluation: Evaluation
) -> tuple[str, Evidence]:
    """Return the lines' numbers in words, and what is known of a claim."""
    runs = {label: runs_of(form, label, lines) for label in form.labels}
    values = {
        label: mean_by_seed(line_runs, metric, evaluation) for label, line_runs in runs.items()
    }
    missing = [label for label in form.labels if not values[label]]
    if missing:
        return f"Not measured: no run of {', '.join(missing)} was finished.", NOTHING
    place = f"{metric}: " + ", ".join(
        f"{label} {_show_values(metric, list(evidence.values()))}"
        for label, evidence in values.items()
    )
    folders: list[Path] = []
    for line_runs in runs.values():
        folders += chain.from_iterable(run.values() for run in line_runs)
    share = _weights_share(folders) if metric == "memory" else 1.0
    if share < SHARE:
        return f"{place}. The weights are {share:.1%} of that: the rest is libraries.", NOTHING
    better = list(values.values())
    if lower_is_better(metric):
        better = [_negated(line) for line in better]
    if form.of is not None or form.ratio:
        first, *others = values.values()
        evidence, statement = (
            statistics.at_least(first, form.least or 0.0, *others),
            "ratio" if others else "mean",
        )
    elif form.alike:
        evidence, statement = (
            statistics.alike(better, margin(metric, values, folders)),
            "largest difference",
        )
    else:
        width = margin(metric, values, folders)
        evidence = statistics.ahead(
            better[0], better[-1], *((width, 0.0) if form.ties else (0.0, width))
        )
        statement = "the first's lead"
    return (
        f"{place}; "
        f"{statement if evidence is not NOTHING else statistics.describe_evidence(evidence, 1.0)}",
        evidence,
    )


def margin(
    metric: str, values: Mapping[str, Mapping[int, float]], folders: Sequence[Path]
) -> float:
    """Return how far lines that are alike may be apart: a tenth of what the best of them gained
    over the base.

    Of what has no base (bytes, seconds) a tenth of the largest mean.
    """
    means = [fmean(by_seed.values()) for by_seed in values.values()]
    bases = [value for folder in folders if isfinite(value := baseline_of(folder, metric))]
    gains = [abs(mean - fmean(bases)) for mean in means] if bases else [abs(mean) for mean in means]
    return statistics.MARGIN * max(filter(isfinite, gains), default=0.0)


def baseline_of(folder: Path, metric: str) -> float:
    """Return a metric of the base that a run began with; NaN if the run has none."""
    if metric in MEASURES:
        return nan
    base = read_summary(folder).get("baseline") or {}
    if metric == SCORE:
        return float(base.get("accuracy", base.get("f1", nan)))
    return float(base.get(metric, nan))


def _show_values(metric: str, values: Sequence[float]) -> str:
    if not any(map(isfinite, values)):
        if metric.endswith("loss"):
            return "diverged with every seed"
        return "-"
    largest = max((abs(v) for v in values if isfinite(v)), default=0.0)
    return mean_and_deviation(
        values, 0 if largest >= 1000 else 1 if largest >= 20 else 3 if largest >= 0.1 else 5
    )


def curves(lines: Sequence[SweepLine], metric: str, scenario: str) -> list[Panel]:
    """Return a metric over rounds, bytes, passes and seconds: means over seeds, with their
    deviation.
    """
    runs = {}
    for line in lines:
        if line.scenario == scenario and line.folders:
            runs[line.label] = [read_lines(folder) for folder in line.folders.values()]
    return charts.curves(runs, scenario, [metric])


def finding(
    item: Item, scale: Scale, sweeps: Sequence[tuple[Sweep, Sequence[SweepLine]]]
) -> Finding:
    """Return what the runs of an item's sweeps say about it at a scale.

    Args:
        item: the item of the catalogue.
        scale: "small" or "published".
        sweeps: each sweep with its finished lines.
    """
    lines = list(chain.from_iterable(sweep_lines for _, sweep_lines in sweeps))
    forms, metric = item.claims_at(scale), item.metric_at(scale)
    evaluation = item.evaluation_at(scale)
    claims = judge(forms, metric, lines, evaluation)
    metrics_asked = (metric, *(form.metric for _, form in forms), "loss")
    unplotted = (*MEASURES, SCORE)
    metrics = dict.fromkeys(name for name in metrics_asked if name and name not in unplotted)
    scenarios = list(dict.fromkeys(line.scenario for line in lines))
    panels = []
    for name, scenario in product(metrics, scenarios):
        panels += curves(lines, name, scenario)
    if "candidates below 1 / K" in metrics_asked:
        panels.insert(0, _probability_panel(lines))
    failed = sum(len(line.failed) for line in lines)
    searched = [line for line in lines if line.tried]
    reason = (
        f"{sum(len(line.folders) for line in lines)} runs finished"
        + (f", {failed} failed" if failed else "")
        + f". {RULE} "
        + (
            f"Settings of {len(searched)} lines were searched on validation examples."
            if searched
            else "Nothing was searched: the recipes' settings were."
        )
        + (" Metrics are those of the lowest validation loss." if evaluation == "best" else "")
    )
    tables = [
        *chain.from_iterable(sheets(sweep, sweep_lines) for sweep, sweep_lines in sweeps),
        *([] if item.gap is None else [gap_sheet(item.gap, lines)]),
        _spent_sheet(lines),
        _seeds_sheet(lines, list(dict.fromkeys([*metrics_asked[:-1], "loss"])), evaluation),
    ]
    return Finding(
        claims, reason, panels, tables, sweeps[0][0].seeds, item.differs if scale == "small" else ()
    )


def _probability_panel(lines: Sequence[SweepLine]) -> Panel:
    """Return probabilities by rank, of each line's first run."""
    series = []
    for number, line in enumerate(lines):
        values = probabilities(next(iter(line.folders.values()), Path()))
        series.append(
            Series(
                line.label,
                [(i + 1.0, p * len(values)) for i, p in enumerate(values)],
                number=number,
            )
        )
    return Panel(
        "Probabilities of candidates",
        series,
        Axis("candidate, by rank"),
        Axis("probability times K"),
    )


def gap_sheet(reference: str, lines: Sequence[SweepLine]) -> Sheet:
    """Return how far each line's score is from the reference's, scenario by scenario.

    The last column is the mean over the scenarios that both lines have: the column "Gap" of
    FeedSign's tables.
    """
    scores = {}
    for line in lines:
        if line.folders:
            line_scores = [score(folder) for folder in line.folders.values()]
            scores[line.label, line.scenario] = fmean(line_scores)
    scenarios = list(dict.fromkeys(line.scenario for line in lines))
    rows = []
    for label in dict.fromkeys(line.label for line in lines):
        gaps = {
            scenario: scores[label, scenario] - scores[reference, scenario]
            for scenario in scenarios
            if (label, scenario) in scores and (reference, scenario) in scores
        }
        if label == reference or not gaps:
            continue
        cells = [f"{gaps[s]:+.1f}" if s in gaps else "-" for s in scenarios]
        rows.append([label, *cells, f"{fmean(gaps.values()):+.1f}"])
    note = f"Score minus that of {reference}: accuracy, or F1 where answers are generated."
    return Sheet("Gap", ("line", *(s or "all" for s in scenarios), "Gap"), rows, note)


def _spent_sheet(lines: Sequence[SweepLine]) -> Sheet:
    rows = []
    for line in lines:
        rounds = [rounds_to_converge(read_metrics(folder)) for folder in line.folders.values()]
        summaries = [read_summary(folder) for folder in line.folders.values()]
        if not summaries:
            continue
        final_metrics = []
        for name in shown_metrics(summaries[0]["final"]):
            values = [summary["final"][name] for summary in summaries]
            final_metrics.append(f"{name} {mean_and_deviation(values, 3)}")
        rows.append(
            [
                " ".join(filter(None, (line.scenario, line.label))),
                ", ".join(final_metrics),
                mean_and_deviation(rounds, 1),
                f"{fmean(s['forward_passes'] for s in summaries):,.0f}",
                mean_and_deviation([s["seconds"]["total"] for s in summaries], 1),
            ]
        )
    note = (
        f"Rounds to converge: the first evaluation with {CONVERGED:.0%} of the run's whole "
        "improvement of the loss, not known if that is the last one. Rounds between evaluations "
        "are not looked at."
    )
    head = ("line", "after the last round", "rounds to converge", "forward passes", "seconds")
    return Sheet("Rounds to converge", head, rows, note)


def _seeds_sheet(
    lines: Sequence[SweepLine], metrics_asked: Sequence[str | None], evaluation: Evaluation
) -> Sheet:
    """Return each run's numbers, from which all verdicts can be reckoned again."""
    metrics = [metric for metric in metrics_asked if metric is not None]
    rows = []
    for line in lines:
        for seed, folder in line.folders.items():
            rows.append(
                [
                    " ".join(filter(None, (line.scenario, line.label))),
                    str(seed),
                    *(f"{measured(folder, m, evaluation):.6g}" for m in metrics),
                ]
            )
    return Sheet("Each run", ("line", "seed", *metrics), rows, "")


def as_mapping(lines: Sequence[SweepLine]) -> Mapping[str, Any]:
    """Return each line's folders and failures, for programs."""
    table = {}
    for line in lines:
        table[" ".join(filter(None, (line.scenario, line.label)))] = {
            "chosen": list(line.point),
            "folders": list(map(str, line.folders.values())),
            "failed": {str(seed): reason for seed, reason in line.failed.items()},
        }
    return table
