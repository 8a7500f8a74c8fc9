"""`fedseed bench`: what a run will cost, by the shapes of its base and by one shortened round."""

import json
from pathlib import Path

import pytest

from fedseed.errors import RecipeError
from fedseed.experiments import bench
from fedseed.experiments.bench import cost_table, fits, measure, reckon
from fedseed.models.loading import load_model, locate
from fedseed.recipe.reading import read_recipe
from support.command import fedseed, well

TINY = (
    "task.clients=2",
    "task.families_per_client=1",
    "task.examples=20",
    "task.evaluation=1",
    "task.unseen=0",
    "federation.per_round=2",
    "evaluation.rouge=false",
)
WEIGHTS = 1_195_392 * 4


@pytest.fixture
def configuration(tmp_path):
    """The small base without its weights."""
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((Path(locate("small")) / name).read_bytes())
    return str(tmp_path)


def of(name, *settings, tokens=None):
    return reckon(read_recipe(name, (*TINY, *settings)), tokens)


@pytest.mark.parametrize(
    ("recipe", "settings", "up"),
    [
        pytest.param("small-feedsign", (), 1, marks=pytest.mark.long),
        pytest.param("small-fedkseed", ("method.steps=30",), 8 * 30, marks=pytest.mark.long),
        ("quickstart-ferret", ("method.directions=50",), 8 + 4 + 4 * 50),
    ],
)
def test_costs_are_the_recipes(recipe, settings, up):
    checked = read_recipe(recipe, (*TINY, *settings))
    cost = measure(checked)
    assert cost.bytes_up == up and cost.clients == 2 and cost.rounds == checked.rounds
    assert cost.parameters == 1_195_392 and cost.peak_memory > WEIGHTS
    assert cost.round["local"] > 0 and cost.round["rebuild"] > 0
    assert cost.total > cost.rounds * cost.round["local"]
    assert "rounds and" in str(cost_table(cost)[-1])


def test_memory_is_reckoned_by_the_shapes_alone(configuration):
    """Also of a base of three billion parameters, whose weights nobody has."""
    whole, alone = of("quickstart-ferret"), of("quickstart-ferret", f"model.base={configuration}")
    assert whole == alone and alone.parameters == alone.trained == 1_195_392
    config = Path(configuration) / "config.json"
    large = {
        "hidden_size": 3200,
        "intermediate_size": 8640,
        "num_hidden_layers": 26,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "head_dim": 100,
        "vocab_size": 32000,
    }
    config.write_text(json.dumps(json.loads(config.read_text()) | large))
    found = of("quickstart-ferret", f"model.base={configuration}", "model.dtype=bfloat16")
    assert found.parameters > 3e9 and dict(found.parts)["gradients"] == 2 * found.parameters
    with pytest.raises(RecipeError, match="there is no such folder"):
        of("quickstart-ferret", "model.base=/no/such/folder")


def test_a_base_in_safetensors_is_rebuilt_without_a_copy(configuration):
    """A folder without weights counts as one that has them so."""
    config = Path(configuration) / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"vocab_size": 400_000}))
    settings = ["small-fedkseed", f"model.base={configuration}"]
    assert "copy of the base" not in dict(of(*settings).parts)
    (Path(configuration) / "pytorch_model.bin").touch()
    found = dict(of(*settings).parts)
    assert found["copy of the base"] > 64 << 20
    (Path(configuration) / "model.safetensors").touch()
    assert "copy of the base" not in dict(of(*settings).parts)


@pytest.mark.long
def test_parts_are_those_of_the_method():
    def logits(tokens, batch=8):
        return {f"logits of {batch} examples of {tokens} tokens": 4 * batch * tokens * 1488}

    def parts(name, *settings):
        found = dict(of(name, *settings, tokens=10).parts)
        assert found.pop("weights") >= WEIGHTS
        return found

    moved = {
        "the largest tensor, perturbed": max(p.numel() for p in load_model("small")[0].parameters())
        * 4
    }

    trained = {"gradients": WEIGHTS, "start copy of the weights": WEIGHTS}
    assert parts("quickstart-ferret") == {**trained, **logits(10)}
    streaming = parts("quickstart-ferret", "method.streaming=true")
    assert "gradients" not in streaming and streaming["start copy of the weights"] == WEIGHTS
    assert parts("quickstart-fedavg") == {
        **trained,
        "optimiser's averages": 2 * WEIGHTS,
        **logits(10),
    }
    averages = {"averages of the steps": 2 * WEIGHTS}
    assert parts("small-feedsign", "method.optimizer=adam") == {**averages, **moved, **logits(10)}
    # the diagonal
    assert parts("small-mezo", "method.optimizer=hiso")["averages of the steps"] == WEIGHTS
    assert parts("small-fedkseed") == {"copy of the base": WEIGHTS, **moved, **logits(10, 4)}
    assert next(iter(logits(256))) in dict(of("quickstart-ferret").parts)  # the model's positions
    adapted = of("quickstart-fedavg", "model.adapter.kind=lora")
    assert dict(adapted.parts)["gradients"] == 4 * adapted.trained < 400_000 < adapted.parameters
    assert of("quickstart-fedavg", 'model.trainable=["*.layers.4.*"]').trained < adapted.parameters
    without_data = read_recipe(
        "quickstart-ferret", ["task={}", "task.name=files", "task.path=/no/such/folder"]
    )
    assert reckon(without_data).parameters == 1_195_392
    expected = ["weights", "the largest tensor, perturbed"]
    digits = reckon(read_recipe("digits-feedsign"))
    assert (
        digits.trained == 650 < digits.parameters and [name for name, _ in digits.parts] == expected
    )


@pytest.mark.long
def test_bench_says_what_it_did_not_time(configuration, monkeypatch):
    words = ["bench", "quickstart-ferret", *(word for pair in TINY for word in ("--set", pair))]
    done = well(*words, "--set", f"model.base={configuration}")
    assert "start copy of the weights" in done.stdout and "Nothing was timed" in done.stdout
    found = of("quickstart-ferret")
    for free, fine, said in ((1 << 39, True, "it may fit."), (1 << 20, False, "it does not fit.")):
        monkeypatch.setattr(bench, "available_memory", lambda free=free: (1 << 40, free))
        enough, line = fits(found, "cpu")
        assert enough is fine and line.endswith(said)
    assert "for want of memory" in fedseed(*words).stdout
    only = json.loads(fedseed(*words, "--memory", "--tokens", "20", "--json").stdout)
    assert (
        only["measured"] is None
        and only["memory"]["total"] == of("quickstart-ferret", tokens=20).total
    )
