"""Admits clients to a run. They send a hello, and must have the run's base, recipe and model."""

import asyncio
import base64
import re
import time
from dataclasses import dataclass, field
from typing import Any, NoReturn

from fedseed.errors import MessageError, OrbitError, RecipeError
from fedseed.federation.control import MOST_CLIENTS, Attach, Hello, Welcome
from fedseed.federation.coordinator.agreement import Agreement, Claim
from fedseed.federation.coordinator.coordinator import Coordinator
from fedseed.federation.coordinator.membership import Roster
from fedseed.federation.coordinator.session import RESEND_SECONDS, Session
from fedseed.federation.fingerprint import Fingerprint
from fedseed.federation.large import fetch
from fedseed.federation.messages import FRAME_BYTES
from fedseed.federation.protocol import list_names
from fedseed.methods import Method
from fedseed.orbit import Header
from fedseed.orbit.file import scan
from fedseed.orbit.header import START
from fedseed.orbit.record import LINK_BYTES
from fedseed.text import show_text

REMEDY = "name the clients in its recipe (federation.clients)"
# bytes of a message of scalars (two million), and of a client's blobs in addition to its messages
SPARE_BYTES = 8 << 20
# the most bytes of a compressed header, enough for fifty thousand tensors with a block each (40 MiB
# when decoded)
MOST_START = 160 << 10
# bytes by which a header may exceed the run's, once that is known, for names and settings
SPARE_START = 8 << 10
MOST_PLACE = 4096  # the most characters of a base's name or folder
MOST_REFUSAL = 1000  # the most characters of the reason for a refusal
BRING_SECONDS = 60.0  # after this time without the base's weights, another client is asked for them


def read_start(data: bytes, size_limit: int = MOST_START) -> Header:
    """Return the header of the orbit's beginning in a hello.

    Data after the header are refused, because reading steps could be expensive.

    Args:
        data: the header with its link.
        size_limit: the most bytes that the header may have.

    Raises OrbitError or MessageError if the header is unusable, or if its length is not the
    announced one.
    """
    if len(data) < START.size or len(data) != START.size + START.unpack_from(data)[-1] + LINK_BYTES:
        raise MessageError("hello: no header, or its length is not the announced one")
    if len(data) > size_limit:
        raise MessageError(
            f"hello: a header of {len(data):,} bytes, but at most {size_limit:,} are read"
        )
    header = scan(data, "hello")[0].header
    if not re.fullmatch(r"[0-9a-f]{32}", header.base_digest):
        raise MessageError("hello: the base's digest is not 32 hexadecimal digits")
    if max(map(len, (header.base, header.base_folder, header.dtype))) > MOST_PLACE:
        raise MessageError(
            f"hello: the base's name or folder has more than {MOST_PLACE:,} characters"
        )
    return header


@dataclass
class BaseWeights:
    """Asks clients for the base's weights. The coordinator needs them if steps are whole weights.

    The weights must have the digest that most clients claim (`agreement`), and come from a client
    that was asked.
    """

    session: Session
    needed: bool  # whether the coordinator needs them
    data: bytes | None = None  # None until they have come
    digest: str | None = None  # the digest that they must have; None: not known yet
    _ask_again: float = 0.0  # when to ask another client
    _bringers: set[str] = field(default_factory=set)  # hosts that were asked
    _failed: set[str] = field(default_factory=set)  # hosts that sent something else
    _fetching: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def missing(self) -> bool:
        """Whether the weights are needed and have not come yet."""
        return self.needed and self.data is None

    def asks(self, host: str) -> bool:
        """Return whether to ask this host for the weights. One host is asked at a time."""
        if not self.missing or host in self._failed or time.monotonic() <= self._ask_again:
            return False
        self._ask_again = time.monotonic() + BRING_SECONDS
        self._bringers.add(host)
        return True

    def take(self, host: str, carried: str, header: Header | None, size_limit: int) -> None:
        """Take the weights from a host, or a reference to them.

        Args:
            host: the host.
            carried: the weights or a reference, in base64.
            header: the run's header, if it is known.
            size_limit: the most bytes of its largest message.
        """
        if host not in self._bringers:
            self.session.rejected.add(host, "base weights that this process was not asked for")
            return
        self._bringers.discard(host)
        if self.missing and header is not None:  # otherwise another host has been faster
            task = asyncio.create_task(
                self._take(host, base64.b64decode(carried), header, size_limit)
            )
            self._fetching.add(task)
            task.add_done_callback(self._fetching.discard)

    async def _take(self, host: str, carried: bytes, header: Header, size_limit: int) -> None:
        try:
            weights = (await fetch(self.session.end, carried, host, size_limit))[FRAME_BYTES:]
            if len(weights) != header.layout.dense_bytes:
                raise MessageError(f"{len(weights)} bytes of weights")
            digest = self.digest and await asyncio.to_thread(header.digest_of, weights)
            if digest != self.digest:
                raise MessageError(
                    f"base weights with the digest {digest}, but this run's have {self.digest}"
                )
            if self.missing:
                self.data = weights
        except MessageError as error:
            self.session.rejected.add(host, str(error))
            self._failed.add(host)
            self._ask_again = 0.0
        self.session.stir()

    def hand_over(self) -> bytes | None:
        """Return the weights and release them."""
        data, self.data, self.needed = self.data, None, False
        return data


@dataclass
class Reception:
    """Takes hellos, and records which process hosts a client."""

    session: Session
    roster: Roster
    method: Method  # the recipe's method
    seed: int  # the recipe's seed
    header: Header | None = None  # header of the log, or of most clients
    # fingerprint of most clients' tokenizers; None: not known
    fingerprint: Fingerprint | None = None
    agreement: Agreement = field(default_factory=Agreement)
    coordinator: Coordinator | None = None  # weighs clients by the examples that they declare
    # a run's header, and the longest header of a hello that could still fit it
    _longest: tuple[Header | None, int] = (None, MOST_START)
    _assembling: bool = False
    _decided: bool = False  # whether a majority has decided what the run is
    # time since when only outvoted clients are missing
    _ready_since: float | None = None
    _new_hellos: int = 0  # number of hellos since all clients were last checked
    _last_note: str = ""  # what the start waits for, as shown
    # why the run can't begin; then every hello gets this answer
    _disagreement: str = ""
    # processes that have received this reason
    _informed_hosts: set[str] = field(default_factory=set)
    # processes whose different versions were shown already
    _other_versions: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.base = BaseWeights(self.session, self.method.catch_up.replaces)

    async def assemble(self) -> Header:
        """Wait until the clients that the recipe asks for have come with everything needed.

        Returns:
            The run's header.

        Raises RecipeError if there are too few clients for the recipe, or if they do not agree on
        the run.
        """
        roster, called_at = self.roster, 0.0
        while True:
            self._new_hellos = 0
            try:
                self._decide()
            except RecipeError as error:
                await self._inform_clients(str(error))
                raise
            # not at each hello, because a call causes the next hello
            now = time.monotonic()
            if now >= called_at + RESEND_SECONDS:
                called_at = now
                # one client has to learn that it should send the weights
                bring = self.header is not None and self.base.missing
                await self.session.call(roster.clients()[:1] if bring else ())
            if roster.names and not roster.open:
                self.session.settings.check(len(roster.names))
            if (
                self.header is not None
                and self._can_begin(len(roster.present()))
                and not self.base.missing
            ):
                roster.open = self._assembling = False
                return self.header
            self._assembling = True
            waits = self._describe_waiting()
            if waits != self._last_note:
                self.session.progress.note(f"waiting for clients: {waits}")
                self._last_note = waits
            await self.session.pause(RESEND_SECONDS)

    def _decide(self) -> None:
        """Fix the run's header, clients and fingerprint, once most clients agree.

        Raises RecipeError if all clients have come but there is no majority.
        """
        roster, settings = self.roster, self.session.settings
        if self._decided or (self.header is not None and not self.base.missing):
            return
        clients = roster.spoken_for()
        total = 0 if roster.open else len(roster.names)
        claim = self.agreement.find_majority(
            clients, total, roster.required_clients(settings.start_with)
        )
        if claim is None:
            if total and sum(clients.values()) >= total:
                self._fail_without_majority(clients)
            return
        self._decided = True
        self.header = self.header or claim.header
        self.base.digest = settings.weights_digest or claim.weights
        self.fingerprint = claim.fingerprint
        if claim.names is not None:
            roster.set_names(claim.names)
        self._refuse_minorities(clients)

    def _fail_without_majority(self, clients: dict[str, int]) -> NoReturn:
        claims = self.agreement.claims
        groups = self.agreement.groups(clients)
        opinions = "; ".join(
            f"{count} ({list_names(hosts)}): {claims[hosts[0]]}" for count, hosts in groups
        )
        first, *others = (claims[hosts[0]].header for _, hosts in groups)
        notes = [note for note in (other.versions_apart(first) for other in others) if note]
        raise RecipeError(
            f"the clients do not agree on what the run is about: {opinions}; there is no majority"
            f"{notes[0] if notes else ''}: name the right one in the recipe "
            "(federation.base_digest, and of methods that send weights federation.weights_digest)"
        )

    async def _inform_clients(self, reason: str) -> None:
        """Refuse all present clients with a reason, and wait until each host has received it."""
        self._disagreement = reason
        hosts = set(self.roster.spoken_for())
        ends_at = time.monotonic() + RESEND_SECONDS
        await self.session.call()
        while not hosts <= self._informed_hosts and time.monotonic() < ends_at:
            await self.session.pause(ends_at - time.monotonic())

    def _refuse_minorities(self, clients: dict[str, int]) -> None:
        """Outvote the processes whose claim differs from the majority's."""
        (agreeing, _), *minorities = self.agreement.groups(clients)
        for _, hosts in minorities:
            for host in hosts:
                claim = self.agreement.claims[host]
                try:
                    self._compare(claim.header, claim.weights, host, claim.fingerprint)
                    reason = "another list of clients"
                    self.roster.outvote(host, True)
                except MessageError as error:
                    reason = str(error)
                self.session.rejected.add(
                    host, f"{reason} ({agreeing} of {sum(clients.values())} clients agree)"
                )

    def _can_begin(self, present: int) -> bool:
        """Return whether the first round can begin.

        It can begin without clients that do not fit, if they are not corrected in time.
        """
        roster, settings = self.roster, self.session.settings
        required = roster.required_clients(settings.start_with)
        if present >= required:
            return True
        with_outvoted = present + len(roster.outvoted)
        is_enough = bool(roster.outvoted) and with_outvoted >= required
        if not is_enough or present < settings.minimum:
            self._ready_since = None
            return False
        now = self.session.clock()
        if self._ready_since is None:
            self._ready_since = now
            self.session.progress.warn(
                f"{list_names(roster.outvoted)} has another base, layout, first weights or tokens "
                f"than most clients: in {settings.deadline:g} s (federation.deadline) the run "
                "begins without it"
            )
        roster.goes_without = now >= self._ready_since + settings.deadline
        return roster.goes_without

    @property
    def waiting(self) -> dict[str, int] | None:
        """How many clients have come, and how many the start waits for (0: not known).

        None if the run has begun.
        """
        if not self._assembling:
            return None
        required = self.roster.required_clients(self.session.settings.start_with)
        return {"here": len(self.roster.present()), "wanted": required}

    def _describe_waiting(self) -> str:
        """Return a text about the clients that the start waits for."""
        required = self.roster.required_clients(self.session.settings.start_with) or "?"
        missing = [] if self.roster.open else self.roster.away()
        coming = f"; to come: {list_names(missing)}" if missing else ""
        return f"{len(self.roster.present())} of {required} clients are here{coming}"

    def check(self, header: Header, first: Header | None) -> None:
        """Check that a header belongs to the run's base, recipe and model.

        Args:
            header: the header of a process.
            first: the run's header; None: compare only the recipe's settings.

        Raises MessageError if it does not; the message names the difference.
        """
        settings = self.session.settings
        expected = first or header.of_recipe(self.method, self.seed, settings.digest)
        required_digest = settings.base_digest or expected.base_digest
        if header.base_digest != required_digest and header.hashed_alike(expected):
            raise MessageError(
                f"another base: its digest is {header.base_digest}, this run's base has "
                f"{required_digest}" + header.versions_apart(expected)
            )
        differences = header.differences(expected)
        if differences:
            raise MessageError(f"another recipe or model: {differences[0]} here")

    def attach(self, sender: str, message: Attach) -> None:
        """Record the process and the number of examples that a client declares.

        Raises MessageError if the run can't have this client, or its process speaks for others.
        """
        client = message.client
        if client != sender:
            raise MessageError(f"it speaks for client {client}")
        number = None if self.roster.open else self.roster.numbers.get(client)
        if self.roster.names and number is None and not self.roster.open:
            raise MessageError(f"this run has no client {client}")
        if client not in self.roster.examples and len(self.roster.examples) >= MOST_CLIENTS:
            raise MessageError(f"more than {MOST_CLIENTS:,} clients")
        self.roster.attach(client, message.host)
        self.roster.examples[client] = message.examples
        if number is not None and self.coordinator is not None:
            self.coordinator.examples[number] = message.examples

    async def hello(self, sender: str, message: Hello) -> bytes:
        """Return the answer to a hello.

        Raises MessageError if the sender speaks for another process.
        """
        host = message.host
        if host != sender:
            raise MessageError(f"it speaks for client {host}")
        if self._disagreement:
            self._informed_hosts.add(host)
            self.session.stir()
            return Welcome(refused=show_text(self._disagreement, MOST_REFUSAL)).encode()
        try:
            claim = self._check_hello(message)
        except (OrbitError, MessageError) as error:
            self.session.rejected.add(host, str(error))
            return Welcome(refused=show_text(error, MOST_REFUSAL)).encode()
        if not self._decided:
            self.agreement.claims[host] = claim
        self.roster.outvote(host, False)
        answer: dict[str, Any] = {
            "epoch": self.session.incarnation,
            "beat": self.session.settings.dead_after / 3,
        }
        is_new = self.roster.hello(host, message.at)
        if self._assembling:
            answer["waits"] = self._last_note
        else:
            answer["clients"] = len(self.roster.names)
        size_limit = 0 if self.header is None else self.largest_message()
        if message.bucket and size_limit:
            await self.session.end.allow(host, 4 * size_limit + SPARE_BYTES)
        if message.weights is not None:
            self.base.take(host, message.weights, self.header, size_limit)
        elif self.header is not None and self.base.asks(host):
            answer["bring"] = "weights"
        self._new_hellos += 1
        required = self.roster.required_clients(self.session.settings.start_with)
        # checking all clients after each hello would take long: check when all may have come, or
        # after a tenth more hellos
        is_complete = is_new and self.roster.attached >= required
        if is_complete or 10 * self._new_hellos >= len(self.roster.hosts):
            self.session.stir()
        return Welcome(**answer).encode()

    def _check_hello(self, message: Hello) -> Claim:
        """Check that a process fits the run, and return its claim.

        Raises OrbitError or MessageError if it does not fit.
        """
        host, names, names_matter = message.host, message.names, message.names_matter
        header = read_start(base64.b64decode(message.header), self._longest_start())
        self.check(header, None)
        fingerprint = None
        if message.fingerprint is not None:
            fingerprint = Fingerprint.from_json(message.fingerprint)
        self._compare(header, message.begins, host, fingerprint)
        # if the clients are not known yet, a process that lists all clients makes a claim about
        # them
        listing: tuple[str, ...] | None = None
        if names_matter and not self.roster.names and not self.roster.open:
            listing = tuple(names)
        self._compare_names(host, names, names_matter)
        # some headers can't begin an orbit
        return Claim.from_header(header, message.begins, listing, fingerprint)

    def _longest_start(self) -> int:
        """Return the most bytes of a header that will be decoded.

        A header far longer than the run's can't be equal to it.
        """
        if self.header is None:
            return MOST_START
        if self._longest[0] is not self.header:
            self._longest = (
                self.header,
                min(len(self.header.encode()) + LINK_BYTES + SPARE_START, MOST_START),
            )
        return self._longest[1]

    def _compare(
        self, header: Header, begins: str | None, host: str, fingerprint: Fingerprint | None
    ) -> None:
        """Outvote a process if its base, layout, first weights or tokens differ from the run's.

        Raises MessageError if they do.
        """
        required_digest = self.session.settings.weights_digest
        if not required_digest and self.base.missing:
            required_digest = self.base.digest
        try:
            self.check(header, self.header)
            if begins is None and self.base.missing:
                raise MessageError("it does not say which weights it begins with")
            if required_digest is not None and begins is not None and begins != required_digest:
                raise MessageError(
                    f"other first weights: their digest is {begins}, but this run's is "
                    f"{required_digest}"
                )
            if self.fingerprint is not None and fingerprint is not None:
                self._compare_fingerprints(host, fingerprint, self.fingerprint)
        except MessageError:
            self.roster.outvote(host, True)
            raise

    def _compare_fingerprints(self, host: str, fingerprint: Fingerprint, run: Fingerprint) -> None:
        """Check that a process's tokenizer makes the run's tokens, and note other versions.

        Raises MessageError if its tokens differ.
        """
        difference = fingerprint.difference_from(run)
        if difference is not None:
            raise MessageError(difference)
        versions = fingerprint.version_difference(run)
        if versions is not None and host not in self._other_versions:
            self._other_versions.add(host)
            self.session.progress.note(f"{host} has {versions}; its tokens are the same")

    def _compare_names(self, host: str, names: list[str], names_matter: bool) -> None:
        """Check the clients that a process names, which are all clients of the run or its own.

        Raises MessageError if they do not fit the run.
        """
        roster = self.roster
        if not names or len(set(names)) < len(names):
            raise MessageError("a list of clients that is empty or names one twice")
        if roster.open:
            if names_matter:
                raise MessageError(
                    "in this run clients enrol: set federation.enrolment in the recipe there"
                )
            roster.enrol(host, names)
        elif names_matter and not roster.names:
            # the list is one claim, about which the majority decides (`agreement`)
            pass
        elif names_matter and names != roster.names:
            lists = f"{list_names(names)} there, {list_names(roster.names)} here"
            order = " in another order" if sorted(names) == sorted(roster.names) else ""
            raise MessageError(f"another list of clients{order}: {lists}")
        elif not roster.names:
            raise MessageError(
                "this process has only its own data, but the coordinator does not know which "
                f"clients take part: {REMEDY}"
            )
        else:
            self._check_own_names(names)

    def _check_own_names(self, names: list[str]) -> None:
        """Check that a process speaks only for clients of the run. Raises MessageError if it does
        not.
        """
        roster = self.roster
        unknown = [name for name in names if name not in roster.numbers]
        if not unknown:
            return
        late = ""
        if self.session.settings.enrols:
            late = "; the run has begun, so no more clients can enrol"
        raise MessageError(
            f"this run has no client {list_names(unknown)}: it has {list_names(roster.names)}{late}"
        )

    def largest_message(self) -> int:
        """Return the most bytes of a client's message: all weights, or the largest message of
        scalars.
        """
        assert self.header is not None
        return FRAME_BYTES + max(
            self.header.layout.dense_bytes if self.method.entrywise else 0, SPARE_BYTES
        )
