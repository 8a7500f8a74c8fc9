"""Recipes on encoder-decoders, classifiers and causal models: rounds of methods, replayed.

What does not fit.
"""

import pytest
import torch

from fedseed import Federation, Orbit
from fedseed.errors import RecipeError
from fedseed.models.heads import Head
from fedseed.models.loading import load_model
from fedseed.recipe.packaged import packaged_recipes
from support.command import fedseed, well
from support.instruction_files import write_lines
from support.pictures import write_cifar10
from support.text_bases import save, word_tokenizer, write

pytestmark = pytest.mark.usefixtures("without_pictures")

ADJECTIVES = ["great", "bad", "good", "terrible"]
ROWS = [(f"the film was {ADJECTIVES[i % 4]}", ["positive", "negative"][i % 2]) for i in range(20)]
RECIPE = """
rounds = 1
model.base = "{base}"
task = {{name = "files", path = "{path}", clients = 2, evaluation = 0.2}}
evaluation = {{every = 1, max_new_tokens = 4}}
[method]
{method}
"""
METHODS = {
    "ferret": 'name = "ferret"\ndirections = 200\ntraining = {learning_rate = 0.1, steps = 2}',
    "ferret-streaming": 'name = "ferret"\ndirections = 200\nstreaming = true\nallocation = "size"\n'
    "training = {learning_rate = 0.1, steps = 2, accumulation = 1}",
    "fedkseed": 'name = "fedkseed"\ncandidates = 16\nsteps = 3\nlearning_rate = 1e-3',
    "fedavg": 'name = "fedavg"\ntraining = {learning_rate = 1e-2, steps = 2}',
    "feedsign": 'name = "feedsign"\nlearning_rate = 1e-3\nbatch = 4',
}


SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 128,
}
WIDE = {**SIZES, "intermediate_size": 24}
HEADS = {"num_key_value_heads": 1, "head_dim": 8}
CAUSAL = {  # without code of its own
    "opt": {**SIZES, "ffn_dim": 24, "word_embed_proj_dim": 16},
    "llama": WIDE,
    "qwen2": {**WIDE, "num_key_value_heads": 1, "tie_word_embeddings": True},
    "gpt2": {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 128},
    "mistral": {**WIDE, "num_key_value_heads": 1, "sliding_window": 8},
    "gemma2": {**WIDE, **HEADS, "query_pre_attn_scalar": 8},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text-models")
    for kind in ("t5", "bart", "bert"):
        write(folder / kind, kind)
    ids = {"bos_token_id": 3, "eos_token_id": 1, "pad_token_id": 0}
    for kind, sizes in CAUSAL.items():
        tokenizer = word_tokenizer("<s> {}", bos_token="<s>")
        save(folder / kind, tokenizer, kind, "AutoModelForCausalLM", {**sizes, **ids})
    forms = {"answers": ("prompt", "completion"), "labels": ("text", "label")}
    for name, keys in forms.items():
        write_lines(folder / f"{name}.jsonl", [dict(zip(keys, row, strict=True)) for row in ROWS])
    return folder


def recipe(place, base, data, method="feedsign"):
    path = place / f"{base}-{data}-{method}.toml"
    path.write_text(
        RECIPE.format(base=place / base, path=place / f"{data}.jsonl", method=METHODS[method])
    )
    return path


@pytest.mark.parametrize(
    ("base", "data", "method"),
    [
        *(
            pytest.param("t5", "answers", m, marks=pytest.mark.long)
            for m in ("ferret", "ferret-streaming", "fedkseed")
        ),
        *(("bert", "labels", method) for method in ("ferret-streaming", "fedavg", "feedsign")),
        ("opt", "answers", "ferret"),
        *(
            pytest.param(kind, "answers", "ferret", marks=pytest.mark.long)
            for kind in CAUSAL
            if kind != "opt"
        ),
    ],
)
def test_a_round_of_each_method_and_its_replay(place, base, data, method, tmp_path, quickly):
    federation = Federation.from_file(recipe(place, base, data, method), out=tmp_path / "run")
    shown = (
        {"loss", "perplexity", "rouge_l"} if data == "answers" else {"loss", "accuracy", "macro_f1"}
    )
    result = federation.run()
    summary = result.summary
    assert set(summary["final"]) == shown and summary["skipped"] == summary["skipped_steps"] == 0
    assert summary["final"]["loss"] != summary["baseline"]["loss"]
    model, _ = load_model(
        str(place / base), head=Head(("negative", "positive"), 1) if base == "bert" else None
    )
    assert summary["parameters"] == sum(p.numel() for p in model.parameters())  # tied ones once
    if method == "fedavg":
        return  # weights travel
    orbit = Orbit.open(tmp_path / "run" / "model.orbit")
    assert orbit.header.classes == (("negative", "positive") if base == "bert" else ())
    assert orbit.replay(model) == summary["weights_digest"]


@pytest.mark.long
def test_the_replayed_folder_is_what_transformers_loads(place, tmp_path, quickly):
    from transformers import AutoModelForSeq2SeqLM, AutoModelForSequenceClassification

    for base, data, auto in (
        ("bart", "answers", AutoModelForSeq2SeqLM),
        ("bert", "labels", AutoModelForSequenceClassification),
    ):
        run, out = tmp_path / base, tmp_path / f"{base}-model"
        Federation.from_file(recipe(place, base, data), out=run).run()
        assert fedseed("orbit", "replay", run / "model.orbit", "--out", out).returncode == 0
        model = auto.from_pretrained(out)
        expected, _ = load_model(
            str(place / base), head=Head(("negative", "positive"), 1) if base == "bert" else None
        )
        Orbit.open(run / "model.orbit").replay(expected)
        for name, p in expected.state_dict().items():
            assert torch.equal(p, model.state_dict()[name]), name
    assert model.config.id2label == {0: "negative", 1: "positive"}


def test_the_prefix_is_read_by_the_encoder_and_refused_elsewhere(place, quickly):
    path = recipe(place, "t5", "answers")
    plain, prefixed = (
        Federation.from_file(path, ["evaluation.rouge=false", *more])
        .run()
        .summary["baseline"]["loss"]
        for more in ([], ["model.prefix='Label : '"])
    )
    assert plain != prefixed
    with pytest.raises(
        RecipeError, match=(r'model.prefix = "Label : ": a prefix is for encoder-decoders')
    ):
        Federation.from_file(recipe(place, "bert", "labels"), ["model.prefix='Label : '"])


def test_what_does_not_fit_is_said(place):
    with pytest.raises(
        RecipeError,
        match=(r'model.architecture = "image": the task.s examples are for "causal", "seq2seq"'),
    ):
        Federation.from_file(recipe(place, "t5", "answers"), ["model.architecture=image"])
    with pytest.raises(
        RecipeError,
        match="the model is BertForMaskedLM, but the task needs a language model that contin",
    ):
        Federation.from_file(recipe(place, "bert", "answers"))
    with pytest.raises(
        RecipeError, match="the model is LlamaForCausalLM, but the task needs an encoder-decoder"
    ):
        Federation.from_file(recipe(place, "llama", "answers"), ["model.architecture=seq2seq"])


# -- pictures
# ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_feedsign_learns_all_digits_from_a_base_that_knew_half(tmp_path):
    settings = [
        "rounds=500",
        "evaluation.every=500",
        "method.learning_rate=0.01",
        "task.evaluate_on=validation",
    ]
    summary = Federation.from_file("digits-feedsign", settings, out=tmp_path / "run").run().summary
    assert summary["parameters"] == 650 and summary["payload_bytes_up"] == 1
    assert summary["baseline"]["accuracy"] < 30 and summary["final"]["accuracy"] > 75


def test_the_command_line_replays_onto_the_base_with_its_new_head(tmp_path):
    run = tmp_path / "run"
    short = [
        "rounds=3",
        "evaluation.every=3",
        "task.evaluation=30",
        "task.partition.kind=dirichlet",
    ]
    summary = (
        Federation.from_file("digits-feedsign", [*short, "task.classes=[5, 6, 7, 8, 9]"], out=run)
        .run()
        .summary
    )
    assert summary["data_notes"][1].endswith("(dirichlet)")
    assert summary["final"]["loss"] != summary["baseline"]["loss"]
    for words in (["verify", "--replay"], ["replay", "--out", tmp_path / "tuned"]):
        assert (
            summary["weights_digest"]
            in well("orbit", words[0], run / "model.orbit", *words[1:]).stdout
        )
    tuned, processor = load_model(str(tmp_path / "tuned"))
    assert list(tuned.config.id2label.values()) == list("56789") and processor.size["height"] == 32
    assert Orbit.open(run / "model.orbit").header.classes == tuple("56789")


def test_the_error_names_the_base_that_a_task_of_the_same_name_is_for():
    remedy = r"'Ġt', .*; this task is for the packaged base: set model\.base = \"words\"$"
    with pytest.raises(RecipeError, match=remedy):
        Federation.from_file("words-feedsign", ["model.base=small"])


def test_what_does_not_fit_pictures_is_said_before_the_run(tmp_path):
    cifar, published = (
        write_cifar10(tmp_path / "cifar"),
        next(name for name in packaged_recipes() if "cifar" in name),
    )
    for name, settings, why in (
        (
            published,
            f"model.base=digits task.path={cifar}",
            "has 3 channels, but the model's image processor takes 1",
        ),
        (
            "digits-feedsign",
            "model.base=small",
            'model.base = "small": the model is .*an image classifier',
        ),
        ("digits-feedsign", "model.trainable=heads", r"model\.trainable"),
        (
            "digits-feedsign",
            "task.clients=700 federation.per_round=5",
            "clients = 700: 697 examples are not enough",
        ),
        ("small-feedsign", "model.trainable=head", "no parameters outside its backbone"),
    ):
        with pytest.raises(RecipeError, match=why):
            Federation.from_file(name, settings.split())
