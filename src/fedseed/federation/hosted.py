"""What a process has that takes part in a run for some clients."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from fedseed.attacks.updates import AttackKind
from fedseed.errors import RecipeError
from fedseed.federation.protocol import listed
from fedseed.federation.worker import Worker
from fedseed.orbit import Header
from fedseed.orbit.file import begin
from fedseed.privacy.secure.settings import SecureSums

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

T = TypeVar("T")


@dataclass
class Hosted:
    """A model at the base, and the hosted clients' examples; nothing of other clients.

    Args:
        names: all clients of the run, in the order of their numbers, as far as they are known here.
        items: the hosted clients' prepared examples, by client, in that order.
        worker: holds the model.
        header: the orbit's.
        evaluate: measures the model; asked for only if this process is to evaluate.
        attack: what Byzantine clients send (simulation).
        attackers: the numbers of the Byzantine clients.
        notes: about the data, for a person.
        party: the hosted clients have data of their own, and the coordinator alone knows who else takes part.
        processor: the base's tokenizer or image processor.
        secure: how answers are masked; None: they are sent as they are.
        identities: the keys that sign for hosted clients in secure sums, by name.
        opened: the folder for files that say which round of secure sums each has opened last; None: nothing is kept.
    """

    names: Sequence[str]
    items: Mapping[str, Sequence[Any]]
    worker: Worker
    header: Header
    evaluate: Callable[[torch.nn.Module], dict[str, Any]]
    attack: AttackKind | None = None
    attackers: Collection[int] = ()
    notes: Sequence[str] = field(default_factory=tuple)
    party: bool = False
    processor: Any = None
    secure: SecureSums | None = None
    identities: Mapping[str, "Ed25519PrivateKey"] = field(default_factory=dict)
    opened: Path | None = None

    @property
    def host(self) -> str:
        """Returns the first of the hosted clients, by whose name the process goes."""
        return next(iter(self.items))

    @property
    def start(self) -> bytes:
        """Returns how the orbit begins."""
        return begin(self.header)


class WorkThread:
    """A thread for what takes long, so that signs of life go on meanwhile. One piece of work at a time."""

    def __init__(self) -> None:
        threads = torch.get_num_threads()
        self._executor = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(threads,))

    async def do(self, act: Callable[..., T], *arguments: Any) -> T:
        """Do a piece of work there."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, act, *arguments)

    def end(self) -> None:
        """Begin nothing more."""
        self._executor.shutdown(cancel_futures=True)


async def first_of(event: asyncio.Event, seconds: float | None) -> None:
    """Wait for an event, at most so long."""
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return


def matching(wanted: Sequence[str], names: Sequence[str]) -> list[str]:
    """Returns the names that are wanted, by name or pattern, in the run's order.

    Raises:
        RecipeError: one fits no name.
    """
    for pattern in wanted:
        if not any(name == pattern or fnmatchcase(name, pattern) for name in names):
            raise RecipeError(f"--client {pattern}: the recipe's clients are {listed(names, 12)}")
    return [name for name in names if any(name == p or fnmatchcase(name, p) for p in wanted)]
