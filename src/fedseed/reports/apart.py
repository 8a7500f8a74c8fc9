"""Draws a run's pictures in a process of its own: Matplotlib takes more memory than a whole coordinator."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from fedseed.errors import FedseedError
from fedseed.interpreter import command


def draw_apart(folder: Path, name: str, probabilities: list[float] | None) -> None:
    """Draw metrics.png, and probabilities.png if there are any, in a run's folder.

    Args:
        folder: with metrics.jsonl.
        name: the method's.
        probabilities: of FedKSeed-Pro's candidates.

    Raises:
        FedseedError: it can't be drawn; the text says why.
    """
    words = command(__name__, "main", str(folder), name)
    given = json.dumps(probabilities)
    done = subprocess.run(words, input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise FedseedError(f"{folder / 'metrics.png'}: can't be drawn: {why}")


def main(place: str, name: str) -> None:
    """What the other process does."""
    from fedseed.durable import replacing
    from fedseed.reports.plots import draw_probabilities, draw_runs
    from fedseed.reports.results import read_lines

    folder = Path(place)
    probabilities: Any = json.load(sys.stdin)
    lines = read_lines(folder)
    if lines[0].metrics:
        with replacing(folder / "metrics.png") as picture:
            draw_runs({name: lines}, picture)
    if probabilities is not None:
        with replacing(folder / "probabilities.png") as picture:
            draw_probabilities(probabilities, picture)
