"""The state of a process that takes part in a run for some clients."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from fedseed.attacks.updates import AttackKind
from fedseed.federation.client.worker import Worker
from fedseed.federation.fingerprint import Fingerprint
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

    # all clients of the run that are known here, in the order of their numbers
    names: Sequence[str]
    # the hosted clients' prepared examples, by client, in the same order
    items: Mapping[str, Sequence[Any]]
    worker: Worker  # holds the model
    header: Header  # the orbit's
    # measures the model, if this process evaluates
    evaluate: Callable[[torch.nn.Module], dict[str, Any]]
    attack: AttackKind | None = None  # the lie of Byzantine clients (simulation)
    attackers: Collection[int] = ()  # the numbers of the Byzantine clients
    notes: Sequence[str] = field(default_factory=tuple)  # about the data, for a person
    # the clients have data of their own, and only the coordinator knows the others
    party: bool = False
    processor: Any = None  # the base's tokenizer or image processor
    secure: SecureSums | None = None  # how updates are masked; None: they are not
    # keys that sign in secure sums, by client
    identities: Mapping[str, "Ed25519PrivateKey"] = field(default_factory=dict)
    # folder for the round of secure sums that each client opened last; None: not kept
    opened: Path | None = None
    # privacy accounts by client, where answers must be counted (`federation.accounts`)
    accounts: Mapping[str, Account] = field(default_factory=dict)
    fingerprint: Fingerprint | None = None  # of texts' tokens; None: the data have no texts
    # the clients' own data, and the folder of the note of them; None: no note is kept
    data_record: DataRecord = field(default_factory=dict)
    data_notes: Path | None = None

    @property
    def host(self) -> str:
        """The first of the hosted clients, which gives the process its name."""
        return next(iter(self.items))

    @property
    def start(self) -> bytes:
        """The orbit's beginning."""
        return begin(self.header)


class WorkThread:
    """A thread for long work, so that signs of life go on meanwhile.

    It does one piece of work at a time.
    """

    def __init__(self) -> None:
        threads = torch.get_num_threads()
        self._executor = ThreadPoolExecutor(
            1, initializer=torch.set_num_threads, initargs=(threads,)
        )

    async def run(self, act: Callable[..., T], *arguments: Any) -> T:
        """Run a function in the thread."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, act, *arguments)

    def end(self) -> None:
        """Start no more work."""
        self._executor.shutdown(cancel_futures=True)
