"""A client's own account of its noisy answers.

The coordinator counts what a run has spent (`protection`), but at example level a client need not
trust it. So each client counts for itself: one turn for each answer, before the answer leaves it.
The same question gets the same bytes again, which is free because they reveal nothing new; another
question costs a turn. Used turns stay used even if the coordinator starts another log, stream or
run.

    rounds    a run gets no more turns than the client's recipe has rounds
    budget    all turns of all runs together stay within epsilon = budget; without a budget all runs
              together get no more turns than the recipe has rounds

`Account` is in memory, `account_file.FileAccount` in a file.
"""

from collections import Counter
from hashlib import blake2b
from math import ceil
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt

from fedseed.errors import PrivacyError, plural
from fedseed.privacy.scalars import LEVELS, Releases, composed_epsilon, delta_left

# number of turns that a check covers in advance, because its arithmetic takes a while
LOOK_AHEAD = 64
_HASH_BYTES = 16


class Turn(BaseModel):
    """An answer of a client, and the question that it answers.

    Args:
        client: the client's name.
        run: a hash that identifies the run: of base, method, settings and seed.
        round: the round, from 1.
        question: a hash of everything that the answer depends on besides data and chance.
        noise: the noise's standard deviation, divided by the longest vector of an example.
        rate: the probability with which an example was in a batch.
        releases: noisy vectors of the answer.
        answer: the answer's bytes; None: there was nothing to send.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        ser_json_bytes="base64",
        val_json_bytes="base64",
    )

    client: str
    run: str
    round: PositiveInt
    question: str
    noise: PositiveFloat
    rate: Annotated[float, Field(gt=0, le=1)]
    releases: PositiveInt
    answer: bytes | None = None


class Limits(NamedTuple):
    """The limits of a client's account.

    Args:
        rounds: the most turns of a run; without a budget, of all runs together.
        budget: epsilon of all turns of all runs together; None: there is no budget.
        delta: the probability with which epsilon may be exceeded.
        source: the setting that the budget comes from, for messages.
    """

    rounds: NonNegativeInt
    budget: float | None
    delta: float
    source: str = "privacy.budget"


def hash_of(*parts: bytes) -> str:
    """Return a hash of some parts, which also depends on the boundaries between them."""
    whole = blake2b(digest_size=_HASH_BYTES)
    for part in parts:
        whole.update(len(part).to_bytes(8, "little") + part)
    return whole.hexdigest()


class Account:
    """One client's account, in memory.

    Args:
        client: its name.
        limits: what the account allows.
        keeps_answers: whether answers of earlier rounds are kept, for repeated questions.
    """

    def __init__(self, client: str, limits: Limits, keeps_answers: bool = True) -> None:
        self.client = client
        self.limits = limits
        self._keeps_answers = keeps_answers
        self._turns: dict[str, Turn] = {}  # by question
        self._vectors: Counter[tuple[float, float]] = Counter()  # by noise and rate
        self._turns_by_run: Counter[tuple[str, str]] = Counter()  # by run and client
        # for a set of kinds of vectors: a number of vectors known to be within the budget
        self._affordable: dict[tuple[Releases, ...], int] = {}

    @property
    def place(self) -> str:
        """The place of the account, for messages."""
        return "the memory of this process"

    @property
    def turns(self) -> int:
        """The number of counted turns."""
        return self._turns_by_run.total()

    def answered(self) -> list[Turn]:
        """Return the turns whose answers are known, the oldest first."""
        return list(self._turns.values())

    def epsilon(self, *further_turns: Turn) -> float:
        """Return the epsilon of all turns, and of further ones."""
        vectors = self._vectors.copy()
        for turn in further_turns:
            vectors[turn.noise, turn.rate] += turn.releases
        return _epsilon_of(vectors, self.limits.delta)

    def describe(self) -> str:
        """Return a line with what was used and what is allowed."""
        limits = self.limits
        usage = f"{plural(self.turns, 'turn')} used, epsilon {self.epsilon():.4g}"
        if limits.budget is not None:
            usage += f" of {limits.budget:g} ({limits.source})"
        return f"privacy account of {self.client}: {usage} at delta {limits.delta:g}; {self.place}"

    def find(self, question: str) -> Turn | None:
        """Return the turn in which a question was answered; None if there is none."""
        return self._turns.get(question)

    def check(self, turn: Turn) -> None:
        """Refuse a turn that the limits do not allow.

        Raises PrivacyError if they do not. The message has the usage, the limits and the owner's
        options.
        """
        problem = self._excess(turn)
        if problem is not None:
            usage = f"{plural(self.turns, 'turn')} (epsilon {self.epsilon():.4g})"
            raise PrivacyError(
                f"{self.place}: the privacy account of client {self.client} allows no more "
                f"answers: {usage} used so far at delta {self.limits.delta:g}; {problem}. Nothing "
                "was sent. If its examples may be asked more often, start `fedseed join` with a "
                "larger --budget, or agree on a recipe with a larger privacy.budget and more "
                "rounds; if this client now has data of other people, give it an account of its "
                "own with --account"
            )

    def charge(self, turn: Turn) -> Turn:
        """Count a turn before its answer leaves the client.

        Args:
            turn: the turn with its answer.

        Returns:
            The turn whose answer may be sent: this one, or an earlier one of the same question.

        Raises:
            PrivacyError: the limits do not allow the turn.
        """
        earlier = self.find(turn.question)
        if earlier is not None:
            return earlier
        self.check(turn)
        self._take(turn)
        return turn

    def _take(self, turn: Turn) -> None:
        """Count a turn."""
        if turn.question in self._turns:
            return
        if not self._keeps_answers:
            newest = self._turns.items()
            self._turns = {key: earlier for key, earlier in newest if earlier.round == turn.round}
        self._turns[turn.question] = turn
        self._vectors[turn.noise, turn.rate] += turn.releases
        self._turns_by_run[turn.run, turn.client] += 1

    def count_earlier(self, run: str, kind: Releases) -> None:
        """Count a turn of an earlier session whose answer is no longer known.

        Args:
            run: as in a `Turn`.
            kind: the vectors that it released.
        """
        self._vectors[kind.multiplier, kind.rate] += kind.count
        self._turns_by_run[run, self.client] += 1

    def _excess(self, turn: Turn) -> str | None:
        """Describe the limit that a turn would exceed; None if it exceeds none."""
        limits = self.limits
        allowed = f"the recipe has {plural(limits.rounds, 'round')}"
        if turn.round > limits.rounds:
            return f"round {turn.round} was requested, but {allowed}"
        if self._turns_by_run[turn.run, turn.client] >= limits.rounds:
            return f"{allowed}, and this run has used as many turns"
        if limits.budget is None:
            if self.turns >= limits.rounds:
                return (
                    f"{allowed} and no budget, so all runs together get only that number of turns"
                )
            return None
        if self._is_affordable(turn):
            return None
        return (
            f"another turn would raise epsilon to {self.epsilon(turn):.4g}, but {limits.source} "
            f"is {limits.budget:g}"
        )

    def _is_affordable(self, turn: Turn) -> bool:
        """Return whether the budget allows a turn."""
        kind = turn.noise, turn.rate
        others = self._vectors.copy()
        del others[kind]
        total = self._vectors[kind] + turn.releases
        key = (*_kinds(others), Releases(*kind, 0))
        if total <= self._affordable.get(key, 0):
            return True
        ahead = LOOK_AHEAD * turn.releases
        # epsilon grows with the number of vectors, so if a number is allowed, every lower one is as
        # well
        for count in (ceil(total / ahead) * ahead, total):
            within = _epsilon_of(Counter({**others, kind: count}), self.limits.delta)
            if self.limits.budget is not None and within <= self.limits.budget:
                self._affordable[key] = count
                return True
        return False


def _kinds(vectors: Counter[tuple[float, float]]) -> tuple[Releases, ...]:
    """Return the kinds of released vectors, sorted."""
    return tuple(sorted(Releases(*kind, count) for kind, count in vectors.items() if count))


def _epsilon_of(vectors: Counter[tuple[float, float]], delta: float) -> float:
    kinds = _kinds(vectors)
    if not kinds:
        return 0.0
    least = min(kind.multiplier for kind in kinds)
    return composed_epsilon(kinds, delta_left(delta, least * LEVELS))
