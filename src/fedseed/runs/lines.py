"""Lines of metrics that become one."""

from collections.abc import Sequence
from typing import Any

from fedseed.runs.per_client import mean_exchanged


def merge_rounds(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One line of metrics for several rounds: counts and seconds add up; bytes, numbers and losses are means."""
    merged = dict(lines[-1])
    merged["rounds"] = len(lines)
    if len(lines) == 1:
        return merged
    for key in ("forward_passes", "backward_passes", "skipped_steps", "refused"):
        merged[key] = sum(line[key] for line in lines)
    for key in ("bytes_up", "bytes_down"):
        merged[key] = sum(line[key] for line in lines) / len(lines)
    merged["exchanged"] = mean_exchanged(lines)
    merged["taking_part"] = sum(line.get("taking_part", len(line["clients"])) for line in lines)
    for key in ("clients", "attacked"):
        merged[key] = sorted({name for line in lines for name in line[key]})
    merged["skipped"] = [{**s, "round": line["round"]} for line in lines for s in line["skipped"]]
    if untaken := [one for line in lines for one in line.get("not_taken", ())]:
        merged["not_taken"] = untaken
    losses = [line["train_loss"] for line in lines if line["train_loss"] is not None]
    merged["train_loss"] = sum(losses) / len(losses) if losses else None
    phases = {phase for line in lines for phase in line["seconds"]}
    merged["seconds"] = {p: sum(line["seconds"].get(p, 0.0) for line in lines) for p in sorted(phases)}
    return merged


def by_client(metrics: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of parties that each evaluate on what they hold out: their figures before and after the run, by client."""
    evaluated = [line["by_client"] for line in metrics if "by_client" in line]
    if not evaluated:
        return {}
    last: dict[str, Any] = {}
    for figures in evaluated:  # of one that was away at the end: what it found last
        last |= figures
    return {"by_client": {name: {"baseline": evaluated[0].get(name), "final": last[name]} for name in last}}
