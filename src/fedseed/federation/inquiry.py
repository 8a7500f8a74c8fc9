"""Asking the clients about their weights: digests, what their work cost, and for evaluations: one
of them, or each.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from statistics import median_low

from fedseed.errors import MessageError, NetworkError
from fedseed.federation.control import MOST_ROUND, Beat, Question, Report, averaged, read
from fedseed.federation.cost import MOST_PHASES, Cost
from fedseed.federation.membership import Roster
from fedseed.federation.protocol import listed
from fedseed.federation.session import (
    GRACE_SECONDS,
    RESEND_SECONDS,
    TIMES,
    Late,
    Session,
    Wait,
    between_looks,
)
from fedseed.orbit.record import NO_DIGEST
from fedseed.reports.results import PHASES, RoundLine
from fedseed.text import shown

MOST_DEADLINES = 3  # that an evaluation is asked for, where all report and none evaluates

Reports = Mapping[str, Report]  # by host


@dataclass
class Inquiry:
    """Asks, and takes beats and reports.

    Nobody is waited for without end: a process that lets the deadline pass, or the others wait, is
    not waited for any more until it reports again, and one that was to evaluate, or is much slower
    at it, is followed by the next; where all answer and none evaluates, the run ends.
    """

    session: Session
    roster: Roster
    # hosts whose weights were others than most clients'
    drifted: set[str] = field(default_factory=set)
    awaited: set[str] = field(default_factory=set)  # hosts that the open question waits for
    # hosts whose answer to the open question was refused
    _refused: set[str] = field(default_factory=set)
    # hosts that have let a deadline pass since they last reported
    _late: set[str] = field(default_factory=set)
    # hosts that were to evaluate and let a deadline pass since they did
    _idle: set[str] = field(default_factory=set)
    _asked: set[str] = field(default_factory=set)  # hosts that were to evaluate after this round
    # those of them who are asked again when all others have been
    _tried: set[str] = field(default_factory=set)
    # that clients have named: so few that a summary can list them
    _phases: set[str] = field(default_factory=set)
    # seconds from the question to each host's last evaluation, and of all of them together
    _took: dict[str, float] = field(default_factory=dict)
    _evaluated_for: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def __post_init__(self) -> None:
        self.late = Late[str](self.session)  # hosts that have let the others wait

    def take(self, name: str, what: str, data: bytes) -> None:
        """Take a sign of life, which may hold a report. Raises MessageError if it is not valid."""
        host = self.roster.hosts.get(name)
        try:
            beat = read(Report if what == "report" else Beat, data)
            if host is None or not host.fits or beat.epoch != self.session.incarnation:
                self.session.stranger = True  # it is called, and says hello
                self.session.stir()
                return
            if isinstance(beat, Report):
                self._check(name, beat)
        except MessageError as error:
            if what != "report":
                raise
            if host is not None:
                self._refused.add(name)
            self.session.stir()
            raise MessageError(f"report: {error}") from error
        host.heard, host.at = self.session.clock(), beat.at
        if isinstance(beat, Report):
            host.report = beat
            for hosts in (self._late, self._refused, self.awaited):
                hosts.discard(name)
            if beat.metrics:
                self._idle.discard(name)
            # looking at all hosts for each of them would take long
            if not self.awaited or beat.metrics:
                self.session.stir()

    def _check(self, host: str, report: Report) -> None:
        """Check that a report says what it must, of its own clients. Raises MessageError."""
        phases = self._phases | (report.spent.seconds.keys() - set(PHASES))
        if len(phases) > MOST_PHASES:
            raise MessageError(f"spent: seconds: more than {MOST_PHASES} phases in all")
        self._phases = phases
        for client in report.by_client or {}:
            if client not in self.roster.numbers or self.roster.host_of(client) != host:
                raise MessageError(f"it evaluates for client {shown(client, 40)}")
        if report.metrics is not None and not self.session.settings.each_evaluates:
            if not report.metrics:
                raise MessageError("an evaluation without a metric")
            for needed in self.session.settings.measures:
                if needed not in report.metrics:
                    raise MessageError(f"an evaluation without {needed}")

    async def ask(self, line: RoundLine, evaluate: bool, digest: bool = True) -> str | None:
        """Ask all who are there about the weights after a round, and add to its line of metrics
        what they say.

        Args:
            line: of the round "round".
            evaluate: whether one of them evaluates, or each where they hold out data of their own.
            digest: whether they hash their weights.

        Returns:
            The weights' digest: that of most clients; None where they are not hashed, or no digest
            is that of most.
        """
        number = line.round
        reports = await self._reports(number, evaluate, digest)
        found = self._compare(number, reports) if digest else None
        if evaluate and self.session.settings.each_evaluates:
            said = {
                client: found
                for report in reports.values()
                for client, found in (report.by_client or {}).items()
            }
            line.by_client = {name: said[name] for name in self.roster.names if name in said}
            line.metrics.update(averaged(line.by_client))
            line.seconds["evaluation"] = max(report.seconds for report in reports.values())
        elif evaluate:
            evaluated = [
                report for name, report in reports.items() if report.metrics and name in self._asked
            ]
            best = next((report for report in evaluated if report.digest == found), evaluated[0])
            line.metrics.update(best.metrics or {})
            line.seconds["evaluation"] = best.seconds
        if number:
            self._add_costs(line, reports)
        line.weights_digest = found
        return found

    def _compare(self, number: int, reports: Reports) -> str | None:
        """Return the digest of more than half of the clients, by the processes that speak for
        them.
        """
        speaks_for = Counter(map(self.roster.host_of, self.roster.names))
        votes: Counter[str] = Counter()
        for name, report in reports.items():
            if report.digest != NO_DIGEST:
                votes[report.digest] += speaks_for[name]
        found = next((one for one, count in votes.items() if 2 * count > votes.total()), None)
        if found is None:
            said = ", ".join(
                f"{name} has {report.digest}" for name, report in list(reports.items())[:8]
            )
            self.session.progress.warn(
                f"round {number}: no weights are those of most clients: {said}"
            )
            return None
        if drifted := {
            name for name, report in reports.items() if report.digest not in (found, NO_DIGEST)
        }:
            self.drifted |= drifted
            text = (
                f"round {number}: {listed(drifted)} has other weights: it repairs itself by replay"
            )
            self.session.progress.warn(text)
        return found

    async def _reports(self, number: int, evaluate: bool, digest: bool) -> Reports:
        """Return reports about a round by host: of all hosts there, or as many as come before the
        deadline.
        """
        session, roster = self.session, self.roster
        for host in roster.hosts.values():
            host.report = None
        self._refused, self._asked, self._tried = set(), set(), set()
        each = evaluate and session.settings.each_evaluates
        evaluator: str | None = None
        told, again, vain, timed = False, False, set[str](), False
        resend = since = session.clock()  # since: the evaluator was asked
        deadline = evaluate_by = since + session.settings.deadline
        longest = MOST_DEADLINES * session.settings.deadline
        give_up = since + longest
        wait: Wait[str] | None = None
        while True:
            alive = roster.alive()
            now = session.clock()
            reports = {
                n: h.report
                for n, h in alive.items()
                if h.report is not None and h.report.round == number
            }
            if each:
                reports = {
                    name: report for name, report in reports.items() if report.metrics is not None
                }
            evaluated = (
                not evaluate
                or each
                or any(reports[name].metrics for name in self._asked & reports.keys())
            )
            late = {
                n
                for n in alive.keys() - reports.keys() - self._refused - self._late
                if not self.late.is_out(n)
            }
            if (
                evaluate
                and not each
                and evaluated
                and evaluator is not None
                and reports.keys() & {evaluator}
                and not timed  # what the others take afterwards is not its time
            ):
                timed = True
                self._took[evaluator] = now - since
                self._evaluated_for[evaluator] += now - since
            held = wait.holding(reports.keys() | self._refused) if wait is not None else set()
            if reports and evaluated and (late <= held or now > deadline):
                # the deadline, or the patience, is over: until they report again nobody waits
                self._late |= late
                for name in sorted(late):
                    assert wait is not None
                    wait.leave_out(name, f"round {number}: no report of {name} {wait.within}")
                self.awaited = set()
                for name in reports:
                    self.late.back(name)
                return reports
            vain |= self._refused | reports.keys()
            if not evaluated and (
                evaluator not in alive or evaluator in self._refused or now > evaluate_by
            ):
                before, again = (
                    evaluator,
                    again or (bool(self._tried) and not alive.keys() - self._tried),
                )
                evaluator = self._next_evaluator(number, alive.keys(), before, now > evaluate_by)
                since, evaluate_by = now, now + session.settings.deadline
                # those who are asked once more are so in their time
                resend = (
                    now if evaluator != before and not again else min(resend, now + RESEND_SECONDS)
                )
            elif now > deadline and not reports and not told:
                told = True
                session.progress.warn(
                    f"round {number}: no report has come: waiting for {listed(alive)}"
                )
            if not evaluated and again and now > give_up and alive.keys() <= vain:
                raise NetworkError(
                    f"round {number}: {listed(alive)} have answered for {longest:g} s, and none "
                    "has sent an evaluation that can be used"
                )
            if wait is None and alive:
                hosted = roster.spoken_for()
                wait = Wait(
                    self.late, {name: hosted.get(name, 1) for name in late - {evaluator}}, 1
                )
            self.awaited = {*late} if evaluated or evaluator is None else {*late, evaluator}
            if now >= resend:
                if alive:
                    asked = [*late, *([] if evaluator is None else [evaluator])]
                    hashed = {} if digest else {"digest": False}  # that they are hashed is not said
                    about = Question(round=number, evaluate=each or evaluator or None, **hashed)
                    await session.end.broadcast(b"A" + about.encode(), asked)
                else:
                    await session.call()
                resend = now + (session.end.resend_seconds if alive else 0.5)
            await session.pause(between_looks(len(alive)))

    def _next_evaluator(
        self, number: int, alive: Set[str], before: str | None, over: bool
    ) -> str | None:
        """Return who evaluates after `before`, whose time may be over: by number, the idle and
        those tried last.
        """
        if over and before is not None:
            self._idle.add(before)
        if not alive - self._tried:
            self._tried, self._refused = set(), set()
        left = alive - self._tried - {before} or alive
        order = {
            n: (n in self._idle, self._is_slow(n, alive), self.roster.numbers.get(n, MOST_ROUND))
            for n in left
        }
        chosen = min(order, key=order.__getitem__, default=None)
        if before is not None and over:
            patience = self.session.settings.deadline
            follows = "it is waited for" if chosen in (None, before) else f"{chosen} is asked"
            self.session.progress.warn(
                f"round {number}: {before} has not evaluated within {patience:g} s: {follows}"
            )
        if chosen is not None:
            self._asked.add(chosen)
            self._tried.add(chosen)
        return chosen

    def _is_slow(self, host: str, alive: Set[str]) -> bool:
        """Return whether another should evaluate: this one took much longer than some other.

        Until most hosts have evaluated, those who have may all be late on purpose: one that has
        used up the others' patience, in all its evaluations together, lets another try.
        """
        others = [took for name, took in self._took.items() if name != host]
        if others and self._took.get(host, 0.0) > max(GRACE_SECONDS, TIMES * min(others)):
            return True
        few_evaluated = len(self._took.keys() & alive) <= len(alive) // 2
        return few_evaluated and self._evaluated_for[host] > self.session.settings.patience

    def _add_costs(self, line: RoundLine, reports: Reports) -> None:
        """Add to a line what the clients' work since the last line has cost."""
        spent = Cost()
        for report in reports.values():
            spent.add(report.spent)
        ratios = [report.ratio for report in reports.values() if report.ratio is not None]
        if ratios:
            line.metrics["step_over_weights"] = median_low(ratios)
        spent.tell(line)
        line.processes = len(reports)  # whose seconds are added up
        for phase, seconds in spent.seconds.items():
            line.seconds[phase] = line.seconds.get(phase, 0.0) + seconds
