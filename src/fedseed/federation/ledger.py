"""What a run writes into its folder: recipe, metrics, orbit or weights, summary, picture."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedseed.errors import FedseedError

FILES = (
    "recipe.toml",
    "metrics.jsonl",
    "model.orbit",
    "model.safetensors",
    "summary.json",
    "metrics.png",
    "probabilities.png",
)


class RunFolder:
    """A run's folder. It must not hold another run.

    Args:
        path: created if missing.

    Raises:
        FedseedError: it holds a run already, or can't be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            there = [name for name in FILES if (path / name).exists()]
            if there:
                raise FedseedError(f"{path} holds a run already ({', '.join(there)}): choose another folder with --out")
            self._metrics = open(path / "metrics.jsonl", "x", encoding="utf-8")  # noqa: SIM115
        except OSError as error:
            raise FedseedError(f"{path}: can't be written: {error.strerror}") from error

    def add_metrics(self, line: Mapping[str, Any]) -> None:
        """Append one line to metrics.jsonl, on disk before this returns."""
        self._metrics.write(json.dumps(line) + "\n")
        self._metrics.flush()
        os.fsync(self._metrics.fileno())

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json in one go."""
        self.write_text("summary.json", json.dumps(summary, indent=2) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Write a text file so that it is either whole or not there."""
        temporary = self.path / (name + ".part")
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, self.path / name)

    def close(self) -> None:
        """Close metrics.jsonl."""
        self._metrics.close()


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl."""
    with open(folder / "metrics.jsonl", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
