"""A run whose loss is minus the reward of generated answers: from a recipe with a function of one's
own to a replay.
"""

import pytest

from fedseed import Orbit
from fedseed.errors import RecipeError
from fedseed.models.loading import load_model
from fedseed.recipe.reading import parse_stored_recipe, read_recipe
from fedseed.reports.results import read_metrics, read_summary
from support.command import fedseed, well
from support.instruction_files import rows, write_clients

pytestmark = pytest.mark.usefixtures("without_pictures")

RECIPE = """rounds = 4
task = {name = "files", path = "data"}
method = {name = "zo-fedsgd", learning_rate = 1e-3, scale = 0.02}
reward = {function = "rewards.py:score", max_new_tokens = 3}
evaluation = {every = 2, max_new_tokens = 3}
"""
VOWELS = """
def score(prompt, answer, example):
    assert prompt.startswith(("east", "north")) and example.response
    return sum(letter in "aeiou" for letter in answer) / max(1, len(answer))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a recipe, data and a reward function, and a run of them."""
    folder = tmp_path_factory.mktemp("rewards")
    write_clients(folder / "data", east=rows("east", 12), north=rows("north", 12))
    (folder / "recipe.toml").write_text(RECIPE + "[federation]\njoint = false\n")
    (folder / "rewards.py").write_text(VOWELS)
    well("run", "recipe.toml", "--trust-plugins", cwd=folder)
    return folder


@pytest.mark.long
def test_a_run_measures_the_reward_and_its_orbit_is_the_model(place):
    run = place / "runs" / "recipe"
    summary = read_summary(run)
    assert {"loss", "rouge_l", "reward"} <= set(summary["baseline"])
    assert 0 < summary["final"]["reward"] < 1 and summary["backward_passes"] == 0
    assert summary["payload_bytes_up"] == 8
    # minus the mean reward
    assert all(-1 < line["train_loss"] < 0 for line in read_metrics(run)[1:])
    orbit = Orbit.open(run / "model.orbit")
    assert orbit.replay(load_model("small")[0]) == summary["weights_digest"]


def test_a_function_is_not_run_unasked(place):
    (place / "unread.py").write_text("raise SystemExit(9)")
    (place / "theirs.toml").write_text(RECIPE.replace("rewards.py", "unread.py"))
    refused = fedseed("run", "theirs.toml", "--out", "runs/x", cwd=place)
    assert refused.returncode == 2 and not (place / "runs" / "x").exists()
    assert 'reward.function = "unread.py:score" is code' in " ".join(refused.stderr.split())
    # who types it has read it
    typed = read_recipe(place / "recipe.toml", [f"reward.function={place}/rewards.py:score"])
    assert (
        typed.reward.function == f"{place}/rewards.py:score"
        and parse_stored_recipe(typed.to_toml()) == typed
    )
    assert read_recipe(place / "recipe.toml", trust_plugins=True) == typed


@pytest.mark.parametrize(
    ("sets", "problem"),
    [
        (
            ["method.name=ferret"],
            "ferret needs gradients, but a reward has none: choose method.name among fedkseed",
        ),
        (["reward.name=exact_match"], "reward: give either name or function"),
        (["reward={}"], "reward: give either name or function"),
        (
            ['reward={name="exact_mach"}'],
            r'reward.name = "exact_mach": did you mean exact_match\? choose one',
        ),
        (
            ["reward.function=rewards.py"],
            'reward.function = "rewards.py": expected a file or module and a function',
        ),
        (["reward.max_new_tokens=0"], "reward.max_new_tokens = 0"),
        (["reward.temperature=1"], "reward.temperature = 1: unknown key"),
        (["reward.function=nowhere.py:f"], "reward.function: .*nowhere.py: can't be read"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_wrong_table_is_named(place, sets, problem):
    text = (
        RECIPE.replace(", learning_rate = 1e-3, scale = 0.02", "")
        if "ferret" in sets[0]
        else RECIPE
    )
    (place / "wrong.toml").write_text(text)
    with pytest.raises(RecipeError, match=problem):
        read_recipe(place / "wrong.toml", sets, trust_plugins=True)


SPOILT = """
def score(prompt, answer, example):
    if prompt.startswith("north"):
        {}
    return len(set(answer))
"""


def test_a_client_whose_rewards_are_nan_sits_out_and_one_that_fails_ends_the_run(place):
    (place / "nan.py").write_text(SPOILT.format("return float('nan')"))
    words = ("run", "recipe.toml", "--set", "rounds=2", "--set", "evaluation.rouge=false", "--set")
    well(*words, "reward.function=nan.py:score", "--out", "runs/nan", cwd=place)
    skipped = [
        skip for line in read_metrics(place / "runs" / "nan")[1:] for skip in line["skipped"]
    ]
    assert [skip["client"] for skip in skipped] == ["north"] * 2 and "loss is nan" in skipped[0][
        "reason"
    ]
    (place / "text.py").write_text(SPOILT.format("return 'good'"))
    failed = fedseed(*words, "reward.function=text.py:score", "--out", "runs/text", cwd=place)
    said = " ".join(failed.stderr.split())
    assert (
        failed.returncode == 1
        and "text.py:score returned 'good' (str), not a number; prompt 'north" in said
    ), said
