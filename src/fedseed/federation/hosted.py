"""What a process has that takes part in a run for some clients."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from fedseed.attacks.updates import AttackKind
from fedseed.federation.fingerprint import Fingerprint
from fedseed.federation.worker import Worker
from fedseed.orbit import Header
from fedseed.orbit.file import begin
from fedseed.privacy.account import Account
from fedseed.privacy.secure.settings import SecureSums
from fedseed.tasks.record import DataRecord

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

T = TypeVar("T")


@dataclass
class Hosted:
    """A model at the base, and the hosted clients' examples; nothing of other clients."""

    # all clients of the run, in the order of their numbers, as far as they are known here
    names: Sequence[str]
    # the hosted clients' prepared examples, by client, in that order
    items: Mapping[str, Sequence[Any]]
    worker: Worker  # holds the model
    header: Header  # the orbit's
    # measures the model, if this process is to evaluate
    evaluate: Callable[[torch.nn.Module], dict[str, Any]]
    attack: AttackKind | None = None  # what Byzantine clients send (simulation)
    attackers: Collection[int] = ()  # the numbers of the Byzantine clients
    notes: Sequence[str] = field(default_factory=tuple)  # about the data, for a person
    # these clients have data of their own, and the coordinator alone knows who else takes part
    party: bool = False
    processor: Any = None  # the base's tokenizer or image processor
    secure: SecureSums | None = None  # how answers are masked; None: they are sent as they are
    # sign in secure sums, by client
    identities: Mapping[str, "Ed25519PrivateKey"] = field(default_factory=dict)
    # folder for which round of secure sums each has opened last; None: nothing is kept
    opened: Path | None = None
    # count what each hosted client answers, where it must be counted (`federation.accounts`)
    accounts: Mapping[str, Account] = field(default_factory=dict)
    fingerprint: Fingerprint | None = None  # what is made of texts here; None: there are none
    # the clients' own data, and where a note of it lies while a run goes on; None: nowhere
    data_record: DataRecord = field(default_factory=dict)
    data_notes: Path | None = None

    @property
    def host(self) -> str:
        """Return the first of the hosted clients, by whose name the process goes."""
        return next(iter(self.items))

    @property
    def start(self) -> bytes:
        """Return how the orbit begins."""
        return begin(self.header)


class WorkThread:
    """A thread for what takes long, so that signs of life go on meanwhile.

    One piece of work at a time.
    """

    def __init__(self) -> None:
        threads = torch.get_num_threads()
        self._executor = ThreadPoolExecutor(
            1, initializer=torch.set_num_threads, initargs=(threads,)
        )

    async def do(self, act: Callable[..., T], *arguments: Any) -> T:
        """Do a piece of work there."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, act, *arguments)

    def end(self) -> None:
        """Begin nothing more."""
        self._executor.shutdown(cancel_futures=True)
