"""The ClientApp's side: a client of the run (`fedseed.federation`) that works while it answers a
message of Flower.

Flower may end the process after each message, or keep it and let it work for many nodes in turn (a
simulation's actors). Where the process stays, it keeps the weights; where it does not, they are
rebuilt from the log in the node's state. A simulation's process has one model and the examples of
all clients; a node with clients of its own has only theirs.
"""

import asyncio
import json
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedseed.errors import FedseedError, PrivacyError, RecipeError
from fedseed.federation.client.answers import Responder
from fedseed.federation.client.heartbeat import Presence
from fedseed.federation.client.replica import Replica
from fedseed.federation.client.state import Hosted, WorkThread
from fedseed.federation.cost import Cost
from fedseed.flower.config import Place, place_of, recipe_of
from fedseed.recipe.settings import Recipe
from fedseed.reports.progress import Progress
from fedseed.runs.joining import Loading
from fedseed.transport import flower_wire as wire
from fedseed.transport.flower_node import NodeEnd

# from names or patterns of clients to the model and their examples; no names: all clients
Load = Callable[[Sequence[str]], Hosted]
RUN = "flower"
_SITES: dict[tuple[Any, ...], "Site"] = {}  # this process' sites, of one run at a time


class Site:
    """A model in this process, and the conversations of the nodes that it works for.

    Args:
        load: makes the model at its base, with the clients' examples.
    """

    def __init__(self, load: Callable[[], Hosted]) -> None:
        self._load = load
        self._names: Sequence[str] = ()  # the clients of the current node
        self._end = NodeEnd()
        self._responders: dict[str, Responder] = {}  # keyed by the first of a node's clients
        self._loop = asyncio.new_event_loop()
        # a version of the weights, and the metrics measured on it
        self._measured: tuple[int, dict[str, Any]] = -1, {}
        self.whole = load()
        self.replica = Replica(
            self._end, RUN, self._loaded, self.whole, WorkThread(), Progress(), lambda: None
        )

    def _loaded(self) -> Hosted:
        self.whole = self._load()
        return self._view()

    def _view(self) -> Hosted:
        """Return the model with only the examples of the node's clients."""
        items = {name: self.whole.items[name] for name in self._names}
        return replace(self.whole, items=items, evaluate=partial(self._evaluate, list(items)))

    def _evaluate(self, names: Sequence[str], model: torch.nn.Module) -> dict[str, Any]:
        """Measure the model once for all nodes; return only the node's figures by client."""
        if self._measured[0] != self.replica.version:
            self._measured = self.replica.version, self.whole.evaluate(model)
        measured = dict(self._measured[1])
        figures = measured.get("by_client")
        if figures is not None:
            measured["by_client"] = {name: figures[name] for name in names if name in figures}
        return measured

    def exchange(
        self, names: Sequence[str], state: wire.Table, body: wire.Table
    ) -> tuple[wire.Table, wire.Table]:
        """Process a message for a node; return the reply, and the state that Flower keeps.

        Args:
            names: the node's clients.
            state: the state that Flower has kept of the node.
            body: the message's table.

        Raises FedseedError: the node does not fit the run, or can't go on.
        """
        self._names, self._end.client = names, names[0]
        self.replica.hosted = self._view()
        self._end.load(state)
        self.replica.spent = Cost(**json.loads(state.get("spent", "{}")))  # not reported yet
        is_processed = self._loop.run_until_complete(self._take_part(body))
        return self._end.reply(is_processed), {
            **self._end.state(),
            "spent": json.dumps(self.replica.spent.to_json()),
        }

    async def _take_part(self, body: wire.Table) -> bool:
        responder = self._responders.get(self._names[0])
        if responder is None:
            responder = Responder(self.replica, Presence(self.replica, lambda error: None))
            self._responders[self._names[0]] = responder
        await self._end.listen(responder.hear)
        if not self._end.take(body):
            return False
        await responder.presence.greet()
        while await responder.work():
            pass
        return responder.presence.welcome or not responder.has_request


def everybody(recipe: Recipe) -> list[str]:
    """Return a recipe's clients with data on this machine, in the order of their numbers.

    Raises RecipeError: their names are not known.
    """
    if not recipe.of_parties:
        return recipe.task.client_names() or [client.name for client in recipe.task.load().clients]
    names = recipe.federation.clients or recipe.task.names_here()
    if names:
        return names
    raise RecipeError(
        "a simulation needs the parties' names: list them in the recipe (federation.clients), or "
        'give their folder in the run config (data="/srv/data")'
    )


def reply(message: Any, context: Any, recipe: Path | str, load: Load | None = None) -> Any:
    """Answer a message of the ServerApp.

    If the message can't be answered, the reply's "problem" has the reason in one line.

    Args:
        message: Flower's.
        context: Flower's; its state holds the node's copy of the log.
        recipe: the app's recipe.
        load: makes model and examples in place of the recipe, for a federation made in Python.
    """
    from flwr.app import Message as FlowerMessage

    try:
        site, names = _site(
            context.run_id, place_of(context.node_config), recipe, context.run_config, load
        )
        node_state = dict(context.state.config_records.get(wire.RECORD, {}))
        result, state = site.exchange(names, node_state, wire.table(message))
        context.state[wire.RECORD] = wire.record(state)
    except PrivacyError as error:
        # only the client's owner may see an account's use and its file
        print(error, file=sys.stderr)
        result = {"problem": "a privacy account allows no more answers: see this node's output"}
    except FedseedError as error:
        result = {"problem": " ".join(str(error).split())}
    except Exception as error:
        # the text may quote an example, and Flower would send it to the SuperLink
        traceback.print_exc()
        result = {"problem": f"{type(error).__name__}: see the text in this node's own output"}
    return FlowerMessage(wire.content(result), reply_to=message)


def _site(
    run: int, place: Place, recipe: Path | str, run_config: Mapping[str, Any], load: Load | None
) -> tuple[Site, list[str]]:
    """Return this process' site for a node, made at its first message, and the node's clients."""
    key = (run, place.clients, place.own_data)
    for stale in [stale for stale in _SITES if stale[0] != run]:
        del _SITES[stale]
    if key not in _SITES and load is not None:
        _SITES[key] = Site(partial(load, place.clients))
    elif key not in _SITES:
        from fedseed.models.loading import quiet

        quiet()
        checked_recipe = recipe_of(recipe, run_config)
        _SITES[key] = Site(
            Loading(
                checked_recipe, place.clients or everybody(checked_recipe), own_data=place.own_data
            )
        )
    return _SITES[key], place.select(list(_SITES[key].whole.items))
