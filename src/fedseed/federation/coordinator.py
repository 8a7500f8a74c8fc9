"""The coordinator: picks clients, plans, checks and combines answers.

It holds no model and imports no torch.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedseed.aggregation import AggregationRule, Mean
from fedseed.aggregation.base import Past, claims, shares
from fedseed.errors import MessageError
from fedseed.federation.bounds import Bounds, LastSteps, too_far
from fedseed.federation.messages import EVERYBODY, Message, MessageKind
from fedseed.methods import Method
from fedseed.methods.base import Answer, Answers
from fedseed.methods.base import Round as PlannedRound
from fedseed.methods.payload import About, Content, Payload, State
from fedseed.privacy import misfit, protection_of
from fedseed.randomness import Domain, permutation
from fedseed.weights.layout import Layout

SIZES = "bounds.sizes"  # of the last steps, in what is kept besides the steps
OUTCOME = "aggregation.outcome."  # the last one, part by part, where the rule remembers it


@dataclass
class Round:
    """One round while it is open."""

    number: int
    clients: list[int]  # in ascending order
    attempt: int = 0
    updates: dict[int, Any] = field(default_factory=dict)
    planned: Content = field(default_factory=Content)  # of a plan
    received: dict[int, Content] = field(default_factory=dict)  # of each update that counts
    # the same updates', as they say themselves
    sizes: dict[int, float] = field(default_factory=dict)
    # what each that counts claims to weigh, from `screen` on
    said: dict[int, int] = field(default_factory=dict)
    # whose updates were out of all proportion, once that was looked at
    outliers: dict[int, str] | None = None


class Coordinator:
    """The coordinator's side of a federation.

    Args:
        method: the method and its settings.
        layout: the parameter space's layout.
        seed: the run's seed.
        examples: how many training examples each client has; its length is the number of clients.
        per_round: how many clients take part in a round.
        aggregation: how vectors of the clients become one; None: the weighted mean.
        bounds: how far from the others a client, or a step, may be; None: as by default.

    Raises ValueError: the settings do not fit the layout, the rule does not fit the method, or
    needs more clients.
    """

    # whether it learns sums of answers alone (`fedseed.federation.secure`)
    sums: ClassVar[bool] = False

    def __init__(
        self,
        method: Method,
        layout: Layout,
        seed: int,
        examples: Sequence[int],
        per_round: int,
        aggregation: AggregationRule | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        self.method = method
        self.protection = protection_of(method)
        self.examples = list(examples)
        self.per_round = per_round
        self.aggregation = aggregation or Mean()
        if problem := misfit(method, self.aggregation, per_round):
            raise ValueError(problem)
        self.state = method.start(layout, seed)
        # that were made, counted here: what privacy they have spent hangs on nothing else
        self.steps = 0
        # of each client in them, where that is counted
        self._turns = np.zeros(len(self.examples), dtype=np.int64)
        self.untaken: str | None = None  # why the last round's step was not taken
        self.bounds = bounds or Bounds()
        self._steps = LastSteps(self.bounds)
        # of the last round that had one, if the rule remembers it
        self._outcome: Sequence[NDArray[Any]] | None = None
        self._open: Round | None = None
        self.closed = Content()  # of the last round's step
        self.closed_payload = b""  # that step's bytes, without the frame

    def open(
        self, number: int, attempt: int = 0, alive: Collection[int] | None = None
    ) -> list[int]:
        """Begin a round, or begin it again: what has come for an earlier attempt is dropped.

        Args:
            number: the round.
            attempt: how often it was begun before.
            alive: the clients that can be reached; None: all.

        Returns:
            The clients that take part, in ascending order.
        """
        clients = self.sampled(number, alive)
        self._open = Round(number, clients, attempt)
        return clients

    def sampled(self, number: int, alive: Collection[int] | None = None) -> list[int]:
        """Return the clients that take part in a round, whether it was, is or will be.

        (seed, round) put all clients in an order; the first ones that are alive take part. So who
        is drawn does not depend on who of the others can be reached. Where turns are counted nobody
        takes the place of one who can't be: each client's number of turns is known beforehand.
        """
        if self.per_round >= len(self.examples):  # whatever the order
            return [i for i in range(len(self.examples)) if alive is None or i in alive]
        order = (
            int(i)
            for i in permutation(self.state.seed, Domain.SAMPLING, len(self.examples), number)
        )
        if self.by_turns:
            return sorted(i for i in list(order)[: self.per_round] if alive is None or i in alive)
        return sorted([i for i in order if alive is None or i in alive][: self.per_round])

    @property
    def by_turns(self) -> bool:
        """Return whether privacy is accounted for by each client's turns."""
        return self.protection is not None and bool(self.protection.mechanism.by_turns)

    @property
    def counted(self) -> int:
        """Return what privacy is accounted by: steps, or the turns of the client that had most."""
        return int(self._turns.max(initial=0)) if self.by_turns else self.steps

    def last_round(self, rounds: int) -> int:
        """Return the last of so many rounds that privacy's budget allows.

        It is the same whenever it is asked for.
        """
        if self.protection is None or not self.by_turns:
            return rounds
        turns, most_turns = np.zeros_like(self._turns), np.zeros(rounds, dtype=np.int64)
        for number in range(1, rounds + 1):
            self._add_turns(turns, number)
            most_turns[number - 1] = turns.max()
        mechanism = self.protection.mechanism
        # mostly all are within it; how many more would be takes forty such counts
        if mechanism.within_budget(int(most_turns.max(initial=0))):
            return rounds
        most = mechanism.affordable
        return rounds if most is None else int(np.searchsorted(most_turns, most, side="right"))

    def _add_turns(self, turns: NDArray[np.int64], number: int) -> None:
        if self.per_round >= len(turns):
            turns += 1
        else:
            turns[self.sampled(number)] += 1

    def _advance(self, step: Payload) -> None:
        self.state = self.method.advance(self.state, step)
        self.steps += 1
        if self.by_turns:
            self._add_turns(self._turns, self.steps)

    @property
    def private(self) -> bool:
        """Return whether nothing is told of single clients but what the method sends."""
        return self.sums or self.protection is not None

    @property
    def current(self) -> Round:
        """Return the open round. Raises RuntimeError if there is none."""
        if self._open is None:
            raise RuntimeError("no round is open")
        return self._open

    def plan(self, client: int) -> bytes:
        """Return the message, addressed to everybody, that asks a client to take part in the open
        round.
        """
        current = self.current
        plan = self.method.plan(self.state, PlannedRound(current.number, client, current.clients))
        payload = plan.encode()
        current.planned = plan.content(self.state.layout.size, payload)
        return Message(
            MessageKind.PLAN, self.method.code, current.number, EVERYBODY, payload, current.attempt
        ).encode()

    def plans(self) -> dict[bytes, list[int]]:
        """Return the open round's plans, each with the clients it is for: mostly one for all."""
        clients = self.current.clients
        if clients and not self.method.personal_plans:
            return {self.plan(clients[0]): list(clients)}
        found: dict[bytes, list[int]] = {}
        for client in clients:
            found.setdefault(self.plan(client), []).append(client)
        return found

    def receive(self, data: bytes, sender: int) -> None:
        """Take a client's update; a refused one changes nothing.

        Raises MessageError: refused, and why.

        Args:
            data: the message.
            sender: who sent it, as the transport knows it.
        """
        current = self.current
        message = Message.decode(data).expect(MessageKind.UPDATE, self.method.code, current.number)
        if message.client != sender:
            raise MessageError(
                f"client {sender} sent an update in the name of client {message.client}"
            )
        if message.attempt != current.attempt:
            raise MessageError(
                f"attempt {current.attempt} is open, this answers attempt {message.attempt}"
            )
        at = bisect_left(current.clients, sender)
        if current.clients[at : at + 1] != [sender]:
            raise MessageError(f"client {sender} takes no part in round {current.number}")
        if sender in current.updates:
            raise MessageError(f"client {sender} has answered round {current.number} already")
        if current.outliers is not None:
            raise MessageError(f"round {current.number} is being closed")
        update, size = self._read(current, message.payload)
        current.received[sender] = update.content(self.state.layout.size, message.payload)
        current.updates[sender], current.sizes[sender] = update, size

    def _read(self, current: Round, data: bytes) -> tuple[Any, float]:
        """Return an update and its size. Raises MessageError."""
        update = self.method.decode_update(self.state, current.number, data)
        return update, update.size(About(self.method, self.state, "update", current.number))

    def screen(self) -> dict[int, str]:
        """Refuse the updates that are out of all proportion, once all have come.

        Returns whose, and why, also again.
        """
        current = self.current
        if current.outliers is None:
            clients = sorted(current.updates)
            updates = [current.updates[client] for client in clients]
            # of their losses
            terms = [getattr(u, u.weight_terms) if u.weight_terms else 0 for u in updates]
            examples = [self.examples[client] for client in clients]
            current.said = dict(
                zip(clients, claims(self.method.weighting, examples, terms), strict=True)
            )
            # by itself: none decides of another's
            bounded = self.protection is not None and self.protection.bounds
            current.outliers = {} if bounded else self.bounds.outliers(current.sizes, current.said)
            for client in current.outliers:
                del current.updates[client], current.received[client], current.sizes[client]
        return current.outliers

    def close(self) -> bytes:
        """End the round: combine the answers into a step, for everybody.

        `untaken` says if it is an empty one instead.

        A step that is not finite, out of all proportion to those before, or of fewer answers than
        the rule needs is not taken: nothing is remembered of the round's answers, as if nobody had
        answered.
        """
        current = self.current
        self.screen()
        self.untaken = None
        answers = self.weighted_answers()
        if answers:
            self.untaken = self.aggregation.shortage(len(answers))
        if self.untaken is not None:
            answers = replace(answers, answers=())
        if self.protection is not None:
            answers = self.protection.combined(self.state, answers, len(current.clients))
        try:
            self.state, payload, step, size = self._step(answers)
        except MessageError as error:
            if not answers:
                raise
            self.untaken = str(error)
            self.state, payload, step, size = self._step(replace(answers, answers=()))
        else:
            if answers and self.keeps_outcomes:
                self._outcome = answers.past.next
        self._steps.take(size)
        self.closed = step.content(self.state.layout.size, payload)
        self.closed_payload = payload
        self._advance(step)
        self._open = None
        return Message(
            MessageKind.STEP, self.method.code, current.number, EVERYBODY, payload
        ).encode()

    def _step(self, answers: Answers) -> tuple[State, bytes, Payload, float]:
        """Return the state after answers, the step's bytes and content, its size.

        Raises MessageError: it can't be.
        """
        with np.errstate(all="ignore"):  # what is not finite is found below
            state: State = self.method.remember(self.state, answers)
            payload = self.method.aggregate(state, answers).encode()
        # go on from the encoded step: the coordinator knows exactly what everybody else will read
        step: Payload = self.method.decode_step(state, payload)
        if not answers:
            return state, payload, step, 0.0
        for name, kept in state.state_dict().items():
            if not np.isfinite(kept).all():
                raise MessageError(
                    f"what the server's optimiser keeps ({name}) would not be finite"
                )
        # as large as the largest update: Adam's steps are all of one size
        if self.method.catch_up.replaces:
            size = max(self.current.sizes[answer.client] for answer in answers)
        else:
            size = step.size(About(self.method, state, "step"))
        if problem := self._steps.problem(size) or too_far(
            self.method.change(state, step), state.layout
        ):
            raise MessageError(problem)
        return state, payload, step, size

    def weighted_answers(self) -> Answers:
        """Return the open round's answers, once it was screened, with the clients' weights."""
        current = self.current
        clients = sorted(current.updates)
        # as they were screened, whatever was said since
        weights = shares([current.said[client] for client in clients])
        answers = tuple(
            Answer(c, w, current.updates[c]) for c, w in zip(clients, weights, strict=True)
        )
        past = Past(self.state.seed, current.number, self._outcome if self.keeps_outcomes else None)
        return Answers(current.number, answers, self.aggregation, past)

    def catch_up(self, payloads: Iterable[bytes]) -> list[Content]:
        """Go on after earlier steps, as an orbit holds them; return what each holds.

        Raises MessageError.
        """
        contents = []
        for payload in payloads:
            step = self.method.decode_step(self.state, payload)
            contents.append(step.content(self.state.layout.size, payload))
            # whole weights do not say how large the steps to them were
            if not self.method.catch_up.replaces:
                self._steps.take(step.size(About(self.method, self.state, "step")))
            self._advance(step)
        return contents

    @property
    def weights(self) -> bytes | None:
        """Return the trainable tensors' bytes, where the method's steps are whole weights and one
        is known.
        """
        held = getattr(self.state, "weights", None)
        return None if held is None else held.data

    @weights.setter
    def weights(self, data: bytes) -> None:
        """Take the base's weights, with which a method whose steps replace each other begins.

        Raises MessageError.
        """
        self.state = self.method.advance(self.state, self.method.decode_step(self.state, data))

    @property
    def keeps_outcomes(self) -> bool:
        """Return whether it remembers what no step says: the rule's last outcome."""
        return self.aggregation.remembers and self.method.lasting_entries

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return what the coordinator remembers besides the steps, as arrays by name.

        Most methods have nothing.
        """
        arrays: dict[str, NDArray[Any]] = self.state.state_dict()
        if self.method.catch_up.replaces:
            arrays = {**arrays, SIZES: self._steps.sizes}
        return {**arrays, **{f"{OUTCOME}{at}": part for at, part in enumerate(self._outcome or ())}}

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take up what `state_dict` gave. Raises LookupError or ValueError if it does not fit."""
        parts = sorted(
            (int(name.removeprefix(OUTCOME)), name) for name in arrays if name.startswith(OUTCOME)
        )
        self._outcome = (
            [arrays[name] for _, name in parts] if parts and self.keeps_outcomes else None
        )
        own = {
            name: array
            for name, array in arrays.items()
            if name != SIZES and not name.startswith(OUTCOME)
        }
        self.state = self.state.load_state_dict(own)
        if self.method.catch_up.replaces:
            self._steps.load(arrays.get(SIZES, ()))
