"""Runs on quantised bases, and with LoRA whose A is fixed: replay, export, three parties."""

import json
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from fedseed import Orbit, Swapper, from_orbit
from fedseed.errors import FedseedError, RecipeError
from fedseed.methods.zeroth import ZerothOrder
from fedseed.models.loading import load_model
from fedseed.orbit.export import export_model
from fedseed.recipe.reading import read_recipe
from fedseed.recipe.settings import Recipe
from fedseed.runs.assembly import build
from fedseed.runs.joining import Loading, make_client, prepare_orbit_file, save_model
from fedseed.runs.tuned import find_source, open_tuned
from fedseed.tasks.data import OwnData
from fedseed.transport import transport as transport_at
from fedseed.transport.base import Access
from fedseed.weights.devices import limited
from support.command import fedseed, well
from support.text_bases import write
from support.together import LOADING, Together

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("without_pictures")]

NAMES = ("east", "north", "south")
IDS = torch.arange(3, 15).reshape(2, 6)
LOCAL = {"steps": 2, "batch": 2, "learning_rate": 0.1, "accumulation": 1}
METHODS = {
    "fedavg": {"training": LOCAL},
    "fedit": {"training": LOCAL},
    "ferret": {"scalars": "bit", "directions": 32, "training": LOCAL},
    "feedsign": {"learning_rate": 1e-2},
    "zo-fedsgd": {"learning_rate": 1e-3, "clip_projection": 5.0},
    "fedkseed": {"learning_rate": 1e-3, "steps": 4, "candidates": 64},
}
LORA = {"kind": "lora", "rank": 4}
B_ALONE = {"adapter": {**LORA, "train": "b"}}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return str(write(tmp_path_factory.mktemp("bases") / "llama", "llama"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The folder of three parties' files."""
    folder = tmp_path_factory.mktemp("data")
    for name in NAMES:
        rows = [
            {"prompt": f"the film was {word}", "completion": f"{answer} story"}
            for word in ("great", "good", "bad", "terrible")
            for answer in ("fine", "very fine")
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def recipe(method, base, data, **model):
    return Recipe.model_validate(
        {
            "rounds": 3,
            "model": {"base": base, **model},
            "task": {"name": "files", "path": str(data)},
            "federation": {"clients": list(NAMES), "joint": False},
            "method": {"name": method, **METHODS[method]},
            "evaluation": {"every": 3, "rouge": False},
        }
    )


def logits(model):
    with torch.no_grad():
        return model.eval()(IDS).logits


def run(checked, folder):
    with limited(1):
        return build(checked, folder).run().summary


def exported(folder, run_folder, merge=False):
    tuned = open_tuned(find_source(str(run_folder)))
    expected = logits(tuned.model)
    export_model(folder, tuned.model, tuned.processor, tuned.header, tuned.facts, merge)
    return tuned, expected


# -- LoRA


@pytest.mark.parametrize("quantization", [None, "int4"])
@pytest.mark.parametrize("method", METHODS)
def test_a_lora_with_a_fixed_a_is_tuned_replayed_and_loaded_by_peft(
    method, quantization, base, data, tmp_path
):
    from peft import PeftModel

    checked = recipe(method, base, data, quantization=quantization, **B_ALONE)
    summary = run(checked, tmp_path / "run")
    assert summary["skipped"] == 0 and summary["parameters"] == 512  # B of two layers, twice
    said = [note for note in summary["data_notes"] if "the base is quantised: " in note]
    assert len(said) == (quantization is not None)
    tuned, expected = exported(tmp_path / "adapter", tmp_path / "run")
    assert tuned.facts.digest == summary["weights_digest"]
    assert tuned.header.quantization == (quantization or "")
    assert not torch.equal(expected, logits(load_model(base, quantization=quantization)[0]))
    if quantization is None:
        from transformers import AutoModelForCausalLM

        plain = AutoModelForCausalLM.from_pretrained(base)
    else:
        plain, _ = load_model(base, quantization=quantization)
    model = PeftModel.from_pretrained(plain, tmp_path / "adapter")
    assert torch.equal(logits(model), expected)
    # `fedseed evaluate FOLDER` loads the base as the run had it
    again = open_tuned(find_source(str(tmp_path / "adapter"))).model
    assert torch.equal(logits(again), expected)


@pytest.mark.parametrize("quantization", ["nf4", "fp4", "llm-int8", "torchao-int8"])
@pytest.mark.parametrize("method", METHODS)
def test_a_lora_on_a_librarys_base(method, quantization, base, data, tmp_path):
    library = "torchao" if quantization == "torchao-int8" else "bitsandbytes"
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed: the extra quantized has it")
    from peft import PeftModel

    train = "b" if method != "ferret" else "both"
    adapter = {**LORA, "train": train}
    checked = recipe(method, base, data, quantization=quantization, adapter=adapter)
    summary = run(checked, tmp_path / "run")
    tuned, expected = exported(tmp_path / "adapter", tmp_path / "run")
    assert tuned.facts.digest == summary["weights_digest"]
    plain, _ = load_model(base, quantization=quantization)
    assert not torch.equal(expected, logits(plain))
    assert torch.equal(logits(PeftModel.from_pretrained(plain, tmp_path / "adapter")), expected)


def test_an_adapters_folder_is_tuned_on_with_its_base_quantised_as_it_was(base, data, tmp_path):
    run(recipe("feedsign", base, data, quantization="int4", adapter=LORA), tmp_path / "first")
    _, start = exported(tmp_path / "adapter", tmp_path / "first")
    folder = str(tmp_path / "adapter")
    for number, given in enumerate(({}, {"quantization": "int4"})):
        summary = run(recipe("feedsign", folder, data, **given), tmp_path / str(number))
        tuned = open_tuned(find_source(str(tmp_path / str(number))))
        assert tuned.header.quantization == "int4"
        assert tuned.facts.digest == summary["weights_digest"]
        assert not torch.equal(logits(tuned.model), start)
    with pytest.raises(RecipeError, match=r'"int8": the adapter in .* quantised as "int4"'):
        build(recipe("feedsign", folder, data, quantization="int8"))


def test_merging_is_refused_with_the_way_out_and_done_on_a_plain_base(base, data, tmp_path):
    from transformers import AutoModelForCausalLM

    for quantization in ("int4", None):
        out = tmp_path / str(quantization)
        run(recipe("fedit", base, data, quantization=quantization, **B_ALONE), out)
        if quantization is None:
            _, expected = exported(tmp_path / "merged", out, merge=True)
            model = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
            torch.testing.assert_close(logits(model), expected, rtol=1e-4, atol=1e-5)
            continue
        with pytest.raises(RecipeError, match=r"--merge: .* quantised.* Leave out --merge, and"):
            exported(tmp_path / "refused", out, merge=True)
        assert not (tmp_path / "refused").exists()


def test_another_base_or_quantisation_is_another_digest(base, data, tmp_path):
    run(recipe("feedsign", base, data, quantization="int4", **B_ALONE), tmp_path / "run")
    orbit = Orbit.open(tmp_path / "run" / "model.orbit")
    for quantization in (None, "int8"):
        with pytest.raises(FedseedError, match="another base: its digest is"):
            orbit.equip(load_model(base, quantization=quantization)[0])
    fitting = orbit.equip(load_model(base, quantization="int4")[0])
    assert orbit.replay(fitting) == orbit.records[-1].digest
    # A is not among what moves; the digest of the start has it all the same
    other = orbit.equip(load_model(base, quantization="int4")[0])
    with torch.no_grad():
        other.get_parameter(min(other.fixed_parameters)).neg_()
    with pytest.raises(FedseedError, match="first weights are not those of the run"):
        orbit.replay(other)


def test_two_sites_whose_bases_are_quantised_differently_differ_by_name(base, data, tmp_path):
    headers = []
    for quantization in ("int4", "int8"):
        checked = recipe("feedsign", base, data, quantization=quantization, **B_ALONE)
        headers.append(build(checked).hosted.header)
    assert any(
        line.startswith("quantization: int4, int8") for line in headers[0].differences(headers[1])
    )


# -- three parties


@pytest.mark.parametrize(
    ("method", "tuned"),
    [*((method, B_ALONE) for method in METHODS), ("feedsign", {"trainable": "scales"})],
)
def test_three_parties_over_nats_end_with_one_digest_and_a_model_that_others_load(
    method, tuned, base, data, shared_server, tmp_path
):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    checked = recipe(method, base, data, quantization="int4", **tuned)
    name = f"quantised-{method}-{'-'.join(tuned)}"
    sites = Together(checked, lambda: transport_at(Access(shared_server.url), name), name)

    def take_part(client, folder):
        def live():
            with LOADING:
                load = Loading(checked, [client], own_data=OwnData(data / f"{client}.jsonl"))
                sites.clients[client] = make_client(
                    load, name, sites.way(), prepare_orbit_file(folder)
                )
            digest = sites.clients[client].run()
            with LOADING:
                save_model(sites.clients[client], digest, folder)
            return digest

        sites.begin(client, live)

    with limited(1):
        sites.coordinator(tmp_path / "run")
        for client in NAMES:
            take_part(client, tmp_path / client)
        (digest,) = sites.wait()
    assert set(sites.digests) == set(NAMES)
    assert sites.result.summary["weights_digest"] == digest
    expected = logits(sites.clients["east"].replica.hosted.worker.space.model)
    for client in NAMES:
        if tuned is B_ALONE:
            plain, _ = load_model(base, quantization="int4")
            model = PeftModel.from_pretrained(plain, tmp_path / client)
        else:
            model = AutoModelForCausalLM.from_pretrained(tmp_path / client)
        assert torch.equal(logits(model), expected)


# -- scales: QZO


@pytest.mark.parametrize("quantization", ["int4", "int8"])
@pytest.mark.parametrize("method", ["fedavg", "ferret", "feedsign", "zo-fedsgd", "fedkseed"])
def test_scales_are_tuned_replayed_and_exported_as_a_plain_model(
    method, quantization, base, data, tmp_path
):
    from transformers import AutoModelForCausalLM

    checked = recipe(method, base, data, quantization=quantization, trainable="scales")
    before = dict(load_model(base, quantization=quantization)[0].named_parameters())
    summary = run(checked, tmp_path / "run")
    tuned = open_tuned(find_source(str(tmp_path / "run")))
    assert tuned.facts.digest == summary["weights_digest"]
    after = dict(tuned.model.named_parameters())
    moved = {name for name, p in after.items() if not torch.equal(p, before[name])}
    assert moved and all(name.endswith(".scales") for name in moved)
    expected = logits(tuned.model)
    export_model(tmp_path / "out", tuned.model, tuned.processor, tuned.header, tuned.facts)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert torch.equal(logits(plain), expected)
    if method not in ("fedavg",):
        model = from_orbit(tmp_path / "run")
        assert torch.equal(logits(model), expected)
        swapper = Swapper(base, {"a": tmp_path / "run" / "model.orbit"}, quantization=quantization)
        assert torch.equal(logits(swapper.to("a")), expected)


@pytest.mark.parametrize("population", [1, 4])
def test_a_population_looks_along_scales_too(population, base, data, tmp_path):
    METHODS["population"] = {}
    checked = recipe("feedsign", base, data, quantization="int4", trainable="scales").model_copy()
    method = checked.method.model_copy(
        update={"population": population, "batch": 4, "basis": "lowrank"}
    )
    checked = checked.model_copy(update={"method": method})
    summary = run(checked, tmp_path / "run")
    assert open_tuned(find_source(str(tmp_path / "run"))).facts.digest == summary["weights_digest"]


@pytest.mark.parametrize(
    "seed", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)]
)
def test_qzo_lowers_the_loss_on_words_from_four_bits_with_a_bit_a_step(seed, tmp_path):
    """Before: 0.935; after an eighth of the recipe's steps below 0.8 with each seed."""
    checked = read_recipe("words-qzo", [f"seed={seed}", "rounds=100", "evaluation.every=100"])
    summary = run(checked, tmp_path / "run")
    assert summary["parameters"] == 1024
    assert summary["baseline"]["loss"] == pytest.approx(0.9353, abs=1e-3)
    assert summary["final"]["loss"] < 0.8
    orbit = Orbit.open(tmp_path / "run" / "model.orbit")
    assert all(len(record.payload) == 1 for record in orbit.records)
    base, _ = load_model("words", quantization="int4")
    assert orbit.replay(base) == summary["weights_digest"]


def test_a_projection_is_cut_and_the_step_goes_on():
    class Cut(ZerothOrder):
        name: str = "cut"
        learning_rate: float = 1.0

        def train(self, state, plan, client): ...

        def aggregate(self, state, answers): ...

        def change(self, state, step): ...

    losses = [1.0, 2.0, 3.0], [2.0, 2.5, 1.0]
    found = Cut(clip_projection=3.0).quotients(*losses, 0.25)
    assert [one.rho for one in found] == [-3.0, -2.0, 3.0]
    assert [one.loss for one in found] == [1.5, 2.25, 2.0]
    assert [one.rho for one in Cut().quotients(*losses, 0.25)] == [-4.0, -2.0, 8.0]


def test_votes_are_not_cut():
    with pytest.raises(RecipeError, match="votes have no size to cut"):
        read_recipe("words-qzo", ["method.clip_projection=1.0"])


# -- the commands


def test_bench_reckons_with_the_quantised_base(tmp_path):
    from fedseed.experiments.bench import reckon

    sizes = {}
    for quantization in (None, "int4", "nf4", "int8"):
        given = [] if quantization is None else [f"model.quantization={quantization}"]
        checked = read_recipe("quickstart-fedavg", [*given, 'model.adapter={kind="lora"}'])
        sizes[quantization] = dict(reckon(checked).parts)["weights"]
    model, _ = load_model("small", quantization="int4")
    assert sizes["int4"] == sizes["nf4"] < sizes["int8"] < sizes[None]
    assert sizes["int4"] >= sum(p.nbytes for p in model.parameters())


def test_the_command_line_runs_exports_and_evaluates(base, data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "recipe.toml"
    path.write_text(recipe("zo-fedsgd", base, data, quantization="int4", **B_ALONE).to_toml())
    well("run", path, "--out", "run")
    well("export", "run", "--out", "adapter")
    of_run = well("evaluate", "run").stdout
    of_adapter = well("evaluate", "adapter", "--recipe", "run/recipe.toml").stdout
    losses = [
        next(line.split()[-1] for line in said.splitlines() if " loss " in line)
        for said in (of_run, of_adapter)
    ]
    assert losses[0] == losses[1] and np.isfinite(float(losses[0]))
    card = (tmp_path / "adapter" / "README.md").read_text()
    assert 'quantization="int4"' in card and "quantised as `int4`" in card
    refused = fedseed("export", "run", "--merge", "--out", "merged")
    assert refused.returncode == 2
    assert "--merge: the base's weights are quantised" in refused.stderr
    assert not (tmp_path / "merged").exists()
