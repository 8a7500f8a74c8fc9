"""Reads Flower's configuration: the run's, which is the same for all nodes, and a node's own.

Free of torch.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedseed.errors import RecipeError
from fedseed.runs.recipe import Recipe, read_recipe
from fedseed.tasks.data import OwnData

RUN_KEYS = ("recipe", "out", "data", "set")


def recipe_of(recipe: Path | str, run_config: Mapping[str, Any]) -> Recipe:
    """Return the app's recipe with what the run config adds.

    Args:
        recipe: the app's; the run config's `recipe` goes before it.
        run_config: Flower's.

    Raises RecipeError: a wrong recipe, or a key that fedseed does not know.
    """
    for key in run_config:
        if key not in RUN_KEYS:
            raise RecipeError(f"run config: unknown key {key!r}; there are {', '.join(RUN_KEYS)}")
    overrides = [pair.strip() for pair in str(run_config.get("set", "")).split(";") if pair.strip()]
    if run_config.get("data"):
        overrides.append(f"task.path={json.dumps(str(run_config['data']))}")
    return read_recipe(run_config.get("recipe") or recipe, overrides)


@dataclass(frozen=True)
class Place:
    """Says whose work a node does."""

    clients: tuple[str, ...]  # names or patterns; none: those of its partition
    own: OwnData | None  # where its own data lies; None: where the recipe says
    # its number among the nodes that divide them, and how many there are
    partition: tuple[int, int]

    def mine(self, names: list[str]) -> list[str]:
        """Return this node's clients among those whose examples are here."""
        number, count = self.partition
        return names[number::count]


def place_of(node_config: Mapping[str, Any]) -> Place:
    """Return a node's own configuration.

    Raises RecipeError: it does not say whose work the node does.
    """
    clients = tuple(
        name.strip() for name in str(node_config.get("client", "")).split(",") if name.strip()
    )
    data, file = (
        Path(str(text)) if (text := node_config.get(key)) else None
        for key in ("data", "evaluation-file")
    )
    own = None if data is None and file is None else OwnData(data, file)
    if clients:
        return Place(clients, own, (0, 1))
    if "partition-id" not in node_config or "num-partitions" not in node_config:
        raise RecipeError(
            'node config: whose work does this node do? --node-config \'client="north" '
            'data="/srv/north.jsonl"\''
        )
    return Place((), own, (int(node_config["partition-id"]), int(node_config["num-partitions"])))
