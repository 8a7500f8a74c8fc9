"""Orbits in use: one base in memory becomes the models of many orbits, bit for bit."""

import random

import pytest
import torch
from transformers import AutoModelForCausalLM

import fedseed
from fedseed import Federation, FeedSign, MeZO, Orbit, ParameterSpace, Subspace, Swapper, ZOFedSGD
from fedseed.errors import OrbitError
from fedseed.models.loading import load_model
from fedseed.orbit import Record
from fedseed.orbit.card import Facts
from fedseed.orbit.export import export_model
from fedseed.orbit.file import write_orbit
from fedseed.orbit.record import ending, pack_records


def tuned(base, path, seed, method, trainable=None):
    """Writes an orbit by a loop, and returns where."""
    model, _ = load_model(base)
    if trainable is not None:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(trainable in name)
    with fedseed.ZOOptimizer(model, method, seed=seed, orbit=path, base=base) as optimizer:
        for step in range(6):
            ids = torch.randint(
                4, 20, (2, 6), generator=torch.Generator().manual_seed(10 * seed + step)
            )
            optimizer.step(lambda ids=ids: model(input_ids=ids, labels=ids).loss)
    return path


def trained_in_subspaces(base, folder):
    """Write the orbit of a federation that trains in random subspaces, and return where."""
    rows = [{"prompt": f"What is {word}", "completion": " two"} for word in ("it", "a", "Rome")]
    method = Subspace(rank=4, training={"learning_rate": 1e-2, "steps": 1, "batch": 2})
    model, tokenizer = load_model(base)
    Federation(
        model, [rows, rows], method, tokenizer=tokenizer, base=base, rounds=3, out=folder
    ).run()
    return folder / "model.orbit"


@pytest.fixture(scope="module")
def orbits(base, tmp_path_factory):
    """Orbits of every way in which a step moves weights, of a whole model and of parts.

    And a federation's.
    """
    folder = tmp_path_factory.mktemp("orbits")
    methods = [
        MeZO(learning_rate=1e-3),
        MeZO(learning_rate=1e-2, optimizer="adam"),
        FeedSign(learning_rate=1e-2),
        MeZO(learning_rate=1e-3, small_steps="stochastic"),
        MeZO(learning_rate=1e-3, small_steps="from-base"),
        ZOFedSGD(learning_rate=1e-3),
        MeZO(learning_rate=1e-3, basis="hadamard"),
    ]
    found = {f"{i}": tuned(base, folder / f"{i}.orbit", i, m) for i, m in enumerate(methods)}
    found["part"] = tuned(base, folder / "part.orbit", 8, methods[0], "mlp")
    found["subspace"] = trained_in_subspaces(base, folder / "subspace")
    return base, found


def exported(base, path, folder):
    """The model as `fedseed export` writes it and plain transformers reads it."""
    if not folder.exists():
        model, tokenizer = load_model(base)
        digest = Orbit.open(path).replay(model)
        export_model(folder, model, tokenizer, Orbit.open(path).header, Facts(6, digest))
    return AutoModelForCausalLM.from_pretrained(folder).state_dict()


@pytest.mark.parametrize("keep", [0, 2])
def test_a_hundred_swaps_are_the_exported_models(orbits, keep, tmp_path):
    base, found = orbits
    expected = {name: exported(base, path, tmp_path / name) for name, path in found.items()}
    expected[None] = load_model(base)[0].state_dict()
    swapper, chosen = Swapper(base, found, keep=keep), random.Random(3)
    for _ in range(100):
        name = chosen.choice(list(expected))
        model = swapper.to(name)
        assert swapper.active == name and model is swapper.model
        for key, tensor in model.state_dict().items():
            assert torch.equal(tensor, expected[name][key]), (name, key)


def test_it_takes_a_model_that_is_there(orbits):
    base, found = orbits
    model, _ = load_model(base)
    swapper = Swapper(model, {"a": found["0"]})
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    assert swapper.names == ["a"] and swapper.to("a") is model
    assert any(not torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())
    swapper.add("a", found["1"])  # another one by the same name
    again = fedseed.from_orbit(found["1"]).state_dict()
    assert all(
        torch.equal(tensor, again[key]) for key, tensor in swapper.to("a").state_dict().items()
    )
    with pytest.raises(KeyError):
        swapper.to("b")


def test_what_is_of_another_base_or_wrong_is_refused_and_the_base_stays(orbits, tmp_path):
    base, found = orbits
    with pytest.raises(OrbitError, match="another base"):
        Swapper("words", found)
    swapper = Swapper(base, found)
    wrong = tmp_path / "wrong.orbit"
    orbit = Orbit.open(found["0"])
    steps = [Record(r.round, r.payload, "12" * 16) for r in orbit.records]
    write_orbit(wrong, orbit.start, ending(pack_records(orbit.header.method, steps)))
    swapper.add("wrong", wrong)
    with pytest.raises(OrbitError, match="wrong: after step 6 the weights' digest is"):
        swapper.to("wrong")
    assert swapper.active is None
    assert all(
        torch.equal(t, swapper.model.state_dict()[k])
        for k, t in load_model(base)[0].state_dict().items()
    )


def test_an_adapter_can_not_be_swapped_but_loaded(tmp_path):
    small = [
        "rounds=1",
        "method.steps=1",
        "task.clients=2",
        "federation.per_round=2",
        "evaluation.rouge=false",
        "task.evaluation=2",
        "task.unseen=1",
    ]
    result = Federation.from_file("small-fedmezo-lora", small, out=tmp_path / "run").run()
    with pytest.raises(OrbitError, match="tunes an adapter"):
        Swapper("small", {"a": tmp_path / "run" / "model.orbit"})
    loaded = fedseed.from_orbit(tmp_path / "run")
    assert ParameterSpace(loaded).digest() == result.summary["weights_digest"]
