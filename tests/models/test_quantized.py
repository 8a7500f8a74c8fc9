"""Quantised bases under adapters: what moves, what the digest is of, and that an orbit replays onto the original."""

import sys
from importlib import util

import pytest
import torch

from fedseed import Federation, Orbit
from fedseed.errors import RecipeError
from fedseed.models import quantized
from fedseed.models.loading import choose_trainable, load_model, outline
from fedseed.runs.recipe import read_recipe
from fedseed.weights.digest import base_digest

RECIPE = """
rounds = 1
[model]
base = "small"
quantization = "4bit"
adapter = {kind = "lora", rank = 2}
[task]
clients = 2
families_per_client = 1
examples = 12
evaluation = 1
unseen = 0
[method]
%s
[evaluation]
rouge = false
"""
METHODS = {
    "fedit": 'name = "fedit"\ntraining = {optimizer = "adam", learning_rate = 1e-2, steps = 2, batch = 2}',
    "fedmezo": 'name = "fedmezo"\nsteps = 2\nlearning_rate = 1e-3\nscale = 1e-2',
}
needs_bitsandbytes = pytest.mark.skipif(util.find_spec("bitsandbytes") is None, reason="needs bitsandbytes")


def recipe(tmp_path, method="fedit"):
    path = tmp_path / f"{method}.toml"
    path.write_text(RECIPE % METHODS[method])
    return path


@pytest.mark.long
@needs_bitsandbytes
@pytest.mark.parametrize(("method", "quantization"), [("fedit", "8bit"), ("fedmezo", "4bit")])
def test_a_round_on_the_adapter_of_a_quantised_base(method, quantization, tmp_path, small, quickly):
    settings = [f"model.quantization={quantization}"]
    federation = Federation.from_file(recipe(tmp_path, method), settings, out=tmp_path / "run")
    model = federation.worker.space.model
    kinds = {type(m).__name__ for m in model.modules()}
    assert "Linear4bit" in kinds if quantization == "4bit" else "Linear8bitLt" in kinds
    frozen = {name: p.detach().clone() for name, p in model.named_parameters() if "lora_" not in name}
    summary = federation.run().summary
    assert summary["base_digest"] == base_digest(small[0])  # of the original, though its bits are not here
    assert summary["skipped"] == summary["skipped_steps"] == 0 and summary["parameters"] < 20_000
    after = dict(model.named_parameters())
    assert all(torch.equal(after[name], before) for name, before in frozen.items())
    moved = [n for n, p in after.items() if "lora_B" in n and p.any()]
    assert len(moved) == 10  # B starts at zero; query and value of five layers
    if method != "fedit":
        orbit = Orbit.open(tmp_path / "run" / "model.orbit")
        base, _ = load_model("small")
        assert orbit.replay(orbit.equip(base)) == summary["weights_digest"]


@needs_bitsandbytes
def test_losses_are_near_the_originals_and_the_same_after_training_and_evaluation(small):
    from torch.nn.functional import cross_entropy

    ids = torch.arange(3, 43).reshape(2, 20)

    def loss(model, mode):
        model.train(mode)
        with torch.no_grad():
            logits = model(input_ids=ids).logits
        return float(cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1)))

    original = loss(small[0], False)
    for quantization, apart in (("4bit", 0.1), ("8bit", 0.05)):
        model, _ = load_model("small", quantization=quantization)
        trained, first = loss(model, True), loss(model, False)
        assert first == pytest.approx(original, rel=apart) and first != original
        assert (loss(model, True), loss(model, False)) == (trained, first)  # nothing was repacked meanwhile
        assert trained == pytest.approx(first, rel=1e-3)  # LLM.int8 looks after outliers in another way
        with pytest.raises(RecipeError, match="is quantised, and does not move"):
            choose_trainable(model, ["*q_proj*"])
        held = sum(t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers()))
        whole = sum(p.numel() * p.element_size() for p in small[0].parameters())
        saved = quantized.saved_by(outline("small"), quantization)
        assert whole - held == pytest.approx(saved, rel=0.15)  # scales lie beside the tensors


def test_what_does_not_fit_is_said_before_anything_is_loaded(tmp_path, monkeypatch):
    with pytest.raises(
        RecipeError, match=r'quantization = "4bit": ferret would tune all parameters, .* add an adapter'
    ):
        read_recipe("quickstart-ferret", ["model.quantization=4bit"])
    with pytest.raises(RecipeError, match=r'device = "map" with model.quantization = "8bit": name one device'):
        read_recipe(recipe(tmp_path), ["model.quantization=8bit", "model.device=map"])
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    monkeypatch.setattr(quantized, "find_spec", lambda name: None)
    with pytest.raises(RecipeError, match=r"needs bitsandbytes: pip install '\.\[quantized\]'"):
        load_model("small", quantization="4bit")
