"""Questions to the clients about their weights: digests, costs and evaluations."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from statistics import median_low

from fedseed.errors import MessageError, NetworkError
from fedseed.federation.control import (
    MOST_ROUND,
    Beat,
    Question,
    Report,
    average_metrics,
    parse_control,
)
from fedseed.federation.coordinator.membership import Host, Roster
from fedseed.federation.coordinator.session import (
    GRACE_SECONDS,
    RESEND_SECONDS,
    SLOW_FACTOR,
    Session,
    Stragglers,
    Wait,
    poll_interval,
)
from fedseed.federation.cost import MOST_PHASES, Cost
from fedseed.federation.protocol import list_names
from fedseed.orbit.record import NO_DIGEST
from fedseed.reports.results import PHASES, RoundLine
from fedseed.text import show_text

# if all hosts report but none evaluates, the run ends after this many deadlines
MOST_DEADLINES = 3

Reports = Mapping[str, Report]  # reports by host


@dataclass
class _OpenQuestion:
    """An open question about the weights. Times are those of the session's clock."""

    number: int  # the round
    evaluate: bool
    each_evaluates: bool  # whether each host evaluates, on its clients' held-out data
    digest: bool  # whether hosts hash their weights
    deadline: float
    give_up_at: float
    resend_at: float
    evaluate_by: float  # the evaluator's deadline
    evaluator: str | None = None
    evaluator_since: float = 0.0
    is_timed: bool = False  # whether the evaluator's time is recorded
    all_tried: bool = False  # whether every host has been asked to evaluate
    # hosts that have answered, including those whose report was refused
    answered: set[str] = field(default_factory=set)
    is_noted: bool = False  # whether the missing reports were shown
    wait: Wait[str] | None = None

    def select_reports(self, alive: Mapping[str, Host]) -> Reports:
        """Return the reports on this round that answer the question, by host."""
        reports = {}
        for name, host in alive.items():
            report = host.report
            if report is None or report.round != self.number:
                continue
            if self.each_evaluates and report.metrics is None:
                continue
            reports[name] = report
        return reports

    def encode(self) -> bytes:
        """Return the question as it is broadcast."""
        # the default, hashing the weights, is left out
        optional = {} if self.digest else {"digest": False}
        evaluate = self.each_evaluates or self.evaluator or None
        return Question(round=self.number, evaluate=evaluate, **optional).encode()


@dataclass
class Inquiry:
    """Asks questions, and takes beats and reports.

    No wait is endless. A host that misses the deadline or delays the others is not waited for until
    it reports again. An evaluator that does so, or is much slower than others, is replaced by the
    next one. If all hosts answer but none evaluates, the run ends.
    """

    session: Session
    roster: Roster
    # hosts whose weights differed from those of most clients
    drifted: set[str] = field(default_factory=set)
    awaited: set[str] = field(default_factory=set)  # hosts that the open question waits for
    # hosts whose answer to the open question was refused
    _refused: set[str] = field(default_factory=set)
    # hosts that have missed a deadline since their last report
    _late: set[str] = field(default_factory=set)
    # evaluators that have missed a deadline since their last evaluation
    _idle: set[str] = field(default_factory=set)
    _evaluators: set[str] = field(default_factory=set)  # hosts asked to evaluate after this round
    # evaluators that are asked again only after all other hosts
    _tried: set[str] = field(default_factory=set)
    # phases that clients have named; their number is limited so that a summary can list them
    _phases: set[str] = field(default_factory=set)
    # for each host: seconds from the question to its last evaluation, and the sum over all its
    # evaluations
    _last_seconds: dict[str, float] = field(default_factory=dict)
    _total_seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def __post_init__(self) -> None:
        self.stragglers = Stragglers[str](self.session)  # hosts that delay the others

    def take(self, name: str, kind: str, data: bytes) -> None:
        """Take a beat or a report. Raises MessageError if it is invalid."""
        host = self.roster.hosts.get(name)
        try:
            beat = parse_control(Report if kind == "report" else Beat, data)
            if host is None or not host.fits or beat.epoch != self.session.incarnation:
                # a call makes the host send a hello
                self.session.stranger = True
                self.session.stir()
                return
            if isinstance(beat, Report):
                self._check(name, beat)
        except MessageError as error:
            if kind != "report":
                raise
            if host is not None:
                self._refused.add(name)
            self.session.stir()
            raise MessageError(f"report: {error}") from error
        host.last_heard, host.last_step = self.session.clock(), beat.at
        if isinstance(beat, Report):
            host.report = beat
            for hosts in (self._late, self._refused, self.awaited):
                hosts.discard(name)
            if beat.metrics:
                self._idle.discard(name)
            # checking all hosts after each report would take long
            if not self.awaited or beat.metrics:
                self.session.stir()

    def _check(self, host: str, report: Report) -> None:
        """Check a report's phases, clients and metrics. Raises MessageError if they are invalid."""
        phases = self._phases | (report.spent.seconds.keys() - set(PHASES))
        if len(phases) > MOST_PHASES:
            raise MessageError(f"spent: seconds: more than {MOST_PHASES} phases in total")
        self._phases = phases
        for client in report.by_client or {}:
            if client not in self.roster.numbers or self.roster.host_of(client) != host:
                raise MessageError(
                    f"it evaluates for client {show_text(client, 40)}, which it does not host"
                )
        if report.metrics is not None and not self.session.settings.each_evaluates:
            if not report.metrics:
                raise MessageError("an evaluation without a metric")
            for needed in self.session.settings.measures:
                if needed not in report.metrics:
                    raise MessageError(f"an evaluation without {needed}")

    async def ask(self, line: RoundLine, evaluate: bool, digest: bool = True) -> str | None:
        """Ask all reachable hosts about the weights after a round, and add the answers to its line.

        Args:
            line: the line of the round.
            evaluate: whether to evaluate: one host does, or every host if hosts hold out their own
                data.
            digest: whether hosts hash their weights.

        Returns:
            The digest of most clients' weights; None if weights are not hashed, or no digest has a
            majority.
        """
        number = line.round
        reports = await self._collect_reports(number, evaluate, digest)
        weights_digest = self._compare(number, reports) if digest else None
        if evaluate and self.session.settings.each_evaluates:
            figures: dict[str, Mapping[str, float]] = {}
            for report in reports.values():
                figures.update(report.by_client or {})
            line.by_client = {name: figures[name] for name in self.roster.names if name in figures}
            line.metrics.update(average_metrics(line.by_client))
            line.seconds["evaluation"] = max(report.seconds for report in reports.values())
        elif evaluate:
            evaluated = [
                report
                for name, report in reports.items()
                if report.metrics and name in self._evaluators
            ]
            # prefer an evaluation by a host with the weights of most clients
            same_weights = [report for report in evaluated if report.digest == weights_digest]
            best = (same_weights or evaluated)[0]
            line.metrics.update(best.metrics or {})
            line.seconds["evaluation"] = best.seconds
        if number:
            self._add_costs(line, reports)
        line.weights_digest = weights_digest
        return weights_digest

    def _compare(self, number: int, reports: Reports) -> str | None:
        """Return the digest that more than half of the clients have; warn of other digests."""
        speaks_for = Counter(map(self.roster.host_of, self.roster.names))
        votes: Counter[str] = Counter()
        for name, report in reports.items():
            if report.digest != NO_DIGEST:
                votes[report.digest] += speaks_for[name]
        leading = [digest for digest, count in votes.items() if 2 * count > votes.total()]
        if not leading:
            digests = ", ".join(
                f"{name} has {report.digest}" for name, report in list(reports.items())[:8]
            )
            self.session.progress.warn(
                f"round {number}: no digest has a majority of clients: {digests}"
            )
            return None
        majority_digest = leading[0]
        drifted = {
            name
            for name, report in reports.items()
            if report.digest not in (majority_digest, NO_DIGEST)
        }
        if drifted:
            self.drifted |= drifted
            self.session.progress.warn(
                f"round {number}: {list_names(drifted)} has other weights, and repairs them by "
                "replay"
            )
        return majority_digest

    async def _collect_reports(self, number: int, evaluate: bool, digest: bool) -> Reports:
        """Return the reports on a round by host: from all hosts, or from those that met the
        deadline.
        """
        session, roster = self.session, self.roster
        for host in roster.hosts.values():
            host.report = None
        self._refused, self._evaluators, self._tried = set(), set(), set()
        question = self._open_question(number, evaluate, digest)
        while True:
            alive = roster.alive()
            current_time = session.clock()
            reports = question.select_reports(alive)
            is_evaluated = self._is_evaluated(question, reports)
            late_hosts = self._find_late_hosts(alive.keys(), reports)
            if is_evaluated:
                self._time_evaluator(question, reports, current_time)
            stragglers: Set[str] = set()
            if question.wait is not None:
                stragglers = question.wait.find_stragglers(reports.keys() | self._refused)
            is_over = late_hosts <= stragglers or current_time > question.deadline
            if reports and is_evaluated and is_over:
                self._close_question(question, reports, late_hosts)
                return reports
            question.answered |= self._refused | reports.keys()
            if not is_evaluated and self._needs_evaluator(question, alive, current_time):
                self._change_evaluator(question, alive, current_time)
            elif current_time > question.deadline and not reports:
                self._note_silence(question, alive.keys())
            if not is_evaluated:
                self._check_hope(question, alive, current_time)
            if question.wait is None and alive:
                question.wait = self._begin_wait(late_hosts - {question.evaluator})
            self.awaited = set(late_hosts)
            if not is_evaluated and question.evaluator is not None:
                self.awaited.add(question.evaluator)
            if current_time >= question.resend_at:
                await self._send(question, alive, late_hosts)
                question.resend_at = current_time + (session.end.resend_seconds if alive else 0.5)
            await session.pause(poll_interval(len(alive)))

    def _open_question(self, number: int, evaluate: bool, digest: bool) -> _OpenQuestion:
        settings = self.session.settings
        current_time = self.session.clock()
        return _OpenQuestion(
            number=number,
            evaluate=evaluate,
            each_evaluates=evaluate and settings.each_evaluates,
            digest=digest,
            deadline=current_time + settings.deadline,
            give_up_at=current_time + MOST_DEADLINES * settings.deadline,
            resend_at=current_time,
            evaluate_by=current_time + settings.deadline,
            evaluator_since=current_time,
        )

    def _is_evaluated(self, question: _OpenQuestion, reports: Reports) -> bool:
        """Return whether the question needs no more evaluation."""
        if not question.evaluate or question.each_evaluates:
            return True
        return any(reports[name].metrics for name in self._evaluators & reports.keys())

    def _find_late_hosts(self, alive: Set[str], reports: Reports) -> set[str]:
        """Return the hosts whose report is still worth waiting for."""
        missing = alive - reports.keys() - self._refused - self._late
        return {name for name in missing if not self.stragglers.is_left_out(name)}

    def _time_evaluator(
        self, question: _OpenQuestion, reports: Reports, current_time: float
    ) -> None:
        """Record once how long the evaluator took."""
        evaluator = question.evaluator
        if not question.evaluate or question.each_evaluates or question.is_timed:
            return
        if evaluator is None or evaluator not in reports:
            return
        # the time that other hosts take later is not the evaluator's
        question.is_timed = True
        self._last_seconds[evaluator] = current_time - question.evaluator_since
        self._total_seconds[evaluator] += current_time - question.evaluator_since

    def _close_question(
        self, question: _OpenQuestion, reports: Reports, late_hosts: set[str]
    ) -> None:
        """Stop waiting for the late hosts until they report again."""
        self._late |= late_hosts
        for name in sorted(late_hosts):
            assert question.wait is not None
            reason = f"round {question.number}: no report from {name} {question.wait.within}"
            question.wait.leave_out(name, reason)
        self.awaited = set()
        for name in reports:
            self.stragglers.readmit(name)

    def _needs_evaluator(
        self, question: _OpenQuestion, alive: Mapping[str, Host], current_time: float
    ) -> bool:
        evaluator = question.evaluator
        return (
            evaluator not in alive
            or evaluator in self._refused
            or current_time > question.evaluate_by
        )

    def _change_evaluator(
        self, question: _OpenQuestion, alive: Mapping[str, Host], current_time: float
    ) -> None:
        """Choose the next evaluator, and the time to ask it."""
        previous = question.evaluator
        if self._tried and not alive.keys() - self._tried:
            question.all_tried = True
        question.evaluator = self._next_evaluator(
            question.number, alive.keys(), previous, current_time > question.evaluate_by
        )
        question.evaluator_since = current_time
        question.evaluate_by = current_time + self.session.settings.deadline
        if question.evaluator != previous and not question.all_tried:
            question.resend_at = current_time
        else:
            # the next evaluator may be a host that was asked before, so there is no hurry
            question.resend_at = min(question.resend_at, current_time + RESEND_SECONDS)

    def _note_silence(self, question: _OpenQuestion, alive: Set[str]) -> None:
        """Show a note, once, that no report has come."""
        if not question.is_noted:
            question.is_noted = True
            self.session.progress.warn(
                f"round {question.number}: no report has come: waiting for {list_names(alive)}"
            )

    def _check_hope(
        self, question: _OpenQuestion, alive: Mapping[str, Host], current_time: float
    ) -> None:
        """Raise NetworkError if all hosts have answered and none of them will evaluate."""
        if (
            question.all_tried
            and current_time > question.give_up_at
            and alive.keys() <= question.answered
        ):
            seconds = MOST_DEADLINES * self.session.settings.deadline
            raise NetworkError(
                f"round {question.number}: {list_names(alive)} have answered for {seconds:g} s, "
                "but none has sent a usable evaluation"
            )

    def _begin_wait(self, hosts: Set[str]) -> Wait[str]:
        hosted = self.roster.spoken_for()
        return Wait(self.stragglers, {name: hosted.get(name, 1) for name in hosts}, 1)

    async def _send(
        self, question: _OpenQuestion, alive: Mapping[str, Host], late_hosts: set[str]
    ) -> None:
        """Send the question to the awaited hosts, or call all hosts if there are none."""
        if not alive:
            await self.session.call()
            return
        receivers = list(late_hosts)
        if question.evaluator is not None:
            receivers.append(question.evaluator)
        await self.session.end.broadcast(b"A" + question.encode(), receivers)

    def _next_evaluator(
        self, number: int, alive: Set[str], previous: str | None, is_overdue: bool
    ) -> str | None:
        """Return the next evaluator: hosts in the order of their numbers, with idle, slow and tried
        ones last.
        """
        if is_overdue and previous is not None:
            self._idle.add(previous)
        if not alive - self._tried:
            self._tried, self._refused = set(), set()
        candidates = alive - self._tried - {previous} or alive

        def rank(name: str) -> tuple[bool, bool, int]:
            number_of_host = self.roster.numbers.get(name, MOST_ROUND)
            return name in self._idle, self._is_slow(name, alive), number_of_host

        evaluator = min(candidates, key=rank, default=None)
        if previous is not None and is_overdue:
            patience = self.session.settings.deadline
            if evaluator in (None, previous):
                consequence = "still waiting for it"
            else:
                consequence = f"asking {evaluator}"
            self.session.progress.warn(
                f"round {number}: {previous} did not evaluate within {patience:g} s: {consequence}"
            )
        if evaluator is not None:
            self._evaluators.add(evaluator)
            self._tried.add(evaluator)
        return evaluator

    def _is_slow(self, host: str, alive: Set[str]) -> bool:
        """Return whether another host should evaluate, because this one took much longer.

        Until most hosts have evaluated, the few that have may all be slow on purpose. So a host is
        also replaced if its evaluations together have used up the patience.
        """
        others = [seconds for name, seconds in self._last_seconds.items() if name != host]
        if others:
            limit = max(GRACE_SECONDS, SLOW_FACTOR * min(others))
            if self._last_seconds.get(host, 0.0) > limit:
                return True
        few_evaluated = len(self._last_seconds.keys() & alive) <= len(alive) // 2
        return few_evaluated and self._total_seconds[host] > self.session.settings.patience

    def _add_costs(self, line: RoundLine, reports: Reports) -> None:
        """Add the cost of the clients' work since the last line of metrics."""
        spent = Cost()
        for report in reports.values():
            spent.add(report.spent)
        ratios = [report.ratio for report in reports.values() if report.ratio is not None]
        if ratios:
            line.metrics["step_over_weights"] = median_low(ratios)
        spent.tell(line)
        line.processes = len(reports)  # number of processes whose seconds are added up
        for phase, seconds in spent.seconds.items():
            line.seconds[phase] = line.seconds.get(phase, 0.0) + seconds
