"""The vision recipes: the published ones with tiny models and data in the original format, the digits as they are."""

import pytest

from fedseed import Federation, Orbit
from fedseed.errors import RecipeError
from fedseed.models.loading import load_model
from fedseed.runs.recipe import packaged_recipes
from support.command import well
from support.pictures import write_cifar10

pytestmark = pytest.mark.usefixtures("without_pictures")

PUBLISHED = [name for name in packaged_recipes() if "cifar" in name]


@pytest.mark.slow
def test_feedsign_learns_all_digits_from_a_base_that_knew_half(tmp_path):
    settings = ["rounds=500", "evaluation.every=500", "method.learning_rate=0.01", "task.evaluate_on=validation"]
    summary = Federation.from_file("digits-feedsign", settings, out=tmp_path / "run").run().summary
    assert summary["parameters"] == 650 and summary["payload_bytes_up"] == 1
    assert summary["baseline"]["accuracy"] < 30 and summary["final"]["accuracy"] > 75


def test_the_command_line_replays_onto_the_base_with_its_new_head(tmp_path):
    run = tmp_path / "run"
    short = ["rounds=3", "evaluation.every=3", "task.evaluation=30", "task.partition.kind=dirichlet"]
    summary = Federation.from_file("digits-feedsign", [*short, "task.classes=[5, 6, 7, 8, 9]"], out=run).run().summary
    assert summary["data_notes"][1].endswith("(dirichlet)")
    assert summary["final"]["loss"] != summary["baseline"]["loss"]
    for words in (["verify", "--replay"], ["replay", "--out", tmp_path / "tuned"]):
        assert summary["weights_digest"] in well("orbit", words[0], run / "model.orbit", *words[1:]).stdout
    tuned, processor = load_model(str(tmp_path / "tuned"))
    assert list(tuned.config.id2label.values()) == list("56789") and processor.size["height"] == 32
    assert Orbit.open(run / "model.orbit").header.classes == tuple("56789")


def test_what_does_not_fit_is_said_before_the_run(tmp_path):
    with pytest.raises(RecipeError, match=r"a picture has 3 channels, the model's image processor takes 1"):
        Federation.from_file(PUBLISHED[0], ["model.base=digits", f"task.path={write_cifar10(tmp_path / 'cifar')}"])
    with pytest.raises(RecipeError, match=r'model.base = "small": the model is .*an image classifier'):
        Federation.from_file("digits-feedsign", ["model.base=small"])
    with pytest.raises(RecipeError, match=r"model\.trainable"):
        Federation.from_file("digits-feedsign", ["model.trainable=heads"])
    with pytest.raises(RecipeError, match=r"task.clients = 700: 697 examples are not enough"):
        Federation.from_file("digits-feedsign", ["task.clients=700", "federation.per_round=5"])
    with pytest.raises(RecipeError, match=r"no parameters outside of its backbone"):
        Federation.from_file("small-feedsign", ["model.trainable=head"])
