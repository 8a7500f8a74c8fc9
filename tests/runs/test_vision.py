"""The vision recipes: the published ones with tiny models and data in the original format, the digits as they are."""

import json

import pytest
from typer.testing import CliRunner

from fedseed import Federation, Orbit
from fedseed.cli.app import app
from fedseed.errors import RecipeError
from fedseed.models.heads import Head
from fedseed.models.loading import load_model
from fedseed.runs.recipe import packaged_recipes, read_recipe
from support.tiers import mark

pytestmark = pytest.mark.usefixtures("without_pictures")

PUBLISHED = [name for name in packaged_recipes() if "cifar" in name]
SHORT = ["rounds=3", "evaluation.every=3", "task.evaluation=30"]


@pytest.mark.parametrize("name", mark(PUBLISHED, lambda name: name != "published-feedsign-resnet18-cifar10", "long"))
def test_a_published_recipe_runs_offline_with_a_tiny_model_and_data(name, cifar10, cifar100, image_base, tmp_path):
    wanted = read_recipe(name)
    folder = cifar10() if wanted.task.name == "cifar10" else cifar100()
    base = str(image_base("vit", backbone=True) if "vit" in name else image_base("resnet"))
    overrides = ["rounds=1", f"model.base={base}", f"task.path={folder}", "method.batch=2"]
    result = Federation.from_file(name, overrides, out=tmp_path / "run").run()
    summary = result.summary
    clients = 25 if "resnet" in name else 5
    assert summary["rounds"] == 1 and summary["skipped"] == 0
    assert summary["clients"] == summary["clients_per_round"] == clients
    assert set(summary["final"]) == {"loss", "accuracy"}
    train = 120 if wanted.task.name == "cifar10" else 200
    assert summary["data_notes"][0].startswith(f"{train} training and 0 validation pictures of {train}")
    assert summary["data_notes"][1].endswith(f"({'dirichlet' if 'resnet' in name else 'iid'})")
    orbit = Orbit.open(tmp_path / "run" / "model.orbit")
    tensors = [tensor.name for tensor in orbit.header.layout.tensors]
    assert tensors == ["classifier.weight", "classifier.bias"] or ("resnet" in name and len(tensors) > 10)
    model, _ = load_model(base, head=Head(orbit.header.classes, orbit.header.seed))
    assert orbit.replay(model) == summary["weights_digest"]


def test_published_recipes_have_the_papers_numbers():
    assert len(PUBLISHED) == 6
    for name in PUBLISHED:
        recipe = read_recipe(name)
        method = recipe.method
        assert (method.name, method.basis, method.scale) == (
            name.split("-vit")[0].split("-resnet")[0][10:],
            "normal",
            1e-5,
        )
        if "vit" in name:
            assert recipe.model.trainable == "head" and recipe.federation.per_round == recipe.task.clients == 5
            assert recipe.rounds == (60000 if name.endswith("100") else 20000)
            assert (method.learning_rate, method.batch, recipe.task.partition.kind) == (1e-3, 16, "iid")
        else:
            assert recipe.model.trainable is None and recipe.federation.per_round == recipe.task.clients == 25
            assert (recipe.rounds, method.learning_rate, method.batch) == (120000, 1e-4, 64)
            assert (recipe.task.partition.kind, recipe.task.partition.alpha) == ("dirichlet", 1.0)


@pytest.mark.parametrize(
    ("rounds", "above"), [pytest.param(100, 40, marks=pytest.mark.long), pytest.param(500, 75, marks=pytest.mark.slow)]
)
def test_feedsign_learns_all_digits_from_a_base_that_knew_half(rounds, above, tmp_path):
    settings = [
        f"rounds={rounds}",
        f"evaluation.every={rounds}",
        "method.learning_rate=0.01",
        "task.evaluate_on=validation",
    ]
    summary = Federation.from_file("digits-feedsign", settings, out=tmp_path / "run").run().summary
    assert summary["parameters"] == 650 and summary["payload_bytes_up"] == 1
    assert summary["baseline"]["accuracy"] < 30 and summary["final"]["accuracy"] > above


@pytest.mark.parametrize("name", ["digits-feedsign", "digits-zo-fedsgd"])
@pytest.mark.parametrize("partition", ["iid", "dirichlet"])
def test_digits_recipes(name, partition):
    settings = [*SHORT, f"task.partition.kind={partition}"]
    summary = Federation.from_file(name, settings).run().summary
    assert summary["clients"] == 5 and summary["parameters"] == 650
    assert summary["data_notes"][1].endswith(f"({partition})")
    assert summary["final"]["loss"] != summary["baseline"]["loss"]


def test_the_command_line_replays_onto_the_base_with_its_new_head(tmp_path):
    run = tmp_path / "run"
    Federation.from_file("digits-feedsign", [*SHORT, "seed=5", "task.classes=[5, 6, 7, 8, 9]"], out=run).run()
    digest = json.loads((run / "summary.json").read_text())["weights_digest"]
    done = CliRunner().invoke(app, ["orbit", "verify", str(run / "model.orbit"), "--replay"])
    assert done.exit_code == 0 and digest in done.output
    done = CliRunner().invoke(app, ["orbit", "replay", str(run / "model.orbit"), "--out", str(tmp_path / "tuned")])
    assert done.exit_code == 0 and digest in done.output
    tuned, processor = load_model(str(tmp_path / "tuned"))
    assert list(tuned.config.id2label.values()) == list("56789") and processor.size["height"] == 32
    assert Orbit.open(run / "model.orbit").header.classes == tuple("56789")


def test_a_resumed_run_takes_the_same_head(tmp_path):
    settings = [*SHORT, "rounds=4", "evaluation.every=2"]
    whole = Federation.from_file("digits-feedsign", settings, out=tmp_path / "whole").run()
    stopped = Federation.from_file("digits-feedsign", settings, out=tmp_path / "stopped")
    stopped.progress.advance = lambda number: (_ for _ in ()).throw(KeyboardInterrupt) if number == 3 else None
    with pytest.raises(KeyboardInterrupt):
        stopped.run()
    again = Federation.from_file("digits-feedsign", settings, out=tmp_path / "stopped").run(resume=True)
    assert again.summary["weights_digest"] == whole.summary["weights_digest"]


@pytest.mark.slow
def test_flipped_labels_reach_the_pictures():
    settings = [*SHORT, "method.batch=64", "method.votes_per_round=8"]
    honest = Federation.from_file("digits-feedsign", settings)
    attacked = Federation.from_file("digits-feedsign", [*settings, "attack.kind=labels", "attack.clients=2"])
    for number in range(5):
        moved = 1 if number >= 3 else 0
        labels = [(p.label + moved) % 10 for p in honest.items[number]]
        assert [p.label for p in attacked.items[number]] == labels
    assert attacked.run().summary["weights_digest"] != honest.run().summary["weights_digest"]


def test_what_does_not_fit_is_said_before_the_run(image_base, cifar10):
    with pytest.raises(RecipeError, match=r"a picture has 3 channels, the model's image processor takes 1"):
        Federation.from_file(PUBLISHED[0], ["model.base=digits", f"task.path={cifar10()}"])
    with pytest.raises(RecipeError, match=r'model.base = "small": the model is .*an image classifier'):
        Federation.from_file("digits-feedsign", ["model.base=small"])
    with pytest.raises(RecipeError, match=r"model\.trainable"):
        Federation.from_file("digits-feedsign", ["model.trainable=heads"])
    with pytest.raises(RecipeError, match=r"task.clients = 700: 697 examples are not enough"):
        Federation.from_file("digits-feedsign", ["task.clients=700", "federation.per_round=5"])
    with pytest.raises(
        RecipeError, match=r"task.partition.alpah = 1.0: unknown key .did you mean alpha..; .*: kind, alpha, minimum"
    ):
        Federation.from_file(
            "digits-feedsign", ["task.partition.kind=dirichlet", "task.partition.alpah=1.0", "task.seed=3"]
        )
    with pytest.raises(RecipeError, match=r"no parameters outside of its backbone"):
        Federation.from_file("small-feedsign", ["model.trainable=head"])


def test_an_adapter_on_an_image_classifier_with_its_new_head(image_base, cifar10, tmp_path):
    settings = [
        "rounds=1", f"model.base={image_base('vit')}", f"task.path={cifar10()}", "method.batch=2",
        # transformers' versions name the layers differently
        "model.adapter.kind=lora", 'model.adapter.targets=["query", "value", "q_proj", "v_proj"]',
    ]  # fmt: skip
    with pytest.raises(RecipeError, match=r'model.trainable = "head": with an adapter give name patterns'):
        Federation.from_file("published-feedsign-vit-cifar10", settings)
    both = [*settings, 'model.trainable=["*lora*", "*classifier*"]']
    summary = Federation.from_file("published-feedsign-vit-cifar10", both, out=tmp_path / "run").run().summary
    assert summary["parameters"] == 2 * (8 * 16 + 16 * 8) + 16 * 10 + 10
    done = CliRunner().invoke(app, ["orbit", "verify", str(tmp_path / "run" / "model.orbit"), "--replay"])
    assert done.exit_code == 0 and summary["weights_digest"] in done.output
