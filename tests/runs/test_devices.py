"""Nothing is made on a device by accident, and a model lies where it was asked to."""

import pytest
import torch
from torch._subclasses import FakeTensorMode

from fedseed import Federation, Orbit, ParameterSpace
from fedseed.errors import RecipeError
from fedseed.models.loading import load_model
from fedseed.models.placement import deal_out, find_device, spread
from fedseed.recipe.packaged import packaged_recipes
from fedseed.recipe.reading import read_recipe
from support.text_bases import save
from support.tiers import mark

pytestmark = pytest.mark.usefixtures("without_pictures")

SMALL = [name for name in packaged_recipes() if name.startswith("small-")]
TINY = [
    "rounds=2",
    "task.clients=3",
    "task.examples=4",
    "task.evaluation=1",
    "task.unseen=0",
    "federation.per_round=2",
    "evaluation.every=2",
    "evaluation.max_new_tokens=3",
]


@pytest.fixture(scope="module")
def tiny(small, tmp_path_factory):
    """The folder of a causal model of a few thousand parameters."""
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": small[1].pad_token_id}
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
    }
    return save(
        tmp_path_factory.mktemp("tiny") / "base",
        small[1],
        "llama",
        "AutoModelForCausalLM",
        {**sizes, **ids},
    )


QUICK = ("small-ferret", "small-feedsign")
LONG = ("small-fedavg", "small-fedkseed", "small-fedptuning")


@pytest.mark.parametrize(
    "name", mark(SMALL, lambda name: name not in QUICK and ("slow", "long")[name in LONG])
)
def test_every_method_names_its_devices(name, tiny, tmp_path):
    """Where whatever is made without a device of its own can't be used, a run is the same as
    everywhere else.
    """
    method = read_recipe(name).method.model_dump()
    few = [
        f"method.{table}steps=2"
        for key, table in (("steps", ""), ("training", "training."))
        if key in method
    ]
    few += ["task.clients=1", "federation.per_round=1"] if name == "small-mezo" else []
    settings = [f"model.base={tiny}", *TINY, *few]
    there = Federation.from_file(name, settings, out=tmp_path / "there").run().summary
    with torch.device("meta"):
        assert torch.zeros(1).is_meta
        summary = (
            Federation.from_file(name, [*settings, "model.device=cpu"], out=tmp_path / "here")
            .run()
            .summary
        )
    assert (
        summary["weights_digest"] == there["weights_digest"] and summary["final"] == there["final"]
    )
    assert summary["devices"] == ["cpu"] and set(summary["final"]) >= {"loss", "rouge_l"}
    path = tmp_path / "here" / "model.orbit"
    if path.exists():
        orbit = Orbit.open(path)
        with torch.device("meta"):
            model = orbit.equip(load_model(str(tiny))[0])
            assert orbit.replay(model) == summary["weights_digest"]


def test_auto_is_the_gpu_if_there_is_one():
    assert find_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert find_device("cpu") == torch.device("cpu") and find_device("map") is None


@pytest.mark.parametrize("name", ["cuda:97", "cuda:x", "tpu"])
def test_a_device_that_is_not_there_is_said(name):
    with pytest.raises(RecipeError, match=rf'device "{name}": '):
        find_device(name)


class Product(torch.nn.Module):
    def __init__(self, device):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(4, 4, device=device))

    def forward(self, x):
        return x @ self.weight


def test_layers_are_dealt_out_over_devices():
    """Tensors without values stand in for those of two GPUs.

    Torch refuses to compute with two devices at once.
    """
    places = {"0": torch.device("cuda", 0), "1": torch.device("cuda", 1), "2": torch.device("cpu")}
    with FakeTensorMode(), torch.no_grad():
        model = torch.nn.Sequential(*(Product(place) for place in places.values()))
        x = torch.zeros(2, 4, device="cuda:0")
        with pytest.raises(RuntimeError, match="found at least two devices"):
            model(x)
        assert spread(model, places)(x).device == torch.device("cuda", 0)
        assert {str(d) for d in ParameterSpace(model).devices} == {"cuda:0", "cuda:1", "cpu"}


def test_a_layer_that_is_dealt_out_computes_what_it_did(tiny):
    model, _ = load_model(str(tiny))
    ids = torch.arange(12).reshape(2, 6)
    with torch.no_grad():
        expected = model(input_ids=ids).logits
        places = deal_out(model)
        assert set(places.values()) <= {torch.device("cpu"), torch.device("cuda", 0)}
        parts = [
            name
            for name, child in model.named_children()
            if next(child.parameters(), None) is not None
        ]
        divided = spread(model, dict.fromkeys(parts, torch.device("cpu")))
        assert torch.equal(divided(input_ids=ids).logits, expected)
