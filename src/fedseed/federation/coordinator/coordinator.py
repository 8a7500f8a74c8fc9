"""The coordinator: picks clients, plans, checks and combines answers.

It holds no model and does not import torch.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedseed.aggregation import AggregationRule, Mean
from fedseed.aggregation.base import Past, claims, shares
from fedseed.errors import MessageError
from fedseed.federation.coordinator.bounds import Bounds, LastSteps, too_far
from fedseed.federation.messages import EVERYBODY, Message, MessageKind
from fedseed.methods import Method
from fedseed.methods.base import Answer, Answers, Round
from fedseed.methods.payload import Content, DecodeContext, Payload, State
from fedseed.privacy import find_misfit, protection_of
from fedseed.randomness import Domain, permutation
from fedseed.weights.layout import Layout

SIZES = "bounds.sizes"  # sizes of the last steps, among the arrays of `state_dict`
OUTCOME = "aggregation.outcome."  # prefix of the parts of the rule's last outcome


@dataclass
class CurrentRound:
    """An open round."""

    number: int
    clients: list[int]  # in ascending order
    attempt: int = 0
    updates: dict[int, Any] = field(default_factory=dict)
    planned: Content = field(default_factory=Content)  # content of a plan
    received: dict[int, Content] = field(default_factory=dict)  # content of each update that counts
    sizes: dict[int, float] = field(default_factory=dict)  # size of each update that counts
    # the claimed number that each client's weight depends on; set by `screen`
    claims: dict[int, int] = field(default_factory=dict)
    # clients whose updates were refused as out of proportion, with the reasons; None: not screened
    # yet
    outliers: dict[int, str] | None = None


class Coordinator:
    """The coordinator's side of a federation.

    Args:
        method: the method and its settings.
        layout: the parameter space's layout.
        seed: the run's seed.
        examples: each client's number of training examples. The length is the number of clients.
        per_round: number of clients in a round.
        aggregation: the rule that combines the clients' vectors; None: the weighted mean.
        bounds: how far a client's update, or a step, may be from the others; None: the defaults.

    Raises ValueError if the settings do not fit the layout, or if the rule does not fit the method
    or needs more clients.
    """

    # whether the coordinator learns only sums of answers (`fedseed.federation.secure`)
    sums: ClassVar[bool] = False
    # whether the coordinator takes a sum of gradients from clients in its own process (`summed`)
    adds_gradients: ClassVar[bool] = False

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
        problem = find_misfit(method, self.aggregation, per_round)
        if problem:
            raise ValueError(problem)
        if method.sums_gradients and not self.adds_gradients:
            raise ValueError(
                "method.summed = true: gradients can be added up only in a simulation in one "
                "process without secure sums (fedseed run); remove this key"
            )
        self.state = method.start(layout, seed)
        # the number of steps made; it alone determines the privacy that they have spent
        self.steps = 0
        # each client's turns in these steps, if turns are counted
        self._turns = np.zeros(len(self.examples), dtype=np.int64)
        self.untaken: str | None = None  # why the last round's step was not applied
        self.bounds = bounds or Bounds()
        self._steps = LastSteps(self.bounds)
        # the rule's last outcome, if the rule uses it
        self._outcome: Sequence[NDArray[Any]] | None = None
        self._open: CurrentRound | None = None
        self.closed = Content()  # content of the last round's step
        self.closed_payload = b""  # bytes of that step, without the frame

    def open(
        self, number: int, attempt: int = 0, alive: Collection[int] | None = None
    ) -> list[int]:
        """Begin a round, or begin it again and drop the answers to earlier attempts.

        Args:
            number: the round.
            attempt: how often the round began before.
            alive: the reachable clients; None: all.

        Returns:
            The clients that take part, in ascending order.
        """
        clients = self.sample_clients(number, alive)
        self._open = CurrentRound(number, clients, attempt)
        return clients

    def sample_clients(self, number: int, alive: Collection[int] | None = None) -> list[int]:
        """Return the clients that take part in a past, present or future round.

        (seed, round) determines an order of all clients, and the first ones that are alive take
        part. If turns are counted, no other client replaces an absent one, so that each client's
        number of turns is known beforehand.
        """
        if self.per_round >= len(self.examples):  # all clients, so the order does not matter
            return [
                client for client in range(len(self.examples)) if alive is None or client in alive
            ]
        order = (
            int(client)
            for client in permutation(self.state.seed, Domain.SAMPLING, len(self.examples), number)
        )
        if self.by_turns:
            return sorted(
                client
                for client in list(order)[: self.per_round]
                if alive is None or client in alive
            )
        return sorted(
            [client for client in order if alive is None or client in alive][: self.per_round]
        )

    @property
    def by_turns(self) -> bool:
        """Whether privacy is accounted for by each client's turns."""
        return self.protection is not None and bool(self.protection.mechanism.by_turns)

    @property
    def counted(self) -> int:
        """The number that privacy accounting uses: steps, or the most turns of a client."""
        if self.by_turns:
            return int(self._turns.max(initial=0))
        return self.steps

    def last_round(self, rounds: int) -> int:
        """Return the last of `rounds` rounds that the privacy budget allows.

        The result is the same whenever this is called.
        """
        if self.protection is None or not self.by_turns:
            return rounds
        turns, most_turns = np.zeros_like(self._turns), np.zeros(rounds, dtype=np.int64)
        for number in range(1, rounds + 1):
            self._add_turns(turns, number)
            most_turns[number - 1] = turns.max()
        mechanism = self.protection.mechanism
        # usually all rounds are within the budget, and computing the exact limit takes forty times
        # longer
        if mechanism.within_budget(int(most_turns.max(initial=0))):
            return rounds
        affordable = mechanism.affordable
        if affordable is None:
            return rounds
        return int(np.searchsorted(most_turns, affordable, side="right"))

    def _add_turns(self, turns: NDArray[np.int64], number: int) -> None:
        if self.per_round >= len(turns):
            turns += 1
        else:
            turns[self.sample_clients(number)] += 1

    def _advance(self, step: Payload) -> None:
        self.state = self.method.advance(self.state, step)
        self.steps += 1
        if self.by_turns:
            self._add_turns(self._turns, self.steps)

    @property
    def private(self) -> bool:
        """Whether nothing is shown about single clients except what the method sends."""
        return self.sums or self.protection is not None

    @property
    def current(self) -> CurrentRound:
        """The open round. Raises RuntimeError if no round is open."""
        if self._open is None:
            raise RuntimeError("no round is open")
        return self._open

    def plan(self, client: int) -> bytes:
        """Return the plan message, addressed to everybody, for a client of the open round."""
        current = self.current
        plan = self.method.plan(self.state, Round(current.number, client, current.clients))
        payload = plan.encode()
        current.planned = plan.content(self.state.layout.size, payload)
        return Message(
            MessageKind.PLAN, self.method.code, current.number, EVERYBODY, payload, current.attempt
        ).encode()

    def plans(self) -> dict[bytes, list[int]]:
        """Return the open round's plans, each with its clients. Most methods have one plan for all
        clients.
        """
        clients = self.current.clients
        if clients and not self.method.personal_plans:
            return {self.plan(clients[0]): list(clients)}
        clients_by_plan: dict[bytes, list[int]] = {}
        for client in clients:
            clients_by_plan.setdefault(self.plan(client), []).append(client)
        return clients_by_plan

    def receive(self, data: bytes, sender: int) -> None:
        """Take a client's update. A refused update changes nothing.

        Args:
            data: the message.
            sender: the sender, according to the transport.

        Raises MessageError if the update is refused.
        """
        current = self.current
        message, payload = Message.decode_view(data)
        message.expect(MessageKind.UPDATE, self.method.code, current.number)
        if message.client != sender:
            raise MessageError(
                f"client {sender} sent an update in the name of client {message.client}"
            )
        if message.attempt != current.attempt:
            raise MessageError(
                f"attempt {current.attempt} is open, but this update answers attempt "
                f"{message.attempt}"
            )
        position = bisect_left(current.clients, sender)
        if current.clients[position : position + 1] != [sender]:
            raise MessageError(f"client {sender} does not take part in round {current.number}")
        if sender in current.updates:
            raise MessageError(f"client {sender} has answered round {current.number} already")
        if current.outliers is not None:
            raise MessageError(f"round {current.number} is being closed")
        update, size = self._decode_update(current, payload)
        current.received[sender] = update.content(self.state.layout.size, payload)
        current.updates[sender], current.sizes[sender] = update, size

    def _decode_update(self, current: CurrentRound, data: bytes | memoryview) -> tuple[Any, float]:
        """Decode an update; return it and its size. Raises MessageError."""
        update = self.method.decode_update(self.state, current.number, data)
        return update, update.size(DecodeContext(self.method, self.state, "update", current.number))

    def screen(self) -> dict[int, str]:
        """Refuse updates that are out of proportion, when all have come.

        Returns:
            The clients of refused updates, with the reasons. Later calls return the same.
        """
        current = self.current
        if current.outliers is None:
            clients = sorted(current.updates)
            updates = [current.updates[client] for client in clients]
            # the terms of the clients' losses
            terms = [
                getattr(update, update.weight_terms) if update.weight_terms else 0
                for update in updates
            ]
            examples = [self.examples[client] for client in clients]
            weights = claims(self.method.weighting, examples, terms)
            current.claims = dict(zip(clients, weights, strict=True))
            # with differential privacy, bounds apply to each update by itself, so that no client's
            # update affects another's
            has_bounds = self.protection is not None and self.protection.bounds
            if has_bounds:
                current.outliers = {}
            else:
                current.outliers = self.bounds.outliers(current.sizes, current.claims)
            for client in current.outliers:
                del current.updates[client], current.received[client], current.sizes[client]
        return current.outliers

    def close(self) -> Message:
        """End the round: combine the answers into a step for everybody, and return its message.

        The step is not applied if it is not finite, is out of proportion to earlier steps, or has
        fewer answers than the rule needs. Then the step is empty, `untaken` has the reason, and the
        answers are forgotten.
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
            answers = self.protection.combine(self.state, answers, len(current.clients))
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
        return Message(MessageKind.STEP, self.method.code, current.number, EVERYBODY, payload)

    def _step(self, answers: Answers) -> tuple[State, bytes, Payload, float]:
        """Return the state after the answers, the step's bytes and content, and its size.

        Raises MessageError if such a step can't be applied.
        """
        # values that are not finite are refused below
        with np.errstate(all="ignore"):
            state: State = self.method.remember(self.state, answers)
            payload = self.method.aggregate(state, answers).encode()
        # continue with the encoded step: everybody else reads exactly these numbers
        step: Payload = self.method.decode_step(state, payload)
        if not answers:
            return state, payload, step, 0.0
        for name, array in state.state_dict().items():
            if not np.isfinite(array).all():
                raise MessageError(
                    f"the state of the server's optimiser ({name}) would not be finite"
                )
        # the size of the largest update, because Adam's steps all have the same size
        if self.method.catch_up.replaces:
            size = max(self.current.sizes[answer.client] for answer in answers)
        else:
            size = step.size(DecodeContext(self.method, state, "step"))
        problem = self._steps.problem(size)
        if problem is None:
            problem = too_far(self.method.change(state, step), state.layout)
        if problem is not None:
            raise MessageError(problem)
        return state, payload, step, size

    def weighted_answers(self) -> Answers:
        """Return the open round's answers with the clients' weights, after `screen`."""
        current = self.current
        clients = sorted(current.updates)
        # use the screened claims, because a client's number of examples may have changed since
        weights = shares([current.claims[client] for client in clients])
        answers = tuple(
            Answer(client, weight, current.updates[client])
            for client, weight in zip(clients, weights, strict=True)
        )
        outcome = self._outcome if self.keeps_outcomes else None
        past = Past(self.state.seed, current.number, outcome)
        return Answers(current.number, answers, self.aggregation, past)

    def catch_up(self, payloads: Iterable[bytes]) -> list[Content]:
        """Take over earlier steps of an orbit, and return the content of each.

        Raises MessageError if a step can't be decoded.
        """
        contents = []
        for payload in payloads:
            step = self.method.decode_step(self.state, payload)
            contents.append(step.content(self.state.layout.size, payload))
            # whole weights do not show the sizes of the steps that led to them
            if not self.method.catch_up.replaces:
                self._steps.take(step.size(DecodeContext(self.method, self.state, "step")))
            self._advance(step)
        return contents

    def snapshot(self) -> "Coordinator":
        """Return a copy that goes on by itself; no round is open in it."""
        duplicate = copy(self)
        duplicate._steps = deepcopy(self._steps)
        duplicate._turns = self._turns.copy()
        duplicate._open = None
        return duplicate

    @property
    def weights(self) -> bytes | None:
        """The bytes of the trainable tensors, if steps are whole weights and these are known;
        otherwise None.
        """
        weights = getattr(self.state, "weights", None)
        return None if weights is None else weights.data

    @weights.setter
    def weights(self, data: bytes) -> None:
        """Set the base's weights, for a method whose steps replace each other.

        Raises MessageError if they do not fit the layout.
        """
        self.state = self.method.advance(self.state, self.method.decode_step(self.state, data))

    @property
    def keeps_outcomes(self) -> bool:
        """Whether the coordinator remembers the rule's last outcome, which steps do not hold."""
        return self.aggregation.remembers and self.method.lasting_entries

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the state that steps do not hold, as arrays by name; empty for most methods."""
        arrays: dict[str, NDArray[Any]] = self.state.state_dict()
        if self.method.catch_up.replaces:
            arrays = {**arrays, SIZES: self._steps.sizes}
        for index, part in enumerate(self._outcome or ()):
            arrays = {**arrays, f"{OUTCOME}{index}": part}
        return {**arrays}

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore what `state_dict` returned. Raises LookupError or ValueError if it does not
        fit.
        """
        parts = sorted(
            (int(name.removeprefix(OUTCOME)), name) for name in arrays if name.startswith(OUTCOME)
        )
        self._outcome = None
        if parts and self.keeps_outcomes:
            self._outcome = [arrays[name] for _, name in parts]
        state_arrays = {
            name: array
            for name, array in arrays.items()
            if name != SIZES and not name.startswith(OUTCOME)
        }
        self.state = self.state.load_state_dict(state_arrays)
        if self.method.catch_up.replaces:
            self._steps.load(arrays.get(SIZES, ()))
