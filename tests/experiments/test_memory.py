"""`fedseed bench`: memory is reckoned before anything is loaded, and measured peaks are near."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedseed.errors import RecipeError
from fedseed.experiments import memory
from fedseed.experiments.memory import Phase, averages_of, fits, memory_table, predict
from fedseed.methods import FedAvg
from fedseed.models.loading import locate
from fedseed.runs.recipe import read_recipe
from fedseed.training.settings import LocalTraining
from fedseed.weights import offload
from support.command import fedseed

ROOT = Path(__file__).parents[2]
TINY = ("task.clients=2", "task.families_per_client=1", "task.examples=20", "task.evaluation=1", "task.unseen=0",
        "federation.per_round=2", "evaluation.rouge=false")  # fmt: skip
WEIGHTS = 1_195_392 * 4


@pytest.fixture
def configuration(tmp_path):
    """The small base without its weights."""
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((Path(locate("small")) / name).read_bytes())
    return str(tmp_path)


def of(name, *settings):
    return predict(read_recipe(name, (*TINY, *settings)))


@pytest.fixture(scope="module")
def plain():
    """What Ferret and FedAvg take as they are, by name."""
    return {name: of(f"quickstart-{name}") for name in ("ferret", "fedavg")}


def test_a_configuration_alone_gives_what_the_base_gives(configuration, plain):
    whole, alone = plain["ferret"], of("quickstart-ferret", f"model.base={configuration}")
    assert alone.weights == whole.weights >= WEIGHTS and alone.parts == whole.parts
    assert [p.model for p in alone.phases] == [p.model for p in whole.phases]
    assert alone.parameters == alone.trained == 1_195_392
    assert (alone.bytes_up, alone.bytes_down) == (whole.bytes_up, whole.bytes_down) == (28_012, 28_020)


def test_parts_are_those_of_the_method(monkeypatch, plain):
    ferret = dict(plain["ferret"].parts)
    assert ferret["start copy of the weights"] == ferret["gradients"] == WEIGHTS
    streaming = dict(of("quickstart-ferret", "method.streaming=true").parts)
    assert list(streaming) == ["activations, and the gradient in hand"]
    fedavg = plain["fedavg"]
    assert dict(fedavg.parts)["optimiser's averages"] == 2 * WEIGHTS and fedavg.bytes_up == WEIGHTS
    assert fedavg.kept == pytest.approx(2 * WEIGHTS, rel=0.1)
    assert list(dict(of("small-feedsign").parts)) == ["activations (forward)"]
    assert of("small-fedkseed", "model.offload_base=false").base == WEIGHTS
    assert of("small-fedkseed", "model.offload_base=true").base == 0
    monkeypatch.setattr(offload, "WORTH", 1)
    monkeypatch.setattr(offload, "has_disk", lambda size: True)
    assert of("small-fedkseed").base == 0
    momentum = of("small-feedsign", "method.optimizer=adam")
    assert momentum.averages == 2 * WEIGHTS and momentum.held == momentum.weights + 2 * WEIGHTS
    assert of("small-mezo", "method.optimizer=hiso").averages == WEIGHTS  # the diagonal
    assert of("small-mezo", "method.optimizer=adam-rebuilt").averages == 0


@pytest.mark.slow
def test_checkpoints_adapters_and_parts_of_a_model(plain):
    plain = plain["fedavg"]
    checkpointed = of("quickstart-fedavg", "model.activation_checkpointing=true")
    assert checkpointed.round_peak < plain.round_peak and checkpointed.weights == plain.weights
    adapted = of("quickstart-fedavg", "model.adapter.kind=lora")
    assert adapted.trained < 100_000 < adapted.parameters and adapted.bytes_up == 4 * adapted.trained
    part = of("quickstart-fedavg", 'model.trainable=["*.layers.4.*"]')
    assert part.trained < part.parameters and part.weights == plain.weights


@pytest.mark.slow
def test_the_length_of_examples(configuration):
    named = of("small-feedsign", "method.batch=3")
    assert "3 examples" not in named.batch and "6 examples of" in named.batch  # two clients look together
    recipe = read_recipe("quickstart-ferret", TINY)
    short, long = (predict(recipe, tokens) for tokens in (10, 100))
    assert short.batch == "8 examples of 10 tokens" and long.batch == "8 examples of 100 tokens"
    assert long.round_peak > short.round_peak
    assert predict(recipe, 10_000).batch == "8 examples of 256 tokens"  # the model's positions
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (Path(configuration) / name).unlink()
    assert of("quickstart-ferret", f"model.base={configuration}").batch == "8 examples of 256 tokens"


@pytest.mark.slow
def test_micro_batches_by_tokens():
    step = "method.training.batch=16", "method.training.accumulation=1"
    whole, parts = (of("quickstart-fedavg", *step, *more) for more in ((), ("method.training.batch_tokens=100",)))
    count, length = (int(word.replace(",", "")) for word in parts.batch.split() if word[0].isdigit())
    assert count < 16 and count * length <= 100 < (count + 1) * length and whole.batch.startswith("16 examples")
    assert parts.round_peak < whole.round_peak


@pytest.mark.long
def test_other_kinds_of_examples(original):
    recipe = read_recipe("digits-feedsign")
    with pytest.raises(RecipeError, match=r'batch_tokens = 64: pictures \(task\.name = "digits"\) have no tokens'):
        predict(recipe.model_copy(update={"method": FedAvg(training=LocalTraining(batch_tokens=64))}))
    digits = predict(recipe)
    assert digits.batch.endswith("examples") and digits.evaluation > 0


def test_whether_it_fits(monkeypatch, plain):
    found = plain["ferret"]
    monkeypatch.setattr(memory, "available_memory", lambda: (1 << 40, 1 << 39))
    assert fits(found)[0] and fits(found)[1][0].startswith("It fits: it takes ")
    monkeypatch.setattr(memory, "available_memory", lambda: (1 << 40, 1 << 20))
    fine, lines = fits(found)
    assert not fine and lines[0].startswith("It does not fit")
    monkeypatch.setattr(memory, "available_memory", lambda: None)
    assert fits(found) == (
        True,
        [lines[0].replace("It does not fit: it takes", "At its peak it takes").split(" of ")[0] + "."],
    )


def test_a_peak_is_the_worst_phase(plain):
    found = plain["ferret"]
    changed = found.__class__(**{**vars(found), "phases": (Phase("a", 5, 7), Phase("b", 9, 1)), "base": 100})
    assert changed.round_peak == found.program + found.weights + 100 + 12
    assert changed.on_device == found.weights + 100 + max(9, found.evaluation)
    assert changed.in_host == found.program + 7
    assert any("messages that wait" in str(cell) for cell in memory_table(found)[0].columns[0].cells)


def test_optimisers_averages():
    kinds = {"sgd": 0, "adam": 2, "adamw": 2, "adagrad": 1, "rmsprop": 1}
    assert {name: averages_of(LocalTraining(optimizer=name)) for name in kinds} == kinds
    assert averages_of(LocalTraining(momentum=0.9)) == 1


@pytest.mark.long
def test_bench_says_what_it_did_not_time(configuration, tmp_path, monkeypatch):
    words = ["bench", "quickstart-ferret", *(word for pair in TINY for word in ("--set", pair))]
    done = fedseed(*words, "--set", f"model.base={configuration}")
    assert done.returncode == 0, done.stderr
    assert "a round's peak (training)" in done.stdout and "Nothing was timed" in done.stdout
    monkeypatch.setattr(memory, "available_memory", lambda: (1 << 40, 1 << 20))
    assert "for want of memory" in fedseed(*words).stdout
    assert "Nothing was timed" not in fedseed(*words, "--memory", "--tokens", "20").stdout


def test_a_base_that_is_not_there():
    with pytest.raises(RecipeError, match="there is no such folder"):
        of("quickstart-ferret", "model.base=/no/such/folder")


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="resident memory is that of a CPU")
def test_measured_peaks_are_within_15_percent(tmp_path):
    """At OPT-125M's shapes, a process for each; and a forward pass is all that FedKSeed takes.

    The benchmark has more of them.
    """
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import memory as benchmark
    finally:
        sys.path.pop(0)
    benchmark.prepare(tmp_path)
    names = ["forward pass", "FedKSeed", "FedAvg, AdamW", "FedAvg, SGD, 16 examples, checkpointed"]
    peaks = {name: (a["peak"], b["peak"]) for name, a, b in benchmark.compare(tmp_path, names)}
    for _ in range(2):  # the heap's holes vary, by a tenth now and then: the least of three
        off = [name for name, (a, b) in peaks.items() if abs(b / a - 1) > 0.15]
        for name, a, b in benchmark.compare(tmp_path, off) if off else ():
            peaks[name] = min(peaks[name], (a["peak"], b["peak"]))
    assert all(abs(b / a - 1) <= 0.15 for a, b in peaks.values()), json.dumps(peaks)
    assert peaks["FedKSeed"][0] <= 1.15 * peaks["forward pass"][0]


@pytest.mark.slow
def test_nothing_of_the_weights_is_read(configuration):
    """A process that reckons for a base of three billion parameters stays as small as it is."""
    config = Path(configuration) / "config.json"
    sizes = json.loads(config.read_text()) | {"hidden_size": 3200, "intermediate_size": 8640, "num_hidden_layers": 26,
                                              "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 100,
                                              "vocab_size": 32000}  # fmt: skip
    config.write_text(json.dumps(sizes))
    code = """
import resource, sys
from fedseed.experiments.memory import predict
from fedseed.runs.recipe import read_recipe
found = predict(read_recipe("quickstart-ferret", sys.argv[1:]))
print(found.parameters, found.weights, found.program, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""
    command = [sys.executable, "-c", code, *TINY, f"model.base={configuration}", "model.dtype=bfloat16"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    parameters, weights, program, peak = map(int, done.stdout.split())
    assert parameters > 3e9 and weights >= 2 * parameters and peak < program + (1 << 29)
