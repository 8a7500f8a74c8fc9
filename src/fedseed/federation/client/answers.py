"""Answers the coordinator: plans with updates, and questions about the weights with reports."""

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedseed.errors import FedseedError, MessageError, NetworkError
from fedseed.federation.client.accounts import charge, earlier_answer, turn_of
from fedseed.federation.client.heartbeat import Presence
from fedseed.federation.client.replica import Replica
from fedseed.federation.client.state import Hosted
from fedseed.federation.client.worker import Answer
from fedseed.federation.control import Question, Report, parse_control
from fedseed.federation.cost import Cost, rounding_warning
from fedseed.federation.large import carry, fetch, round_and_attempt
from fedseed.federation.messages import Message, MessageKind
from fedseed.federation.protocol import read_plan, silent_message
from fedseed.orbit import NO_DIGEST
from fedseed.privacy.account import Turn
from fedseed.privacy.settings import WITHHELD
from fedseed.reports.progress import LastingTroubles
from fedseed.reports.results import RoundLine

if TYPE_CHECKING:
    from fedseed.federation.client.secure import Masking

MOST_PLANS = 10_000  # the most plans that wait


@dataclass
class Responder:
    """Takes plans and questions, and answers them when the weights are ready."""

    replica: Replica
    presence: Presence  # knows whether the coordinator has welcomed this process
    # this process's measurements, by round
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    # costs of the local training of this process's clients, over all rounds
    training: Cost = field(default_factory=Cost)
    _plans: deque[tuple[frozenset[int] | None, bytes]] = field(
        default_factory=lambda: deque(maxlen=MOST_PLANS)
    )
    _asks: deque[tuple[frozenset[int] | None, bytes]] = field(
        default_factory=lambda: deque(maxlen=MOST_PLANS)
    )
    _masking: "Masking | None" = None
    _question: Question | None = None
    # by client and, if turns are counted, question: the update, or the reason for sending none
    _updates: dict[tuple[int, str], bytes | str] = field(default_factory=dict)
    _report: dict[str, Any] | None = None
    _version: int = -1  # version of the weights that `_updates` and `_report` belong to
    _troubles: LastingTroubles = field(init=False)

    def __post_init__(self) -> None:
        self._troubles = LastingTroubles(lambda text: self.replica.progress.warn(text))

    def hear(self, data: bytes) -> None:
        """Take a coordinator's broadcast; ignore one that is not valid."""
        kind, body = data[:1], data[1:]
        with suppress(MessageError):
            if kind == b"C":
                self.presence.called(body.decode("ascii", errors="replace"))
            elif kind == b"P":
                clients, plan = read_plan(body)
                number, _ = round_and_attempt(plan)
                # the log was set back, so plans of its later rounds are outdated
                while self._plans and round_and_attempt(self._plans[-1][1])[0] > number:
                    self._plans.pop()
                self._plans.append((clients, plan))
            elif kind == b"K":
                self._asks.append(read_plan(body))
            elif kind == b"A":
                # a newer question replaces an older one
                self._question = parse_control(Question, body)

    async def work(self) -> bool:
        """Do the next piece of work; return whether there was any."""
        if self.replica.waits:
            await self.replica.advance()
            return True
        return await self.try_ask() or await self.try_plan() or await self.try_question()

    @property
    def has_request(self) -> bool:
        """Whether a plan or question waits for an answer."""
        return bool(self._plans or self._question)

    @property
    def _ready(self) -> bool:
        return self.presence.welcome and self.replica.has_header and self.replica.current

    def _forget_older(self) -> None:
        """Forget results that belong to earlier weights."""
        if self._version != self.replica.version:
            self._version = self.replica.version
            self._updates = {}
            self._report = None

    @property
    def masking(self) -> "Masking | None":
        """Return the hosted clients' secrets, which are kept when the weights are loaded again.

        None if the run has no secure sums.
        """
        hosted, numbers = self.replica.hosted, self.replica.numbers
        if self._masking is None and hosted.secure is not None:
            from fedseed.federation.client.secure import Masking

            examples = {numbers[name]: len(items) for name, items in hosted.items.items()}
            identities = {numbers[name]: key for name, key in hosted.identities.items()}
            folder, public_keys = hosted.opened, hosted.secure.public_keys(numbers)
            round_files: dict[int, Path] = {}
            if folder is not None:
                round_files = {numbers[name]: folder / name for name in hosted.items}
            self._masking = Masking(
                hosted.secure,
                hosted.worker.method,
                examples,
                self.replica.progress.warn,
                identities,
                public_keys,
                round_files,
            )
            opened = max((client.opened for client in self._masking.clients.values()), default=0)
            if opened > self.replica.at + 1:
                raise FedseedError(
                    f"{folder}: round {opened} of a run of this name was opened here before, but "
                    f"the log is only at {self.replica.at}, and no round may be opened twice. "
                    "Choose another name (--run), or delete these files"
                )
        return self._masking

    async def try_ask(self) -> bool:
        """Answer the oldest ask of secure sums, when all steps before it have been applied.

        Returns whether it was answered.
        """
        if not self._asks or not self._ready:
            self._asks.clear()  # the coordinator repeats them
            return False
        clients, ask = self._asks[0]
        if self.replica.hosted.secure is not None:
            from fedseed.federation.client.secure import answer_ask, first_round

            first = first_round(ask)
            if first is not None:
                if first > self.replica.at + 1:
                    return False
                # make the keys only now: after the last step, but before they are needed
                _ = self.masking
            for name in self.replica.hosted.items:
                number = self.replica.numbers[name]
                if clients is None or number in clients:
                    await self.replica.end.send(
                        name, "update", answer_ask(self._masking, number, ask)
                    )
        if self._asks and self._asks[0] == (clients, ask):  # other asks may have come meanwhile
            self._asks.popleft()
        return True

    async def try_plan(self) -> bool:
        """Train for the oldest plan, if all steps before it have been applied.

        Returns whether the plan is finished.
        """
        if not self._plans:
            return False
        clients, carried = self._plans[0]
        hosted, numbers = self.replica.hosted, self.replica.numbers
        request: tuple[bytes, Message] | None = None
        chosen_names: list[str] = []
        with suppress(MessageError):
            number, _ = round_and_attempt(carried)
            if number > self.replica.at + 1 or not self._ready:
                return False  # earlier steps have not come yet
            chosen_names = [
                name for name in hosted.items if clients is None or numbers[name] in clients
            ]
            if number == self.replica.at + 1 and chosen_names:
                plan = await fetch(self.replica.end, carried, None)
                code = hosted.worker.method.code
                request = plan, Message.decode(plan).expect(MessageKind.PLAN, code, number)
        if request is not None:
            await self._answer(*request, chosen_names)
        # the same plan may have come again meanwhile
        self._plans = deque((plan for plan in self._plans if plan[1] != carried), MOST_PLANS)
        return True

    async def _answer(self, plan: bytes, message: Message, names: Sequence[str]) -> None:
        """Send every client's update; train first for those without one in this round."""
        numbers = self.replica.numbers
        self._forget_older()
        hosted = self.replica.hosted
        # compute the turns before the first await, because they depend on the weights, which may
        # change later
        turns: dict[str, Turn] = {}
        if hosted.accounts:
            turns = {name: turn_of(hosted, message, name, numbers[name]) for name in names}
        keys = {name: (numbers[name], turns[name].question if turns else "") for name in names}
        unanswered = [name for name in names if keys[name] not in self._updates]
        costs: list[Cost] = []
        if unanswered:
            answers, costs = await self._train(message, plan, unanswered, turns)
            self._updates.update({keys[name]: answer for name, answer in answers.items()})
        for name in names:
            await self._send(name, self._updates[keys[name]], message)
        for cost in costs:  # counted when the answers have been sent
            self.replica.spent.add(cost)
            self.training.add(cost)
        # report it only in the first round
        lossy_costs = [cost for cost in costs if cost.movable_weights]
        if lossy_costs:
            shares = [cost.moved_weights / cost.movable_weights for cost in lossy_costs]
            self.replica.progress.warn(rounding_warning(sum(shares) / len(shares)))

    async def _train(
        self, message: Message, plan: bytes, names: Sequence[str], turns: Mapping[str, Turn]
    ) -> tuple[dict[str, bytes | str], list[Cost]]:
        """Compute these clients' updates, and count them in their accounts.

        Args:
            message: the plan's message.
            plan: the bytes of that message.
            names: the clients' names.
            turns: the clients' turns, if turns are counted.

        Returns:
            Updates, or reasons for sending none, by client; and the cost of the work.

        Raises:
            PrivacyError: a client's account does not allow another answer.
        """
        hosted, numbers, thread = self.replica.hosted, self.replica.numbers, self.replica.thread
        answers: dict[str, Answer] = {}
        if turns:
            needed_turns = [turns[name] for name in names]
            answers = await thread.run(self._find_earlier, message, needed_turns, hosted, numbers)
        untrained = [name for name in names if name not in answers]
        computed: list[Answer] = []
        if untrained:
            computed = await thread.run(
                hosted.worker.train_all,
                [plan] * len(untrained),
                [numbers[name] for name in untrained],
                [hosted.items[name] for name in untrained],
            )
        for name, answer in zip(untrained, computed, strict=True):
            if name in turns:
                answers[name] = await thread.run(
                    charge, hosted.accounts, turns[name], answer, message, numbers[name]
                )
            else:
                answers[name] = answer
        updates: dict[str, bytes | str] = {}
        for name, answer in answers.items():
            if answer.message is None:
                updates[name] = str(answer.reason)
            elif numbers[name] in hosted.attackers and hosted.attack is not None:
                updates[name] = hosted.worker.corrupt(answer.message, hosted.attack)
            else:
                updates[name] = answer.message
        return updates, [answer.spent for answer in computed]

    @staticmethod
    def _find_earlier(
        message: Message, turns: Iterable[Turn], hosted: Hosted, numbers: Mapping[str, int]
    ) -> dict[str, Answer]:
        """Return the clients' earlier answers to the same questions.

        Raises PrivacyError if a client has no earlier answer and its account does not allow a new
        one.
        """
        answers: dict[str, Answer] = {}
        for turn in turns:
            answer = earlier_answer(hosted.accounts, turn, message, numbers[turn.client])
            if answer is not None:
                answers[turn.client] = answer
        return answers

    async def _send(self, name: str, answer: bytes | str, plan: Message) -> None:
        number = self.replica.numbers[name]
        if self.masking is not None:
            update = None if isinstance(answer, str) else answer
            try:
                answer = self.masking.update(self.replica.hosted.worker.state, plan, number, update)
            except MessageError as error:
                self.replica.progress.warn(f"{name} sends nothing: {error}")
                answer = WITHHELD
        elif not isinstance(answer, str):
            message = Message.decode(answer)
            # a restarted coordinator counts attempts from 0 again
            if message.attempt != plan.attempt:
                answer = replace(message, attempt=plan.attempt).encode()
        if isinstance(answer, str):
            await self.replica.end.send(
                name, "update", silent_message(plan.round, plan.attempt, answer)
            )
            return
        try:
            if len(answer) > self.replica.end.largest and not await self.presence.ask_for_blobs():
                return  # the coordinator sends the plan again
            carried = await carry(
                self.replica.end, answer, f"update-{plan.round}-{plan.attempt}-{number}"
            )
        except NetworkError as error:
            self._troubles.report(name, f"the update of {name} can't be sent now: {error}")
            return
        await self.replica.end.send(name, "update", carried)

    async def try_question(self) -> bool:
        """Report on the weights, when they have reached the round of the question.

        Returns whether the question is finished.
        """
        question = self._question
        if (
            question is None
            or question.round > self.replica.at
            or (question.round == self.replica.at and not self._ready)
        ):
            return False
        self._question = None
        if question.round < self.replica.at:
            return True
        self._forget_older()
        # the report: the digest if it is needed, and the cost of the work since the last report
        if self._report is None:
            space = self.replica.hosted.worker.space
            ratio = None
            digest = await self.replica.digest() if question.digest else NO_DIGEST
            norm = self.replica.norm
            if norm is not None:
                ratio = norm / max(await self.replica.thread.run(space.norm), 1e-30)
            spent, self.replica.spent = self.replica.spent, Cost()
            self._report = {
                "round": question.round,
                "digest": digest,
                "spent": spent,
                "ratio": ratio,
                "metrics": None,
            }
        is_evaluator = question.evaluate in (self.replica.hosted.host, True)
        if is_evaluator and self._report["metrics"] is None:
            await self._evaluate(self._report)
        await self.presence.say(Report, **self._report)
        return True

    async def _evaluate(self, report: dict[str, Any]) -> None:
        start, model = time.perf_counter(), self.replica.hosted.worker.space.model
        model.eval()
        measured = await self.replica.thread.run(self.replica.hosted.evaluate, model)
        self.evaluations.append({"round": report["round"], **measured})
        metrics = {name: value for name, value in measured.items() if name != "by_client"}
        report.update(
            metrics=metrics,
            by_client=measured.get("by_client"),
            seconds=time.perf_counter() - start,
        )
        self.replica.progress.round(RoundLine(report["round"], metrics=metrics))
