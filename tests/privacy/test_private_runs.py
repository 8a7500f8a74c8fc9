"""Runs with `[privacy]`: what is told, what is counted, where the budget ends them."""

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss

from fedseed import Federation, FedKSeed, FedMeZO, Ferret, MeZO, Orbit, Subspace, ZOFedSGD
from fedseed.errors import RecipeError
from fedseed.methods.payload import DecodeContext
from fedseed.privacy import PrivacySettings, PrivateScalars, mechanism_of, protect, scalars
from fedseed.privacy.secure.settings import SecureSums
from fedseed.recipe.reading import parse_stored_recipe
from fedseed.recipe.settings import Recipe
from support.heard import Ending
from support.told import CLIENTS, PAGE, data, in_files, listed, still
from support.zeroth_order import OBJECTIVE, model

ROUNDS = 4
STEP = {"learning_rate": 0.02, "scale": 1e-3, "batch": 8}
EXAMPLE = PrivacySettings(level="example", clip=0.01, noise=1.0, sampling="poisson", examples=40)
CLIENT = PrivacySettings(level="client", clip=1.0, noise=1.0)
METHODS = {
    "zo-own": (ZOFedSGD(**STEP), EXAMPLE),
    "zo-shared": (ZOFedSGD(**STEP, seeds="shared", population=2), CLIENT),
    "zo-shared-alone": (ZOFedSGD(**STEP, seeds="shared"), EXAMPLE),
    "mezo": (MeZO(**STEP, estimates=3, estimator="one-point"), EXAMPLE),
    "fedkseed": (
        FedKSeed(**STEP, candidates=16, steps=3, weighting="equal", importance=True),
        EXAMPLE,
    ),
    "fedkseed-client": (FedKSeed(**STEP, candidates=16, steps=3, weighting="equal"), CLIENT),
    "fedmezo": (FedMeZO(**STEP, steps=3, personal="random"), EXAMPLE),
    "fedmezo-client": (FedMeZO(**STEP, steps=3), CLIENT),
    "ferret": (
        Ferret(directions=16, seeds="shared", allocation="size", basis="rademacher"),
        CLIENT,
    ),
    "subspace": (Subspace(rank=2, up_bits=32, down_bits=32), CLIENT),
}


def federation(name="zo-shared", kind="plain", privacy=None, **settings):
    method, usual = METHODS[name]
    defaults = {"rounds": ROUNDS, "seed": 3, "evaluate_every": 2, "privacy": privacy or usual}
    return Federation(model(), data(kind), method, OBJECTIVE, **{**defaults, **settings})


def epsilon(turns, noise=1.0, delta=1e-5):
    """Of a client's turns, without sampling: that of one release with less noise, whose delta is
    known.
    """
    one, found = GaussianPrivacyLoss(noise / turns**0.5), np.linspace(0, 40, 400_001)
    return pytest.approx(
        float(found[np.argmax(one.get_delta_for_epsilon(found) <= delta)]), abs=2e-4
    )


@pytest.fixture
def constant(monkeypatch):
    """Noisy sums that do not depend on what is summed up: what else differs, differs by the
    data.
    """
    made = []

    def noisy_sum(self, vectors, length):
        made.append(length)
        return np.full(length, 1e-3)

    monkeypatch.setattr(PrivateScalars, "noisy_sum", noisy_sum)
    return made


# -- what is told
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_runs_are_the_same_whatever_the_data(name, constant):
    """But for the noisy sums: no example, few, many, losses that are no numbers.

    As many sums as are counted.
    """
    found = {}
    for kind in ("plain", "odd"):
        constant.clear()
        result = federation(name, kind).run()
        figures = {key: value for key, value in result.summary.items() if key != "host"}
        found[kind] = still([result.metrics, figures]), list(constant)
    assert found["plain"] == found["odd"]
    method, privacy = METHODS[name]
    each = mechanism_of(protect(method, privacy)).releases if privacy.level == "example" else 1
    turns = ROUNDS * (CLIENTS if privacy.level == "example" or name == "fedmezo-client" else 1)
    lengths = {
        "mezo": 3,
        "zo-shared": 2,
        "ferret": 16,
        "fedkseed-client": 16,
        "fedmezo-client": 3,
        "subspace": 26,
    }
    assert found["odd"][1] == [lengths.get(name, 1)] * turns * each
    assert result.summary["privacy"]["releases"] == ROUNDS * each


# -- bounds
# ------------------------------------------------------------------------------------------------


def quiet(monkeypatch):
    monkeypatch.setattr(
        scalars, "discrete_gaussian", lambda sigma, count, random: np.zeros(count, dtype=np.int64)
    )


def test_an_example_moves_an_estimate_as_far_as_the_account_says(monkeypatch):
    """One that is wild, and one that is no number, in place of another: at most 2 C / (2 eps B), C
    / (2 eps B).
    """
    quiet(monkeypatch)
    most = 0.01 / (2 * STEP["scale"] * STEP["batch"])
    privacy = PrivacySettings(level="example", clip=0.01, noise=1.0)
    for name in ("zo-own", "mezo", "fedmezo", "fedkseed"):
        method = protect(METHODS[name][0], privacy)
        found = []
        for by in (1.0, 1e4, -1e4, float("nan")):
            (x, y), *others = data("plain")[0][:8]  # one batch of all examples
            one = Federation(model(), [[(x * by, y), *others]], method, OBJECTIVE, 1, seed=3)
            one.coordinator.open(1)
            message = one.worker.train(one.coordinator.plan(0), 0, one.items[0]).message[28:]
            update = method.decode_update(one.coordinator.state, 1, message)
            found.append(np.asarray(update.scalars, dtype=np.float64)[: 3 if name == "mezo" else 1])
        # mezo's are one-sided and thirds; fedmezo's have a rate multiplied in, at most 1.5 times
        # the recipe's
        factor = {"mezo": 2 / 3, "fedmezo": 1.5 * STEP["learning_rate"]}.get(name, 1.0)
        for other in found[1:3]:
            assert 0 < np.linalg.norm(other - found[0]) <= 2 * most * factor * 1.001, name
        assert np.linalg.norm(found[3] - found[0]) <= most * factor * 1.001, name
        assert np.linalg.norm(found[1]) <= 8 * most * factor


@pytest.mark.parametrize("name", ["zo-shared", "fedkseed-client", "ferret"])
def test_a_client_moves_a_step_as_far_as_the_account_says(name, monkeypatch):
    """Whatever it sends: C / m beside nothing, and nobody else's update becomes another one."""
    quiet(monkeypatch)

    def step(last):
        one = federation(name)
        coordinator, method = one.coordinator, one.method
        clients = coordinator.open(1)
        for c in clients:
            message = one.worker.train(coordinator.plan(c), c, one.items[c]).message
            update = method.decode_update(coordinator.state, 1, message[28:])
            if c == clients[-1]:
                about = DecodeContext(method, coordinator.state, "update", 1)
                update = update.with_vector(last * update.vector(about), about)
            coordinator.current.updates[c] = update
            # no bound but the mechanism's
            coordinator.current.sizes[c] = 1e9 if c == clients[-1] else 1.0
            coordinator.current.received[c] = coordinator.current.planned
        made = method.decode_step(coordinator.state, coordinator.close().payload)
        if name == "ferret":
            return np.concatenate(made.parts[0].gammas).astype(np.float64)
        return np.asarray(
            made.accumulator if name == "fedkseed-client" else made.scalars, dtype=np.float64
        )

    silent = step(np.float32(0))
    per = 2 if name == "zo-shared" else 1  # a population's mean
    for times in (1e4, -1e4):
        moved = np.linalg.norm(step(np.float32(times)) - silent)
        assert moved == pytest.approx(1.0 / CLIENTS / per, rel=1e-3)


@pytest.mark.long
def test_noise_is_not_the_recipes(tmp_path):
    """The same recipe, seed and data twice: other steps; and the public part is the same."""
    orbits = []
    for number in (1, 2):
        federation(out=tmp_path / str(number)).run()
        orbits.append(Orbit.open(tmp_path / str(number) / "model.orbit"))
    assert orbits[0].header == orbits[1].header and orbits[0].header.method.private == CLIENT
    first, second = ([record.payload for record in orbit.records] for orbit in orbits)
    assert all(a != b for a, b in zip(first, second, strict=True)) and len(first) == ROUNDS


# -- the account
# ------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_client_with_most_turns_is_what_counts(tmp_path):
    """Two of four a round, in an order that everybody knows: its own rounds, not all of them."""
    one = federation(per_round=2, rounds=9, out=tmp_path / "run")
    result = one.run()
    turns = np.bincount(
        [c for r in range(1, 10) for c in one.coordinator.sample_clients(r)], minlength=CLIENTS
    )
    spent = result.summary["privacy"]
    assert (
        4 < turns.max() < 9
        and spent["turns"] == turns.max()
        and spent["epsilon"] == epsilon(int(turns.max()))
    )
    assert [line["epsilon"] for line in result.metrics[1:]][-1] == spent["epsilon"]
    assert "epsilon" not in result.metrics[0]


def test_a_run_ends_at_its_budget_with_the_model_of_before(tmp_path):
    """Whether it was stopped on the way or not: nothing is spent twice, nothing forgotten."""
    privacy = CLIENT.model_copy(update={"budget": 9.0, "noise": 1.5})
    settings = {"privacy": privacy, "rounds": 50, "per_round": 3}

    with pytest.raises(KeyboardInterrupt):
        federation(out=tmp_path / "run", progress=Ending(2), **settings).run()
    again = federation(out=tmp_path / "run", **settings)
    summary = again.run(resume=True).summary
    whole_run = federation(**settings)
    other = whole_run.run().summary
    assert summary["privacy"] == other["privacy"] and summary["rounds"] == other["rounds"] < 50
    spent = summary["privacy"]
    assert (
        spent["epsilon"] <= 9.0
        and spent["budget"] == 9.0
        and spent["epsilon"] == epsilon(spent["turns"], 1.5)
    )
    rounds = summary["rounds"]
    turns = np.bincount(
        [c for r in range(1, rounds + 2) for c in again.coordinator.sample_clients(r)]
    )
    assert epsilon(int(turns.max()), 1.5).expected > 9.0  # one round more would be too much
    orbit = Orbit.open(tmp_path / "run" / "model.orbit")
    assert len(orbit.records) == rounds and orbit.records[-1].digest == summary["weights_digest"]
    # which lists nothing that is not told
    here, page = in_files(tmp_path / "run"), listed(PAGE.parent / "privacy.md")
    assert {(f, n) for f, names in page.items() if f in here for n in names - here[f]} == set()
    finished = federation(out=tmp_path / "run", **settings)
    assert finished.run(resume=True).summary["privacy"] == spent


@pytest.mark.parametrize("secure", [None, SecureSums(threshold=3)])
def test_each_simulated_client_has_an_account(secure, tmp_path):
    """It counts a turn a round, also of the rounds of an earlier session, and each vector of it."""
    settings = {"privacy": EXAMPLE, "secure_sums": secure, "out": tmp_path / "run", "rounds": 4}
    with pytest.raises(KeyboardInterrupt):
        federation("zo-shared-alone", progress=Ending(2), **settings).run()
    again = federation("zo-shared-alone", **settings)
    spent = again.run(resume=True).summary["privacy"]
    for account in again.hosted.accounts.values():
        assert account.turns == spent["turns"] == 4
        assert account.epsilon() == spent["epsilon"]
    assert len(again.hosted.accounts) == CLIENTS


def test_no_client_keeps_an_account_where_the_coordinator_counts():
    one = federation("zo-shared", rounds=1)
    one.run()
    assert one.hosted.accounts == {}


def test_a_budget_below_the_first_round_is_refused():
    with pytest.raises(RecipeError, match=r"privacy.budget = 0.5: the first round would spend \d"):
        federation(privacy=CLIENT.model_copy(update={"budget": 0.5})).run()


# -- what is refused
# ------------------------------------------------------------------------------------------------

TABLE = {"rounds": 3, "privacy": CLIENT.model_dump(exclude_none=True)}
ZO = {"name": "zo-fedsgd", "seeds": "shared"}
LOCAL = {"level": "example", "clip": 1.0, "noise": 1.0}
FERRET = {"name": "ferret", "seeds": "shared", "allocation": "size"}


@pytest.mark.parametrize(
    ("tables", "text"),
    [
        ({"method": {"name": "zo-fedsgd"}}, r'method.seeds = "own" .*set it to "shared"'),
        (
            {"method": {**ZO, "weighting": "examples"}},
            r'method.weighting = "examples".*set it to "equal"',
        ),
        (
            {"method": ZO, "aggregation": {"name": "median"}},
            r'aggregation.name = "median" with privacy.level',
        ),
        (
            {"method": {"name": "feedsign", "epsilon": 1.0}},
            r"method.epsilon = 1 is DP-FeedSign.*leave out \[privacy\]",
        ),
        ({"method": {"name": "fedavg"}}, "fedavg has no private mechanism.*zo-fedsgd"),
        ({"method": {"name": "mezo"}}, 'mezo protects only "example"'),
        ({"method": {**FERRET, "seeds": "per-client"}}, 'method.seeds = "per-client"'),
        ({"method": FERRET, "privacy": LOCAL}, 'ferret protects only "client"'),
        ({"method": {"name": "fedmezo", "travel": "tensors"}}, 'method.travel = "tensors"'),
        ({"method": {"name": "fedmezo", "personal": "loss"}}, 'method.personal = "loss"'),
        ({"method": {**ZO, "clip": 1.0}, "privacy": LOCAL}, "method.clip"),
        ({"method": {**ZO, "population": 4}, "privacy": LOCAL}, "population = 4"),
        (
            {"method": {**ZO, "autocast": "bfloat16"}, "privacy": LOCAL},
            'method.autocast = "bfloat16"',
        ),
        (
            {"method": ZO, "privacy": {**LOCAL, "sampling": "poisson", "examples": 9}},
            r"privacy.examples = 9: must not be less than a batch, which has 16 \(method.batch\)",
        ),
        ({"method": ZO, "stopping": {"patience": 3}}, "stopping: zo-fedsgd is private"),
        (
            {
                "method": ZO,
                "evaluation": {"disclose": True},
                "federation": {"clients": ["a", "b"]},
                "task": {"name": "files", "path": "{client}"},
            },
            "evaluation.disclose = true with",
        ),
        (
            {"method": ZO, "privacy": LOCAL, "evaluation": {"truncate": "split"}},
            'evaluation.truncate = "split"',
        ),
        ({"method": {**ZO, "private": {**LOCAL, "clip": 9.0}}}, "private"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(tables, text):
    with pytest.raises(ValueError, match=text):
        Recipe.model_validate({**TABLE, **tables})


def test_a_recipe_says_it_once():
    recipe = Recipe.model_validate({**TABLE, "method": ZO})
    assert recipe.method.private == recipe.privacy == CLIENT and not recipe.evaluates
    text = recipe.to_toml()
    assert "[privacy]" in text and "private" not in text.replace("privacy", "")
    assert parse_stored_recipe(text) == recipe
    assert Recipe.model_validate({"rounds": 1, "method": ZO}).method == ZOFedSGD(seeds="shared")
