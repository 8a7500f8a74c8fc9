"""How clients come to a run: they say hello, and what they have must be what the run is about."""

import asyncio
import base64
import re
import time
from dataclasses import dataclass, field
from typing import Any

from fedseed.errors import MessageError, OrbitError, RecipeError
from fedseed.federation.agreement import Agreement, Claim
from fedseed.federation.control import MOST_CLIENTS, Attach, Hello, Welcome
from fedseed.federation.coordinator import Coordinator
from fedseed.federation.fingerprint import Fingerprint
from fedseed.federation.large import fetch
from fedseed.federation.membership import Roster
from fedseed.federation.messages import FRAME_BYTES
from fedseed.federation.protocol import listed
from fedseed.federation.session import RESEND_SECONDS, Session
from fedseed.methods import Method
from fedseed.orbit import Header
from fedseed.orbit.file import scan
from fedseed.orbit.header import START
from fedseed.orbit.record import LINK_BYTES
from fedseed.text import shown

REMEDY = "name the clients in its recipe (federation.clients)"
# of a message of scalars (two million), and of a client's blobs besides the messages
SPARE_BYTES = 8 << 20
# bytes of a header, compressed: of fifty thousand tensors, a block each; 40 MiB when decoded
MOST_START = 160 << 10
# bytes that a header may have more than the run's, once that is known: names, and settings
SPARE_START = 8 << 10
MOST_PLACE = 4096  # characters of a base's name or folder
MOST_REFUSAL = 1000  # characters of the reason that a process is told
BRING_SECONDS = 60.0  # for a client to bring the base's weights, before another is asked


def read_start(data: bytes, most: int = MOST_START) -> Header:
    """Return how the orbit of somebody who says hello begins.

    Refuses steps behind it, which could cost much to read.

    Args:
        data: the header with its link.
        most: bytes that it may have.

    Raises OrbitError or MessageError: the header is not usable, or has another length than it says.
    """
    if len(data) < START.size or len(data) != START.size + START.unpack_from(data)[-1] + LINK_BYTES:
        raise MessageError("hello: a header of another length than it says, or none")
    if len(data) > most:
        raise MessageError(f"hello: a header of {len(data):,} bytes: at most {most:,} are read")
    header = scan(data, "hello")[0].header
    if not re.fullmatch(r"[0-9a-f]{32}", header.base_digest):
        raise MessageError("hello: the base's digest is not 32 hexadecimal digits")
    if max(map(len, (header.base, header.base_folder, header.dtype))) > MOST_PLACE:
        raise MessageError(f"hello: where the base is takes more than {MOST_PLACE:,} characters")
    return header


@dataclass
class BaseWeights:
    """Asks clients for the base's weights, with which a coordinator begins where steps are whole
    weights.

    They must have the digest that most clients say theirs have (`agreement`), and come from one
    that was asked.
    """

    session: Session
    needed: bool  # whether the coordinator wants them at all
    data: bytes | None = None  # once they are here
    digest: str | None = None  # what they must have; None: nobody says
    _ask_again: float = 0.0  # when to ask another client
    _asked: set[str] = field(default_factory=set)  # who may bring them
    _failed: set[str] = field(default_factory=set)  # who has brought something else
    _fetching: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def missing(self) -> bool:
        """Return whether they are still to come."""
        return self.needed and self.data is None

    def asks(self, host: str) -> bool:
        """Return whether a client is to bring them.

        One is enough; another is asked if this one does not.
        """
        if not self.missing or host in self._failed or time.monotonic() <= self._ask_again:
            return False
        self._ask_again = time.monotonic() + BRING_SECONDS
        self._asked.add(host)
        return True

    def take(self, host: str, brought: str, header: Header | None, most: int) -> None:
        """Take weights, or a reference, that a client has brought.

        `most`: bytes of its largest message.
        """
        if host not in self._asked:
            self.session.rejected.add(host, "base weights that it was not asked for")
            return
        self._asked.discard(host)
        if self.missing and header is not None:  # otherwise another was faster
            task = asyncio.create_task(self._take(host, base64.b64decode(brought), header, most))
            self._fetching.add(task)
            task.add_done_callback(self._fetching.discard)

    async def _take(self, host: str, carried: bytes, header: Header, most: int) -> None:
        try:
            weights = (await fetch(self.session.end, carried, host, most))[FRAME_BYTES:]
            if len(weights) != header.layout.dense_bytes:
                raise MessageError(f"{len(weights)} bytes of weights")
            digest = self.digest and await asyncio.to_thread(header.digest_of, weights)
            if digest != self.digest:
                raise MessageError(
                    f"base weights with the digest {digest}: this run's have {self.digest}"
                )
            if self.missing:
                self.data = weights
        except MessageError as error:
            self.session.rejected.add(host, str(error))
            self._failed.add(host)
            self._ask_again = 0.0
        self.session.stir()

    def hand_over(self) -> bytes | None:
        """Return the weights, which are needed no longer here."""
        data, self.data, self.needed = self.data, None, False
        return data


@dataclass
class Reception:
    """Takes hellos and attachments."""

    session: Session
    roster: Roster
    method: Method  # the recipe's
    seed: int  # the recipe's
    header: Header | None = None  # that of the log, or of most clients
    # what most clients make of texts, as the log says; None: nobody has said it
    fingerprint: Fingerprint | None = None
    agreement: Agreement = field(default_factory=Agreement)
    coordinator: Coordinator | None = None  # once there is one: it weighs clients by their examples
    _longest: tuple[Header | None, int] = (None, MOST_START)  # header of a hello, and of which run
    _assembling: bool = False
    _decided: bool = False  # whether most clients have said what the run is
    _ready_since: float | None = None  # when all were here but those that do not fit
    _heard: int = 0  # hellos since all clients were last looked at
    _told: str = ""  # what the start waited for then
    # processes whose versions were said to be others than the run's
    _other_versions: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.base = BaseWeights(self.session, self.method.catch_up.replaces)

    async def assemble(self) -> Header:
        """Wait until the clients that the recipe asks for are here, with what is needed.

        Returns the run's header.

        Raises RecipeError: they are too few for it, or do not agree on what the run is about.
        """
        roster, called = self.roster, 0.0
        while True:
            self._heard = 0
            self._decide()
            # not at each hello: it would call forth the next
            if (now := time.monotonic()) >= called + RESEND_SECONDS:
                called = now
                # one of them has to hear that it is to
                bring = self.header is not None and self.base.missing
                await self.session.call(roster.clients()[:1] if bring else ())
            if roster.names and not roster.open:
                self.session.settings.check(len(roster.names))
            if (
                self.header is not None
                and self._all_here(len(roster.present()))
                and not self.base.missing
            ):
                roster.open = self._assembling = False
                return self.header
            self._assembling = True
            if (waits := self._waits()) != self._told:
                self.session.progress.note(f"waiting for clients: {waits}")
                self._told = waits
            await self.session.pause(RESEND_SECONDS)

    def _decide(self) -> None:
        """See what most clients say that the run is about.

        Raises RecipeError: nobody is to come for a majority.
        """
        roster, settings = self.roster, self.session.settings
        if self._decided or (self.header is not None and not self.base.missing):
            return
        clients = roster.spoken_for()
        everybody = 0 if roster.open else len(roster.names)
        found = self.agreement.decided(clients, everybody, roster.wanted(settings.start_with))
        if found is None:
            heard = sum(clients.values())
            if everybody and heard >= everybody:
                claims, groups = self.agreement.claims, self.agreement.groups(clients)
                told = "; ".join(
                    f"{count} ({listed(hosts)}): {claims[hosts[0]]}" for count, hosts in groups
                )
                raise RecipeError(
                    f"the clients do not agree on what the run is about: {told}; there is no "
                    "majority: name the right "
                    "one in the recipe (federation.base_digest, and of methods that send weights "
                    "federation.weights_digest)"
                )
            return
        self._decided = True
        self.header, self.base.digest = (
            self.header or found.header,
            settings.weights_digest or found.weights,
        )
        self.fingerprint = found.fingerprint
        if found.names is not None:
            roster.name(found.names)
        (most, _), *others = self.agreement.groups(clients)
        for host in (host for _, hosts in others for host in hosts):
            try:
                claim = self.agreement.claims[host]
                self._compare(claim.header, claim.weights, host, claim.fingerprint)
                what = "another list of clients"
                roster.outvote(host, True)
            except MessageError as error:
                what = str(error)
            self.session.rejected.add(
                host, f"{what} ({most} of {sum(clients.values())} clients agree)"
            )

    def _all_here(self, here: int) -> bool:
        """Return whether the first round can begin: without those that do not fit and do not mend
        that in time.
        """
        roster, settings = self.roster, self.session.settings
        wanted = roster.wanted(settings.start_with)
        if here >= wanted:
            return True
        enough = (
            roster.outvoted and here + len(roster.outvoted) >= wanted and here >= settings.minimum
        )
        if not enough:
            self._ready_since = None
            return False
        now = self.session.clock()
        if self._ready_since is None:
            self._ready_since = now
            self.session.progress.warn(
                f"{listed(roster.outvoted)} has another base, layout, first weights or tokens than "
                "most: "
                f"in {settings.deadline:g} s (federation.deadline) the run begins without"
            )
        roster.goes_without = now >= self._ready_since + settings.deadline
        return roster.goes_without

    @property
    def waiting(self) -> dict[str, int] | None:
        """While the run has not begun: how many clients are here, and wanted (0: not known yet)."""
        wanted = self.roster.wanted(self.session.settings.start_with)
        return {"here": len(self.roster.present()), "wanted": wanted} if self._assembling else None

    def _waits(self) -> str:
        """Return what the start waits for, for a person."""
        wanted = self.roster.wanted(self.session.settings.start_with) or "?"
        away = [] if self.roster.open else self.roster.away()
        coming = f"; to come: {listed(away)}" if away else ""
        return f"{len(self.roster.present())} of {wanted} clients are here{coming}"

    def check(self, header: Header, first: Header | None) -> None:
        """Raises MessageError if what somebody has is another base, recipe or model.

        The text says what differs.

        Args:
            header: what it has.
            first: what the run has; None: only what the recipe says counts.
        """
        settings = self.session.settings
        expected = first or header.of_recipe(self.method, self.seed, settings.digest)
        wanted = settings.base_digest or expected.base_digest
        if header.base_digest != wanted and header.hashed_alike(expected):
            raise MessageError(
                f"another base: its digest is {header.base_digest}, this run's base has {wanted}"
                + header.versions_apart(expected)
            )
        if differences := header.differences(expected):
            raise MessageError(f"another recipe or model: {differences[0]} here")

    def attach(self, sender: str, about: Attach) -> None:
        """Note which process hosts a client and how many examples it has, as it says.

        Raises MessageError.
        """
        client = about.client
        if client != sender:
            raise MessageError(f"it speaks for client {client}")
        number = None if self.roster.open else self.roster.numbers.get(client)
        if self.roster.names and number is None and not self.roster.open:
            raise MessageError(f"this run has no client {client}")
        if client not in self.roster.examples and len(self.roster.examples) >= MOST_CLIENTS:
            raise MessageError(f"more than {MOST_CLIENTS:,} clients")
        self.roster.attach(client, about.host)
        self.roster.examples[client] = about.examples
        if number is not None and self.coordinator is not None:
            self.coordinator.examples[number] = about.examples

    async def hello(self, sender: str, about: Hello) -> bytes:
        """Return what a process is told that introduces itself.

        Raises MessageError: it is in another's name.
        """
        host, known, all_of_them = about.host, about.names, about.names_matter
        if host != sender:
            raise MessageError(f"it speaks for client {host}")
        try:
            header = read_start(base64.b64decode(about.header), self._longest_start())
            listing = (
                tuple(known)
                if all_of_them and not self.roster.names and not self.roster.open
                else None
            )
            self.check(header, None)
            said = about.fingerprint
            fingerprint = None if said is None else Fingerprint.from_json(said)
            self._compare(header, about.begins, host, fingerprint)
            self._compare_names(host, known, all_of_them)
            # no orbit could begin with some
            claim = Claim.of(header, about.begins, listing, fingerprint)
        except (OrbitError, MessageError) as error:
            self.session.rejected.add(host, str(error))
            return Welcome(refused=shown(error, MOST_REFUSAL)).encode()
        if not self._decided:  # then it is the run's
            self.agreement.claims[host] = claim
        self.roster.outvote(host, False)
        answer: dict[str, Any] = {
            "epoch": self.session.incarnation,
            "beat": self.session.settings.dead_after / 3,
        }
        new = self.roster.hello(host, about.at)
        answer.update(
            {"waits": self._told} if self._assembling else {"clients": len(self.roster.names)}
        )
        most = 0 if self.header is None else self.largest_message()
        if about.bucket and most:
            await self.session.end.allow(host, 4 * most + SPARE_BYTES)
        if about.weights is not None:
            self.base.take(host, about.weights, self.header, most)
        elif self.header is not None and self.base.asks(host):
            answer["bring"] = "weights"
        self._heard += 1
        wanted = self.roster.wanted(self.session.settings.start_with)
        # looking at all clients for each would take long: all may be here, or a tenth more than at
        # the last look
        if (new and self.roster.attached >= wanted) or 10 * self._heard >= len(self.roster.hosts):
            self.session.stir()
        return Welcome(**answer).encode()

    def _longest_start(self) -> int:
        """Return the bytes of the longest header that is decoded: one far longer than the run's
        can't be it.
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
        """Outvote a process whose base, layout, first weights or tokens are not the run's.

        Raises MessageError.
        """
        wanted = self.session.settings.weights_digest or (
            self.base.digest if self.base.missing else None
        )
        try:
            self.check(header, self.header)
            if begins is None and self.base.missing:
                raise MessageError("it does not say which weights it begins with")
            if wanted is not None and begins is not None and begins != wanted:
                raise MessageError(
                    f"other first weights: their digest is {begins}, this run's have {wanted}"
                )
            if self.fingerprint is not None and fingerprint is not None:
                self._compare_fingerprints(host, fingerprint, self.fingerprint)
        except MessageError:
            self.roster.outvote(host, True)
            raise

    def _compare_fingerprints(self, host: str, theirs: Fingerprint, run: Fingerprint) -> None:
        """Check that a process makes the run's tokens of texts, and say if its versions differ.

        Raises:
            MessageError: it makes others.
        """
        if (difference := theirs.difference_from(run)) is not None:
            raise MessageError(difference)
        others = theirs.version_difference(run)
        if others is not None and host not in self._other_versions:
            self._other_versions.add(host)
            self.session.progress.note(f"{host} has {others}: it makes the same tokens")

    def _compare_names(self, host: str, names: list[str], all_of_them: bool) -> None:
        """Check that a process knows `all_of_them`, or that its own clients may take part.

        Raises MessageError.
        """
        roster = self.roster
        if not names or len(set(names)) < len(names):
            raise MessageError("a list of clients that is empty or names one twice")
        if roster.open:
            if all_of_them:
                raise MessageError(
                    "clients enrol in this run: federation.enrolment is not set in the recipe there"
                )
            roster.enrol(host, names)
        elif all_of_them and not roster.names:
            pass  # it is one opinion (`agreement`)
        elif all_of_them and names != roster.names:
            there = f"{listed(names)} there, {listed(roster.names)} here"
            order = " in another order" if sorted(names) == sorted(roster.names) else ""
            raise MessageError(f"another list of clients{order}: {there}")
        elif not roster.names:
            raise MessageError(
                "it has data of its own, but the coordinator does not know who takes part: "
                f"{REMEDY}"
            )
        elif unknown := [name for name in names if name not in roster.numbers]:
            late = (
                "; it has begun, and nobody else can enrol" if self.session.settings.enrols else ""
            )
            raise MessageError(
                f"this run has no client {listed(unknown)}: it has {listed(roster.names)}{late}"
            )

    def largest_message(self) -> int:
        """Return the bytes of the largest message of a client: all weights, or what scalars take
        of any model.
        """
        assert self.header is not None
        return FRAME_BYTES + max(
            self.header.layout.dense_bytes if self.method.entrywise else 0, SPARE_BYTES
        )
