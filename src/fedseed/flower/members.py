"""Which nodes take part, and for whom. Free of torch."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fedseed.errors import FedseedError, MessageError, OrbitError
from fedseed.federation.protocol import listed
from fedseed.federation.reception import check_header, client_name, read_start
from fedseed.federation.report import MOST_EXAMPLES, whole
from fedseed.federation.session import CoordinatorSettings
from fedseed.flower import wire
from fedseed.flower.post import Post, Reply
from fedseed.methods import Method
from fedseed.orbit import Header
from fedseed.reports.progress import Progress

AGAIN_SECONDS = 10.0  # until a node that does not fit is asked again
HELLO_SECONDS = 600.0  # for an answer to a hello: the node loads its model


@dataclass
class Node:
    """A node that takes part.

    Args:
        clients: whose work it does.
        at: the last step that it holds, as far as it has said.
        anew: its weights are others than most nodes': its next message begins from the base.
    """

    clients: Sequence[str]
    at: int = 0
    anew: bool = False


class Members:
    """Asks nodes that are new who they are, and keeps those that fit.

    Args:
        post: carries the messages.
        method: the recipe's method.
        seed: the recipe's seed.
        settings: deadlines and the like; who takes part, where that is known.
        progress: shows the run going on.
    """

    def __init__(
        self, post: Post, method: Method, seed: int, settings: CoordinatorSettings, progress: Progress
    ) -> None:
        self.names = list(settings.names)
        self.open = settings.enrols
        self.examples: dict[str, int] = {}
        self.header: Header | None = None  # of the first node that fits
        self.refused: dict[int, str] = {}
        self._nodes: dict[int, Node] = {}
        self._here: set[int] = set()  # the nodes that are connected
        self._post = post
        self._method = method
        self._seed = seed
        self._settings = settings
        self._progress = progress
        self._asked: dict[str, int] = {}
        self._again: dict[int, float] = {}  # when to ask a node that does not fit once more
        self.joined: Callable[[str, int], None] = lambda name, examples: None

    # -- who is there ------------------------------------------------------------------------------------------------

    def here(self) -> dict[int, Node]:
        """The nodes that take part and can be reached."""
        return {number: node for number, node in self._nodes.items() if number in self._here}

    def present(self) -> dict[int, int]:
        """The numbers of the clients that can be reached, each with its node."""
        numbers = {name: number for number, name in enumerate(self.names)}
        return {numbers[name]: node for node, about in self.here().items() for name in about.clients if name in numbers}

    def meet(self) -> None:
        """See who is connected, ask those that are new, and take what they have answered."""
        self._here = set(self._post.nodes())
        waited, now = set(self._asked.values()), time.monotonic()
        new = [
            number
            for number in sorted(self._here)
            if number not in self._nodes and number not in waited and now > self._again.get(number, 0.0)
        ]
        self._asked.update(self._post.send("query", {node: {"weights": False} for node in new}, "0", HELLO_SECONDS))
        for number, reply in self._post.look(self._asked).items():
            self._take(number, reply)

    def _take(self, number: int, reply: Reply) -> None:
        try:
            if reply.table is None:
                raise MessageError(reply.problem)
            self._welcome(number, reply.table)
        except (MessageError, OrbitError, KeyError, TypeError, ValueError) as error:
            why = str(error) if isinstance(error, FedseedError) else f"not valid: {type(error).__name__}: {error}"
            if self.refused.get(number) != why:
                self._progress.warn(f"node {number} takes no part: {why}")
            self.refused[number] = why
            self._again[number] = time.monotonic() + AGAIN_SECONDS

    def _welcome(self, number: int, about: wire.Table) -> None:
        """A node has said what it has. Raises MessageError if that does not fit the run."""
        header = read_start(about["header"], "a node's answer")
        check_header(header, self.header, self._method, self._seed, self._settings)
        names = [client_name(name) for name in about.get("clients", [])]
        examples = [whole(count, "examples", MOST_EXAMPLES) for count in about.get("examples", [])]
        if len(names) != len(examples):
            raise MessageError("its clients and their examples do not fit together")
        taken = {name for node in self.here().values() for name in node.clients}
        if both := sorted(taken & set(names)):
            raise MessageError(f"another node works for {listed(both)} already")
        if self.open:
            self.names = sorted({*self.names, *names})
        elif not self.names:  # the task names its clients, the same everywhere
            self.names = [client_name(name) for name in about.get("names", [])]
        if strangers := [name for name in names if name not in self.names]:
            raise MessageError(f"this run has no client {listed(strangers)}: it has {listed(self.names)}")
        self.header = self.header or header
        self._nodes[number] = Node(names)
        self.refused.pop(number, None)
        for name, count in zip(names, examples, strict=True):
            self.examples[name] = count
            self.joined(name, count)

    # -- before the first round --------------------------------------------------------------------------------------

    def assemble(self) -> Header:
        """Wait until the clients that the recipe asks for are there; returns the orbit's header.

        Raises:
            RecipeError: the recipe asks for what can't be with the clients that there are.
            FedseedError: nobody fits, and as many nodes are there as are wanted.
        """
        told, settings = "", self._settings
        while True:
            self.meet()
            if self.names and not self.open:
                settings.check(len(self.names))
            known = [name for node in self.here().values() for name in node.clients]
            wanted = settings.start_with or len(self.names) or None
            if self.header is not None and wanted is not None and len(known) >= wanted:
                self.open = False
                return self.header
            self._give_up(wanted)
            away = [] if self.open else [name for name in self.names if name not in known]
            text = f"{len(known)} of {wanted or '?'} clients are here" + (f"; to come: {listed(away)}" if away else "")
            if text != told:
                self._progress.note(f"waiting for clients: {text}")
                told = text
            time.sleep(0.2)

    def _give_up(self, wanted: int | None) -> None:
        """Every node that is here was refused: nobody is waited for who would be, too."""
        refused = [number for number in self._here if number in self.refused]
        if refused and len(refused) == len(self._here) and len(refused) >= (wanted or 1):
            raise FedseedError(f"no node fits the run; the first says: {self.refused[refused[0]]}")

    def weights(self, size: int) -> bytes:
        """The base's weights, which one of the nodes brings.

        Args:
            size: their bytes.

        Raises:
            FedseedError: none does.
        """
        why = "there is none"
        for number in sorted(self.here()):
            for _, reply in self._post.ask("query", {number: {"weights": True}}, "0", HELLO_SECONDS):
                weights: Any = b"" if reply.table is None else reply.table.get("weights", b"")
                if len(weights) == size:
                    return bytes(weights)
                why = reply.problem or f"{len(weights):,} bytes came, {size:,} were expected"
        raise FedseedError(f"no node has brought the base's weights: {why}")
