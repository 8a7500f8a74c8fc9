"""The coordinator by itself: who takes part, whose answers count and for how much, and what a round
leaves.
"""

import numpy as np
import pytest

from fedseed import FedAvg, FedSGD, Ferret, ZOFedSGD
from fedseed.aggregation.base import Past
from fedseed.aggregation.clipping import CentredClipping
from fedseed.aggregation.median import Median, TrimmedMean
from fedseed.errors import MessageError
from fedseed.federation.coordinator.coordinator import SIZES, Coordinator
from fedseed.federation.messages import EVERYBODY, Message, MessageKind
from fedseed.methods.dense import Weights
from fedseed.methods.fedsgd import Gradient
from fedseed.methods.ferret import Coefficients
from fedseed.methods.payload import Content
from fedseed.privacy import PrivacySettings, mechanism_of, protect
from fedseed.weights.layout import Layout, TensorEntry

LAYOUT = Layout((TensorEntry("w", (2,), "float32"),), (0, 2))
SCALARS = ZOFedSGD(learning_rate=0.1, seeds="shared")
FERRET = Ferret(seeds="shared", directions=2, blocks="one", allocation="size")
PRIVATE = PrivacySettings(level="client", clip=1.0, noise=1.0)


def update(made, client, payload, number=1, attempt=0):
    return Message(MessageKind.UPDATE, made.method.code, number, client, payload, attempt).encode()


def floats(*values):
    return np.array(values, dtype="<f4").tobytes()


def round_of(made, number, *sent):
    """A round in which these clients answer, in this order; what its step holds."""
    made.open(number)
    for client, payload in sent:
        made.receive(update(made, client, payload, number), client)
    return made.close().payload


def test_who_takes_part_does_not_hang_on_who_else_can_be_reached():
    made = Coordinator(SCALARS, LAYOUT, 5, [1] * 30, 4)
    rounds = {number: made.sample_clients(number) for number in range(1, 40)}
    assert len({tuple(clients) for clients in rounds.values()}) > 20
    assert {client for clients in rounds.values() for client in clients} == set(range(30))
    for number, clients in rounds.items():
        assert clients == sorted(set(clients)) and len(clients) == 4
        assert made.sample_clients(number, range(30)) == clients == made.open(number)
        without = made.sample_clients(number, set(range(30)) - {clients[0]})
        assert set(clients[1:]) < set(without) and clients[0] not in without and len(without) == 4
    assert made.sample_clients(1, [7, 3]) == [3, 7] and made.sample_clients(1, ()) == []
    assert Coordinator(SCALARS, LAYOUT, 6, [1] * 30, 4).sample_clients(1) != rounds[1]


def test_what_is_no_answer_is_refused_and_changes_nothing():
    made = Coordinator(SCALARS, LAYOUT, 1, [1] * 4, 3)
    taking = made.open(1, attempt=2, alive=[0, 1, 2])
    assert taking == [0, 1, 2]
    made.receive(update(made, 0, floats(0.5), attempt=2), 0)
    for data, sender, text in (
        (
            update(made, 1, floats(1.0), attempt=2),
            2,
            "client 2 sent an update in the name of client 1",
        ),
        (update(made, 1, floats(1.0)), 1, "attempt 2 is open, but this update answers attempt 0"),
        (update(made, 3, floats(1.0), attempt=2), 3, "client 3 does not take part in round 1"),
        (update(made, 0, floats(1.0), attempt=2), 0, "client 0 has answered round 1 already"),
        (update(made, 1, floats(1.0), 2, 2), 1, "expected round 1, got round 2"),
        (update(made, 1, b"", attempt=2), 1, "0 projections in update of zo-fedsgd, not 1"),
    ):
        with pytest.raises(MessageError, match=text):
            made.receive(data, sender)
    assert list(made.current.updates) == [0]
    assert made.screen() == {}
    with pytest.raises(MessageError, match="round 1 is being closed"):
        made.receive(update(made, 1, floats(1.0), attempt=2), 1)
    step = made.close()
    assert step.payload == floats(0.5) and (step.kind, step.client, step.round) == (
        MessageKind.STEP,
        EVERYBODY,
        1,
    )
    with pytest.raises(RuntimeError, match="no round is open"):
        made.plan(0)
    made.open(2)
    assert Message.decode(made.plan(0)).attempt == 0 and not made.current.updates
    assert made.close().payload == b"" and made.steps == 2  # nobody has answered


EXAMPLES, TERMS, VALUES = [30, 10, 20], [2, 6, 8], [1.0, 2.0, 4.0]


@pytest.mark.parametrize(
    ("weighting", "weights"),
    [("equal", [1 / 3] * 3), ("examples", [0.5, 1 / 6, 1 / 3]), ("terms", [0.125, 0.375, 0.5])],
)
@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
def test_answers_count_by_their_weights_in_the_clients_order(weighting, weights, order):
    for method in (FedAvg, FedSGD):
        if method is FedAvg and weighting == "terms":
            continue
        settings = {"learning_rate": 1.0} if method is FedSGD else {}
        made = Coordinator(method(weighting=weighting, **settings), LAYOUT, 1, EXAMPLES, 3)
        made.weights = floats(0.0, 8.0)
        data = [floats(value, 8.0) for value in VALUES]
        sent = list(map(Weights, data)) if method is FedAvg else list(map(Gradient, TERMS, data))
        expected = sum(weight * value for weight, value in zip(weights, VALUES, strict=True))
        found = np.frombuffer(
            round_of(made, 1, *((c, sent[c].encode()) for c in order)), dtype="<f4"
        )
        np.testing.assert_allclose(
            found, [expected, 8.0] if method is FedAvg else [-expected, 0.0], rtol=1e-6
        )


def test_the_clients_are_added_up_in_one_order_whenever_they_answer():
    """The sum of doubles depends on it, and an orbit holds what came out."""
    steps = set()
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        made = Coordinator(SCALARS, LAYOUT, 1, [1, 1, 1], 3)
        steps.add(
            round_of(made, 1, *((client, floats([1e6, 1e-10, -1e6][client])) for client in order))
        )
    assert len(steps) == 1


def dense(examples=(1, 1), **settings):
    made = Coordinator(FedAvg(**settings), LAYOUT, 1, examples, len(examples))
    made.weights = floats(0.0, 0.0)
    return made


def test_what_counts_is_measured_and_goes_with_an_outlier():
    # a bound for each is no judgement of any
    for method, far in ((SCALARS, [3]), (protect(SCALARS, PRIVATE), [])):
        made = Coordinator(method, LAYOUT, 1, [1] * 5, 5)
        made.open(1)
        for client in range(5):
            made.receive(update(made, client, floats(1e6 if client == 3 else 1.0)), client)
        assert made.current.received == dict.fromkeys(range(5), Content(4, 1))
        assert list(made.screen()) == far and set(far) == set(range(5)) - set(made.current.updates)
        assert (
            made.current.received.keys() == made.current.updates.keys() == made.current.sizes.keys()
        )
        made.close()
        assert made.closed == Content(4, 1)


def coefficients(made, number, size=1.0):
    gammas = np.array([size, -size], dtype=np.float32)
    return Coefficients(made.method.round_seed(made.state, number), (gammas,)).encode()


def test_steps_that_are_taken_up_are_measured_and_remembered():
    made, again = (Coordinator(FERRET, LAYOUT, 1, [1], 1) for _ in range(2))
    steps = [round_of(made, number, (0, coefficients(made, number))) for number in (1, 2, 3)]
    assert again.catch_up(steps) == [Content(len(steps[0]), 2, 1)] * 3 and again.steps == 3
    assert dense().catch_up([floats(1.0, 2.0)]) == [Content(8, 2)]
    for one in (made, again):
        assert (
            round_of(one, 4, (0, coefficients(one, 4, 1e4))) == b""
            and "the last 3 were about 1" in one.untaken
        )
        assert round_of(one, 5, (0, coefficients(one, 5, 900.0))) != b""
    private = Coordinator(protect(FERRET, PRIVATE), LAYOUT, 1, [1, 1], 2)
    noisy = [
        round_of(private, 1, *((client, coefficients(private, 1)) for client in (0, 1)))
        for _ in range(2)
    ]
    assert noisy[0] != noisy[1] and {len(step) for step in noisy} == {len(steps[0])}


def test_a_step_that_the_weights_have_no_room_for_is_empty():
    layout = Layout((TensorEntry("w", (2,), "float16"),), (0, 2))
    made = Coordinator(SCALARS, layout, 1, [1], 1)
    assert (
        round_of(made, 1, (0, floats(1e6))) == b"" and "every weight by about 1e+05" in made.untaken
    )
    assert round_of(made, 2, (0, floats(1e5))) == floats(1e5) and made.untaken is None


def test_what_a_rule_draws_hangs_on_seed_and_round():
    rule, values, found = Median(before=["bucketing"]), [1.0, 2.0, 4.0, 8.0, 16.0, 32.0], set()
    for seed, number in ((1, 1), (1, 2), (1, 3), (2, 1), (3, 1)):
        made = Coordinator(SCALARS, LAYOUT, seed, [1] * 6, 6, rule)
        vectors = [np.array([value]) for value in values]
        (expected,) = rule.combine_parts([vectors], [1 / 6] * 6, Past(seed, number))
        found.add(
            round_of(
                made, number, *((client, floats(value)) for client, value in enumerate(values))
            )
        )
        assert floats(*expected) in found
    assert len(found) > 2


def test_what_is_said_after_the_claims_were_looked_at_does_not_count():
    made = dense((1, 3), weighting="examples")
    made.open(1)
    for client in (0, 1):
        made.receive(update(made, client, floats(4.0 * client, 0.0)), client)
    assert made.screen() == {}
    made.examples[0] = 1 << 30
    assert made.close().payload == floats(3.0, 0.0)


def test_whole_weights_count_by_the_largest_update():
    """Not by their mean, which Adam makes a step of one size of.

    And a round without answers by nothing.
    """
    made = dense()
    assert round_of(made, 1) == b"" and not len(made.state_dict()[SIZES])
    for number in (1, 2, 3):
        assert round_of(made, number, *[(client, floats(number, number)) for client in (0, 1)])
    far = [(0, floats(4.0, 4.0)), (1, floats(1500.0, 1500.0))]
    assert round_of(made, 4, *far) == b"" and "out of all proportion: 1.5e+03" in made.untaken
    near = [(0, floats(4.0, 4.0)), (1, floats(900.0, 900.0))]
    assert round_of(made, 5, *near) == floats(452.0, 452.0) and made.untaken is None


@pytest.mark.parametrize("kind", ["average", "momentum", "adam"])
def test_half_precision_ends_at_65504(kind):
    """What does not fit into the weights is not taken, and nothing is remembered of it."""
    layout = Layout((TensorEntry("w", (2,), "float16"),), (0, 2))
    method = FedAvg(server=kind, global_rate=6e4 if kind == "adam" else 60.0)
    made = Coordinator(method, layout, 1, [1, 1], 2)
    fits, too_large = (
        np.array([1.0, value], dtype="<f2").tobytes() for value in (60000.0, 62000.0)
    )
    made.weights = fits
    before = made.state_dict()
    assert (
        round_of(made, 1, (0, too_large), (1, too_large)) == b""
        and "NaN or infinite" in made.untaken
    )
    after = made.state_dict()
    assert before.keys() == after.keys() and all(
        (before[name] == after[name]).all() for name in before
    )
    assert round_of(made, 2, (0, fits), (1, fits)) and made.untaken is None


def test_a_square_that_overflows_is_said_by_the_round_alone():
    made = dense(server="adam")
    assert round_of(made, 1, *((client, floats(1e25, 1.0)) for client in (0, 1))) == b""
    assert "the state of the server's optimiser" in made.untaken


def test_too_few_answers_for_the_rule_make_an_empty_step():
    made = Coordinator(SCALARS, LAYOUT, 1, [1] * 4, 4, TrimmedMean(liars=1))
    assert round_of(made, 1, (0, floats(1.0)), (1, floats(1.0))) == b""
    assert "needs 3 answers, and there are 2" in made.untaken
    # nobody has answered: nothing was refused
    assert round_of(made, 2) == b"" and made.untaken is None
    assert round_of(made, 3, *((client, floats(client)) for client in range(3))) == floats(1.0)
    assert made.untaken is None and made.steps == 3


def test_what_a_rule_remembers_is_the_last_rounds_that_had_an_outcome():
    """Momentum of 0.5: half of how far the weights went last, also over a round that nobody has
    answered.
    """
    made = Coordinator(FedAvg(), LAYOUT, 1, [1, 1], 2, CentredClipping(momentum=0.5))
    made.weights = floats(0.0, 0.0)
    assert round_of(made, 1, *((client, floats(1.0, -1.0)) for client in (0, 1))) == floats(
        0.5, -0.5
    )
    assert round_of(made, 2) == b""
    assert round_of(made, 3, *((client, floats(1.5, -1.5)) for client in (0, 1))) == floats(
        1.25, -1.25
    )


def test_rounds_within_the_budget_are_counted_once(monkeypatch):
    """How many more would be within it takes forty counts, each a second of a million turns."""

    def epsilon(self, turns):
        counted.append(turns)
        return 0.1 * turns

    counted = []
    budgeted = PRIVATE.model_copy(update={"budget": 2.0})
    monkeypatch.setattr(type(mechanism_of(protect(SCALARS, PRIVATE))), "epsilon", epsilon)
    made = Coordinator(protect(SCALARS, budgeted), LAYOUT, 5, [1] * 3, 3)
    assert made.last_round(20) == 20 and counted == [20]
    assert made.last_round(21) == 20
    assert made.last_round(1000) == 20


@pytest.mark.parametrize("per_round", [1, 2, 3])
def test_turns_are_counted_by_who_is_asked_whoever_answers(per_round, monkeypatch):
    """Privacy's account hangs on seed and round alone.

    The budget of three turns here ends a run before a fourth.
    """
    method = protect(SCALARS, PRIVATE)
    monkeypatch.setattr(type(mechanism_of(method)), "affordable", 3)
    made = Coordinator(method, LAYOUT, 5, [1] * 3, per_round)
    asked = [made.sample_clients(number) for number in range(1, 10)]
    turns = [
        max(sum(client in one for one in asked[:number]) for client in range(3))
        for number in range(10)
    ]
    last = sum(most <= 3 for most in turns[1:])
    assert [made.last_round(rounds) for rounds in (2, last, last + 1, 9)] == [2, last, last, last]
    payloads = []
    for number, clients in enumerate(asked, start=1):
        assert made.counted == turns[number - 1] and made.steps == number - 1
        first = [(clients[0], floats(0.5))] if number % 2 else []
        payloads.append(round_of(made, number, *first))
    assert made.counted == turns[9]
    assert (
        made.sample_clients(1, set(range(3)) - {asked[0][0]}) == asked[0][1:]
    )  # nobody takes its place
    again = Coordinator(method, LAYOUT, 5, [1] * 3, per_round)
    again.catch_up(payloads)
    assert again.counted == turns[9] and again.steps == 9
    plain = Coordinator(SCALARS, LAYOUT, 5, [1] * 3, per_round)
    plain.catch_up(payloads)
    assert plain.counted == 9 and plain.last_round(7) == 7
