"""Takes part in a recipe's run for some of its clients and saves the tuned model, for `fedseed
join`.

If each client has its own file, a process opens only those of its own clients. It opens evaluation
data only when the coordinator asks it to evaluate.
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
# the largest number of clients whose privacy accounts are described at the start
MOST_NOTED = 10


def make_client(
    load: "Loading", run: str, transport: Transport, orbit: Path | None = None
) -> NetworkClient:
    """Make the client process of a recipe's run.

    Args:
        load: loads the model, the data and the keys.
        run: the run's name on the transport.
        transport: how to reach the coordinator.
        orbit: a new file for the run's orbit, written when the run is over; only for methods that
            have an orbit.

    Raises:
        RecipeError: the model can't be loaded.
    """
    load.opened = state_folder() / "opened" / run
    load.data_notes = state_folder() / "data" / run
    client = NetworkClient(transport, run, load, load.recipe.rounds, load.progress, orbit)
    recipe = load.recipe
    if mechanism_of(recipe.method) is not None and not (
        load.party and recipe.federation.clients is None
    ):
        # the coordinator ends the run when the privacy budget is spent; with all clients known,
        # this process can compute the same end
        clients, layout = [0] * len(load.names), client.hosted.header.layout
        counted = Coordinator(
            recipe.method, layout, recipe.seed, clients, recipe.federation.count(len(clients))
        )
        client.rounds = counted.last_round(recipe.rounds)
    return client


def state_folder() -> Path:
    """Return this user's folder for files that outlast a run."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "fedseed"


class SiteAccount(NamedTuple):
    """A site's settings for its clients' privacy accounts.

    Args:
        file: the account's file; "{name}" in it stands for the client. None: a file with the
            client's name in the user's state folder.
        budget: the highest epsilon of all runs together; None: the recipe's budget.
    """

    file: Path | None = None
    budget: float | None = None


class Loading:
    """Loads a recipe's model at each call, and the hosted clients' data once.

    Args:
        recipe: the recipe.
        clients: names or patterns of the hosted clients.
        progress: shows notes about the evaluation data when it is loaded.
        own_data: path of the hosted clients' own data; None: the recipe's paths.
        identity: the file of the private key that signs a client's messages in secure sums;
            "{name}" in it stands for the client.
        account: settings of the hosted clients' privacy accounts.

    Raises:
        RecipeError: the recipe has no client of that name, or its data or key can't be read.
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
        # secure sums record in this folder which sums were opened
        self.opened: Path | None = None
        # a client records in this folder the data that it has during a run
        self.data_notes: Path | None = None
        self._parts: list[TaskData] | None = None  # data of clients that each have their own
        self.party = recipe.of_parties or (own_data is not None and recipe.task.own_data)
        if self.party:
            self._load_own(clients)
        else:
            names, whole = recipe.task.client_names(), None
            if names is None:  # only the data has the names
                whole = recipe.task.load()
                names = [client.name for client in whole.clients]
            self.names, self.hosted = names, match_names(clients, names)
            recipe.federation.check(len(names))
            if own_data is not None:
                raise RecipeError(
                    f'--data: task.name = "{recipe.task.name}" divides its data itself; '
                    '--data needs task.name = "files"'
                )
            if whole is None:
                self.data = recipe.task.load_part(self.hosted, evaluate=False)
            else:
                self.data = whole.select_clients(self.hosted)
        self.identities = read_identities(recipe, self.hosted, identity)
        self._site_account = account
        self._accounts: dict[str, Account] | None = None

    def open_accounts(self) -> dict[str, Account]:
        """Return the hosted clients' privacy accounts, opened at the first call; empty if they need
        none.

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
                    "--account and --budget: this recipe's clients keep no privacy account; only "
                    'a recipe with privacy.level = "example" needs accounts'
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
        """Return a client's account file in the state folder, and the path of the client's data."""
        folder, task = state_folder() / "accounts", self.recipe.task
        problem = name_problem(name)
        if problem:
            raise RecipeError(f"client {show_text(name)} can't have a privacy account: {problem}")
        if not self.party:
            # these clients have the same names in every data set, so the file is named by the task
            return folder / f"{name}.{task.name}{SUFFIX}", ""
        alone = len(self.hosted) == 1 and self._own.path is not None
        return folder / f"{name}{SUFFIX}", task.place_of_own(name, self._own, alone)

    def _load_own(self, clients: Sequence[str]) -> None:
        """Load the data of clients that each have their own files.

        A client need not know which other clients take part if the recipe does not list them.
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
                "attack: federation.clients must list the clients, because it decides which "
                "of them are Byzantine"
            )
        self.hosted = (
            list(dict.fromkeys(clients)) if roster is None else match_names(clients, roster)
        )
        self.names = roster or self.hosted
        alone = len(self.hosted) == 1
        if own_data.evaluation_file is not None and not alone:
            raise RecipeError("--evaluation-file: can only be used with one --client")
        # one client: the whole path is its own data; several clients: each has a file in it
        alone &= own_data.path is not None
        self._parts = [self.recipe.task.load_own(name, own_data, alone) for name in self.hosted]
        self.data = replace(
            self._parts[0],
            clients=list(chain.from_iterable(part.clients for part in self._parts)),
            notes=tuple(chain.from_iterable(part.notes for part in self._parts)),
        )

    def __call__(self) -> Hosted:
        """Return the base model with the hosted clients' examples."""
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
        """Return the record of the hosted clients' data, including what they hold out."""
        record = dict(clients_record(self.data.clients))
        for part in self._parts or ():
            if part.evaluation.get("") or part.validation:
                whose = part.clients[0].name
                record |= held_out_record(part.evaluation, part.validation, whose)
        return record

    def _evaluate_with(self, equipment: Equipment) -> Evaluation:
        """Return the evaluation function; its first call loads the evaluation data."""

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
            # the model has been tuned by now, so load the base again
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

        # a private run measures nothing, whatever the coordinator asks for
        return lambda model: load_measure()(model) if self.recipe.evaluates else {}


def read_identities(
    recipe: Recipe, clients: Sequence[str], file: Path | None
) -> dict[str, Ed25519PrivateKey]:
    """Return the private keys that sign clients' messages in secure sums, by client name.

    None if the recipe has no public keys.

    Args:
        recipe: the recipe.
        clients: the clients' names.
        file: the keys' file; "{name}" in it stands for the client.

    Raises:
        RecipeError: a key is missing, or does not belong to the recipe's public key.
    """
    sums = recipe.secure_sums
    if sums is None or not sums.identities:
        if file is not None:
            raise RecipeError(
                f"--identity {file}: the recipe has no public keys (secure_sums.identities)"
            )
        return {}
    problem = sums.missing_key(clients)
    if problem is not None:
        raise RecipeError(problem)
    if file is None:
        raise RecipeError(
            f"secure_sums.identities: the private key of {clients[0]} is missing: give --identity "
            "FILE, a file written by `fedseed orbit keygen`"
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
                f"--identity {path}: this key does not belong to {name}'s public key in "
                "secure_sums.identities"
            )
    return keys


def prepare_orbit_file(folder: Path) -> Path:
    """Make the folder for the tuned model, and return the file that holds the orbit until the model
    is saved.

    Raises:
        FedseedError: the folder already holds a model or an orbit, or can't be made.
    """
    check_free(folder)
    if (folder / ORBIT).exists():
        raise FedseedError(f"{folder} holds an orbit already: choose another folder with --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f".{ORBIT}"
        part.unlink(missing_ok=True)  # left by an interrupted process
    except OSError as error:
        raise FedseedError(f"{folder}: can't be written: {error.strerror}") from error
    return part


def save_model(client: NetworkClient, digest: str, folder: Path) -> None:
    """Write the tuned model, its orbit and its card into a folder, when the run is over.

    Args:
        client: the process after its run, with its orbit in the file from `prepare_orbit_file`.
        digest: of the weights.
        folder: the folder to write to; it must not hold a model.

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
    """Return the clients' names that match the wanted names or patterns, in the run's order.

    Raises:
        RecipeError: a name or pattern matches no client.
    """
    for pattern in patterns:
        if not any(name == pattern or fnmatchcase(name, pattern) for name in names):
            raise RecipeError(
                f"--client {pattern}: the recipe's clients are {list_names(names, 12)}"
            )
    return [name for name in names if any(name == p or fnmatchcase(name, p) for p in patterns)]
