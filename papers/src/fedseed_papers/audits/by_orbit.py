"""A canary test by the orbit: how likely every step is with each candidate in the data.

Who has the orbit has the model before every step. All other data is known, and the order of batches
is the recipe's, so what the clients answer can be computed for each candidate c, and

    score_c = sum_t log P(step_t | c)

which no other guess beats on average (Neyman, Pearson). Where steps follow from answers without a
draw, one step that can't follow is nearly enough to rule a candidate out; of private draws each
step tells a little.
"""

from collections.abc import Iterable, Sequence
from math import log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedseed.aggregation import Mean
from fedseed.errors import RecipeError
from fedseed.federation.messages import Message, MessageKind
from fedseed.methods import FeedSign
from fedseed.methods.base import Answer, Answers, Method, Round
from fedseed.orbit import Record
from fedseed.privacy import PrivateSign, mechanism_of
from fedseed.recipe.settings import Recipe
from fedseed.runs.assembly import Federation
from fedseed.training.client import LocalClient
from fedseed_papers.audits.canaries import Planting

# that a projection is so small that the float noise of another batch size turns its sign
UNLIKELY = 1e-3
HOPELESS = 60.0  # a candidate so far behind the best, in logs, is looked at no more

Scores = NDArray[np.float64]


def check(recipe: Recipe) -> None:
    """Check that a recipe's steps can be explained.

    Raises:
        RecipeError: how likely its steps are is not known.
    """
    _votes(recipe.method)
    if recipe.attack is not None:
        raise RecipeError(
            "--by orbit: what clients of [attack] send is not reckoned with; leave it out"
        )
    if not isinstance(recipe.aggregation, Mean):
        raise RecipeError(
            f'--by orbit: aggregation.name = "{recipe.aggregation.name}" is not reckoned with; '
            'take "mean"'
        )


def scores(
    federation: Federation, records: Iterable[Record], plan: Planting, examples: int
) -> Scores:
    """Return how well each candidate explains an orbit.

    Args:
        federation: the recipe's, at its base, without a canary; its weights follow the orbit.
        records: the orbit's steps.
        plan: the candidates, and where one of them is.
        examples: how many the client has.

    Returns:
        sum_t log P(step_t | candidate), shape (N,). Of a candidate that is `HOPELESS` the steps up
        to there.

    Raises:
        RecipeError: the client has examples that the model leaves out, or takes apart.
    """
    ghosts, worker = _ghosts(federation, plan, examples), federation.worker
    totals, remaining = np.zeros(len(ghosts)), np.arange(len(ghosts))
    for record in records:
        participants = federation.coordinator.sample_clients(record.round)
        if plan.client in participants and _is_drawn(federation, record.round, plan):
            totals[remaining] += _round(
                federation, record, participants, plan.client, [ghosts[i] for i in remaining]
            )
            remaining = remaining[totals[remaining] > totals.max() - HOPELESS]
        worker.catch_up([record])
    return totals


def _votes(method: Method) -> FeedSign:
    if not isinstance(method, FeedSign):
        raise RecipeError(
            f"--by orbit: how likely a step of {method.name} is, is not known; take --by model"
        )
    return method


def log_chance(method: FeedSign, state: Any, answers: Answers, step: Any) -> float:
    """log P(these votes follow from these answers): of a private draw, or of a majority, `UNLIKELY`
    for each other.
    """
    if not answers or not len(step.signs):
        return 0.0
    if isinstance(mechanism := mechanism_of(method), PrivateSign):
        return mechanism.log_chance(
            answers.tally([update.signs for update in answers.updates]), step.signs
        )
    return log(UNLIKELY) * int((method.aggregate(state, answers).signs != step.signs).sum())


def _ghosts(federation: Federation, plan: Planting, examples: int) -> list[list[Any]]:
    """Return the client's prepared examples with each candidate in its place."""
    items = federation.items[plan.client]
    candidates = federation.worker.objective.prepare(plan.candidates)
    if len(items) != examples or len(candidates) != len(plan.candidates):
        name = federation.names[plan.client]
        raise RecipeError(
            f"--by orbit: of the examples of {name}, or the canaries, some are too long for the "
            "model"
        )
    places = set(plan.places)
    ghosts = []
    for new in candidates:
        ghost = list(items)
        for place in places:
            ghost[place] = new
        ghosts.append(ghost)
    return ghosts


def _is_drawn(federation: Federation, number: int, plan: Planting) -> bool:
    """Return whether a canary is in the client's batch.

    Else the round is the same for all candidates.
    """
    worker, places = federation.worker, range(len(federation.items[plan.client]))
    client = LocalClient(worker.space, worker.objective, places, worker.seed, number, plan.client)
    return not set(plan.places).isdisjoint(next(client.batches(_votes(federation.method).batch)))


def _round(
    federation: Federation,
    record: Record,
    participants: Sequence[int],
    client: int,
    ghosts: Sequence[Sequence[Any]],
) -> Scores:
    """log P(step | each ghost in the client's place): all answer in one go."""
    worker, method, number = federation.worker, federation.method, record.round
    others = [other_client for other_client in participants if other_client != client]
    clients_asked = [*others, *[client] * len(ghosts)]
    plans = []
    for one in clients_asked:
        payload = method.plan(worker.state, Round(number, one, participants)).encode()
        plans.append(Message(MessageKind.PLAN, method.code, number, one, payload).encode())
    replies = worker.train_all(
        plans,
        clients_asked,
        [*(federation.items[other_client] for other_client in others), *ghosts],
    )
    updates = [
        None
        if a.message is None
        else method.decode_update(worker.state, number, Message.decode(a.message).payload)
        for a in replies
    ]
    step = method.decode_step(worker.state, record.payload)
    losses = []
    for update in updates[len(others) :]:
        by_client = {**dict(zip(others, updates, strict=False)), client: update}
        present = [(c, by_client[c]) for c in participants if by_client[c] is not None]
        answers = Answers(number, [Answer(c, 1 / len(present), u) for c, u in present], Mean())
        losses.append(log_chance(_votes(method), worker.state, answers, step))
    return np.array(losses)
