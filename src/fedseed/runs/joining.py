"""Does what `fedseed join` does: takes part in a recipe's run for some of its clients, and keeps
the tuned model.

Where each client's data lies by itself, a process opens no other client's; and it opens evaluation
data only if it is asked to evaluate.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedseed.errors import FedseedError, OrbitError, RecipeError
from fedseed.federation.client.accounts import limits_of, settings_with_account
from fedseed.federation.client.network import NetworkClient
from fedseed.federation.client.state import Hosted
from fedseed.federation.coordinator.coordinator import Coordinator
from fedseed.federation.protocol import list_names
from fedseed.orbit.card import Facts
from fedseed.orbit.export import check_free, export_model
from fedseed.orbit.signature import private_key
from fedseed.privacy import mechanism_of
from fedseed.privacy.account import Account
from fedseed.privacy.account_file import SUFFIX, FileAccount
from fedseed.privacy.secure.settings import identity_text
from fedseed.recipe.settings import Recipe
from fedseed.reports.progress import Progress
from fedseed.runs.assembly import host
from fedseed.runs.model_setup import Equipment, Evaluation, equip, make_evaluation
from fedseed.tasks.data import OwnData, TaskData
from fedseed.tasks.record import DataRecord, clients_record, held_out_record
from fedseed.text import show_text
from fedseed.transport.base import Transport
from fedseed.transport.subjects import name_problem

ORBIT = "model.orbit"
# accounts that are described when a process begins
MOST_NOTED = 10


def make_client(
    load: "Loading", run: str, transport: Transport, orbit: Path | None = None
) -> NetworkClient:
    """Return a process that takes part in a recipe's run.

    Args:
        load: its model, data and keys.
        run: the run's name on the transport.
        transport: how to reach the coordinator.
        orbit: a new file for the run's orbit, written when the run is over; of a method that has
            one.

    Raises:
        RecipeError: the model can't be had.
    """
    load.opened = state_folder() / "opened" / run
    load.data_notes = state_folder() / "data" / run
    client = NetworkClient(transport, run, load, load.recipe.rounds, load.progress, orbit)
    recipe = load.recipe
    if mechanism_of(recipe.method) is not None and not (
        load.party and recipe.federation.clients is None
    ):
        # the coordinator ends the run with privacy's budget; who knows all clients can tell when,
        # as it does
        clients, layout = [0] * len(load.names), client.hosted.header.layout
        counted = Coordinator(
            recipe.method, layout, recipe.seed, clients, recipe.federation.count(len(clients))
        )
        client.rounds = counted.last_round(recipe.rounds)
    return client


def state_folder() -> Path:
    """Return the folder for what must outlast runs on this machine, of the user who runs this."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "fedseed"


class SiteAccount(NamedTuple):
    """A site's settings for its clients' privacy accounts.

    Args:
        file: an account's file, used alone; "{name}" in it stands for the client. None: in the
            user's state folder, by the client's name.
        budget: the most epsilon of all runs together; None: as in the recipe.
    """

    file: Path | None = None
    budget: float | None = None


class Loading:
    """Loads the recipe's model each time it is called; the hosted clients' data once.

    Args:
        recipe: the recipe.
        clients: names or patterns of the hosted clients.
        progress: shows notes about the evaluation data when it is loaded.
        own_data: where the hosted clients' own data lies; None: the recipe's paths.
        identity: the file of the key that signs for a client in secure sums; "{name}" in it stands
            for the client.
        account: where the hosted clients' privacy accounts are, and what they allow.

    Raises:
        RecipeError: the recipe has no client of such a name, or its data or key can't be had.
        PrivacyError: an account is damaged.
        StorageError: an account can't be written.
    """

    def __init__(
        self,
        recipe: Recipe,
        clients: Sequence[str],
        progress: Progress | None = None,
        own_data: OwnData | None = None,
        identity: Path | None = None,
        account: SiteAccount | None = None,
    ) -> None:
        self.recipe = recipe
        self.progress = progress or Progress()
        self._evaluation: TaskData | None = None
        self._own = own_data or OwnData()
        # the folder in which secure sums note which sums were opened
        self.opened: Path | None = None
        # the folder in which a client notes which data it has while a run goes on
        self.data_notes: Path | None = None
        self._parts: list[TaskData] | None = None  # of clients with data of their own
        self.party = recipe.of_parties or (own_data is not None and recipe.task.own_data)
        if self.party:
            self._load_own(clients)
        else:
            names, whole = recipe.task.client_names(), None
            if names is None:  # the names are in the data alone
                whole = recipe.task.load()
                names = [client.name for client in whole.clients]
            self.names, self.hosted = names, match_names(clients, names)
            recipe.federation.check(len(names))
            if own_data is not None:
                raise RecipeError(
                    f'--data: task.name = "{recipe.task.name}" deals its data itself; take "files"'
                )
            if whole is None:
                self.data = recipe.task.load_part(self.hosted, evaluate=False)
            else:
                self.data = whole.select_clients(self.hosted)
        self.identities = read_identities(recipe, self.hosted, identity)
        self._site_account = account
        self._accounts: dict[str, Account] | None = None

    def open_accounts(self) -> dict[str, Account]:
        """Return the hosted clients' privacy accounts, opened once; none, if they need none.

        Raises:
            RecipeError: the site's settings of accounts do not fit the recipe.
            PrivacyError: an account is damaged.
            StorageError: an account can't be written.
        """
        if self._accounts is None:
            self._accounts = self._opened_accounts(self._site_account or SiteAccount())
        return self._accounts

    def _opened_accounts(self, site: SiteAccount) -> dict[str, Account]:
        recipe = self.recipe
        settings = settings_with_account(recipe.method)
        if settings is None:
            if site != SiteAccount():
                raise RecipeError(
                    "--account and --budget: this recipe's clients keep no privacy account; those "
                    'of one with privacy.level = "example" do'
                )
            return {}
        if site.file is not None and len(self.hosted) > 1 and "{name}" not in str(site.file):
            raise RecipeError(
                f'--account {site.file}: for {len(self.hosted)} clients it needs "{{name}}" in it'
            )
        limits = limits_of(settings, recipe.rounds, site.budget)
        accounts: dict[str, Account] = {}
        for name in self.hosted:
            if site.file is not None:
                path, place = Path(str(site.file).replace("{name}", name)), ""
            else:
                path, place = self._usual_account(name)
            accounts[name] = account = FileAccount(path, name, limits, place)
            if len(accounts) <= MOST_NOTED:
                self.progress.note(account.describe())
        return accounts

    def _usual_account(self, name: str) -> tuple[Path, str]:
        """Return a client's file in the state folder, and where the client's data lies."""
        folder, task = state_folder() / "accounts", self.recipe.task
        problem = name_problem(name)
        if problem:
            raise RecipeError(f"client {show_text(name)} can't have a privacy account: {problem}")
        if not self.party:
            # such clients are called alike whatever their data: by the task
            return folder / f"{name}.{task.name}{SUFFIX}", ""
        alone = len(self.hosted) == 1 and self._own.path is not None
        return folder / f"{name}{SUFFIX}", task.place_of_own(name, self._own, alone)

    def _load_own(self, clients: Sequence[str]) -> None:
        """Load the data of clients that each have their own.

        Without a list they need not know who else there is.
        """
        roster, own_data = self.recipe.federation.clients, self._own
        for name in clients if roster is None else ():
            problem = name_problem(name)
            if problem:
                raise RecipeError(
                    f"--client {show_text(name)}: {problem}; patterns need federation.clients in "
                    "the recipe"
                )
        if roster is None and self.recipe.attack is not None:
            raise RecipeError(
                "attack: which clients are Byzantine is not known without federation.clients"
            )
        self.hosted = (
            list(dict.fromkeys(clients)) if roster is None else match_names(clients, roster)
        )
        self.names = roster or self.hosted
        alone = len(self.hosted) == 1
        if own_data.evaluation_file is not None and not alone:
            raise RecipeError("--evaluation-file: for one --client")
        # then all that lies there is the client's; otherwise each has a file there
        alone &= own_data.path is not None
        self._parts = [self.recipe.task.load_own(name, own_data, alone) for name in self.hosted]
        self.data = replace(
            self._parts[0],
            clients=list(chain.from_iterable(part.clients for part in self._parts)),
            notes=tuple(chain.from_iterable(part.notes for part in self._parts)),
        )

    def __call__(self) -> Hosted:
        """Return the model at its base, and the hosted clients' examples."""
        _, hosted = host(
            self.recipe,
            self.data,
            self.names,
            lambda equipment: (self._evaluate_with(equipment), []),
        )
        return replace(
            hosted,
            party=self.party,
            identities=self.identities,
            opened=self.opened,
            accounts=self.open_accounts(),
            data_record=self._data_record if self.data_notes is not None else {},
            data_notes=self.data_notes,
        )

    @cached_property
    def _data_record(self) -> DataRecord:
        """Return the record of the hosted clients' data, with what they hold out of them."""
        record = dict(clients_record(self.data.clients))
        for part in self._parts or ():
            if part.evaluation.get("") or part.validation:
                whose = part.clients[0].name
                record |= held_out_record(part.evaluation, part.validation, whose)
        return record

    def _evaluate_with(self, equipment: Equipment) -> Evaluation:
        """Return the function that measures the model; its first call loads the evaluation data."""

        @cache
        def load_measure() -> Evaluation:
            first, task = self._evaluation is None, self.recipe.task
            if self._evaluation is None:
                if self._parts is not None and not task.shares_evaluation:
                    self._evaluation = self.data
                else:
                    shared = None
                    if self._parts is not None:
                        shared = task.load_shared(self._own.evaluation_file)
                    self._evaluation = shared or task.load_part(self.hosted, evaluate=True)
            # by now the model may be far from its base
            measure, notes = make_evaluation(
                self.recipe,
                equipment,
                self._evaluation,
                self._parts,
                lambda: equip(self.recipe, self.data).model,
            )
            data_notes: tuple[str, ...] = ()
            if self._evaluation is not self.data:
                data_notes = self._evaluation.notes
            for note in (*data_notes, *notes) if first else ():
                self.progress.note(note)
            return measure

        # of a private run nothing is measured, whatever a coordinator asks
        return lambda model: load_measure()(model) if self.recipe.evaluates else {}


def read_identities(
    recipe: Recipe, clients: Sequence[str], file: Path | None
) -> dict[str, Ed25519PrivateKey]:
    """Return the keys that sign for clients in secure sums, by name.

    None if the recipe has no public keys.

    Args:
        recipe: the recipe.
        clients: names.
        file: where they are; "{name}" in it stands for the client.

    Raises:
        RecipeError: a key is missing, or is not the recipe's.
    """
    sums = recipe.secure_sums
    if sums is None or not sums.identities:
        if file is not None:
            raise RecipeError(
                f"--identity {file}: the recipe has nobody's public key (secure_sums.identities)"
            )
        return {}
    problem = sums.missing_key(clients)
    if problem is not None:
        raise RecipeError(problem)
    if file is None:
        raise RecipeError(
            f"secure_sums.identities: where is the private key of {clients[0]}? --identity FILE, "
            "as `fedseed orbit keygen` has written it"
        )
    keys = {}
    for name in clients:
        path = Path(str(file).replace("{name}", name)).expanduser()
        try:
            keys[name] = private_key(path)
        except OrbitError as error:
            raise RecipeError(f"--identity {error}") from error
        if identity_text(keys[name].public_key().public_bytes_raw()) != sums.identities[name]:
            raise RecipeError(
                f"--identity {path}: it is not the key that secure_sums.identities has for {name}"
            )
    return keys


def prepare_orbit_file(folder: Path) -> Path:
    """Make a folder, and return the file for the orbit while the model is not there.

    Raises:
        FedseedError: the folder holds a model or an orbit already, or can't be made.
    """
    check_free(folder)
    if (folder / ORBIT).exists():
        raise FedseedError(f"{folder} holds an orbit already: choose another folder with --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f".{ORBIT}"
        part.unlink(missing_ok=True)  # of an earlier process that was interrupted
    except OSError as error:
        raise FedseedError(f"{folder}: can't be written: {error.strerror}") from error
    return part


def save_model(client: NetworkClient, digest: str, folder: Path) -> None:
    """Write the tuned model, its orbit and its card into a folder, when the run is over.

    Args:
        client: the process; it has run, and written its orbit where `prepare_orbit_file` said.
        digest: of the weights.
        folder: where it goes; it holds no model.

    Raises:
        FedseedError: it can't be written.
    """
    replica = client.replica
    assert replica is not None
    part = folder / f".{ORBIT}"
    measured = [
        {name: value for name, value in line.items() if isinstance(value, float)}
        for line in client.evaluations
    ]
    first = {}
    if measured and client.evaluations[0]["round"] == 0:
        first = measured[0]
    name, size = (ORBIT, part.stat().st_size) if part.exists() else ("", None)
    facts = Facts(
        replica.at,
        digest,
        None,
        name,
        size,
        len(replica.numbers),
        first,
        measured[-1] if measured else {},
    )
    hosted = replica.hosted
    export_model(folder, hosted.worker.space.model, hosted.processor, hosted.header, facts)
    if part.exists():
        part.replace(folder / ORBIT)


def match_names(patterns: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the names that are wanted, by name or pattern, in the run's order.

    Raises:
        RecipeError: one fits no name.
    """
    for pattern in patterns:
        if not any(name == pattern or fnmatchcase(name, pattern) for name in names):
            raise RecipeError(
                f"--client {pattern}: the recipe's clients are {list_names(names, 12)}"
            )
    return [name for name in names if any(name == p or fnmatchcase(name, p) for p in patterns)]
