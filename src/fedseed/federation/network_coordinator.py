"""Runs a coordinator behind a transport.

It needs no torch, models or data, nor does it know what carries the bytes.
"""

import asyncio
import json
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from fedseed.aggregation import AggregationRule
from fedseed.errors import MessageError, NetworkError, RecipeError
from fedseed.federation.bounds import Bounds
from fedseed.federation.control import Attach, Hello, Status, read
from fedseed.federation.coordinator import Coordinator
from fedseed.federation.fingerprint import Fingerprint
from fedseed.federation.inquiry import Inquiry
from fedseed.federation.membership import Roster
from fedseed.federation.protocol import listed
from fedseed.federation.reception import Reception
from fedseed.federation.rounds import Rounds
from fedseed.federation.session import CoordinatorSettings, Rejected, Session
from fedseed.federation.step_log import StepLog
from fedseed.methods import Method
from fedseed.metrics import shown_metrics
from fedseed.orbit import Header
from fedseed.privacy import mechanism_of
from fedseed.privacy.secure.settings import SecureSums
from fedseed.reports.machine import resident_memory
from fedseed.reports.progress import Progress
from fedseed.reports.results import RoundLine
from fedseed.transport.base import (
    CoordinatorEnd,
    LogCutError,
    LogLostError,
    LogOlderError,
    TakenOverError,
    Working,
)

SHOWN = ("round", "evaluated", "train_loss", "bytes_up", "bytes_down", "weights_digest")
MOST_SHOWN = 12  # metrics shown beside them
MOST_NAMED = 100  # clients in an answer about the status
LOOK_SECONDS = 2.5  # between two checks that the log is there


def _summing(
    session: Session, settings: SecureSums, names: Sequence[str], common: tuple[Any, ...]
) -> Coordinator:
    """Return a coordinator that learns sums alone; who was barred before is so.

    Raises ValueError: that can't be.
    """
    from fedseed.federation.secure import SecureCoordinator
    from fedseed.privacy.secure.summing import kept_proofs

    if (problem := settings.unknown(names)) is not None:
        raise ValueError(problem)
    made = SecureCoordinator(settings, *common)
    made.summing.known = settings.known({name: number for number, name in enumerate(names)})
    if session.settings.proofs is not None:
        made.summing.barred, others = kept_proofs(session.settings.proofs, made.summing.known)
        for path in others:
            session.progress.warn(f"{path} shows nothing, so nobody is barred by it")
    return made


class NetworkCoordinator(Working):
    """Coordinates one run: brings together its reception, its rounds, its log, and what it asks and
    answers.

    Args:
        end: the transport.
        run: the run's name.
        method: the recipe's method.
        seed: the recipe's seed.
        total: how many rounds the run has.
        settings: how it deals with clients.
        progress: shows the run going on.
    """

    def __init__(
        self,
        end: CoordinatorEnd,
        run: str,
        method: Method,
        seed: int,
        total: int,
        settings: CoordinatorSettings,
        progress: Progress,
    ) -> None:
        self.run = run
        self.total = total
        self.session = Session(end, settings, progress, Rejected(progress, run), clock=end.now)
        self.roster = Roster(
            settings.dead_after, list(settings.names), settings.enrols, end.now, end.present
        )
        self.reception = Reception(self.session, self.roster, method, seed)
        self.inquiry = Inquiry(self.session, self.roster)
        self.log = StepLog(end, method.catch_up.replaces)
        self.rounds: Rounds | None = None  # once it is known who the clients are
        self.line: dict[str, Any] = {}  # what the status shows of the newest lines of metrics
        self.began = time.time()

    async def start(self, fresh: bool, known: bool) -> Header:
        """Read the run's log, or wait for clients and make it; return the header.

        `open` comes next, then `take_over`: until then another coordinator may write.

        Args:
            fresh: whether to delete a run of this name from the server first.
            known: whether there are files of this run here.

        Raises NetworkError: another coordinator runs this run; MessageError: the server holds
        another of this name.
        """
        end = self.session.end
        await self._be_the_only_one()
        there = await end.log()
        if fresh and there is not None:
            await end.delete()
            there = None
        if there is not None and there.cut:
            raise LogCutError(self.run)
        await end.allow(None, None)
        await end.listen(
            self.receive,
            lambda: status_answer(self.status(), end.largest),
            self.session.rejected.add,
        )
        if there is None or not there.last:  # or who made it ended before its first entry
            if known and end.lasting:
                self.session.progress.warn(
                    "the server has lost the run: it is put there again from the orbit"
                )
            header = await self.reception.assemble()
            # once more: the server may have been another one while clients were waited for
            await end.allow(None, None)
            copies = self.session.settings.copies
            self.session.incarnation = await self.log.create(
                header, self.roster.names, self.total, copies, self.reception.fingerprint
            )
        else:
            log = await self.log.read(there.last, self.run)
            self.session.incarnation, names, header = log.about.epoch, log.about.names, log.header
            self.reception.check(header, None)
            self.reception.header = header
            if log.about.fingerprint is not None:
                self.reception.fingerprint = Fingerprint.from_json(log.about.fingerprint)
            if self.roster.names and self.roster.names != names:
                began, recipes = listed(names), listed(self.roster.names)
                raise MessageError(
                    f"run {self.run} began with the clients {began}, the recipe has {recipes}: "
                    "choose another name (--run), or delete it from the server with --fresh"
                )
            self.roster.name(names)
            if self.log.steps:
                self.reception.base.needed = False  # the log has newer ones
            elif self.reception.base.missing:
                await self.reception.assemble()
        return header

    async def take_over(self) -> None:
        """Become the only coordinator that may write to the log, and watch it from now on.

        Raises TakenOverError: another has written since the log was read.
        """
        await self.log.begin_session()
        self.work(self._watch_log())

    async def _watch_log(self, between: float = LOOK_SECONDS) -> None:
        """End the run when the log is another coordinator's, or (partly) lost, also while nothing
        is written.
        """
        seen = True
        while True:
            await asyncio.sleep(between)
            known = self.log.last
            try:
                log = await self.session.end.log()
                taken_over = False
                if log is not None and not log.cut:
                    taken_over = await self.log.is_taken_over(log.last)
            except NetworkError:  # an interruption
                continue
            if log is not None and log.cut:
                return self.session.fail(LogCutError(self.run))
            if taken_over:
                return self.session.fail(TakenOverError(self.run))
            if log is not None and log.last < known:
                return self.session.fail(LogOlderError(self.run))
            if log is None and not seen:
                return self.session.fail(LogLostError(self.run))
            seen = log is not None

    async def close(self) -> None:
        """Stop watching the log and closes the transport; may be called more than once."""
        await self.stop()
        await self.session.end.close()

    async def open(
        self, per_round: int, aggregation: AggregationRule, bounds: Bounds | None = None
    ) -> Coordinator:
        """Make and returns the coordinator, and lets the clients know.

        Args:
            per_round: clients in a round.
            aggregation: how their answers become one.
            bounds: how far from the others a client, or a step, may be.

        Raises RecipeError: the numbers of clients don't allow it, or the method does not fit the
        model.
        """
        names, reception = self.roster.names, self.reception
        self.session.settings.check(len(names))
        if not 1 <= per_round <= len(names):
            raise RecipeError(f"federation.per_round = {per_round}: there are {len(names)} clients")
        examples = [self.roster.examples.get(name, 0) for name in names]
        assert reception.header is not None
        try:
            layout = reception.header.layout
            common = (
                reception.method,
                layout,
                reception.seed,
                examples,
                per_round,
                aggregation,
                bounds,
            )
            secure = self.session.settings.secure
            made = (
                Coordinator(*common)
                if secure is None
                else _summing(self.session, secure, names, common)
            )
        except ValueError as error:
            raise RecipeError(str(error)) from error
        reception.coordinator = made
        if (weights := reception.base.hand_over()) is not None:
            made.weights = weights
        self.rounds = Rounds(self.session, self.roster, made, reception.largest_message())
        await self.session.call()
        return made

    async def _be_the_only_one(self) -> None:
        if (answer := await self.session.end.status(2)) is None:
            return
        about = read(Status, answer)
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(about.began))
        told = (
            f"another coordinator runs {self.run} already (since {since} UTC, round "
            f"{about.round}): this one stops"
        )
        raise NetworkError(told)

    async def receive(self, sender: str, what: str, data: bytes) -> bytes | None:
        """Take a client's message; return the answer to a hello."""
        try:
            if what == "update":
                if self.rounds is not None:
                    self.rounds.take(sender, data)
            elif what == "hello":
                return await self.reception.hello(sender, read(Hello, data))
            elif what == "attach":
                attach = read(Attach, data)
                if not self._together(sender, attach.host):
                    raise MessageError("it names a process that has another key")
                self.reception.attach(sender, attach)
            elif what in ("beat", "report"):
                self.inquiry.take(sender, what, data)
            else:
                raise MessageError(f"a message of unknown kind {what[:20]!r}")
        except (MessageError, ValueError) as error:  # a ValueError: what should be base64 is not
            reason = (
                str(error)
                if isinstance(error, MessageError)
                else f"not valid: {type(error).__name__}: {error}"
            )
            self.session.rejected.add(sender, reason)
        except NetworkError as error:
            # the server does not answer just now: no answer here, and the client asks again
            self.session.progress.warn(f"{sender} can't be answered now: {error}")
        return None

    def _together(self, one: str, other: str) -> bool:
        """Tell whether one key speaks for both clients, as far as keys are known: they may be in
        one process then.
        """
        keys = self.session.end.keys
        return (
            keys is None
            or one == other
            or bool(keys.get(one, frozenset()) & keys.get(other, frozenset()))
        )

    def tell(self, line: RoundLine) -> None:
        """Take a new line of metrics, or more of a known one, for the status."""
        told = line.to_json()
        self.line.update(
            {
                key: told[key]
                for key in (*SHOWN, *shown_metrics(line.metrics)[:MOST_SHOWN])
                if key in told
            }
        )

    def figures(self) -> dict[str, Any]:
        """Return what status and summary both say."""
        return {
            "run": self.run,
            "repeated_rounds": self.rounds.repeated if self.rounds is not None else 0,
            "refusals": self.session.rejected.counts(),
            "drifted": sorted(self.inquiry.drifted),
        }

    def _privacy(self) -> dict[str, Any] | None:
        """Return what the steps have spent so far; None if the method is not private."""
        mechanism, coordinator = mechanism_of(self.reception.method), self.reception.coordinator
        if mechanism is None:
            return None
        count = 0 if coordinator is None else coordinator.counted
        # steps are the log's until they are taken up
        return mechanism.counted(count if mechanism.by_turns else max(count, len(self.log.steps)))

    def status(self) -> dict[str, Any]:
        """Return what `fedseed status` shows."""
        rounds, roster, names = self.rounds, self.roster, self.roster.names
        current = None if rounds is None else rounds.open
        missing = [] if current is None else [names[number] for number in sorted(current.missing)]
        # who holds others up
        late = [] if rounds is None else [names[client] for client in rounds.late.named()]
        return {
            **self.figures(),
            "method": self.reception.method.name,
            "began": self.began,
            "round": self.line.get("round", 0) if current is None else current.number,
            "rounds": self.total,
            "waiting_for": (missing or sorted(self.inquiry.awaited))[:MOST_NAMED],
            "late": sorted({*late, *self.inquiry.late.named()})[:MOST_NAMED],
            "clients": len(names),
            "alive": len(roster.present()),
            "away": roster.away()[:MOST_NAMED],
            "waiting": self.reception.waiting,
            "ended": self.log.ended,
            "behind": {name: host.at for name, host in roster.alive().items()},
            "last": dict(self.line),
            "privacy": self._privacy(),
            "memory_bytes": resident_memory(),
        }


# senders and other names, reasons of each, letters
LEVELS = ((100, 20, 200), (20, 5, 100), (5, 1, 50), (0, 0, 50))


def status_answer(about: Mapping[str, Any], most: int) -> bytes:
    """Return a status as JSON, names and refusals shortened until it has `most` bytes.

    `summary.json` has all.
    """
    for names, reasons, letters in LEVELS:
        short = {
            key: _short(value, max(names, 1), letters)
            for key, value in about.items()
            if key != "refusals"
        }
        short["refusals"] = _refusals(about["refusals"], names, reasons, letters)
        if len(answer := json.dumps(short).encode()) <= most:
            break
    return answer


def _short(value: Any, names: int, letters: int) -> Any:
    """Return texts, lists and tables cut to a bounded length.

    The status's own tables have fewer entries than that.
    """
    if isinstance(value, str):
        return value[:letters]
    if isinstance(value, list):
        return [_short(item, names, letters) for item in value[:names]]
    if isinstance(value, dict):
        items = islice(value.items(), max(names, 20))
        return {_short(key, names, letters): _short(item, names, letters) for key, item in items}
    return value


def _refusals(
    all_of_them: Mapping[str, Mapping[str, int]], names: int, reasons: int, letters: int
) -> dict[str, Any]:
    """Return the most frequent refusals of the senders with the most.

    The rest is added up as "others".
    """
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    ordered = sorted(all_of_them.items(), key=lambda item: -sum(item[1].values()))
    for at, (sender, counts) in enumerate(ordered):
        mine = found[sender[:letters] if at < names else "others"]
        for which, (reason, count) in enumerate(sorted(counts.items(), key=lambda item: -item[1])):
            mine[reason[:letters] if at < names and which < reasons else "others"] += count
    return found
