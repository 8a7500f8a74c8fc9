"""Runs a coordinator on a network.

It needs no torch, model or data, and does not depend on the kind of transport.
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
from fedseed.federation.control import Attach, Hello, Status, parse_control
from fedseed.federation.coordinator.admission import Reception
from fedseed.federation.coordinator.bounds import Bounds
from fedseed.federation.coordinator.coordinator import Coordinator
from fedseed.federation.coordinator.inquiry import Inquiry
from fedseed.federation.coordinator.membership import Roster
from fedseed.federation.coordinator.rounds import Rounds
from fedseed.federation.coordinator.session import CoordinatorSettings, Rejected, Session
from fedseed.federation.coordinator.step_log import StepLog
from fedseed.federation.fingerprint import Fingerprint
from fedseed.federation.protocol import list_names
from fedseed.methods import Method
from fedseed.metrics import shown_metrics
from fedseed.orbit import Header
from fedseed.privacy import mechanism_of
from fedseed.privacy.secure.settings import SecureSums
from fedseed.reports.machine import resident_memory
from fedseed.reports.progress import LastingTroubles, Progress
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
MOST_SHOWN = 12  # how many metrics the status shows
MOST_NAMED = 100  # how many clients a status names
LOOK_SECONDS = 2.5  # seconds between two checks that the log still exists


def _make_secure_coordinator(
    session: Session, settings: SecureSums, names: Sequence[str], common: tuple[Any, ...]
) -> Coordinator:
    """Return a coordinator that learns only sums; clients barred earlier stay barred.

    Raises ValueError if the settings do not fit the clients or the method.
    """
    from fedseed.federation.coordinator.secure import SecureCoordinator
    from fedseed.privacy.secure.summing import load_proofs

    problem = settings.missing_key(names)
    if problem is not None:
        raise ValueError(problem)
    coordinator = SecureCoordinator(settings, *common)
    summing = coordinator.summing
    summing.known = settings.public_keys({name: number for number, name in enumerate(names)})
    if session.settings.proofs is not None:
        summing.barred, invalid_files = load_proofs(session.settings.proofs, summing.known)
        for path in invalid_files:
            session.progress.warn(f"{path} is not a valid proof, so it bars no client")
    return coordinator


class NetworkCoordinator(Working):
    """Coordinates one run: connects its reception, rounds, log, inquiries and status.

    Args:
        end: the transport.
        run: the run's name.
        method: the recipe's method.
        seed: the recipe's seed.
        total: the run's number of rounds.
        settings: settings for dealing with clients.
        progress: shows progress.
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
        self.rounds: Rounds | None = None  # made by `open`
        self.line: dict[str, Any] = {}  # the newest metrics that the status shows
        self.began = time.time()
        self._troubles = LastingTroubles(progress.warn)

    async def start(self, fresh: bool, has_files: bool) -> Header:
        """Read the run's log, or wait for clients and make it; return the header.

        Call `open` next, then `take_over`. Until then another coordinator may write.

        Args:
            fresh: whether to delete a run of this name from the server first.
            has_files: whether this machine has files of the run.

        Raises:
            NetworkError: another coordinator has this run.
            MessageError: the server holds another run of this name.
        """
        end = self.session.end
        await self._check_alone()
        log_state = await end.log()
        if fresh and log_state is not None:
            await end.delete()
            log_state = None
        if log_state is not None and log_state.cut:
            raise LogCutError(self.run)
        await end.allow(None, None)
        await end.listen(
            self.receive,
            lambda: status_answer(self.status(), end.largest),
            self.session.rejected.add,
        )
        # a log with only its header was left by a coordinator that ended early
        if log_state is None or not log_state.last:
            if has_files and end.lasting:
                self.session.progress.warn(
                    "the server has lost the run: restoring it from the orbit"
                )
            header = await self.reception.assemble()
            # check again: the server may have been replaced during the wait for clients
            await end.allow(None, None)
            copies = self.session.settings.copies
            self.session.incarnation = await self.log.create(
                header, self.roster.names, self.total, copies, self.reception.fingerprint
            )
            return header
        return await self._resume(log_state.last)

    async def _resume(self, last: int) -> Header:
        """Take over the run in the log, which ends with entry `last`; return its header."""
        log = await self.log.load(last, self.run)
        names, header = log.beginning.names, log.header
        self.session.incarnation = log.beginning.epoch
        self.reception.check(header, None)
        self.reception.header = header
        if log.beginning.fingerprint is not None:
            self.reception.fingerprint = Fingerprint.from_json(log.beginning.fingerprint)
        if self.roster.names and self.roster.names != names:
            log_clients, recipe_clients = list_names(names), list_names(self.roster.names)
            raise MessageError(
                f"run {self.run} began with the clients {log_clients}, but the recipe has "
                f"{recipe_clients}: choose another name (--run), or delete it from the server "
                "with --fresh"
            )
        self.roster.set_names(names)
        if self.log.steps:
            self.reception.base.needed = False  # the log has newer weights
        elif self.reception.base.missing:
            await self.reception.assemble()
        return header

    async def take_over(self) -> None:
        """Become the only coordinator that may write to the log, and watch it from now on.

        Raises TakenOverError if another coordinator has written since the log was read.
        """
        await self.log.begin_session()
        self.work(self._watch_log())

    async def _watch_log(self, interval_seconds: float = LOOK_SECONDS) -> None:
        """End the run when the log is taken over or lost, even while nothing is written."""
        was_there = True
        while True:
            await asyncio.sleep(interval_seconds)
            last_entry = self.log.last
            try:
                log = await self.session.end.log()
                taken_over = False
                if log is not None and not log.cut:
                    taken_over = await self.log.is_taken_over(log.last)
            except NetworkError:  # the connection is interrupted
                continue
            if log is not None and log.cut:
                return self.session.fail(LogCutError(self.run))
            if taken_over:
                return self.session.fail(TakenOverError(self.run))
            if log is not None and log.last < last_entry:
                return self.session.fail(LogOlderError(self.run))
            if log is None and not was_there:
                return self.session.fail(LogLostError(self.run))
            was_there = log is not None

    async def close(self) -> None:
        """Stop watching the log and close the transport; further calls do nothing."""
        await self.stop()
        await self.session.end.close()

    async def open(
        self, per_round: int, aggregation: AggregationRule, bounds: Bounds | None = None
    ) -> Coordinator:
        """Create the coordinator, and call the clients.

        Args:
            per_round: clients in a round.
            aggregation: the rule that combines their vectors.
            bounds: how far a client's update, or a step, may be from the others.

        Raises RecipeError if the number of clients does not fit the recipe, or the method does not
        fit the model.
        """
        names, reception = self.roster.names, self.reception
        self.session.settings.check(len(names))
        if not 1 <= per_round <= len(names):
            raise RecipeError(
                f"federation.per_round = {per_round}: there are only {len(names)} clients"
            )
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
            if secure is None:
                coordinator = Coordinator(*common)
            else:
                coordinator = _make_secure_coordinator(self.session, secure, names, common)
        except ValueError as error:
            raise RecipeError(str(error)) from error
        reception.coordinator = coordinator
        weights = reception.base.hand_over()
        if weights is not None:
            coordinator.weights = weights
        self.rounds = Rounds(self.session, self.roster, coordinator, reception.largest_message())
        await self.session.call()
        return coordinator

    async def _check_alone(self) -> None:
        """Raise NetworkError if another coordinator answers for this run."""
        answer = await self.session.end.status(2)
        if answer is None:
            return
        status = parse_control(Status, answer)
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(status.began))
        raise NetworkError(
            f"another coordinator already runs {self.run} (since {since} UTC, round "
            f"{status.round}): this one stops"
        )

    async def receive(self, sender: str, kind: str, data: bytes) -> bytes | None:
        """Take a client's message; return the answer to a hello."""
        try:
            if kind == "update":
                if self.rounds is not None:
                    self.rounds.take(sender, data)
            elif kind == "hello":
                return await self.reception.hello(sender, parse_control(Hello, data))
            elif kind == "attach":
                attach = parse_control(Attach, data)
                if not self._may_share_process(sender, attach.host):
                    raise MessageError("it names a process with a different key")
                self.reception.attach(sender, attach)
            elif kind in ("beat", "report"):
                self.inquiry.take(sender, kind, data)
            else:
                raise MessageError(f"a message of unknown kind {kind[:20]!r}")
        except MessageError as error:
            self.session.rejected.add(sender, str(error))
        except ValueError as error:  # for example, a field is not valid base64
            reason = f"not valid: {type(error).__name__}: {error}"
            self.session.rejected.add(sender, reason)
        except NetworkError as error:
            # the server does not answer at the moment, so the client gets no answer and asks again
            self._troubles.report(sender, f"{sender} can't be answered now: {error}")
        return None

    def _may_share_process(self, client: str, other_client: str) -> bool:
        """Return whether both clients may be in one process: if the transport knows keys, one key
        must be theirs.
        """
        keys = self.session.end.keys
        if keys is None or client == other_client:
            return True
        return bool(keys.get(client, frozenset()) & keys.get(other_client, frozenset()))

    def tell(self, line: RoundLine) -> None:
        """Set the newest line of metrics, for the status."""
        figures = line.to_json()
        shown_keys = (*SHOWN, *shown_metrics(line.metrics)[:MOST_SHOWN])
        self.line.update({key: figures[key] for key in shown_keys if key in figures})

    def figures(self) -> dict[str, Any]:
        """Return the figures that are in both the status and the summary."""
        return {
            "run": self.run,
            "repeated_rounds": self.rounds.repeated if self.rounds is not None else 0,
            "refusals": self.session.rejected.counts(),
            "drifted": sorted(self.inquiry.drifted),
        }

    def _privacy(self) -> dict[str, Any] | None:
        """Return the privacy that the steps have spent; None if the method is not private."""
        mechanism, coordinator = mechanism_of(self.reception.method), self.reception.coordinator
        if mechanism is None:
            return None
        count = 0 if coordinator is None else coordinator.counted
        # before the log's earlier steps are taken up, count the log's
        return mechanism.counted(count if mechanism.by_turns else max(count, len(self.log.steps)))

    def status(self) -> dict[str, Any]:
        """Return what `fedseed status` shows."""
        rounds, roster, names = self.rounds, self.roster, self.roster.names
        current = None if rounds is None else rounds.open
        missing = [] if current is None else [names[number] for number in sorted(current.missing)]
        # parties that delay the others
        late = [] if rounds is None else [names[client] for client in rounds.stragglers.list_slow()]
        return {
            **self.figures(),
            "method": self.reception.method.name,
            "began": self.began,
            "round": self.line.get("round", 0) if current is None else current.number,
            "rounds": self.total,
            "waiting_for": (missing or sorted(self.inquiry.awaited))[:MOST_NAMED],
            "late": sorted({*late, *self.inquiry.stragglers.list_slow()})[:MOST_NAMED],
            "clients": len(names),
            "alive": len(roster.present()),
            "away": roster.away()[:MOST_NAMED],
            "waiting": self.reception.waiting,
            "ended": self.log.ended,
            "behind": {name: host.last_step for name, host in roster.alive().items()},
            "last": dict(self.line),
            "privacy": self._privacy(),
            "memory_bytes": resident_memory(),
        }


# how many senders and other names, reasons for each sender, and letters of a text
LEVELS = ((100, 20, 200), (20, 5, 100), (5, 1, 50), (0, 0, 50))


def status_answer(status: Mapping[str, Any], size_limit: int) -> bytes:
    """Return a status as JSON, with names and refusals shortened to `size_limit` bytes.

    `summary.json` has all names and refusals.
    """
    answer = b""
    for names, reasons, letters in LEVELS:
        short = {
            key: _short(value, max(names, 1), letters)
            for key, value in status.items()
            if key != "refusals"
        }
        short["refusals"] = _refusals(status["refusals"], names, reasons, letters)
        answer = json.dumps(short).encode()
        if len(answer) <= size_limit:
            break
    return answer


def _short(value: Any, names: int, letters: int) -> Any:
    """Return a value with its texts, lists and tables shortened to a limited length.

    The status's own tables have fewer entries than the limit.
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
    refusals: Mapping[str, Mapping[str, int]], names: int, reasons: int, letters: int
) -> dict[str, Any]:
    """Return the most frequent refusals of the senders with the most refusals.

    The others are added up as "others".
    """
    shortened: defaultdict[str, Counter[str]] = defaultdict(Counter)
    ordered = sorted(refusals.items(), key=lambda item: -sum(item[1].values()))
    for sender_rank, (sender, counts) in enumerate(ordered):
        sender_name = sender[:letters] if sender_rank < names else "others"
        counts_of_sender = shortened[sender_name]
        for reason_rank, (reason, count) in enumerate(
            sorted(counts.items(), key=lambda item: -item[1])
        ):
            is_shown = sender_rank < names and reason_rank < reasons
            counts_of_sender[reason[:letters] if is_shown else "others"] += count
    return shortened
