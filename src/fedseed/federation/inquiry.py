"""Asking the clients about their weights: digests, what their work cost, and for evaluations: one of them, or each."""

import time
from collections import Counter
from typing import Any

from fedseed.errors import MessageError
from fedseed.federation.cost import Cost
from fedseed.federation.held_out import Figures, averaged, read_figures
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
        host.heard = self.session.clock()
        host.at = int(about["at"])
        if report:
            digest = bytes.fromhex(str(about["digest"])).hex()
            metrics = {str(k): float(v) for k, v in (about.get("metrics") or {}).items()}
            spent = Cost(**about["spent"])
            Cost().add(spent)  # types fit
            found: dict[str, Any] = {"metrics": metrics, "by_client": self._figures(name, about.get("by_client"))}
            found["evaluated"] = about.get("metrics") is not None
            host.report = {**about, "round": int(about["round"]), "digest": digest, "spent": spent, **found}
            self.session.stir()

    def _figures(self, host: str, by_client: dict[str, Any] | None) -> dict[str, Figures] | None:
        """What a process says its clients have measured; None: it has not been asked. Raises MessageError."""
        if by_client is None:
            return None
        host_of = self.roster.membership.host_of
        for client in by_client:
            if client not in self.roster.numbers or host_of(client) != host:
                raise MessageError(f"it evaluates for client {str(client)[:40]}")
        return {client: read_figures(figures) for client, figures in by_client.items()}

    async def ask(self, line: dict[str, Any], evaluate: bool, digest: bool = True) -> str | None:
        """Ask all who are there about the weights after a round, and add to its line of metrics what they say.

        Args:
            line: of the round "round".
            evaluate: whether one of them evaluates, or each where they hold out data of their own.
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
        if evaluate and self.session.settings.each_evaluates:
            self._add_figures(line, reports)
        elif evaluate:
            evaluated = [report for report in reports.values() if report["metrics"]]
            best = [report for report in evaluated if report["digest"] == found] or evaluated
            line.update(best[0]["metrics"])
            line["seconds"]["evaluation"] = float(best[0].get("seconds", 0.0))
        if number:
            self._add_costs(line, reports)
        hashed = found if digest else None
        line["weights_digest"] = hashed
        return hashed

    def _add_figures(self, line: dict[str, Any], reports: dict[str, dict[str, Any]]) -> None:
        """What each client has measured on its own, and their mean."""
        found = {
            client: figures for report in reports.values() for client, figures in (report["by_client"] or {}).items()
        }
        line["by_client"] = {name: found[name] for name in self.roster.names if name in found}
        line.update(averaged(line["by_client"]))
        line["seconds"]["evaluation"] = max(float(report.get("seconds") or 0.0) for report in reports.values())

    async def _reports(self, number: int, evaluate: bool, digest: bool) -> dict[str, dict[str, Any]]:
        """The reports about a round by host: all hosts' that are there, or as many as come before the deadline."""
        for host in self.roster.membership.hosts.values():
            host.report = None
        each = evaluate and self.session.settings.each_evaluates
        evaluator: str | None = None
        asked = 0.0
        deadline = self.session.clock() + self.session.settings.deadline
        while True:
            alive = self.roster.membership.alive()
            reports = {n: h.report for n, h in alive.items() if h.report is not None and h.report["round"] == number}
            if each:
                reports = {name: report for name, report in reports.items() if report["evaluated"]}
            evaluated = not evaluate or each or any(report["metrics"] for report in reports.values())
            if alive and len(reports) == len(alive) and evaluated:
                return reports
            if reports and evaluated and self.session.clock() > deadline:
                return reports
            if not evaluated and (evaluator not in alive or evaluator in reports):
                evaluator = min(alive, key=lambda name: self.roster.numbers.get(name, 1 << 32), default=None)
                asked = 0.0
            now = time.monotonic()
            if now > asked + (RESEND_SECONDS if alive else 0.5):
                if alive:
                    await self.session.end.broadcast(ask_message(number, each or evaluator, digest))
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
