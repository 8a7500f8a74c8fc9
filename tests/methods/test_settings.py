"""Settings of methods that do not go together: refused, each by its name."""

import pytest

from fedseed import FedKSeed, FedMeZO, FeedSign, Ferret, MeZO, RandOpt, ZOFedSGD
from fedseed.recipe.settings import Recipe

STREAMING = {"allocation": "size", "streaming": True}
REFUSED = [
    (MeZO, {"population": 5}, "population = 5 does not divide batch = 16"),
    (
        FeedSign,
        {"votes_per_round": 1 << 15, "population": 4},
        "131,072 votes in a step, but at most 65,536",
    ),
    (
        MeZO,
        {"divide_by": "deviation"},
        ('divide_by = "deviation" needs several directions in a step'),
    ),
    (
        ZOFedSGD,
        {"divide_by": "deviation", "seeds": "shared"},
        'divide_by = "deviation" needs several',
    ),
    (FeedSign, {"divide_by": "deviation", "votes_per_round": 4}, "votes have no size"),
    (
        FeedSign,
        {"optimizer": "hiso"},
        "a single vote has no size: use several votes in a step",
    ),
    (FeedSign, {"normalize": "ranks"}, 'normalize = "ranks": votes have no scale'),
    (MeZO, {"decay": 0.1}, 'decay = 0.1 needs small_steps = "from-base"'),
    (MeZO, {"optimizer": "adam-rebuilt", "small_steps": "from-base"}, 'needs optimizer = "sgd"'),
    (ZOFedSGD, {"small_steps": "from-base"}, "needs seeds"),
    (FedKSeed, {"decay": 1.0}, "less than 1"),
    (FeedSign, {"learning_rate": 0.0}, "rate"),
    (FedMeZO, {"global_rate": 0.5}, 'global_rate needs travel = "tensors"'),
    (FedMeZO, {"small_steps": "stochastic"}, '"stochastic" needs travel = "tensors"'),
    (FedMeZO, {"seeds": "shared", "travel": "tensors"}, 'seeds = "shared" needs travel'),
    (FedMeZO, {"seeds": "shared", "combine": "exact"}, 'seeds = "shared" needs travel'),
    (FedMeZO, {"seeds": "shared", "personal": "loss"}, 'personal = "loss" needs seeds = "own"'),
    (FedMeZO, {"seeds": "shared", "personal": "update"}, 'personal = "update" needs seeds = "own"'),
    (RandOpt, {"candidates": 4, "best": 4}, "best = 4: must be less than candidates = 4"),
    (RandOpt, {"divide_by": "deviation"}, "has no size to divide by"),
    (Ferret, {"server": "adam", "block_rate": "rms"}, 'block_rate = "rms": server = "adam"'),
    (Ferret, {**STREAMING, "allocation": "norm"}, "streaming needs"),
    (
        Ferret,
        {**STREAMING, "training": {"optimizer": "adamw", "accumulation": 1}},
        "streaming needs",
    ),
    (Ferret, {**STREAMING, "training": {"accumulation": 4}}, "streaming needs"),
]


@pytest.mark.parametrize(("kind", "settings", "text"), REFUSED)
def test_what_does_not_fit_is_refused_by_name(kind, settings, text):
    with pytest.raises(ValueError, match=text):
        kind(**settings)


BYTE = {"name": "zo-fedsgd", "seeds": "shared", "scalars": "byte", "batch": 16}
MISTAKEN = [
    (
        {"name": "mezo", "divide_by": "scalar", "estimates": 3},
        "may cancel .* up to 209 times the rate",
    ),
    ({"name": "zo-fedsgd", "divide_by": "scalar"}, "may cancel"),
    (
        {**BYTE, "normalize": "z-score"},
        r"projections reach 1,000, but a byte only 676; set method.scale = 0.0015 or more",
    ),
    ({**BYTE, "normalize": "z-score", "scale": 2e-3, "population": 4}, "projections reach 1,000"),
    ({**BYTE, "normalize": "ranks", "scale": 5e-4}, "projections reach 1,000"),
]


@pytest.mark.parametrize(("method", "text"), MISTAKEN)
def test_settings_with_which_orbits_are_read_and_no_run_begins(method, text):
    """The sum that MEAZO divides by may cancel; a byte saturates."""
    with pytest.raises(ValueError, match=text):
        Recipe.model_validate({"rounds": 1, "method": method})
    kind = {"mezo": MeZO, "zo-fedsgd": ZOFedSGD}[method["name"]]
    kind.model_validate(method)
    Recipe.model_validate(
        {"rounds": 1, "method": {**method, "divide_by": "nothing", "scale": 3e-3}}
    )


def test_votes_have_no_weights():
    """A client with 1,000 examples would be outvoted by two with one each, whatever `weighting`
    says.
    """
    with pytest.raises(
        ValueError,
        match=(r'method.weighting = "examples": all votes have the same weight.*set it to "equal"'),
    ):
        Recipe.model_validate(
            {"rounds": 1, "method": {"name": "feedsign", "weighting": "examples"}}
        )
