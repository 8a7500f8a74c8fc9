"""Read Flower's configuration: that of the run, which is the same for all nodes, and that of a
node.

This module does not import torch.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedseed.errors import RecipeError
from fedseed.recipe.reading import read_recipe
from fedseed.recipe.settings import Recipe
from fedseed.tasks.data import OwnData

RUN_KEYS = ("recipe", "out", "data", "set")


def recipe_of(recipe: Path | str, run_config: Mapping[str, Any]) -> Recipe:
    """Return the app's recipe with the additions of the run config.

    Args:
        recipe: the app's recipe; the run config's `recipe` replaces it.
        run_config: Flower's.

    Raises RecipeError: the recipe is not valid, or has a key that fedseed does not know.
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
    """The clients of a node, and their data."""

    clients: tuple[str, ...]  # names or patterns; empty: those of its partition
    own_data: OwnData | None  # the clients' own data; None: as in the recipe
    # the node's number among those that share the clients, and the number of these nodes
    partition: tuple[int, int]

    def select(self, names: list[str]) -> list[str]:
        """Return this node's clients among those with examples here."""
        number, count = self.partition
        return names[number::count]


def place_of(node_config: Mapping[str, Any]) -> Place:
    """Parse a node's own configuration.

    Raises RecipeError: it names no clients.
    """
    clients = tuple(
        name.strip() for name in str(node_config.get("client", "")).split(",") if name.strip()
    )
    data = _path_in(node_config, "data")
    file = _path_in(node_config, "evaluation-file")
    own_data = None if data is None and file is None else OwnData(data, file)
    if clients:
        return Place(clients, own_data, (0, 1))
    if "partition-id" not in node_config or "num-partitions" not in node_config:
        raise RecipeError(
            "node config: name the node's clients: "
            '--node-config \'client="north" '
            'data="/srv/north.jsonl"\''
        )
    return Place(
        (), own_data, (int(node_config["partition-id"]), int(node_config["num-partitions"]))
    )


def _path_in(node_config: Mapping[str, Any], key: str) -> Path | None:
    text = node_config.get(key)
    return Path(str(text)) if text else None
