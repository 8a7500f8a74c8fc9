import json
import warnings

import pytest
import torch
from transformers import RobertaConfig, RobertaForMaskedLM

from fedseed import Basis, Federation, FedMeZO, FedPrompt, FeedSign, Ferret, Orbit, ParameterSpace
from fedseed.errors import OrbitError, RecipeError
from fedseed.models import adapters as adapting
from fedseed.models.adapters import LoRA, PromptTuning, PTuning, install
from fedseed.models.loading import load_model
from fedseed.objectives.generation import generate
from fedseed.objectives.losses import CausalLM
from fedseed.recipe.reading import read_recipe
from fedseed.runs.assembly import build
from fedseed.tasks.data import Example
from fedseed.training.settings import LocalTraining
from fedseed.weights.digest import base_digest
from support.tiers import mark

pytestmark = pytest.mark.usefixtures("without_pictures")

ADAPTERS = [
    LoRA(),
    LoRA(rank=2, alpha=3, targets=["up_proj", "o_proj"]),
    PTuning(hidden=16),
    PromptTuning(virtual_tokens=3, init="normal"),
]


def fresh():
    return load_model("small")[0]


@pytest.fixture(scope="module")
def objective(small):
    return CausalLM(small[1])


@pytest.fixture(scope="module")
def items(objective):
    return objective.prepare([Example("one two", "three four five"), Example("a", "b c")])


def trainable(model):
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("settings", ADAPTERS, ids=str)
def test_it_trains_what_belongs_to_it_and_nothing_else(settings, objective, items):
    base = fresh()
    kinds, width = ("blake2b", "blake2b-tree"), base.config.hidden_size
    digests = [base_digest(base, kind) for kind in kinds]
    model = install(base, settings, 1, "small")
    assert [adapting.base_digest(model, kind) for kind in kinds] == digests
    found = trainable(model)
    if settings.kind == "lora":  # of two layers of each block
        outer = (
            2 * width
            if settings.targets is None
            else base.config.hidden_size + base.config.intermediate_size
        )
        expected = settings.rank * (outer + 2 * width) * base.config.num_hidden_layers
    else:
        expected = (
            mlp_size(width, settings.hidden)
            if settings.kind == "p-tuning"
            else settings.virtual_tokens * width
        )
    assert sum(p.numel() for p in found.values()) == ParameterSpace(model).size == expected
    part = "lora_" if settings.kind == "lora" else "prompt_encoder"
    assert all(part in name for name in found)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(list(found.values()), lr=0.5)
    for _ in range(2):  # LoRA's A has no gradient before B has moved
        objective.losses(model, items).sum().backward()
        optimizer.step()
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert changed == set(found)


def mlp_size(width, hidden):
    return 20 * width + (width + 1) * hidden + (hidden + 1) * hidden + (hidden + 1) * width


@pytest.mark.parametrize("settings", ADAPTERS, ids=str)
def test_first_weights_are_the_seeds_and_nobody_elses(settings):
    digests = []
    for torch_seed, seed in ((1, 7), (2, 7), (1, 8)):
        torch.manual_seed(torch_seed)
        state = torch.get_rng_state()
        digests.append(ParameterSpace(install(fresh(), settings, seed)).digest())
        assert torch.equal(torch.get_rng_state(), state)
    assert digests[0] == digests[1] != digests[2]


def test_first_weights_have_the_right_spread():
    model = install(fresh(), LoRA(rank=8), 3)
    a = torch.cat([p.detach().reshape(-1) for n, p in trainable(model).items() if "lora_A" in n])
    bound = model.config.hidden_size**-0.5
    assert float(a.abs().max()) <= bound
    assert float(a.mean().abs()) < 0.05 * bound and float(a.std()) == pytest.approx(
        bound / 3**0.5, rel=0.05
    )
    assert all(not p.any() for n, p in trainable(model).items() if "lora_B" in n)
    words = fresh().get_input_embeddings().weight
    tokens = next(iter(trainable(install(fresh(), PromptTuning(), 3)).values()))
    assert all(bool((words == row).all(dim=1).any()) for row in tokens)
    normal = next(
        iter(trainable(install(fresh(), PromptTuning(init="normal"), 3)).values())
    ).detach()
    assert abs(float(normal.std()) - 1) < 0.05


def test_lora_starts_as_the_base_and_prompts_see_the_whole_text(objective, items):
    base = fresh()
    with torch.no_grad():
        plain = objective.losses(base, items)
        torch.testing.assert_close(objective.losses(install(base, LoRA(), 1), items), plain)
        model = install(fresh(), PromptTuning(virtual_tokens=2), 1)
        ids = [items[0].ids]
        # the virtual tokens are rows of the vocabulary: the same as their words in the text
        words = fresh().get_input_embeddings().weight
        rows = [
            int((words == row).all(dim=1).nonzero()[0])
            for row in next(iter(trainable(model).values()))
        ]
        whole = fresh()(input_ids=torch.tensor([[*rows, *ids[0]]])).logits[:, 2:]
        seen = model(input_ids=torch.tensor(ids), attention_mask=torch.ones(1, len(ids[0]))).logits[
            :, 2:
        ]
    torch.testing.assert_close(seen, whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("settings", [PTuning(), LoRA()], ids=str)
def test_answers_do_not_depend_on_what_else_is_in_the_batch(settings, objective):
    model = install(fresh(), settings, 1)
    prompts = ["Add 3 and 5.", "Name the longest word in this list: a, bcd.", "Hi"]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # no advice of peft's on the screen
        together = generate(model, objective, prompts, 8)
    assert together == [generate(model, objective, [p], 8)[0] for p in prompts]
    assert any(together)


@pytest.mark.parametrize("settings", ADAPTERS, ids=str)
def test_perturbed_sees_the_adapter_where_it_is_used(settings, objective, items):
    """The same losses as from weights that were really moved."""
    model = install(fresh(), settings, 1)
    space, basis = ParameterSpace(model), Basis("rademacher", 3)
    space.add(basis, [0.01], first=9)  # LoRA's B is zero at first
    digest = space.digest()
    with torch.no_grad():
        with space.perturbed(basis, 2, 0.02):
            seen = objective.losses(model, items)
        assert space.digest() == digest
        unmoved = objective.losses(model, items)
        space.add(basis, [0.02], first=2)
        moved = objective.losses(model, items)
    torch.testing.assert_close(seen, moved, rtol=1e-5, atol=1e-5)
    assert not torch.equal(seen, unmoved)


def check_peft_loads(model, folder):
    """In plain peft the saved adapter says what the model says."""
    from peft import PeftModel

    loaded = PeftModel.from_pretrained(fresh(), str(folder))
    with torch.no_grad():
        ours, theirs = (
            m.eval()(input_ids=torch.tensor([[5, 6, 7, 8]])).logits for m in (model, loaded)
        )
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


TINY = (
    "rounds=2",
    "federation.per_round=2",
    "task.clients=3",
    "task.examples=5",
    "task.evaluation=1",
    "task.unseen=0",
    "task.validation=1",
    "evaluation.rouge=false",
)


@pytest.mark.parametrize(
    "name", mark(["fedit", "fedptuning", "fedprompt"], lambda name: name != "fedit")
)
def test_named_methods_send_their_adapter_and_leave_it_for_peft(tmp_path, name):
    recipe = read_recipe(
        "quickstart-fedavg", (*TINY, f"method.name={name}", "method.training.steps=2")
    )
    federation = build(recipe, folder=tmp_path / "run")
    summary = federation.run().summary
    size = {"fedit": 20480, "fedptuning": mlp_size(128, 128), "fedprompt": 2560}[name]
    assert summary["payload_bytes_up"] == 4 * size == 4 * summary["parameters"]
    assert summary["fedavg_bytes"] == 8 * size and summary["adapter"]["kind"] in (
        "lora",
        "p-tuning",
        "prompt",
    )
    check_peft_loads(federation.worker.space.model, tmp_path / "run" / "adapter")
    config = (tmp_path / "run" / "adapter" / "adapter_config.json").read_text()
    assert json.loads(config)["base_model_name_or_path"] == "small"  # no path of this machine


CASES = [
    (
        FeedSign(learning_rate=1e-3, batch=4, basis="hadamard", small_steps="from-base"),
        PTuning(hidden=8),
    ),
    (
        FedMeZO(learning_rate=1e-4, steps=3, batch=2, personal="loss"),
        PromptTuning(virtual_tokens=4),
    ),
    (
        Ferret(directions=50, blocks="tensor", training=LocalTraining(steps=2, accumulation=2)),
        LoRA(rank=2),
    ),
]


@pytest.mark.long
@pytest.mark.parametrize(("method", "settings"), CASES)
def test_any_method_tunes_an_adapter_and_its_orbit_becomes_a_peft_folder(
    tmp_path, method, settings, objective
):
    clients = [[Example(f"say {i}", f"{i} {j}") for i in range(4)] for j in range(3)]
    more = {"out": tmp_path / "run", "base": "small", "adapter": settings}
    federation = Federation(fresh(), clients, method, objective, 3, seed=5, **more)
    summary = federation.run().summary
    orbit = Orbit.open(tmp_path / "run" / "model.orbit")
    assert (
        orbit.header.adapter.settings == settings
        and orbit.header.layout.size == summary["parameters"]
    )
    equipped = orbit.equip(fresh())
    assert orbit.replay(equipped, check_all=True) == summary["weights_digest"]
    adapting.save(equipped, tmp_path / "adapter")
    check_peft_loads(federation.worker.space.model, tmp_path / "adapter")
    with pytest.raises(OrbitError, match="equip"):
        orbit.replay(fresh())
    with pytest.raises(OrbitError, match="first weights"):
        orbit.replay(equipped)  # it is where the run ended
    other = fresh()
    with torch.no_grad():
        other.lm_head.weight[0, 0] += 1
    with pytest.raises(OrbitError, match="another base"):
        orbit.equip(other)


def test_what_does_not_fit_is_said():
    with pytest.raises(RecipeError, match=r"fedprompt tunes .prompt.*leave out model\.adapter"):
        adapting.choose_adapter(LoRA(), FedPrompt.adapter, "fedprompt")
    with pytest.raises(
        RecipeError, match=r"targets = \['nowhere'\].*its linear layers are q_proj, k_proj, v_proj"
    ):
        install(fresh(), LoRA(targets=["nowhere"]), 1)
    masked = RobertaForMaskedLM(
        RobertaConfig(
            vocab_size=60,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
        )
    )
    with pytest.raises(RecipeError, match="virtual tokens need a causal language model"):
        install(masked, PromptTuning(), 1)
    model = install(masked, LoRA(rank=2, targets=["query"]), 1)  # but LoRA goes anywhere
    assert ParameterSpace(model).size == 2 * 2 * 16
