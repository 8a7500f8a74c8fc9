"""A status as a message: whatever clients have sent, it stays small enough for one."""

import json
from collections.abc import Mapping
from itertools import islice
from typing import Any

LEVELS = ((100, 20, 200), (20, 5, 100), (5, 1, 50), (0, 0, 50))  # senders and other names, reasons each, letters


def status_answer(about: Mapping[str, Any], most: int) -> bytes:
    """A status as JSON. Names and refusals are shortened as far as it takes; `summary.json` has all.

    Args:
        about: the status; "refusals" by sender and reason.
        most: bytes.
    """
    for names, reasons, letters in LEVELS:
        short = {key: _short(value, max(names, 1), letters) for key, value in about.items() if key != "refusals"}
        short["refusals"] = _refusals(about.get("refusals", {}), names, reasons, letters)
        answer = json.dumps(short).encode()
        if len(answer) <= most:
            break
    return answer


def _short(value: Any, names: int, letters: int) -> Any:
    """Texts, lists and tables of a bounded length; a table of the status's own has fewer entries than that."""
    if isinstance(value, str):
        return value[:letters]
    if isinstance(value, list):
        return [_short(item, names, letters) for item in value[:names]]
    if isinstance(value, dict):
        most = max(names, 20)
        return {_short(key, names, letters): _short(item, names, letters) for key, item in islice(value.items(), most)}
    return value


def _refusals(all_of_them: Mapping[str, Mapping[str, int]], names: int, reasons: int, letters: int) -> dict[str, Any]:
    """Those of the senders with the most, the most frequent of each; the rest is added up as "others"."""
    found: dict[str, dict[str, int]] = {}
    ordered = sorted(all_of_them.items(), key=lambda item: -sum(item[1].values()))
    for sender, counts in ordered[:names]:
        mine = found.setdefault(sender[:letters], {})
        by_count = sorted(counts.items(), key=lambda item: -item[1])
        for reason, count in by_count[:reasons]:
            mine[reason[:letters]] = mine.get(reason[:letters], 0) + count
        if rest := sum(count for _, count in by_count[reasons:]):
            mine["others"] = mine.get("others", 0) + rest
    if rest := sum(sum(counts.values()) for _, counts in ordered[names:]):
        found.setdefault("others", {})["others"] = rest + found.get("others", {}).get("others", 0)
    return found
