"""A ClientApp's side: a client of the run (`fedseed.federation`) that works while a message of
Flower is answered.

Flower may end the process after each message, or keep it and let it work for many nodes in turn (a
simulation's actors). So weights are kept for the process where it stays, and are rebuilt from the
log, which the node's state holds, where it does not. A simulation's process has one model and the
examples of all clients; a node with clients of its own has theirs alone.
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
from fedseed.federation.answers import Answers
from fedseed.federation.cost import Cost
from fedseed.federation.hosted import Hosted, WorkThread
from fedseed.federation.presence import Presence
from fedseed.federation.replica import Replica
from fedseed.flower.config import Place, place_of, recipe_of
from fedseed.reports.progress import Progress
from fedseed.runs.joining import Loading
from fedseed.runs.recipe import Recipe
from fedseed.transport import flower_wire as wire
from fedseed.transport.flower_node import NodeEnd

# model and examples of some clients, by name or pattern; none: of all
Load = Callable[[Sequence[str]], Hosted]
RUN = "flower"
_SITES: dict[tuple[Any, ...], "Site"] = {}  # of this process; of one run at a time


class Site:
    """A model in this process, and the conversations of the nodes that it works for.

    Args:
        load: makes the model at its base, with the clients' examples.
    """

    def __init__(self, load: Callable[[], Hosted]) -> None:
        self._load = load
        self._mine: Sequence[str] = ()  # the clients of the node that is worked for
        self._end = NodeEnd()
        self._parts: dict[str, Answers] = {}  # by the first of a node's clients
        self._loop = asyncio.new_event_loop()
        # of which version of the weights, and what
        self._measured: tuple[int, dict[str, Any]] = -1, {}
        self.whole = load()
        self.replica = Replica(
            self._end, RUN, self._loaded, self.whole, WorkThread(), Progress(), lambda: None
        )

    def _loaded(self) -> Hosted:
        self.whole = self._load()
        return self._view()

    def _view(self) -> Hosted:
        """Return the model, with the examples of the node's clients alone."""
        items = {name: self.whole.items[name] for name in self._mine}
        return replace(self.whole, items=items, evaluate=partial(self._evaluate, list(items)))

    def _evaluate(self, mine: Sequence[str], model: torch.nn.Module) -> dict[str, Any]:
        """Measure the model once for all nodes that it stands for.

        Tells of one node's clients alone.
        """
        if self._measured[0] != self.replica.version:
            self._measured = self.replica.version, self.whole.evaluate(model)
        found = dict(self._measured[1])
        if (each := found.get("by_client")) is not None:
            found["by_client"] = {name: each[name] for name in mine if name in each}
        return found

    def exchange(
        self, mine: Sequence[str], state: wire.Table, body: wire.Table
    ) -> tuple[wire.Table, wire.Table]:
        """Take what came for a node, and does what there is to do.

        Returns the reply, and what Flower is to keep.

        Args:
            mine: the node's clients.
            state: what Flower has kept of the node.
            body: the message's.

        Raises FedseedError: the node does not fit the run, or can't go on.
        """
        self._mine, self._end.client = mine, mine[0]
        self.replica.hosted = self._view()
        self._end.load(state)
        self.replica.spent = Cost(**json.loads(state.get("spent", "{}")))  # and not reported yet
        heard = self._loop.run_until_complete(self._take_part(body))
        return self._end.reply(heard), {
            **self._end.state(),
            "spent": json.dumps(self.replica.spent.to_json()),
        }

    async def _take_part(self, body: wire.Table) -> bool:
        if (answers := self._parts.get(self._mine[0])) is None:
            answers = Answers(self.replica, Presence(self.replica, lambda error: None))
            self._parts[self._mine[0]] = answers
        await self._end.listen(answers.hear)
        if not self._end.take(body):
            return False
        await answers.presence.greet()
        while await answers.work():
            pass
        return answers.presence.welcome or not answers.has_request


def everybody(recipe: Recipe) -> list[str]:
    """Return a recipe's clients whose data lies here, by number.

    Raises RecipeError: nothing says who they are.
    """
    if not recipe.of_parties:
        return recipe.task.client_names() or [client.name for client in recipe.task.load().clients]
    if names := recipe.federation.clients or recipe.task.names_here():
        return names
    raise RecipeError(
        "a simulation of parties: name them in the recipe (federation.clients), or give their "
        "folder in the run config "
        '(data="/srv/data")'
    )


def reply(message: Any, context: Any, recipe: Path | str, load: Load | None = None) -> Any:
    """Answer one message of the ServerApp.

    The reply's "problem" says in a line why there is no other answer.

    Args:
        message: Flower's.
        context: Flower's; its state holds the node's copy of the log.
        recipe: the app's recipe.
        load: makes model and examples in place of the recipe: of a federation made in Python.
    """
    from flwr.app import Message as FlowerMessage

    try:
        site, mine = _site(
            context.run_id, place_of(context.node_config), recipe, context.run_config, load
        )
        kept = dict(context.state.config_records.get(wire.RECORD, {}))
        found, state = site.exchange(mine, kept, wire.table(message))
        context.state[wire.RECORD] = wire.record(state)
    except PrivacyError as error:
        # what a client has used up, and in which file that stands, is for its owner
        print(error, file=sys.stderr)
        found = {"problem": "a privacy account allows no more answers, as this node's output says"}
    except FedseedError as error:
        found = {"problem": " ".join(str(error).split())}
    except Exception as error:
        # its text may quote an example, and Flower would send it to the SuperLink
        traceback.print_exc()
        found = {"problem": f"{type(error).__name__}: this node's own output has its text"}
    return FlowerMessage(wire.content(found), reply_to=message)


def _site(
    run: int, place: Place, recipe: Path | str, run_config: Mapping[str, Any], load: Load | None
) -> tuple[Site, list[str]]:
    """Return this process' site for a node, made when the node first comes, and the node's
    clients.
    """
    key = (run, place.clients, place.own)
    for other in [other for other in _SITES if other[0] != run]:
        del _SITES[other]
    if key not in _SITES and load is not None:
        _SITES[key] = Site(partial(load, place.clients))
    elif key not in _SITES:
        from fedseed.models.loading import quiet

        quiet()
        known = recipe_of(recipe, run_config)
        _SITES[key] = Site(Loading(known, place.clients or everybody(known), own=place.own))
    return _SITES[key], place.mine(list(_SITES[key].whole.items))
