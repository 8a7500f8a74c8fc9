"""A run whose clients are Flower's nodes: the rounds of `runs.loop` over the Grid. Free of torch, models and data."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fedseed.errors import FedseedError, MessageError, RecipeError
from fedseed.federation.coordinator import Coordinator
from fedseed.federation.held_out import averaged, read_figures
from fedseed.federation.messages import FRAME_BYTES
from fedseed.federation.protocol import listed, read_json
from fedseed.federation.report import Phases, read_cost, read_metrics, read_seconds, real
from fedseed.federation.rounds import Gathered
from fedseed.federation.session import CoordinatorSettings
from fedseed.flower import wire
from fedseed.flower.ledger import Ledger
from fedseed.flower.members import Members
from fedseed.flower.post import Post, Reply
from fedseed.methods.content import Content
from fedseed.reports.memory import resident_memory
from fedseed.reports.progress import Progress
from fedseed.reports.results import RoundLine
from fedseed.runs.folder import RunFolder
from fedseed.runs.loop import Backend
from fedseed.runs.recipe import Recipe
from fedseed.runs.roster import ROSTER_FILE, check_counts, names_beforehand, read_names, write_names
from fedseed.runs.spec import RunSpec
from fedseed.text import shown

MOST_FAILED = 3  # attempts at a round in a row to which no node had an answer
MOST_TURNS = 3  # of one question to a node that lacks steps
PAUSE_SECONDS = 0.5


class FlowerBackend(Backend):
    """It is there once the nodes are that the recipe asks for.

    Args:
        recipe: the recipe.
        grid: Flower's.
        out: folder for the run's files.
        progress: shows the run going on.

    Raises:
        FedseedError: the recipe can't be, or no node fits.
    """

    def __init__(self, recipe: Recipe, grid: Any, out: Path, progress: Progress) -> None:
        self.progress = progress
        self.spec = RunSpec.over_network(recipe, out)
        self._asks = _settings(recipe, out)
        self._post = Post(grid)
        if recipe.secure_sums is not None:
            raise RecipeError(
                "secure_sums: not over Flower, whose nodes say nothing between a plan and an update; `fedseed run` and "
                "`fedseed serve` have them"
            )
        if recipe.method.remembers:
            raise RecipeError(
                f"method {recipe.method.name}: a client remembers what it has not sent yet, and nodes of Flower keep "
                "nothing from round to round: set method.feedback = 0"
            )
        self._members = Members(self._post, recipe.method, recipe.seed, self._asks, progress)
        self.header = self._members.assemble()
        self.names = self._members.names
        if self._asks.enrols:
            out.mkdir(parents=True, exist_ok=True)
            write_names(out / ROSTER_FILE, self.names)
        self._asks.check(len(self.names))
        examples = [self._members.examples.get(name, 0) for name in self.names]
        per_round = recipe.federation.count(len(self.names))
        if not 1 <= per_round <= len(self.names):
            raise RecipeError(f"federation.per_round = {per_round}: there are {len(self.names)} clients")
        try:
            self.coordinator = Coordinator(
                recipe.method, self.header.layout, recipe.seed, examples, per_round, recipe.aggregation, recipe.bounds
            )
        except ValueError as error:
            raise RecipeError(str(error)) from error
        self._members.joined = self._weigh
        if recipe.attack is not None:
            count = len(self.names)
            self.spec = replace(self.spec, attackers=range(count - recipe.attack.clients, count))
        self._ledger: Ledger | None = None
        self._repeated = 0
        self._drifted: set[str] = set()
        self._phases = Phases()

    def _weigh(self, name: str, examples: int) -> None:
        """A client has come after the start: so many examples it has."""
        self.coordinator.examples[list(self.names).index(name)] = examples

    @property
    def ledger(self) -> Ledger:
        """The steps, once the run is taken up."""
        assert self._ledger is not None
        return self._ledger

    def restore(self, folder: RunFolder) -> tuple[int, list[Content]]:
        """Take up what is in the folder; the nodes are sent it with the first plan."""
        self._ledger = Ledger(folder, self.header, self.coordinator)
        contents = self._ledger.restore(self.progress.warn)
        if not self._ledger.at:
            self.coordinator.take_base(lambda: self._members.weights(self.header.layout.dense_bytes))
        return self._ledger.at, contents

    # -- asking nodes ------------------------------------------------------------------------------------------------

    def _ask(
        self, what: str, bodies: Mapping[int, Mapping[str, Any]], number: int, take: Callable[[int, Reply], None]
    ) -> None:
        """Ask nodes something for which they need the newest weights; those that lack steps are sent them.

        Args:
            what: Flower's message type.
            bodies: what each node is asked.
            number: the round.
            take: is given each node's answer as it comes.
        """
        left, here, end = dict(bodies), self._members.here(), time.monotonic() + self._asks.deadline
        for _ in range(MOST_TURNS):
            sent = {}
            for node, body in left.items():
                since = 0 if here[node].anew else min(here[node].at, self.ledger.at)
                steps = wire.pack(self.ledger.since(since))
                sent[node] = {**body, "since": since, "at": self.ledger.at, "steps": steps, "anew": here[node].anew}
            left = {}
            for node, reply in self._post.ask(what, sent, str(number), max(end - time.monotonic(), 1.0)):
                table = reply.table
                if table is not None:
                    here[node].at, here[node].anew = int(table["at"]), False
                if table is not None and table.get("behind"):
                    left[node] = bodies[node]
                else:
                    take(node, reply)
            if not left:
                return
        for node in left:
            take(node, Reply(None, f"it still lacks steps after {MOST_TURNS} messages"))

    # -- a round -----------------------------------------------------------------------------------------------------

    def gather(self, number: int) -> Gathered:
        """Open a round, as often as it takes, and gather what counts."""
        attempt = 0
        while True:
            clients = self.coordinator.open(number, attempt, self._enough().keys())
            gathered, reasons = self._attempt(number, clients)
            outliers = self.coordinator.screen()
            for client, why in outliers.items():
                gathered.refused += 1
                reasons[client] = ("refused", f"refused: {why}")
            silent = [client for client, (kind, _) in reasons.items() if kind == "silent"]
            if len(self.coordinator.answered) + len(silent) + len(outliers) >= self._asks.minimum:
                break
            attempt += 1
            self._repeated += 1
            answered = len(self.coordinator.answered)
            why = next((reason for _, reason in reasons.values()), "nobody answers")
            self.progress.warn(
                f"round {number}: {answered} answers, {self._asks.minimum} are needed: it is begun again ({why})"
            )
            if attempt >= MOST_FAILED and not answered:
                raise FedseedError(f"round {number}: no node answers, {attempt} times over; the first says: {why}")
        for client, (_, reason) in sorted(reasons.items()):
            gathered.skipped.append((client, reason))
            if self.coordinator.examples[client]:  # of those without an example a note says so
                self.progress.warn(f"round {number}: nothing of {self.names[client]} counts: {reason}")
        return gathered

    def _enough(self) -> dict[int, int]:
        """Wait until enough clients are there for a round; their numbers, each with its node."""
        told = False
        while True:
            self._members.meet()
            here = self._members.present()
            if len(here) >= self._asks.minimum:
                return here
            if not told:
                self.progress.warn(f"{len(here)} clients are here, a round needs {self._asks.minimum}: waiting")
                told = True
            time.sleep(PAUSE_SECONDS)

    def _attempt(self, number: int, clients: list[int]) -> tuple[Gathered, dict[int, tuple[str, str]]]:
        """Send the plans and take the answers.

        Returns:
            What became of it, and why a client's update does not count: "silent" (it has none), or something else.
        """
        node_of, plans = self._members.present(), self.coordinator.plans()
        plan_of = {client: plan for plan, picked in plans.items() for client in picked}
        gathered = Gathered(clients, len(next(iter(plans))) - FRAME_BYTES)
        reasons: dict[int, tuple[str, str]] = {}
        theirs: dict[int, list[int]] = {}
        for client in clients:
            theirs.setdefault(node_of[client], []).append(client)

        def take(node: int, reply: Reply) -> None:
            if reply.table is None:
                reasons.update(dict.fromkeys(theirs[node], ("lost", reply.problem)))
                return
            try:
                self._receive(reply.table, theirs[node], gathered, reasons)
            except (KeyError, TypeError, ValueError) as error:
                reason = f"refused: not valid: {type(error).__name__}: {error}"
                reasons.update({c: ("refused", reason) for c in theirs[node] if c not in self.coordinator.answered})

        bodies = {}
        for node, mine in theirs.items():
            different = list(dict.fromkeys(plan_of[client] for client in mine))
            which = [different.index(plan_of[client]) for client in mine]
            names = [self.names[client] for client in mine]
            bodies[node] = {"plans": different, "plan_of": which, "clients": names, "numbers": mine}
        self._ask("train", bodies, number, take)
        return gathered, reasons

    def _receive(
        self, table: wire.Table, clients: list[int], gathered: Gathered, reasons: dict[int, tuple[str, str]]
    ) -> None:
        """A node's updates for the clients that it was asked for."""
        for client, update, reason in zip(clients, table["updates"], table["reasons"], strict=True):
            if not update:
                reasons[client] = ("silent", shown(str(reason)))
                continue
            gathered.update_bytes.append(len(update) - FRAME_BYTES)
            try:
                self.coordinator.receive(update, client)
            except MessageError as error:
                gathered.refused += 1
                reasons[client] = ("refused", f"refused: {error}")
        spent = read_cost(read_json(table["spent"].encode()))
        self._phases.check(spent.seconds)
        gathered.spent.add(spent)

    def record(self, number: int, step: bytes, line: RoundLine, log: bool) -> None:
        """Keep the step: on disk at once, or with its digest if the nodes are asked for one."""
        self.ledger.record(number, step[FRAME_BYTES:], waits=log and self.spec.digests(number))

    # -- about the weights -------------------------------------------------------------------------------------------

    def examine(self, line: RoundLine, evaluate: bool) -> None:
        """Ask the nodes about their weights: all for the digest, and one, or each party, for an evaluation."""
        number = line.round
        digest = self.spec.digests(number)
        line.weights_digest = None
        if not (digest or evaluate):
            return
        reports: dict[int, wire.Table] = {}
        evaluated, bad = False, set[int]()  # nodes whose answers were refused
        while not reports or (evaluate and not evaluated):
            self._enough()
            here = self._members.here()
            number_of = {name: at for at, name in enumerate(self.names)}
            left = here.keys() - bad or here.keys()
            one = min(left, key=lambda node: min((number_of[name] for name in here[node].clients), default=1 << 32))
            asked = {
                node: {"digest": digest, "evaluate": evaluate and (self._asks.each_evaluates or node == one)}
                for node in here
            }
            reports = {}
            problems: list[str] = []

            def take(
                node: int, reply: Reply, reports: dict[int, wire.Table] = reports, problems: list[str] = problems
            ) -> None:
                if reply.table is None:
                    problems.append(reply.problem)
                    return
                try:
                    check_report(reply.table)
                    reports[node] = reply.table
                except (MessageError, KeyError, TypeError, ValueError, AttributeError) as error:
                    bad.add(node)
                    problems.append(f"refused: {shown(error)}")

            self._ask("evaluate", asked, number, take)
            evaluated = any(table["metrics"] for table in reports.values())
            for problem in problems:
                self.progress.warn(f"round {number}: a node does not report: {problem}")
            if len(problems) == len(asked):
                raise FedseedError(f"round {number}: no node reports; the first says: {problems[0]}")
        if digest:
            line.weights_digest = self._compare(number, reports)
            self.ledger.confirm(line.weights_digest)
        if evaluate:
            self._add_figures(line, reports)
        for table in reports.values():
            if "ratio" in table:
                line.metrics["step_over_weights"] = real(table["ratio"], "ratio")

    def _compare(self, number: int, reports: Mapping[int, wire.Table]) -> str:
        """The digest of most nodes; the others begin again from the base."""
        digests = {node: bytes.fromhex(table["digest"]).hex() for node, table in reports.items()}
        found = Counter(digests.values()).most_common(1)[0][0]
        here = self._members.here()
        drifted = [node for node, theirs in digests.items() if theirs != found]
        for node in drifted:
            here[node].anew = True
            self._drifted.update(here[node].clients)
        if drifted:
            names = [name for node in drifted for name in here[node].clients]
            self.progress.warn(f"round {number}: {listed(names)}: other weights; begun again from the base")
        return found

    def _add_figures(self, line: RoundLine, reports: Mapping[int, wire.Table]) -> None:
        """What was measured: by one for all, or by each party on its own and their mean."""
        measured = [table for table in reports.values() if table["metrics"]]
        if self._asks.each_evaluates:
            here = self._members.here()
            found = {
                name: read_figures(figures)
                for node, table in reports.items()
                for name, figures in read_json((table["by_client"] or "{}").encode()).items()
                if name in here[node].clients
            }
            line.by_client = {name: found[name] for name in self.names if name in found}
            line.metrics.update(averaged(line.by_client))
        else:
            line.metrics.update(read_metrics(read_json(measured[0]["metrics"].encode())))
        line.seconds["evaluation"] = max(read_seconds(table["seconds"], "seconds") for table in measured)

    # -- the end -----------------------------------------------------------------------------------------------------

    def complete(self) -> int | None:
        """End the files."""
        return self.ledger.complete()

    def release(self) -> None:
        """Close the files as they are."""
        if self._ledger is not None:
            self._ledger.release()

    def about(self) -> dict[str, Any]:
        """What Flower carried, and what went wrong."""
        post = self._post
        return {
            "peak_memory_bytes": resident_memory(peak=True),
            "flower": {"messages": post.messages, "bytes_down": post.bytes_down, "bytes_up": post.bytes_up},
            "repeated_rounds": self._repeated,
            "drifted": sorted(self._drifted),
        }


def _settings(recipe: Recipe, out: Path) -> CoordinatorSettings:
    """How the run deals with its clients, and who they are. Raises RecipeError."""
    wanted = recipe.federation
    enrolled = out / ROSTER_FILE  # by an earlier ServerApp of this run
    there = wanted.enrolment == "open" and enrolled.is_file()
    names = read_names(enrolled) if there else names_beforehand(recipe)
    return CoordinatorSettings(
        wanted.deadline, wanted.minimum, wanted.start_with, wanted.dead_after, wanted.base_digest,
        digest=recipe.model.digest,
        names=tuple(names or ()),
        enrols=wanted.enrolment == "open" and not there,
        each_evaluates=recipe.of_parties and not recipe.task.shares_evaluation,
        check=partial(check_counts, wanted),
    )  # fmt: skip


def check_report(table: wire.Table) -> None:
    """Whether what a node says about its weights can be used. Raises what a table of other types raises, too.

    Raises:
        MessageError: it is out of its bounds.
    """
    if table["metrics"]:
        read_metrics(read_json(table["metrics"].encode()))
    for figures in read_json((table["by_client"] or "{}").encode()).values():
        read_figures(figures)
    read_seconds(table["seconds"], "seconds")
    if "ratio" in table:
        real(table["ratio"], "ratio")
    bytes.fromhex(table["digest"])
