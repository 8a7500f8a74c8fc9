"""Asking the clients about their weights: digests, what their work cost, and one of them for an evaluation."""

import time
from collections import Counter
from typing import Any

from fedseed.federation.cost import Cost
from fedseed.federation.membership import Roster
from fedseed.federation.protocol import ask_message, listed
from fedseed.federation.session import RESEND_SECONDS, Session


class Inquiry:
    """Asks, and takes beats and reports.

    Args:
        session: the conversation.
        roster: the clients.
    """

    def __init__(self, session: Session, roster: Roster) -> None:
        self.session = session
        self.roster = roster
        self.drifted: set[str] = set()  # hosts whose weights were others than most hosts'

    def beat(self, name: str, about: dict[str, Any], report: bool) -> None:
        """A sign of life, maybe with a report. Raises what a report of wrong types raises."""
        host = self.roster.membership.hosts.get(name)
        if host is None or not host.fits or about.get("epoch") != self.session.incarnation:
            self.session.stranger = True  # it is called, and says hello
            self.session.stir()
            return
        host.heard = time.monotonic()
        host.at = int(about["at"])
        if report:
            digest = bytes.fromhex(str(about["digest"])).hex()
            metrics = {str(k): float(v) for k, v in (about.get("metrics") or {}).items()}
            spent = Cost(**about["spent"])
            Cost().add(spent)  # types fit
            host.report = {**about, "round": int(about["round"]), "digest": digest, "metrics": metrics, "spent": spent}
            self.session.stir()

    async def ask(self, line: dict[str, Any], evaluate: bool, digest: bool = True) -> str | None:
        """Ask all who are there about the weights after a round, and add to its line of metrics what they say.

        Args:
            line: of the round "round".
            evaluate: whether one of them evaluates.
            digest: whether they hash their weights.

        Returns:
            The weights' digest: that of most of them; None where they are not hashed.
        """
        number = line["round"]
        reports = await self._reports(number, evaluate, digest)
        found = str(Counter(report["digest"] for report in reports.values()).most_common(1)[0][0])
        drifted = {name for name, report in reports.items() if report["digest"] != found}
        if drifted and digest:
            self.drifted |= drifted
            self.session.progress.warn(
                f"round {number}: {listed(drifted)} has other weights: it repairs itself by replay"
            )
        if evaluate:
            evaluated = [report for report in reports.values() if report["metrics"]]
            best = [report for report in evaluated if report["digest"] == found] or evaluated
            line.update(best[0]["metrics"])
            line["seconds"]["evaluation"] = float(best[0].get("seconds", 0.0))
        if number:
            self._add_costs(line, reports)
        hashed = found if digest else None
        line["weights_digest"] = hashed
        return hashed

    async def _reports(self, number: int, evaluate: bool, digest: bool) -> dict[str, dict[str, Any]]:
        """The reports about a round by host: all hosts' that are there, or as many as come before the deadline."""
        for host in self.roster.membership.hosts.values():
            host.report = None
        evaluator: str | None = None
        asked = 0.0
        deadline = time.monotonic() + self.session.settings.deadline
        while True:
            alive = self.roster.membership.alive()
            reports = {n: h.report for n, h in alive.items() if h.report is not None and h.report["round"] == number}
            evaluated = not evaluate or any(report["metrics"] for report in reports.values())
            if alive and len(reports) == len(alive) and evaluated:
                return reports
            if reports and evaluated and time.monotonic() > deadline:
                return reports
            if not evaluated and (evaluator not in alive or evaluator in reports):
                evaluator = min(alive, key=lambda name: self.roster.numbers.get(name, 1 << 32), default=None)
                asked = 0.0
            now = time.monotonic()
            if now > asked + (RESEND_SECONDS if alive else 0.5):
                if alive:
                    await self.session.end.broadcast(ask_message(number, evaluator if evaluate else None, digest))
                else:
                    await self.session.call()
                asked = now
            await self.session.pause(0.25)

    def _add_costs(self, line: dict[str, Any], reports: dict[str, dict[str, Any]]) -> None:
        """What the clients' work since the last line has cost."""
        spent = Cost()
        for report in reports.values():
            spent.add(report["spent"])
            if report.get("ratio") is not None:
                line["step_over_weights"] = float(report["ratio"])
        line.update(spent.about())
        line["processes"] = len(reports)  # whose seconds are added up
        for phase, seconds in spent.seconds.items():
            line["seconds"][phase] = line["seconds"].get(phase, 0.0) + seconds
