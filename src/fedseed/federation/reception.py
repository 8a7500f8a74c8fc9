"""How clients come to a run: they say hello, and what they have must be what the run is about."""

import base64
import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fedseed.errors import MessageError, OrbitError
from fedseed.federation.base_weights import BaseWeights
from fedseed.federation.coordinator import Coordinator
from fedseed.federation.membership import Roster
from fedseed.federation.messages import FRAME_BYTES
from fedseed.federation.protocol import listed
from fedseed.federation.session import RESEND_SECONDS, CoordinatorSettings, Session
from fedseed.methods import Method
from fedseed.orbit import Header
from fedseed.orbit.file import scan

REMEDY = "name the clients in its recipe (federation.clients), or serve --clients-from KEYS"
CLOCK_SKEW_SECONDS = 60.0
SPARE_BYTES = 16 << 20  # of a message of scalars, and of a client's blobs besides the messages


def check_header(
    header: Header, first: Header | None, method: Method, seed: int, settings: CoordinatorSettings
) -> None:
    """Whether what a client has is what the run is about.

    Args:
        header: the client's.
        first: that of the first client that fitted; None: there was none yet.
        method: the recipe's method.
        seed: the recipe's seed.
        settings: the recipe's, about clients.

    Raises:
        MessageError: another base, recipe or model; the text says what differs.
    """
    mine = replace(header, method=method, seed=seed, digest_kind=settings.digest_kind)  # the recipe's
    expected = first or mine
    wanted = settings.base_digest or expected.base_digest
    if header.base_digest != wanted and header.digest_kind == expected.digest_kind:
        raise MessageError(f"another base: its digest is {header.base_digest}, this run's base has {wanted}")
    differences = header.differences(expected)
    if differences:
        raise MessageError(f"another recipe or model: {differences[0]} here")


class Reception:
    """Takes hellos and attachments.

    Args:
        session: the conversation.
        roster: the clients.
        method: the recipe's method.
        seed: the recipe's seed.
        base: asks for the base's weights.
    """

    def __init__(self, session: Session, roster: Roster, method: Method, seed: int, base: BaseWeights) -> None:
        self.session = session
        self.roster = roster
        self.method = method
        self.seed = seed
        self.header: Header | None = None  # that of the log, or of the first client
        self.base = base
        self.coordinator: Coordinator | None = None  # once there is one: it weighs clients by their examples
        self.skewed: set[str] = set()  # hosts whose clocks are wrong
        self._assembling = False

    async def assemble(self) -> None:
        """Wait until the clients that the recipe asks for have said hello, and somebody has brought what is needed.

        Raises:
            RecipeError: the recipe asks for what can't be with the clients that there are.
        """
        roster, settings = self.roster, self.session.settings
        told, called = "", 0.0
        while True:
            if (now := time.monotonic()) >= called + RESEND_SECONDS:  # not at each hello: it would call forth the next
                called = now
                await self.session.call()
            if roster.names and not roster.open:
                settings.check(len(roster.names))
            here, wanted = roster.present(), roster.wanted(settings.start_with)
            if self.header is not None and len(here) >= wanted and not self.base.missing:
                roster.close()
                self._assembling = False
                return
            self._assembling = True
            if self.waits != told:
                self.session.progress.note(f"waiting for clients: {self.waits}")
                told = self.waits
            await self.session.pause(RESEND_SECONDS)

    @property
    def waiting(self) -> dict[str, int] | None:
        """While the run has not begun: how many clients are here, and wanted (0: not known yet)."""
        wanted = self.roster.wanted(self.session.settings.start_with)
        return {"here": len(self.roster.present()), "wanted": wanted} if self._assembling else None

    @property
    def waits(self) -> str:
        """What the start waits for, for a person."""
        if (waiting := self.waiting) is None:
            return ""
        away = [] if self.roster.open else self.roster.away()
        coming = f"; to come: {listed(away)}" if away else ""
        return f"{waiting['here']} of {waiting['wanted'] or '?'} clients are here{coming}"

    def check(self, header: Header) -> None:
        """Whether a header is of this run. Raises MessageError."""
        check_header(header, self.header, self.method, self.seed, self.session.settings)

    def attach(self, sender: str, about: dict[str, Any]) -> None:
        """A client says which process hosts it, and how many examples it has. Raises MessageError."""
        client, host, examples = str(about["client"]), str(about["host"]), int(about["examples"])
        if client != sender:
            raise MessageError(f"it speaks for client {client}")
        if examples < 0:
            raise MessageError(f"{examples} examples")
        number = self.roster.numbers.get(client)
        if self.roster.names and number is None and not self.roster.open:
            raise MessageError(f"this run has no client {client}")
        self.roster.membership.attach(client, host)
        self.roster.examples[client] = examples
        if number is not None and self.coordinator is not None:
            self.coordinator.examples[number] = examples

    async def hello(self, sender: str, about: dict[str, Any], reject: Callable[[str, str], None]) -> bytes:
        """A process introduces itself; returns what it is told.

        Args:
            sender: who it is.
            about: what it says.
            reject: counts it, if it does not fit.

        Raises:
            MessageError: it is not a hello, or in another's name.
        """
        host = str(about["host"])
        if host != sender:
            raise MessageError(f"it speaks for client {host}")
        try:
            header = scan(base64.b64decode(about["header"]), "hello")[0].header
            self.check(header)
            self._compare_names(host, [str(name) for name in about["names"]], bool(about.get("names_matter", True)))
        except (OrbitError, MessageError) as error:
            reject(host, str(error))
            return json.dumps({"refused": str(error)}).encode()
        if self.header is None:
            self.header = header
        answer: dict[str, Any] = {"epoch": self.session.incarnation, "beat": self.session.settings.dead_after / 3}
        self._compare_clocks(host, float(about["time"]), answer)
        self.roster.membership.hello(host, int(about["at"]))
        answer.update({"waits": self.waits} if self._assembling else {"clients": len(self.roster.names)})
        if about.get("bucket"):
            await self.session.end.allow(host, 4 * self.largest_message() + SPARE_BYTES)
        self.base.hello(host, about, answer, self.header.layout.dense_bytes, self.largest_message(), reject)
        self.session.stir()
        return json.dumps(answer).encode()

    def _compare_names(self, host: str, names: list[str], all_of_them: bool) -> None:
        """Whether a process knows who takes part, or, of a run of parties, may itself. Raises MessageError.

        Args:
            host: who it is.
            names: the clients that it knows.
            all_of_them: whether it says that these are all; otherwise they are those that it speaks for.
        """
        roster = self.roster
        if not names or len(set(names)) < len(names):
            raise MessageError("a list of clients that is empty or names one twice")
        if roster.open:
            if all_of_them:
                raise MessageError("clients enrol in this run: federation.enrolment is not set in the recipe there")
            roster.enrol(host, names)
        elif all_of_them and not roster.names:
            roster.name(names)
        elif all_of_them and names != roster.names:
            there = f"{listed(names)} there, {listed(roster.names)} here"
            order = " in another order" if sorted(names) == sorted(roster.names) else ""
            raise MessageError(f"another list of clients{order}: {there}")
        elif not roster.names:
            raise MessageError(f"it has data of its own, but the coordinator does not know who takes part: {REMEDY}")
        elif unknown := [name for name in names if name not in roster.numbers]:
            late = "; it has begun, and nobody else can enrol" if self.session.settings.enrols else ""
            raise MessageError(f"this run has no client {listed(unknown)}: it has {listed(roster.names)}{late}")

    def _compare_clocks(self, host: str, there: float, answer: dict[str, Any]) -> None:
        skew = there - time.time()
        if abs(skew) <= CLOCK_SKEW_SECONDS:
            return
        answer["skew"] = skew
        if host not in self.skewed:
            self.skewed.add(host)
            word = "ahead" if skew > 0 else "behind"
            self.session.progress.warn(f"the clock of {host} is {abs(skew):.0f} s {word}")

    def largest_message(self) -> int:
        """Bytes of the largest message a client may send: all weights, or what scalars take."""
        assert self.header is not None
        return FRAME_BYTES + max(self.header.layout.dense_bytes, SPARE_BYTES)
