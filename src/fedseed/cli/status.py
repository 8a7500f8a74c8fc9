"""How a run over a network is going, for a person: `fedseed status`, once or until the run is over."""

import json
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from fedseed.federation.protocol import listed
from fedseed.metrics import metric_of, metric_title, shown_metrics
from fedseed.reports.tables import privacy_spent


def by_client(summary: dict[str, Any]) -> list[str]:
    """Returns what each client has measured on what it holds out, a line each."""
    lines = []
    for name, figures in summary.get("by_client", {}).items():
        first, last = figures["baseline"] or {}, figures["final"]
        if "loss" in last:
            before = f"{first['loss']:.3f} -> " if "loss" in first else ""
            away = f"; after round {figures['round']}: it was away at the end" if "round" in figures else ""
            lines.append(f"  {name}: held-out loss {before}{last['loss']:.3f} ({last['held_out']} examples{away})")
    return lines


def describe(about: dict[str, Any]) -> list[str]:
    """Returns a run's status in a few lines."""
    if "round" not in about:
        ended = "; the run is over" if about.get("ended") else ""
        log = f"the server holds its log ({about['entries']} entries)"
        return [f"{about['run']}: no coordinator answers; {log}{ended}"]
    last = about["last"]
    lines = [
        f"{about['run']} ({about['method']}): round {about['round']} of {about['rounds']}, "
        f"since {time.strftime('%Y-%m-%d %H:%M', time.gmtime(about['began']))} UTC",
        f"clients  {about['alive']} of {about['clients']} alive"
        + (f"; away: {listed(about['away'])}" if about["away"] else ""),
    ]
    if about.get("waiting"):
        waiting = about["waiting"]
        lines.append(f"waiting  {waiting['here']} of {waiting['wanted'] or '?'} clients are here; no round has begun")
    if about["waiting_for"]:
        lines.append(f"waiting  for {listed(about['waiting_for'])}")
    if about.get("late"):
        lines.append(f"late     {listed(about['late'])}: several times as long as the others")
    if "bytes_up" in last:
        lines.append(f"bytes    {last['bytes_up']:,.0f} up, {last['bytes_down']:,.0f} down a client and round")
    for name in shown_metrics(name for name, value in last.items() if isinstance(value, float)):
        if not name.startswith("bytes_"):
            number = last.get("evaluated", last["round"]) if metric_of(name)[1].held_out else last["round"]
            lines.append(f"{metric_title(name)} {last[name]:.4f} (round {number})")
    if privacy := about.get("privacy"):
        plain = " (plain composition)" if "epsilon_pure" in privacy else ""
        lines.append(f"privacy  {privacy_spent(privacy)}{plain}")
    if last.get("weights_digest"):
        lines.append(f"digest   {last['weights_digest']}")
    if about["repeated_rounds"]:
        lines.append(f"repeated {about['repeated_rounds']} rounds had too few answers")
    if about["skewed_clocks"]:
        lines.append(f"clocks   wrong at {listed(about['skewed_clocks'])}")
    if about["drifted"]:
        lines.append(f"drifted  {listed(about['drifted'])}")
    for name, reasons in about["refusals"].items():
        for reason, count in reasons.items():
            lines.append(f"refused  {count} of {name}: {reason}")
    return lines


def follow(look: Callable[[], dict[str, Any]], console: Console, every: float, as_json: bool = False) -> None:
    """Show what is new: on a terminal in place, elsewhere a line whenever something has changed.

    Args:
        look: what is known by now (`network.ask`).
        console: where it goes.
        every: seconds between looks.
        as_json: everything, a line of JSON each.
    """
    told = ""
    live = Live(console=console, auto_refresh=False) if console.is_terminal and not as_json else None
    if live is not None:
        live.start()
    try:
        while True:
            about = look()
            text = json.dumps(about) if as_json else in_a_line(about)
            if live is not None:
                live.update(Text("\n".join(describe(about))), refresh=True)
            elif text != told:
                console.print(text, highlight=False, soft_wrap=True)
                told = text
            if about.get("ended"):
                return
            time.sleep(every)
    finally:
        if live is not None:
            live.stop()


def in_a_line(about: dict[str, Any]) -> str:
    """Returns a run's status in a line."""
    if "round" not in about:
        return describe(about)[0]
    parts = [f"round {about['round']} of {about['rounds']}", f"{about['alive']} of {about['clients']} clients alive"]
    if waiting := about.get("waiting"):
        parts = [f"waiting for clients: {waiting['here']} of {waiting['wanted'] or '?'} are here"]
    last = about["last"]
    if last.get("loss") is not None:
        parts.append(f"held-out loss {last['loss']:.3f} (round {last.get('evaluated', last['round'])})")
    if about["waiting_for"]:
        parts.append(f"waiting for {listed(about['waiting_for'])}")
    if about.get("late"):
        parts.append(f"held up by {listed(about['late'])}")
    if about.get("ended"):
        parts.append("the run is over")
    return f"{about['run']}: {', '.join(parts)}"
