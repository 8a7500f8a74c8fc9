"""Answers what a client's process is asked: plans by updates, and questions by reports about the
weights.
"""

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fedseed.errors import FedseedError, MessageError, NetworkError
from fedseed.federation.accounts import charge, earlier_answer, turn_of
from fedseed.federation.control import Question, Report, read
from fedseed.federation.cost import Cost, rounding_warning
from fedseed.federation.hosted import Hosted
from fedseed.federation.large import about_of, carry, fetch
from fedseed.federation.messages import Message, MessageKind
from fedseed.federation.presence import Presence
from fedseed.federation.protocol import read_plan, silent_message
from fedseed.federation.replica import Replica
from fedseed.federation.worker import Answer
from fedseed.orbit import NO_DIGEST
from fedseed.privacy.account import Turn
from fedseed.privacy.settings import WITHHELD
from fedseed.reports.results import RoundLine

if TYPE_CHECKING:
    from fedseed.federation.secure import Masking

MOST_PLANS = 10_000  # that wait to be looked at


@dataclass
class Answers:
    """Takes plans and questions, and answers those that the weights are ready for."""

    replica: Replica
    presence: Presence  # knows whether the coordinator knows this process
    # what this process has measured, by round
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    _plans: deque[tuple[frozenset[int] | None, bytes]] = field(
        default_factory=lambda: deque(maxlen=MOST_PLANS)
    )
    _asks: deque[tuple[frozenset[int] | None, bytes]] = field(
        default_factory=lambda: deque(maxlen=MOST_PLANS)
    )
    _masking: "Masking | None" = None
    _question: Question | None = None
    # updates, or reasons for none, by client and, where its turns are counted, question
    _given: dict[tuple[int, str], bytes | str] = field(default_factory=dict)
    _report: dict[str, Any] | None = None
    _version: int = -1  # of the weights that updates and report are about

    def hear(self, data: bytes) -> None:
        """Take what a coordinator has broadcast, and pass over what is not valid."""
        kind, body = data[:1], data[1:]
        with suppress(MessageError):
            if kind == b"C":
                self.presence.called(body.decode("ascii", errors="replace"))
            elif kind == b"P":
                picked, carried = read_plan(body)
                number, _ = about_of(carried)
                # rounds of a log that was set back
                while self._plans and about_of(self._plans[-1][1])[0] > number:
                    self._plans.pop()
                self._plans.append((picked, carried))
            elif kind == b"K":
                self._asks.append(read_plan(body))
            elif kind == b"A":
                self._question = read(Question, body)  # an older one is not answered any more

    async def work(self) -> bool:
        """Do the next thing that there is to do; return whether there was any."""
        if self.replica.waits:
            await self.replica.advance()
            return True
        return await self.try_ask() or await self.try_plan() or await self.try_question()

    @property
    def asked(self) -> bool:
        """Return whether a plan or a question waits."""
        return bool(self._plans or self._question)

    @property
    def _ready(self) -> bool:
        return self.presence.welcome and self.replica.current

    def _forget_older(self) -> None:
        """Forget what was found out about earlier weights."""
        if self._version != self.replica.version:
            self._version, self._given, self._report = self.replica.version, {}, None

    @property
    def masking(self) -> "Masking | None":
        """Return the hosted clients' secrets, which outlast a reload of the weights.

        None: nothing is masked.
        """
        hosted, numbers = self.replica.hosted, self.replica.numbers
        if self._masking is None and hosted.secure is not None:
            from fedseed.federation.secure import Masking

            examples = {numbers[name]: len(items) for name, items in hosted.items.items()}
            own = {numbers[name]: key for name, key in hosted.identities.items()}
            folder, known = hosted.opened, hosted.secure.known(numbers)
            places = (
                {numbers[name]: folder / name for name in hosted.items}
                if folder is not None
                else {}
            )
            warn, method = self.replica.progress.warn, hosted.worker.method
            self._masking = Masking(hosted.secure, method, examples, warn, own, known, places)
            opened = max((client.opened for client in self._masking.clients.values()), default=0)
            if opened > self.replica.at + 1:
                raise FedseedError(
                    f"{folder}: round {opened} of a run of this name was opened here, and the log "
                    "is at "
                    f"{self.replica.at}: no round is opened twice. Choose another name (--run), or "
                    "delete these files"
                )
        return self._masking

    async def try_ask(self) -> bool:
        """Answer what is asked for a secure sum, once the steps before it are here.

        Returns whether it was answered.
        """
        if not self._asks or not self._ready:
            self._asks.clear()  # it comes again
            return False
        picked, ask = self._asks[0]
        if self.replica.hosted.secure is not None:
            from fedseed.federation.secure import answered, first_round

            if (first := first_round(ask)) is not None:
                if first > self.replica.at + 1:
                    return False
                _ = self.masking  # nobody has keys before these are asked for, after the last step
            for name in self.replica.hosted.items:
                number = self.replica.numbers[name]
                if picked is None or number in picked:
                    await self.replica.end.send(
                        name, "update", answered(self._masking, number, ask)
                    )
        if self._asks and self._asks[0] == (picked, ask):  # more may have come meanwhile
            self._asks.popleft()
        return True

    async def try_plan(self) -> bool:
        """Do what the oldest plan asks, if the steps before it are here.

        Returns whether anything was done.
        """
        if not self._plans:
            return False
        picked, carried = self._plans[0]
        hosted, numbers, work = self.replica.hosted, self.replica.numbers, None
        with suppress(MessageError):
            number, _ = about_of(carried)
            if number > self.replica.at + 1 or not self._ready:
                return False  # its steps have not come yet
            mine = [name for name in hosted.items if picked is None or numbers[name] in picked]
            if number == self.replica.at + 1 and mine:
                plan = await fetch(self.replica.end, carried, None)
                work = (
                    plan,
                    Message.decode(plan).expect(
                        MessageKind.PLAN, hosted.worker.method.code, number
                    ),
                    mine,
                )
        if work is not None:
            await self._answer(*work)
        # it may have come once more meanwhile
        self._plans = deque((plan for plan in self._plans if plan[1] != carried), MOST_PLANS)
        return True

    async def _answer(self, plan: bytes, about: Message, names: Sequence[str]) -> None:
        """Train for the clients that have not trained in this round yet, and send everybody's
        answer.
        """
        numbers = self.replica.numbers
        self._forget_older()
        hosted = self.replica.hosted
        # before anything is awaited: the weights may be others then, and they are part of what is
        # asked
        turns = (
            {name: turn_of(hosted, about, name, numbers[name]) for name in names}
            if hosted.accounts
            else {}
        )
        asked = {name: (numbers[name], turns[name].question if turns else "") for name in names}
        new = [name for name in names if asked[name] not in self._given]
        costs: list[Cost] = []
        if new:
            answers, costs = await self._train(about, plan, new, turns)
            self._given.update({asked[name]: answer for name, answer in answers.items()})
        for name in names:
            await self._send(name, self._given[asked[name]], about)
        for cost in costs:  # when the answers are on their way
            self.replica.spent.add(cost)
        if lossy := [cost for cost in costs if cost.movable_weights]:  # in the first round only
            moved = sum(cost.moved_weights / cost.movable_weights for cost in lossy) / len(lossy)
            self.replica.progress.warn(rounding_warning(moved))

    async def _train(
        self, about: Message, plan: bytes, names: Sequence[str], turns: Mapping[str, Turn]
    ) -> tuple[dict[str, bytes | str], list[Cost]]:
        """Compute what these clients answer, and count it.

        Args:
            about: the plan's message.
            plan: its bytes.
            names: the clients.
            turns: the turns that they are asked for, where these are counted.

        Returns:
            Updates, or reasons for none, by client; and what the work has cost.

        Raises:
            PrivacyError: a client's account allows no more.
        """
        hosted, numbers, thread = self.replica.hosted, self.replica.numbers, self.replica.thread
        answers: dict[str, Answer] = {}
        if turns:
            wanted = [turns[name] for name in names]
            answers = await thread.do(self._find_earlier, about, wanted, hosted, numbers)
        new = [name for name in names if name not in answers]
        computed: list[Answer] = []
        if new:
            computed = await thread.do(
                hosted.worker.train_all,
                [plan] * len(new),
                [numbers[name] for name in new],
                [hosted.items[name] for name in new],
            )
        for name, answer in zip(new, computed, strict=True):
            if name in turns:
                answers[name] = await thread.do(
                    charge, hosted.accounts, turns[name], answer, about, numbers[name]
                )
            else:
                answers[name] = answer
        given: dict[str, bytes | str] = {}
        for name, answer in answers.items():
            if answer.message is None:
                given[name] = str(answer.reason)
            elif numbers[name] in hosted.attackers and hosted.attack is not None:
                given[name] = hosted.worker.corrupt(answer.message, hosted.attack)
            else:
                given[name] = answer.message
        return given, [answer.spent for answer in computed]

    @staticmethod
    def _find_earlier(
        about: Message, turns: Iterable[Turn], hosted: Hosted, numbers: Mapping[str, int]
    ) -> dict[str, Answer]:
        """Return what clients have answered to the same questions before.

        Raises PrivacyError: one has not, and its account allows no more.
        """
        found: dict[str, Answer] = {}
        for turn in turns:
            answer = earlier_answer(hosted.accounts, turn, about, numbers[turn.client])
            if answer is not None:
                found[turn.client] = answer
        return found

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
            # a coordinator that was started again counts attempts anew
            if message.attempt != plan.attempt:
                answer = replace(message, attempt=plan.attempt).encode()
        if isinstance(answer, str):
            await self.replica.end.send(
                name, "update", silent_message(plan.round, plan.attempt, answer)
            )
            return
        try:
            if len(answer) > self.replica.end.largest and not await self.presence.ask_for_blobs():
                return  # the plan comes again
            carried = await carry(
                self.replica.end, answer, f"update-{plan.round}-{plan.attempt}-{number}"
            )
        except NetworkError as error:
            self.replica.progress.warn(f"the update of {name} can't be sent now: {error}")
            return
        await self.replica.end.send(name, "update", carried)

    async def try_question(self) -> bool:
        """Report on the weights, if they are those that are asked about.

        Returns whether anything was done.
        """
        asked = self._question
        if (
            asked is None
            or asked.round > self.replica.at
            or (asked.round == self.replica.at and not self._ready)
        ):
            return False
        self._question = None
        if asked.round < self.replica.at:
            return True
        self._forget_older()
        # a digest, if it is wanted, and what the work since the last one has cost
        if self._report is None:
            space, ratio = self.replica.hosted.worker.space, None
            digest = await self.replica.digest() if asked.digest else NO_DIGEST
            if (norm := self.replica.norm) is not None:
                ratio = norm / max(await self.replica.thread.do(space.norm), 1e-30)
            done, self.replica.spent = self.replica.spent, Cost()
            self._report = {
                "round": asked.round,
                "digest": digest,
                "spent": done,
                "ratio": ratio,
                "metrics": None,
            }
        if asked.evaluate in (self.replica.hosted.host, True) and self._report["metrics"] is None:
            await self._evaluate(self._report)
        await self.presence.say(Report, **self._report)
        return True

    async def _evaluate(self, report: dict[str, Any]) -> None:
        start, model = time.perf_counter(), self.replica.hosted.worker.space.model
        model.eval()
        found = await self.replica.thread.do(self.replica.hosted.evaluate, model)
        self.evaluations.append({"round": report["round"], **found})
        metrics = {name: value for name, value in found.items() if name != "by_client"}
        report.update(
            metrics=metrics, by_client=found.get("by_client"), seconds=time.perf_counter() - start
        )
        self.replica.progress.round(RoundLine(report["round"], metrics=metrics))
