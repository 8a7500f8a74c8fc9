"""The state of a process that takes part in a run for one or more clients."""

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
    """The base model and the hosted clients' examples, without any data of other clients."""

    # the clients of the run that this process knows, in the order of their numbers
    names: Sequence[str]
    # the hosted clients' prepared examples, by client, in the same order
    items: Mapping[str, Sequence[Any]]
    worker: Worker  # holds the model
    header: Header  # the orbit's header
    # the evaluation function, if this process evaluates
    evaluate: Callable[[torch.nn.Module], dict[str, Any]]
    attack: AttackKind | None = None  # the lie of Byzantine clients (simulation)
    attackers: Collection[int] = ()  # the numbers of the Byzantine clients
    notes: Sequence[str] = field(default_factory=tuple)  # notes about the data, for the user
    # whether clients have their own data, so that only the coordinator knows all clients
    party: bool = False
    processor: Any = None  # the base's tokenizer or image processor
    secure: SecureSums | None = None  # settings of secure sums; None: updates are not masked
    # private keys that sign in secure sums, by client
    identities: Mapping[str, "Ed25519PrivateKey"] = field(default_factory=dict)
    # folder that records the round of secure sums that each client opened last; None: not recorded
    opened: Path | None = None
    # privacy accounts by client, if answers must be counted (`federation.accounts`)
    accounts: Mapping[str, Account] = field(default_factory=dict)
    # fingerprint of the tokenizer; None: the data have no texts
    fingerprint: Fingerprint | None = None
    # record of the clients' own data, and the folder of the note about them; None: no note is kept
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
    """A thread for long work, so that the process can still send beats.

    It does one task at a time.
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
        """Stop the thread after its current task."""
        self._executor.shutdown(cancel_futures=True)
