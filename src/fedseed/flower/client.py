"""A ClientApp's side: brings weights to where the server asks, trains, and reports.

Flower may end the process after each message, or keep it and let it work for many nodes in turn (a simulation's
actors). So weights are kept for the process where it stays, and are rebuilt from the steps that the node holds where
it does not. A simulation's process has one model and the examples of all clients; a node with clients of its own has
theirs alone.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedseed.errors import FedseedError, RecipeError
from fedseed.federation.cost import Cost
from fedseed.federation.hosted import Hosted
from fedseed.federation.messages import EVERYBODY, Message, MessageKind
from fedseed.federation.worker import cost_of
from fedseed.flower import wire
from fedseed.flower.config import Place, place_of, recipe_of
from fedseed.flower.held import Held
from fedseed.orbit import Record
from fedseed.runs.joining import Loading
from fedseed.runs.recipe import Recipe

Load = Callable[[Sequence[str]], Hosted]  # model and examples of some clients, by name or pattern; none: of all
_SITES: dict[tuple[Any, ...], "Site"] = {}  # of this process; of one run at a time


class LateError(FedseedError):
    """The process has gone beyond the steps that a message is about."""


class Site:
    """A model in this process, and what it has been asked.

    Args:
        load: makes the model at its base, with the clients' examples.
    """

    def __init__(self, load: Callable[[], Hosted]) -> None:
        self.hosted = load()
        self.at = 0
        self._norm: float | None = None  # of the newest step, where the method knows it
        self._digest: str | None = None  # of the weights as they are
        self._measured: tuple[dict[str, Any], float] | None = None

    @property
    def replacing(self) -> bool:
        """Whether a step is whole weights."""
        return self.hosted.worker.method.catch_up.replaces

    def bring(self, held: Held) -> float:
        """Bring the weights to where the node is; returns the seconds it took.

        Raises:
            LateError: they are beyond it.
            FedseedError: a step is not valid.
        """
        if self.at > held.at:
            raise LateError(f"the weights are those after step {self.at}, the message is about step {held.at}")
        began, worker, payloads = time.perf_counter(), self.hosted.worker, held.after(self.at)
        if held.at > self.at:
            self._norm = None
        if len(payloads) == 1:
            step = Message(MessageKind.STEP, worker.method.code, held.at, EVERYBODY, payloads[0])
            self._norm = worker.apply(step.encode())
        elif payloads:
            worker.catch_up(Record(number, data) for number, data in enumerate(payloads, start=self.at + 1))
        if payloads:
            self._digest = self._measured = None
        self.at = held.at
        return time.perf_counter() - began

    def train(self, asked: wire.Table) -> wire.Table:
        """Do what the plans ask; the updates, or why there is none, and what the work cost."""
        worker, names, numbers = self.hosted.worker, asked["clients"], [int(number) for number in asked["numbers"]]
        plans = [asked["plans"][which] for which in asked["plan_of"]]
        answers = worker.train_all(plans, numbers, [self.hosted.items[name] for name in names])
        spent, updates, reasons = Cost(), [], []
        for number, answer in zip(numbers, answers, strict=True):
            spent.add(cost_of(answer.cost, counts=answer.message is not None))
            update = answer.message
            if update is not None and number in self.hosted.attackers and self.hosted.attack is not None:
                update = worker.corrupt(update, self.hosted.attack)
            updates.append(update or b"")
            reasons.append("" if update is not None else str(answer.reason))
        return {"updates": updates, "reasons": reasons, "spent": spent}

    def report(self, asked: wire.Table, mine: list[str]) -> wire.Table:
        """Say which weights these are, and what they are worth to the node's clients."""
        space = self.hosted.worker.space
        found: wire.Table = {"digest": "", "metrics": "", "by_client": "", "seconds": 0.0}
        if asked["digest"]:
            self._digest = self._digest or space.digest()
            found["digest"] = self._digest
        if self._norm is not None:
            found["ratio"] = self._norm / max(space.norm(), 1e-30)
        if asked["evaluate"]:
            if self._measured is None:
                began = time.perf_counter()
                space.model.eval()
                measured = self.hosted.evaluate(space.model)
                self._measured = measured, time.perf_counter() - began
            metrics, found["seconds"] = self._measured
            figures = metrics.get("by_client", {})
            found["by_client"] = json.dumps({name: figures[name] for name in mine if name in figures})
            found["metrics"] = json.dumps({k: v for k, v in metrics.items() if k != "by_client"})
        return found


def everybody(recipe: Recipe) -> list[str]:
    """All clients of a recipe whose data lies here, in the order of their numbers.

    Raises:
        RecipeError: nothing here says who they are.
    """
    if recipe.of_parties:
        names = recipe.federation.clients or recipe.task.names_here()
        if not names:
            raise RecipeError(
                "a simulation of parties: name them in the recipe (federation.clients), or give their folder in the "
                'run config (data="/srv/data")'
            )
        return names
    return recipe.task.client_names() or [client.name for client in recipe.task.load().clients]


def loading(recipe: Recipe, place: Place) -> Loading:
    """What makes a process' model and examples: the node's clients', or a simulation's all. Raises RecipeError."""
    return Loading(recipe, place.clients or everybody(recipe), own=place.own)


def reply(message: Any, context: Any, recipe: Path | str, load: Load | None = None) -> Any:
    """Answer one message of the ServerApp.

    Args:
        message: Flower's.
        context: Flower's; its state holds the steps that the node has been sent.
        recipe: the app's recipe.
        load: makes model and examples in place of the recipe: of a federation made in Python.

    Returns:
        Flower's reply; its "problem" says in a line why there is no other answer.
    """
    from flwr.app import Message as FlowerMessage

    try:
        found = _answer(message, context, recipe, load)
    except FedseedError as error:
        found = {"problem": " ".join(str(error).split())}
    return FlowerMessage(wire.content(found), reply_to=message)


def _answer(message: Any, context: Any, recipe: Path | str, load: Load | None) -> wire.Table:
    asked, what = wire.table(message), message.metadata.message_type
    place = place_of(context.node_config)
    site, mine = _site(context.run_id, place, recipe, context.run_config, load, bool(asked.get("anew")))
    hosted = site.hosted
    private = hosted.worker.protection is not None  # how many examples there are is not told
    if what == "query":
        known = {
            "header": hosted.start,
            "names": list(hosted.names),
            "clients": mine,
            "examples": [0 if private else len(hosted.items[name]) for name in mine],
        }
        if asked.get("weights"):
            if site.at:  # only the base is asked for
                raise LateError("the base's weights are asked for, and this process has gone on")
            known["weights"] = hosted.worker.space.dense()
        return known
    held = Held(context.state, site.replacing)
    if not held.take(asked):
        return {"behind": True, "at": held.at}
    seconds = site.bring(held)
    if what == "evaluate":
        return {"at": held.at, **site.report(asked, mine)}
    answer = site.train(asked)
    answer["spent"].add(Cost({"rebuild": seconds}))
    return {**answer, "at": held.at, "spent": json.dumps(answer["spent"].to_json())}


def _site(
    run: int, place: Place, recipe: Path | str, run_config: Mapping[str, Any], load: Load | None, anew: bool
) -> tuple[Site, list[str]]:
    """This process' site for a node, and the node's clients; it is made when the node first comes."""
    key = (run, place.clients, place.own)
    for other in [other for other in _SITES if other[0] != run or (anew and other == key)]:
        del _SITES[other]
    if key not in _SITES:
        if load is None:
            from fedseed.models.loading import quiet

            quiet()
            _SITES[key] = Site(loading(recipe_of(recipe, run_config), place))
        else:
            _SITES[key] = Site(partial(load, place.clients))
    names = list(_SITES[key].hosted.items)
    return _SITES[key], names if place.clients else place.mine(names)
