"""Lines of metrics that become one."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fedseed.reports.results import RoundLine
from fedseed.runs.per_client import mean_exchanged

PASSES = ("forward_passes", "backward_passes")


def merge_rounds(lines: Sequence[RoundLine]) -> RoundLine:
    """Makes one line of metrics for several rounds: counts and seconds add up; bytes, numbers and losses are means."""
    if len(lines) == 1:
        return lines[0]

    def together(key: str) -> Any:
        return sum(getattr(line, key) for line in lines)

    losses = [line.train_loss for line in lines if line.train_loss is not None]
    phases = sorted({phase for line in lines for phase in line.seconds})
    return replace(
        lines[-1],
        rounds=len(lines),
        clients=sorted({name for line in lines for name in line.clients}),
        attacked=sorted({name for line in lines for name in line.attacked}),
        skipped=[{**one, "round": line.round} for line in lines for one in line.skipped],
        not_taken=[one for line in lines for one in line.not_taken],
        exchanged=mean_exchanged(lines),
        train_loss=sum(losses) / len(losses) if losses else None,
        seconds={phase: sum(line.seconds.get(phase, 0.0) for line in lines) for phase in phases},
        metrics={name: value for line in lines for name, value in line.metrics.items()},
        **{key: together(key) for key in ("taking_part", "refused", "skipped_steps", *PASSES)},
        **{key: together(key) / len(lines) for key in ("bytes_up", "bytes_down")},
    )


def by_client(lines: Sequence[RoundLine]) -> dict[str, Any]:
    """Returns, of parties that each evaluate on what they hold out, their figures before and after the run, by name."""
    evaluated = [line.by_client for line in lines if line.by_client is not None]
    if not evaluated:
        return {}
    last: dict[str, Any] = {}
    for figures in evaluated:  # of one that was away at the end: what it found last
        last |= figures
    return {"by_client": {name: {"baseline": evaluated[0].get(name), "final": last[name]} for name in last}}
