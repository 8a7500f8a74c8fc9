"""Simulated runs with secure sums: the bits of fixed point in the clear, whoever goes when.

And what is refused.
"""

from functools import partial

import numpy as np
import pytest
import torch

from fedseed import Federation, FedKSeed, FedMeZO, FeedSign, Ferret, Subspace, ZOFedSGD
from fedseed.errors import MessageError, RecipeError
from fedseed.federation.client.secure import Masking
from fedseed.orbit.signature import generate_key
from fedseed.privacy.secure.messages import Phase, unframe
from fedseed.privacy.secure.settings import SecureSums, identity_text
from fedseed.recipe.reading import read_recipe
from fedseed.recipe.settings import Recipe
from fedseed.reports.progress import Progress
from fedseed.runs.joining import read_identities
from fedseed.training.settings import LocalTraining
from support.secure import in_the_clear
from support.tiers import mark
from support.zeroth_order import OBJECTIVE, QUICK, data, federation, model

SGD = LocalTraining(steps=2, batch=8, learning_rate=0.05)
METHODS = {
    "ferret": Ferret(
        seeds="shared", directions=12, blocks="tensor", allocation="size", training=SGD
    ),
    "ferret-norm": Ferret(
        seeds="shared", directions=12, blocks="tensor", training=SGD, weighting="examples"
    ),
    "zo-shared": ZOFedSGD(**QUICK, seeds="shared", population=2),
    "zo-byte": ZOFedSGD(**QUICK, seeds="shared", scalars="byte"),
    "feedsign": FeedSign(**QUICK, votes_per_round=3),
    "dp-feedsign": FeedSign(**QUICK, epsilon=4.0),
    "fedkseed": FedKSeed(**QUICK, candidates=32, steps=4),
    "fedmezo": FedMeZO(**QUICK, steps=3, seeds="shared"),
    "subspace": Subspace(rank=2, up_bits=32, down_bits=32, training=SGD),
}
SUMS = SecureSums(threshold=3, ahead=2)


def ran(method, sums, silent=None, rounds=4, **settings):
    """A run.

    `silent` is called with (client, phase or "vector", round or None) and says who says nothing.
    """
    made = federation(
        method, secure_sums=sums, **{"rounds": rounds, "evaluate_every": rounds, **settings}
    )
    if silent is not None and (masking := made.clients.masking) is not None:
        update = masking.update

        def unless(said, client, phase):
            if silent(client, phase, made):
                raise MessageError("it has gone")
            return said()

        def answer(number, said, ask):
            return unless(lambda: said(ask), number, unframe(ask)[0])

        for number, client in masking.clients.items():
            client.answer = partial(answer, number, client.answer)
        masking.update = lambda state, plan, c, sent: unless(
            lambda: update(state, plan, c, sent), c, "vector"
        )
    made.steps = []
    close = made.coordinator.close
    made.coordinator.close = lambda: made.steps.append(close()) or made.steps[-1]
    made.result = made.run()
    return made


@pytest.fixture(autouse=True)
def drawn(monkeypatch):
    """DP-FeedSign's draws, the same for the same sums."""
    monkeypatch.setattr(
        "fedseed.privacy.sign.PrivateSign.draw",
        lambda self, sums: [1 if s >= 0 else -1 for s in sums],
    )


@pytest.mark.parametrize(
    "name", mark(METHODS, lambda name: name not in ("ferret", "feedsign"), "long")
)
def test_steps_have_the_bits_of_fixed_point_in_the_clear(name):
    secure = ran(METHODS[name], SUMS)
    with in_the_clear():
        clear = ran(METHODS[name], SUMS)
    assert secure.steps == clear.steps and len(set(secure.steps)) == 4
    assert secure.result.summary["weights_digest"] == clear.result.summary["weights_digest"]
    line = secure.result.metrics[-1]
    assert (
        not line["skipped"]
        and line["bytes_up"] > ran(METHODS[name], None).result.metrics[-1]["bytes_up"]
    )
    assert line["train_loss"] is None and line["seconds"]["secure_sums"] > 0


@pytest.mark.parametrize(
    "moment", [Phase.KEYS, Phase.SHARES, Phase.DELIVER, "vector", Phase.CONFIRM, Phase.OPEN]
)
def test_who_goes_changes_nothing_but_who_is_in_the_sum(moment, gone=2):
    """Two of five may go in every round, at each moment, and come back in the next one."""

    def silent(client, phase, made):
        return phase == moment and client >= 5 - gone

    def without(client, phase, made):
        return phase == "vector" and client >= 5 - gone

    method, sums = METHODS["zo-shared"], SUMS.model_copy(update={"ahead": 1})
    secure = ran(method, sums, silent)
    early = moment in (Phase.KEYS, Phase.SHARES, Phase.DELIVER, "vector")
    with in_the_clear():
        clear = ran(method, sums, without if early else None)
    assert secure.steps == clear.steps
    reason = "nothing to send" if moment in ("vector", Phase.DELIVER) else "it has sent no keys"
    assert [one["reason"] for one in secure.result.metrics[-1]["skipped"]] == [reason] * (
        4 * gone * early
    )


@pytest.mark.parametrize("moment", ["vector", Phase.OPEN])
def test_below_the_threshold_a_round_is_begun_again(moment):
    """Three of five say nothing in a moment of the second round: nothing is opened, the next
    attempt has them all.
    """
    attempts = []

    def silent(client, phase, made):
        at = len(made.steps), len(attempts)
        return (
            phase == moment
            and client > 1
            and at == (1, 0)
            and (client < 4 or not attempts.append(made))
        )

    secure = ran(METHODS["zo-shared"], SUMS.model_copy(update={"ahead": 1}), silent)
    with in_the_clear():
        assert attempts and secure.steps == ran(METHODS["zo-shared"], SUMS).steps


def test_whoever_has_nothing_to_send_is_not_told():
    """A client whose losses are no numbers adds nothing, with a weight of nothing.

    Nobody sees which.
    """
    train, _ = data()
    train[2] = [(row * float("nan"), y) for row, y in train[2]]
    method = METHODS["zo-shared"]

    def run(sums):
        made = Federation(model(), train, method, OBJECTIVE, rounds=2, seed=3, secure_sums=sums)
        return made.run(), [p.detach().clone() for p in made.tuned().parameters()]

    (secure, a), (plain, b) = run(SUMS), run(None)
    assert not secure.metrics[-1]["skipped"] and plain.metrics[-1]["skipped"]
    assert all(torch.allclose(x, y, atol=1e-6) for x, y in zip(a, b, strict=True))


# -- lies that the sum proves
# ----------------------------------------------------------------------------------------


LIES = {
    "votes": ("feedsign", 0, 1000, "the sum of the votes is 1,00"),
    "votes against": ("feedsign", 0, -1000, "but can be at most 5"),
    "weight": ("ferret", -1, 1000, "the sum of the weights is 1,004, but can be at most 5"),
    "less than nothing": ("zo-shared", -1, -8, "the sum of the weights is 18,446,744,073,709,5"),
    "examples": ("ferret-norm", -1, 10**12, "the sum of the weights is 1,000,000,000,"),
    "nobody": ("zo-shared", -1, -4, "the sum of their weights is 0"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_sum_that_no_honest_clients_have_is_not_taken(lie, monkeypatch):
    """One client lies in the second round: that step is an empty one, and it is said."""
    name, at, value, why = LIES[lie]
    words, told = Masking._words, []

    def lying(self, state, number, client, update):
        found = words(self, state, number, client, update)
        if (number, client) == (2, 3):
            found[at] = np.array([value]).astype(np.int64).astype(found.dtype)[0]
        return found

    monkeypatch.setattr(Masking, "_words", lying)
    monkeypatch.setattr(Progress, "warn", lambda self, text: told.append(text))
    found = ran(METHODS[name], SUMS)
    (refused,) = [one for line in found.result.metrics for one in line.get("not_taken") or ()]
    assert refused["round"] == 2 and why in refused["reason"]
    assert any("round 2: the step was not applied" in text and why in text for text in told)


@pytest.mark.parametrize("name", ["feedsign", "zo-shared"])
def test_who_lies_in_every_sum_is_left_out_after_a_lie_for_each_client(name, monkeypatch):
    """Nobody sees whose vector it was: clients are left out in turn."""
    words = Masking._words

    def lying(self, state, number, client, update):
        found = words(self, state, number, client, update)
        if client == 3:
            found[-1] = 1000
        return found

    monkeypatch.setattr(Masking, "_words", lying)
    found = ran(METHODS[name], SUMS, rounds=40, evaluate_every=1)
    lines = found.result.metrics[1:]
    lost = [line["round"] for line in lines if line.get("not_taken")]
    # 0, 1 and 2 in vain; 3 for 8 rounds, and for 16 and 32 as soon as it lies again
    assert lost == [1, 2, 3, 4, 13, 30]
    out = {number: f"client-{n}" for number, n in ((2, 0), (3, 1), (4, 2))}
    out |= {number: "client-3" for number in range(5, 41) if number not in (13, 30)}
    for line in lines:
        left = {f"client-{n}" for n in range(5)} - set(line["clients"])
        assert left == ({out[line["round"]]} if line["round"] in out else set())
    with in_the_clear():
        assert found.steps == ran(METHODS[name], SUMS, rounds=40).steps


def test_a_round_whose_shares_are_not_said_is_lost_and_the_run_goes_on():
    def silent(client, phase, made):
        return phase == Phase.OPEN and client > 1 and len(made.steps) == 1

    found = ran(METHODS["zo-shared"], SUMS, silent)
    (lost,) = [one for line in found.result.metrics for one in line.get("not_taken") or ()]
    assert lost["round"] == 2 and "no other attempt at this round will be opened" in lost["reason"]
    assert len(found.steps) == 4


# -- what is refused
# ------------------------------------------------------------------------------------------------

ONE, OTHER = (identity_text(bytes([n]) * 32) for n in range(2))
RECIPE = """rounds = 1
method = {name = "zo-fedsgd", seeds = "shared"}
federation = {per_round = 5}
secure_sums = {threshold = 3}
"""


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (
            "aggregation.name=median",
            r'secure_sums: aggregation.name = "median" needs single answers',
        ),
        (
            "privacy={level='client',clip=1.0,noise=1.0}",
            "the coordinator would have to bound each answer",
        ),
        ("method={name='zo-fedsgd'}", r'zo-fedsgd: seeds = "own".*set method.seeds = "shared"'),
        ("method={name='ferret'}", r'ferret: seeds = "per-client".*set method.seeds = "shared"'),
        ("method={name='fedkseed',importance=true}", "importance = true needs every single pair"),
        ("method={name='fedavg'}", "fedavg: its steps are not sums of vectors of equal length"),
        (
            "method={name='fedmezo'}",
            r'fedmezo: seeds = "own" with travel = "pairs".*set method.seeds = "shared"',
        ),
        ("method={name='fedmezo',travel='tensors'}", "fedmezo: its steps are not sums"),
        (
            "secure_sums.threshold=6",
            r"threshold = 6: a round has 5 clients \(federation.per_round\)",
        ),
        ("secure_sums.threshold=2", "set at least 3, more than half of them"),
        ("federation.per_round=2;secure_sums.threshold=2", "fewer than 3 each client knows"),
        ("secure_sums.most_clients=4", "most_clients = 4: .*; set at least 5"),
        (
            "secure_sums.identities={a='AAAA'}",
            "a: 'AAAA' is not a public Ed25519 key: give the middle",
        ),
        (f"secure_sums.identities={{a='{ONE}',b='{ONE}'}}", "b: this is also the key of a;"),
        (
            f"secure_sums.identities={{a='{ONE}',b='{OTHER}'}};task={{name='files'}};federation.clients=['a','b','c','d','e']",
            "secure_sums.identities: c has no key;",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(settings, why, tmp_path):
    (tmp_path / "recipe.toml").write_text(RECIPE)
    with pytest.raises(RecipeError, match=why):
        read_recipe(tmp_path / "recipe.toml", settings.split(";"))


def test_a_client_needs_the_key_that_the_recipe_has(tmp_path):
    names = ["a", "b", "c"]
    lines = [generate_key(tmp_path / f"{name}.pem").read_text().splitlines()[1] for name in names]
    known = dict(zip(names, lines, strict=True))
    whole = {
        "rounds": 1,
        "method": {"name": "zo-fedsgd", "seeds": "shared"},
        "federation": {"per_round": 3},
    }
    plain, checked = (
        Recipe.model_validate({**whole, "secure_sums": {"threshold": 2, **more}})
        for more in ({}, {"identities": known})
    )
    found = read_identities(checked, ["a", "c"], tmp_path / "{name}.pem")
    assert [identity_text(key.public_key().public_bytes_raw()) for key in found.values()] == [
        known["a"],
        known["c"],
    ]
    assert list(found) == ["a", "c"] and read_identities(plain, names, None) == {}
    for recipe, clients, file, why in (
        (checked, ["a"], None, "the private key of a is missing.*--identity FILE"),
        (
            checked,
            ["a"],
            tmp_path / "b.pem",
            "does not belong to a's public key in secure_sums.identities",
        ),
        (checked, ["a"], tmp_path / "a.pem.pub", "--identity .*not a private key in PEM form"),
        (checked, ["d"], tmp_path / "a.pem", "d has no key;"),
        (plain, ["a"], tmp_path / "a.pem", "the recipe has no public keys"),
    ):
        with pytest.raises(RecipeError, match=why):
            read_identities(recipe, clients, file)
