"""Bases as people have them: each loads as what it is, or is refused with a way out."""

import json
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from fedseed import Federation, ParameterSpace, ZOFedSGD, from_orbit
from fedseed.errors import FedseedError, OrbitError, RecipeError
from fedseed.models import adapters
from fedseed.models.heads import Head, match_classes
from fedseed.models.loading import load_model, locate
from fedseed.models.traits import traits_of
from fedseed.objectives.generation import generate
from fedseed.objectives.losses import CausalLM
from fedseed.objectives.masked import MaskedLM
from fedseed.objectives.seq2seq import Seq2SeqLM
from fedseed.orbit import Orbit
from fedseed.recipe.reading import read_recipe
from fedseed.runs.model_setup import examine_base
from fedseed.runs.preview import preview
from fedseed.runs.tuned import evaluate, find_source, open_tuned
from fedseed.tasks.data import Example
from fedseed.weights.digest import base_digest

IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
TEXT = {"vocab_size": 1488, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
LLAMA = {**TEXT, **IDS, "intermediate_size": 64, "max_position_embeddings": 256}
BERT = {**TEXT, "intermediate_size": 64, "pad_token_id": 0}
MIXTRAL = {**LLAMA, "num_key_value_heads": 1, "num_local_experts": 4, "num_experts_per_tok": 2}
ROWS = [{"prompt": f"Say {i}:", "completion": f" {i}"} for i in range(8)]


def made(folder, name, config, **settings):
    """Write a random model with the small base's tokenizer, and return the model."""
    torch.manual_seed(0)
    model = getattr(transformers, name)(getattr(transformers, config)(**settings))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.ndim > 1:
                parameter.normal_(std=0.2)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(locate("small")).save_pretrained(folder)
    return model.eval()


def edit(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def recipe_of(folder, base, rows=ROWS, method='name = "fedavg"', more="", rounds=1):
    """Write a recipe and its data, and return the recipe's path."""
    (folder / "data").mkdir(exist_ok=True)
    for name in ("north", "south"):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "data" / f"{name}.jsonl").write_text(lines)
    path = folder / "recipe.toml"
    path.write_text(
        f'rounds = {rounds}\n[task]\nname = "files"\npath = "{folder / "data"}"\n'
        "evaluation = 0.25\n"
        f"[evaluation]\nrouge = false\n[method]\n{method}\n"
        + ("" if "training" in method or "feedsign" in method else TRAINING)
        + f'[model]\nbase = "{base}"\n{more}\n'
    )
    return path


TRAINING = '[method.training]\noptimizer = "adamw"\nlearning_rate = 0.02\nsteps = 3\n'
FEEDSIGN = 'name = "feedsign"\nlearning_rate = 1e-3\nbatch = 4'


def run(recipe, out=None):
    return Federation.from_file(recipe, out=out, progress=False).run()


# Labels and heads


@pytest.mark.parametrize(
    ("labels", "names", "outputs"),
    [
        (("NEGATIVE", "POSITIVE"), ("NEGATIVE", "POSITIVE"), (0, 1)),
        (("POSITIVE", "NEGATIVE"), ("NEGATIVE", "POSITIVE"), (1, 0)),
        (("negative", "positive"), ("NEGATIVE", "POSITIVE"), (0, 1)),
        (("0", "1"), ("NEGATIVE", "POSITIVE"), (0, 1)),
        (("1", "0"), ("NEGATIVE", "POSITIVE"), (1, 0)),
        (("not entailment", "entailment"), ("entailment", "not_entailment"), (1, 0)),
        (("1", "2", "3"), ("1 star", "2 stars", "3 stars"), (0, 1, 2)),
        (("3", "2", "1"), ("1 star", "2 stars", "3 stars"), (2, 1, 0)),
        (("0", "1", "10", "11", "2"), tuple(f"LABEL_{i}" for i in range(5)), (0, 1, 3, 4, 2)),
        (("0", "1", "2"), ("LABEL_0", "LABEL_1", "LABEL_2"), (0, 1, 2)),
        (("2", "0", "1"), ("LABEL_0", "LABEL_1", "LABEL_2"), (2, 0, 1)),
        (("1", "2", "3"), ("LABEL_0", "LABEL_1", "LABEL_2"), (0, 1, 2)),
        (("a", "A"), ("a", "A"), (0, 1)),
        (("2", "0"), ("LABEL_0", "LABEL_1", "LABEL_2"), (2, 0)),
        (("bad", "good"), ("LABEL_0", "LABEL_1"), (0, 1)),
        (("negative", "positive"), ("negative", "neutral", "positive"), (0, 2)),
        # sorted as texts, but counted as numbers
        (("-1", "-2", "0"), ("LABEL_0", "LABEL_1", "LABEL_2"), (1, 0, 2)),
        (("+1", "-1"), ("LABEL_0", "LABEL_1"), (1, 0)),
        (("10%", "100%", "20%"), ("LABEL_0", "LABEL_1", "LABEL_2"), (0, 2, 1)),
        (("grade 1", "grade 10", "grade 2"), ("LABEL_0", "LABEL_1", "LABEL_2"), (0, 2, 1)),
        (("LABEL_0", "LABEL_1"), ("NEGATIVE", "POSITIVE"), (0, 1)),
        (("gro\u0308ßer", "kleiner"), ("gr\u00f6ßer", "kleiner"), (0, 1)),
        # other classes: no output stands for them
        (("a", "b"), ("NEGATIVE", "POSITIVE"), None),
        (("0", "1"), ("entailment", "neutral", "contradiction"), None),
        (("1", "2"), ("NEGATIVE", "POSITIVE"), None),
        (("topic 0", "topic 1"), ("NEGATIVE", "POSITIVE"), None),
        (("01", "1"), ("LABEL_0", "LABEL_1"), None),
        (("bad", "good", "fine"), ("LABEL_0", "LABEL_1"), None),
        (("a", "A"), ("a", "b"), None),
        (("a", "b"), ("a", "A"), None),
    ],
)
def test_labels_find_their_outputs(labels, names, outputs):
    assert match_classes(labels, names) == outputs


def sentiments(labels):
    return [
        {"text": f"count {i} birds {'good' if i % 2 else 'bad'}", "label": labels[i % 2]}
        for i in range(16)
    ]


@pytest.mark.parametrize("labels", [("NEGATIVE", "POSITIVE"), (0, 1), ("negative", "Positive")])
def test_a_classifiers_head_is_kept_and_round_0_is_what_evaluate_says(labels, tmp_path):
    names = {0: "NEGATIVE", 1: "POSITIVE"}
    base = made(
        tmp_path / "base",
        "BertForSequenceClassification",
        "BertConfig",
        **BERT,
        id2label=names,
        label2id={name: i for i, name in names.items()},
    )
    path = recipe_of(tmp_path, tmp_path / "base", sentiments(labels), rounds=1)
    result = run(path, tmp_path / "run")
    tuned = open_tuned(find_source(str(tmp_path / "base")))
    found, _ = evaluate(tuned, read_recipe(path))
    first = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert found["loss"] == pytest.approx(first["loss"], abs=1e-6)
    assert found["accuracy"] == first["accuracy"]
    # and it is what plain transformers says
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "base")
    held = [row for row in sentiments((0, 1)) if row["text"] in texts_held(path)]
    with torch.no_grad():
        logits = torch.cat([base(**encoded(tokenizer, row["text"])).logits for row in held])
    gold = torch.tensor([row["label"] for row in held])
    plain = torch.nn.functional.cross_entropy(logits, gold)
    assert found["loss"] == pytest.approx(float(plain), abs=1e-4)
    assert result.model.config.id2label == names


def encoded(tokenizer, text):
    found = tokenizer(text, return_tensors="pt")
    found.pop("token_type_ids", None)
    return found


def texts_held(path):
    data = read_recipe(path).task.load()
    return [one.text for one in data.evaluation[""]]


@pytest.mark.parametrize(
    ("labels", "note"),
    [
        (("0", "1", "2"), ""),
        # is class 1 the first of two, or the second of three?
        (("1", "2"), "have no names; assuming LABEL_1 for 1, LABEL_2 for 2"),
        (("1", "2", "3"), "have no names; assuming LABEL_0 for 1, LABEL_1 for 2, LABEL_2 for 3"),
        (("-1", "0", "1"), "have no names; assuming LABEL_0 for -1, LABEL_1 for 0, LABEL_2 for 1"),
    ],
)
def test_a_guess_at_a_heads_numbers_is_said(labels, note):
    names = {str(i): f"LABEL_{i}" for i in range(3)}
    config = {"id2label": names, "architectures": ["BertForSequenceClassification"]}
    account = Head(labels, 1).account(config, ["BertForSequenceClassification"])
    assert account.endswith(note) and bool(account) == bool(note)


def test_a_head_of_other_classes_is_drawn_anew_and_said(tmp_path):
    names = {0: "NEGATIVE", 1: "POSITIVE"}
    made(
        tmp_path / "base",
        "BertForSequenceClassification",
        "BertConfig",
        **BERT,
        id2label=names,
        label2id={name: i for i, name in names.items()},
    )
    path = recipe_of(tmp_path, tmp_path / "base", sentiments(("cat", "dog")))
    notes = Federation.from_file(path, progress=False).spec.notes
    assert any("new head is drawn" in line and "NEGATIVE" in line for line in notes)
    tuned = open_tuned(find_source(str(tmp_path / "base")))
    with pytest.raises(RecipeError, match=r"classes are NEGATIVE.*cat"):
        evaluate(tuned, read_recipe(path))


def test_numbered_classes_mean_the_outputs_of_their_numbers(tmp_path):
    base = made(
        tmp_path / "base",
        "BertForSequenceClassification",
        "BertConfig",
        **BERT,
        num_labels=12,
    )
    labels = tuple(sorted(map(str, range(12))))  # as texts: "10" before "2"
    model, _ = load_model(str(tmp_path / "base"), head=Head(labels, 1))
    assert torch.equal(model.classifier.weight, base.classifier.weight)
    assert model.config.id2label == {i: str(i) for i in range(12)}
    again, _ = load_model(str(tmp_path / "base"), head=Head(tuple(map(str, range(12))), 1))
    assert base_digest(again) == base_digest(model)
    # as many are right as in plain transformers
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "base")
    answers = {}
    for number in range(96):
        text = f"count {number} birds"
        with torch.no_grad():
            answers[text] = int(base(**encoded(tokenizer, text)).logits.argmax())
    rows = [
        {"text": text, "label": number % 12 if number % 3 else answer}
        for number, (text, answer) in enumerate(answers.items())
    ]
    path = recipe_of(tmp_path, tmp_path / "base", rows)
    held = texts_held(path)
    labels = {row["text"]: row["label"] for row in rows}
    plain = 100 * sum(labels[text] == answers[text] for text in held) / len(held)
    tuned = open_tuned(find_source(str(tmp_path / "base")))
    assert 20 < plain < 100
    assert evaluate(tuned, read_recipe(path))[0]["accuracy"] == pytest.approx(plain)


# Adapters


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens"])
def test_lora_on_tied_matrices_is_merged_right(target, tmp_path):
    adapter = f'adapter = {{kind = "lora", targets = ["{target}"]}}'
    path = recipe_of(tmp_path, "small", more=adapter, rounds=2)
    run(path, tmp_path / "run")
    tuned = open_tuned(find_source(str(tmp_path / "run")))
    ids = torch.tensor([[1, 20, 30, 40, 50]])
    with torch.no_grad():
        expected = tuned.model(input_ids=ids).logits
    from fedseed.orbit.export import export_model

    export_model(
        tmp_path / "merged", tuned.model, tuned.processor, tuned.header, tuned.facts, merge=True
    )
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    with torch.no_grad():
        found = plain(input_ids=ids).logits
    base, _ = load_model("small")
    with torch.no_grad():
        before = base(input_ids=ids).logits
    assert (expected - before).abs().max() > 0.01
    assert torch.allclose(found, expected, atol=1e-4)


BART = {
    **dict.fromkeys(("d_model", "encoder_ffn_dim", "decoder_ffn_dim"), 32),
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 1),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2),
    **{"vocab_size": 1488, "max_position_embeddings": 64, "decoder_start_token_id": 2, **IDS},
}


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens"])
def test_a_lora_on_matrices_that_three_layers_share_is_merged_right(target, tmp_path):
    """Without ties BART's encoder, decoder and output layer each need a matrix in the file."""
    made(tmp_path / "base", "BartForConditionalGeneration", "BartConfig", **BART)
    model, _ = load_model(str(tmp_path / "base"))
    settings = adapters.LoRA(targets=[target], rank=2)
    wrapped = adapters.install(model, settings, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in wrapped.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    inputs = {name: torch.tensor([[1, 20, 30, 40]]) for name in ("input_ids", "decoder_input_ids")}
    with torch.no_grad():
        expected = wrapped(**inputs).logits
        adapters.merged(wrapped).save_pretrained(tmp_path / "merged")
        plain = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "merged").eval()
        assert torch.allclose(plain(**inputs).logits, expected, atol=1e-4)


def test_a_lora_on_what_the_model_does_not_use_is_refused(tmp_path):
    """BART's `shared` holds the matrix that its encoder and decoder look up themselves."""
    made(tmp_path / "base", "BartForConditionalGeneration", "BartConfig", **BART)
    path = recipe_of(
        tmp_path, tmp_path / "base", more='adapter = {kind = "lora", targets = ["shared"]}'
    )
    with pytest.raises(RecipeError, match=r"nothing of what is to be tuned .*shared.*targets"):
        run(path)


def test_a_lora_on_positions_is_refused(tmp_path):
    made(tmp_path / "base", "BartForConditionalGeneration", "BartConfig", **BART)
    model, _ = load_model(str(tmp_path / "base"))
    with pytest.raises(RecipeError, match=r"embed_positions is a Bart.*PositionalEmbedding"):
        adapters.install(model, adapters.LoRA(targets=["embed_positions"]), seed=1)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_not_exported(value, tmp_path):
    from fedseed.orbit.export import export_model

    run(recipe_of(tmp_path, "small", rounds=1), tmp_path / "run")
    tuned = open_tuned(find_source(str(tmp_path / "run")))
    name, parameter = next(iter(tuned.model.named_parameters()))
    with torch.no_grad():
        parameter.view(-1)[5] = value
    with pytest.raises(FedseedError, match=f"NaN or infinite in {name}.*--upto"):
        export_model(tmp_path / "out", tuned.model, tuned.processor, tuned.header, tuned.facts)
    assert not (tmp_path / "out").exists()


def test_lora_on_fused_experts_replays_exports_and_evaluates(tmp_path):
    made(tmp_path / "base", "MixtralForCausalLM", "MixtralConfig", **MIXTRAL)
    adapter = 'adapter = {kind = "lora", rank = 2, targets = ["w1", "w2", "w3"]}'
    path = recipe_of(tmp_path, tmp_path / "base", more=adapter)
    result = run(path, tmp_path / "run")
    tuned = open_tuned(find_source(str(tmp_path / "run")), check_all=True)
    names = [name for name, p in tuned.model.named_parameters() if p.requires_grad]
    assert any("experts" in name for name in names)
    found, _ = evaluate(tuned, read_recipe(path))
    assert found["loss"] == pytest.approx(result.summary["final"]["loss"], abs=1e-5)
    from fedseed.orbit.export import export_model

    export_model(tmp_path / "out", tuned.model, tuned.processor, tuned.header, tuned.facts)
    assert (tmp_path / "out" / "adapter_model.safetensors").is_file()


@pytest.fixture
def lora_folder(tmp_path):
    """A folder with a LoRA on a small random base, that has been tuned a little."""
    import peft

    model = made(tmp_path / "base", "LlamaForCausalLM", "LlamaConfig", **LLAMA)
    model.name_or_path = str(tmp_path / "base")
    wrapped = peft.get_peft_model(model, peft.LoraConfig(r=4, task_type="CAUSAL_LM"))
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
    wrapped.save_pretrained(tmp_path / "lora")
    edit(
        tmp_path / "lora" / "adapter_config.json",
        base_model_name_or_path=str(tmp_path / "base"),
    )
    return tmp_path / "lora", wrapped.eval()


def test_an_adapters_folder_as_base_is_tuned_on(lora_folder, tmp_path):
    folder, wrapped = lora_folder
    path = recipe_of(tmp_path, folder, method='name = "ferret"\nbytes = "1kB"')
    run(path, tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    # it starts from the LoRA, not from the base
    objective = CausalLM(AutoTokenizer.from_pretrained(tmp_path / "base"))
    held = read_recipe(path).task.load().evaluation[""]
    items = objective.prepare(held)
    with torch.no_grad():
        expected = float(objective.losses(wrapped, items).sum()) / sum(map(objective.weight, items))
    assert lines[0]["loss"] == pytest.approx(expected, abs=1e-5)
    orbit = Orbit.open(tmp_path / "run" / "model.orbit")
    assert all("lora_" in tensor.name for tensor in orbit.header.layout.tensors)
    tuned = open_tuned(find_source(str(tmp_path / "run")), check_all=True)
    assert adapters.is_installed(tuned.model)
    assert evaluate(tuned, read_recipe(path))[0]["loss"] == pytest.approx(
        lines[-1]["loss"], abs=1e-5
    )
    # the folder itself is measured as round 0 was
    itself = open_tuned(find_source(str(folder)))
    assert evaluate(itself, read_recipe(path))[0]["loss"] == pytest.approx(
        lines[0]["loss"], abs=1e-6
    )


def test_an_adapter_beside_its_bases_weights_is_tuned_on(lora_folder, tmp_path):
    folder, wrapped = lora_folder
    shutil.copytree(tmp_path / "base", tmp_path / "both")
    for path in folder.glob("adapter_*"):
        shutil.copy(path, tmp_path / "both")
    model, _ = load_model(str(tmp_path / "both"))
    ids = torch.tensor([[1, 20, 30, 40]])
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids).logits, wrapped(input_ids=ids).logits)
    assert all("lora_" in e.name for e in ParameterSpace(model).layout.tensors)


def test_an_adapter_without_its_base_is_refused(lora_folder, tmp_path):
    folder, _ = lora_folder
    edit(folder / "adapter_config.json", base_model_name_or_path=str(tmp_path / "away"))
    with pytest.raises(RecipeError, match=r"adapter of .*away.*base_model_name_or_path.*merge"):
        load_model(str(folder))
    edit(folder / "adapter_config.json", base_model_name_or_path=None)
    with pytest.raises(RecipeError, match="does not name its base"):
        load_model(str(folder))
    edit(folder / "adapter_config.json", base_model_name_or_path="small")
    with pytest.raises(RecipeError, match="does not fit its base"):
        load_model(str(folder))


def test_another_adapter_on_an_adapter_is_refused(lora_folder, tmp_path):
    folder, _ = lora_folder
    path = recipe_of(tmp_path, folder, more='adapter = {kind = "lora"}')
    with pytest.raises(RecipeError, match="is an adapter already"):
        Federation.from_file(path, progress=False)


# Parameters that are not tuned


VISION = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}


@pytest.fixture
def seeing(tmp_path):
    text = {**LLAMA, "num_key_value_heads": 1, "head_dim": 16, "num_hidden_layers": 2}
    made(
        tmp_path / "seeing",
        "Gemma3ForConditionalGeneration",
        "Gemma3Config",
        text_config={**text, "layer_types": ["sliding_attention", "full_attention"]},
        vision_config=VISION,
        mm_tokens_per_image=4,
        boi_token_index=4,
        eoi_token_index=5,
        image_token_index=6,
        **IDS,
    )
    return tmp_path / "seeing"


def test_a_vision_tower_is_not_tuned_by_texts(seeing, tmp_path):
    model, tokenizer = load_model(str(seeing))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    federation = Federation(
        model,
        datasets=[ROWS],
        method=ZOFedSGD(learning_rate=1e-3),
        tokenizer=tokenizer,
        rounds=2,
        evaluation=ROWS,
    )
    assert any("do not affect the loss" in line for line in federation.spec.notes)
    federation.run()
    moved = {name for name, p in model.named_parameters() if not p.equal(before[name])}
    unseen = {n for n in before if "vision" in n or "multi_modal_projector" in n}
    assert len(unseen) > 10 and not moved & unseen
    assert moved == before.keys() - unseen
    # the same by a recipe, and by its replay
    result = run(recipe_of(tmp_path, seeing, method=FEEDSIGN, rounds=2), tmp_path / "run")
    names = {e.name for e in Orbit.open(tmp_path / "run" / "model.orbit").header.layout.tensors}
    assert names == moved
    assert ParameterSpace(from_orbit(tmp_path / "run")).digest() == result.summary["weights_digest"]


def test_a_lora_in_a_vision_tower_is_not_tuned_by_texts(seeing, tmp_path):
    """`q_proj` is a name of layers in both towers."""
    adapter = 'adapter = {kind = "lora", rank = 2, targets = ["q_proj"]}'
    path = recipe_of(tmp_path, seeing, method=FEEDSIGN, more=adapter, rounds=2)
    result = run(path, tmp_path / "run")
    header = Orbit.open(tmp_path / "run" / "model.orbit").header
    names = {tensor.name for tensor in header.layout.tensors}
    assert len(names) == 4 and all("language_model" in name for name in names)
    tuned = open_tuned(find_source(str(tmp_path / "run")), check_all=True)
    assert evaluate(tuned, read_recipe(path))[0]["loss"] == pytest.approx(
        result.summary["final"]["loss"], abs=1e-5
    )
    vision = [n for n, _ in tuned.model.named_parameters() if "lora_B" in n and "vision" in n]
    assert vision and not any(tuned.model.get_parameter(name).any() for name in vision)


def test_experts_that_few_tokens_reach_are_tuned(tmp_path):
    class Experts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))
            # as in Switch Transformers and NLLB-MoE
            self.named = torch.nn.ModuleDict(
                {f"expert_{number}": torch.nn.Linear(4, 4, bias=False) for number in range(11)}
            )
            # as in X-MOD: a text is in one language
            self.languages = torch.nn.ModuleDict(
                {name: torch.nn.Linear(4, 4, bias=False) for name in ("en_XX", "de_DE")}
            )
            self.other = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.Bilinear(4, 4, 4)])
            self.idle = torch.nn.Linear(4, 4)
            self.token = torch.nn.Parameter(torch.zeros(4))

        def forward(self, x):
            x = self.languages["en_XX"](self.named["expert_10"](self.experts[1](x)))
            return self.other[0](x) + self.token.shape[0]

    from fedseed.models.traits import unreached

    model = Experts()
    idle = unreached(model, lambda: model(torch.ones(1, 4)))
    alone = ["languages.de_DE.weight", "other.1.weight", "other.1.bias"]
    assert idle == ["token", *alone, "idle.weight", "idle.bias"]


MARIAN = {
    "vocab_size": 1488,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 0,
    "forced_eos_token_id": None,
}


def test_marians_positions_are_not_tuned_and_its_export_is_the_tuned_model(tmp_path):
    made(tmp_path / "base", "MarianMTModel", "MarianConfig", **MARIAN)
    path = recipe_of(tmp_path, tmp_path / "base", method=FEEDSIGN.replace("1e-3", "0.05"), rounds=3)
    run(path, tmp_path / "run")
    orbit = Orbit.open(tmp_path / "run" / "model.orbit")
    assert not any("embed_positions" in tensor.name for tensor in orbit.header.layout.tensors)
    tuned = open_tuned(find_source(str(tmp_path / "run")))
    from fedseed.orbit.export import export_model

    export_model(tmp_path / "out", tuned.model, tuned.processor, tuned.header, tuned.facts)
    written = transformers.MarianMTModel.from_pretrained(tmp_path / "out")
    assert base_digest(written) == base_digest(tuned.model)


def test_an_export_that_loads_as_another_model_is_refused(tmp_path):
    made(tmp_path / "base", "MarianMTModel", "MarianConfig", **MARIAN)
    path = recipe_of(tmp_path, tmp_path / "base", method=FEEDSIGN)
    run(path, tmp_path / "run")
    tuned = open_tuned(find_source(str(tmp_path / "run")))
    with torch.no_grad():  # as a run before this version did
        tuned.model.get_parameter("model.encoder.embed_positions.weight").add_(0.1)
    from fedseed.orbit.export import export_model

    with pytest.raises(FedseedError, match=r"other weights .*encoder\.embed_positions\.weight"):
        export_model(tmp_path / "out", tuned.model, tuned.processor, tuned.header, tuned.facts)
    assert not list((tmp_path / "out").iterdir())


# Padding, looking ahead, chance


def test_texts_that_padding_changes_go_through_the_model_by_length(tmp_path):
    base = made(
        tmp_path / "base",
        "MobileBertForSequenceClassification",
        "MobileBertConfig",
        **BERT,
        embedding_size=32,
        intra_bottleneck_size=32,
        true_hidden_size=32,
    )
    path = recipe_of(tmp_path, tmp_path / "base", sentiments(("bad", "good")))
    path.write_text(path.read_text() + 'architecture = "classification"\n')
    federation = Federation.from_file(path, progress=False)
    assert any("padding changes" in line for line in federation.spec.notes)
    objective = federation.hosted.worker.objective
    model = federation.hosted.worker.space.model
    items = [
        objective.prepare([one])[0] for one in read_recipe(path).task.load().clients[0].examples[:4]
    ]
    from dataclasses import replace

    items = [replace(item, ids=item.ids + item.ids[1:-1] * n) for n, item in enumerate(items)]
    with torch.no_grad():
        together = objective.losses(model, items)
        alone = torch.cat([objective.losses(model, [item]) for item in items])
        logits = [base(input_ids=torch.tensor([item.ids])).logits for item in items]
    gold = torch.tensor([item.gold for item in items])
    plain = torch.nn.functional.cross_entropy(torch.cat(logits), gold, reduction="none")
    assert torch.allclose(together, alone, atol=1e-6)
    assert torch.allclose(together, plain, atol=1e-4)


def test_prompts_that_padding_changes_are_answered_by_length(tmp_path):
    base = made(
        tmp_path / "base",
        "RwkvForCausalLM",
        "RwkvConfig",
        vocab_size=1488,
        hidden_size=32,
        attention_hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        context_length=256,
        **IDS,
    )
    path = recipe_of(tmp_path, tmp_path / "base")
    federation = Federation.from_file(path, progress=False)
    assert any("padding changes" in line for line in federation.spec.notes)
    model, objective = federation.hosted.worker.space.model, federation.hosted.worker.objective
    prompts = ["Count", "Say north 3 and then", "Write two words about", "a b"]
    together = generate(model, objective, prompts, 4)
    assert together == [generate(base, objective, [prompt], 4)[0] for prompt in prompts]


def test_a_bert_that_continues_text_reads_from_left_to_right(tmp_path):
    made(tmp_path / "base", "BertLMHeadModel", "BertConfig", **BERT)
    model, _ = load_model(str(tmp_path / "base"), architecture="causal")
    ids = torch.tensor([[1, 20, 30, 40, 50]])
    with torch.no_grad():
        whole, cut = model(input_ids=ids).logits, model(input_ids=ids[:, :3]).logits
    assert torch.allclose(whole[:, :3], cut, atol=1e-5)
    assert any("left to right" in line for line in traits_of(model).notes)


def test_a_base_that_looks_ahead_is_refused(tmp_path):
    made(
        tmp_path / "base",
        "XLMWithLMHeadModel",
        "XLMConfig",
        vocab_size=1488,
        emb_dim=32,
        n_layers=1,
        n_heads=2,
        max_position_embeddings=64,
    )
    path = recipe_of(tmp_path, tmp_path / "base", more='architecture = "causal"')
    with pytest.raises(RecipeError, match=r'later tokens change .*"causal": true'):
        Federation.from_file(path, progress=False)
    edit(tmp_path / "base" / "config.json", causal=True)
    Federation.from_file(path, progress=False)


def test_a_base_that_casts_its_router_for_good_is_refused_in_16_bit(tmp_path):
    sizes = {"d_model": 192, "d_kv": 16, "d_ff": 64, "num_heads": 2, "num_layers": 2}
    made(
        tmp_path / "base",
        "SwitchTransformersForConditionalGeneration",
        "SwitchTransformersConfig",
        vocab_size=1488,
        decoder_start_token_id=0,
        num_sparse_encoder_layers=1,
        num_sparse_decoder_layers=1,
        num_experts=2,
        **sizes,  # large enough that copies are made where functions ask for them
    )
    more = 'architecture = "seq2seq"\ndtype = "{}"'
    method = 'name = "feedsign"\nlearning_rate = 1e-3\nbatch = 4'
    for dtype in ("bfloat16", "float16"):
        path = recipe_of(tmp_path, tmp_path / "base", method=method, more=more.format(dtype))
        refusal = r'router\.classifier\.weight.*set model\.dtype = "float32"'
        with pytest.raises(RecipeError, match=refusal):
            Federation.from_file(path, progress=False)
    path = recipe_of(tmp_path, tmp_path / "base", method=method, more=more.format("float32"))
    out = tmp_path / "run"
    federation = Federation.from_file(path, out=str(out), progress=False)
    digest = federation.run().summary["weights_digest"]
    tuned = open_tuned(find_source(str(out)), check_all=True).model
    assert ParameterSpace(tuned).digest() == digest


def test_a_masked_model_that_transformers_lets_write_fills_blanks(tmp_path):
    """XLM's class for masks has a head that generates; a blank is filled from both sides."""
    made(
        tmp_path / "base",
        "XLMWithLMHeadModel",
        "XLMConfig",
        vocab_size=1488,
        emb_dim=32,
        n_layers=1,
        n_heads=2,
        max_position_embeddings=64,
    )
    model, tokenizer = load_model(str(tmp_path / "base"), architecture="masked")
    tokenizer.mask_token = tokenizer.convert_ids_to_tokens(5)
    assert model.can_generate()
    examine_base(model, MaskedLM(tokenizer))
    assert traits_of(model).examined and not traits_of(model).equal_prompts
    # the same model is refused where it would continue texts
    other, _ = load_model(str(tmp_path / "base"), architecture="masked")
    with pytest.raises(RecipeError, match="later tokens change"):
        examine_base(other, CausalLM(tokenizer))


def test_a_blank_is_scored_where_it_stands_in_a_perceiver(tmp_path):
    """A Perceiver has logits for all of its positions, however short a text is."""
    made(
        tmp_path / "base",
        "PerceiverForMaskedLM",
        "PerceiverConfig",
        vocab_size=1488,
        d_model=32,
        d_latents=32,
        num_latents=4,
        num_blocks=1,
        num_self_attends_per_block=1,
        num_self_attention_heads=2,
        num_cross_attention_heads=2,
        max_position_embeddings=64,
    )
    model, tokenizer = load_model(str(tmp_path / "base"), architecture="masked")
    tokenizer.mask_token = tokenizer.convert_ids_to_tokens(5)
    objective = MaskedLM(tokenizer)
    rows = [[1, 20, 5, 30, 2], [1, 5, 40, 50, 60, 70, 2]]
    found = objective.logits_of(model.eval(), rows)
    for row, logits in zip(rows, found, strict=True):
        ids = torch.tensor([row])
        plain = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]
        assert plain.shape[0] == 64
        torch.testing.assert_close(logits[: len(row)], plain[: len(row)], rtol=0, atol=1e-5)


@pytest.mark.parametrize("hash_seed", [None, 0])
def test_a_reformer_draws_hashes_unless_it_has_a_seed(tmp_path, hash_seed):
    """Texts of one chunk are hashed alike in both cases, longer ones are not."""
    made(
        tmp_path / "base",
        "ReformerModelWithLMHead",
        "ReformerConfig",
        vocab_size=1488,
        hidden_size=32,
        num_attention_heads=2,
        attention_head_size=16,
        feed_forward_size=32,
        attn_layers=["local", "lsh"],
        axial_pos_shape=[8, 8],
        axial_pos_embds_dim=[16, 16],
        max_position_embeddings=64,
        num_buckets=4,
        is_decoder=True,
        hash_seed=hash_seed,
    )
    model, tokenizer = load_model(str(tmp_path / "base"), architecture="causal")
    if hash_seed is None:
        with pytest.raises(RecipeError, match=r"draws random numbers .*\"hash_seed\": 0"):
            examine_base(model, CausalLM(tokenizer))
    else:
        examine_base(model, CausalLM(tokenizer))
        assert traits_of(model).examined


def test_what_loading_writes_to_is_not_tuned(tmp_path):
    """Funnel sets the padding token's row to zero whenever it is loaded."""
    base = made(
        tmp_path / "base",
        "FunnelForMaskedLM",
        "FunnelConfig",
        vocab_size=1488,
        d_model=32,
        n_head=2,
        d_head=16,
        d_inner=64,
        block_sizes=[1],
        num_decoder_layers=1,
        pad_token_id=0,
    )
    name = "funnel.embeddings.word_embeddings.weight"
    row = base.get_parameter(name)[0]
    assert row.abs().max() > 0
    model, _ = load_model(str(tmp_path / "base"), architecture="masked")
    if torch.equal(model.get_parameter(name)[0], row):
        pytest.skip("this version of transformers leaves the row as it is")
    notes = traits_of(model).notes
    assert [n for n in notes if "changed whenever the model is loaded" in n and name in n], notes
    resting = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert name in resting and name not in {t.name for t in ParameterSpace(model).layout.tensors}


def test_what_loading_leaves_alone_is_tuned(tmp_path):
    made(tmp_path / "base", "LlamaForCausalLM", "LlamaConfig", **LLAMA)
    model, _ = load_model(str(tmp_path / "base"), architecture="causal")
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert traits_of(model).notes == []


# Configurations


def test_router_logits_are_switched_off(tmp_path):
    made(
        tmp_path / "base",
        "MixtralForCausalLM",
        "MixtralConfig",
        **MIXTRAL,
        output_router_logits=True,
    )
    model, tokenizer = load_model(str(tmp_path / "base"))
    answers = generate(model, CausalLM(tokenizer), ["Count one", "Count two three"], 4)
    assert len(answers) == 2 and model.config.output_router_logits is False
    assert any("output_router_logits = true" in line for line in traits_of(model).notes)


def test_attention_outputs_are_switched_off_and_the_model_is_exported(tmp_path):
    made(tmp_path / "base", "LlamaForCausalLM", "LlamaConfig", **LLAMA)
    edit(tmp_path / "base" / "config.json", output_attentions=True)
    path = recipe_of(tmp_path, tmp_path / "base", method=FEEDSIGN)
    run(path, tmp_path / "run")
    tuned = open_tuned(find_source(str(tmp_path / "run")))
    from fedseed.orbit.export import export_model

    export_model(tmp_path / "out", tuned.model, tuned.processor, tuned.header, tuned.facts)
    assert (tmp_path / "out" / "model.safetensors").is_file()


ODD = {
    "stop_strings": {"stop_strings": ["north"]},
    "several": {"num_return_sequences": 2, "do_sample": True},
    "a dictionary": {"return_dict_in_generate": True, "output_scores": True},
    "a minimum": {"min_length": 12},
    "new tokens": {"min_new_tokens": 3},
    "a penalty": {"repetition_penalty": 1.8, "no_repeat_ngram_size": 2},
    "beams": {"num_beams": 3, "length_penalty": 2.0, "early_stopping": True},
    "logits": {"output_logits": True, "output_hidden_states": True, "output_attentions": True},
}


@pytest.mark.parametrize("what", ODD)
def test_answers_depend_on_nothing_but_their_prompt(what, tmp_path):
    shutil.copytree(locate("small"), tmp_path / "base")
    prompts = ["Say north 3:", "Count to two and then", "a"]
    model, tokenizer = load_model("small")
    expected = generate(model, CausalLM(tokenizer), prompts, 8)
    (tmp_path / "base" / "generation_config.json").write_text(json.dumps({**IDS, **ODD[what]}))
    model, tokenizer = load_model(str(tmp_path / "base"))
    own = model.generation_config.to_dict()
    assert generate(model, CausalLM(tokenizer), prompts, 8) == expected
    each = [generate(model, CausalLM(tokenizer), [prompt], 8)[0] for prompt in prompts]
    assert each == expected
    assert model.generation_config.to_dict() == own  # as it was, for the export
    from fedseed.objectives.generation import Writer

    assert isinstance(Writer(model, tokenizer, 8).continue_prompt(prompts[0]).text, str)


def test_added_tokens_without_rows_are_refused_before_the_run(tmp_path):
    model, tokenizer = load_model("small")
    tokenizer.add_tokens(["<|user|>", "<|unused|>"])
    model.save_pretrained(tmp_path / "added")
    tokenizer.save_pretrained(tmp_path / "added")
    rows = [{"prompt": f"<|user|> Say {i}:", "completion": f" {i}"} for i in range(8)]
    path = recipe_of(tmp_path, tmp_path / "added", rows)
    line = r"<\|user\|>.*number 1,488.*1,488 tokens.*resize_token_embeddings"
    with pytest.raises(RecipeError, match=line):
        Federation.from_file(path, progress=False)
    with pytest.raises(RecipeError, match=line):
        preview(read_recipe(path))
    # tokens that nobody uses are no trouble
    Federation.from_file(recipe_of(tmp_path, tmp_path / "added"), progress=False)


# Quantised bases


QUANTISED = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128},
    "compressed-tensors": {"quant_method": "compressed-tensors", "config_groups": {}},
    "quanto": {"quant_method": "quanto", "weights": "int8"},
}


@pytest.mark.parametrize("method", QUANTISED)
def test_quantised_weights_are_refused(method, tmp_path):
    made(tmp_path / "base", "LlamaForCausalLM", "LlamaConfig", **LLAMA)
    edit(tmp_path / "base" / "config.json", quantization_config=QUANTISED[method])
    with pytest.raises(RecipeError, match=rf"quantised \({method}.*original unquantised weights"):
        load_model(str(tmp_path / "base"))


@pytest.mark.parametrize("method", ["bitsandbytes", "torchao"])
def test_weights_of_a_quantisers_library_that_is_missing_are_refused(method, tmp_path, monkeypatch):
    made(tmp_path / "base", "LlamaForCausalLM", "LlamaConfig", **LLAMA)
    edit(tmp_path / "base" / "config.json", quantization_config={"quant_method": method})
    monkeypatch.setattr("fedseed.models.quantized_loading.find_spec", lambda name: None)
    with pytest.raises(RecipeError, match=rf"quantised \({method}\), which needs {method}: "):
        load_model(str(tmp_path / "base"))


def test_an_unknown_quantisers_name_is_passed_over(tmp_path):
    made(tmp_path / "base", "LlamaForCausalLM", "LlamaConfig", **LLAMA)
    before = base_digest(load_model(str(tmp_path / "base"))[0])
    edit(tmp_path / "base" / "config.json", quantization_config={"quant_method": "mine"})
    assert base_digest(load_model(str(tmp_path / "base"))[0]) == before


def as_fp8(folder):
    """Store a base's projections as FP8 blocks with scales, as DeepSeek's files have them."""
    tensors, stored = load_file(folder / "model.safetensors"), {}
    for name, tensor in tensors.items():
        if tensor.ndim == 2 and "proj" in name:
            rows, columns = tensor.shape
            blocks = tensor.reshape(rows // 32, 32, columns // 32, 32)
            scale = blocks.abs().amax((1, 3)).clamp(min=1e-6) / 448
            scaled = (blocks / scale[:, None, :, None]).reshape(tensor.shape)
            stored[name] = scaled.to(torch.float8_e4m3fn)
            stored[f"{name}_scale_inv"] = scale
        else:
            stored[name] = tensor
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    settings = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [32, 32],
    }
    edit(folder / "config.json", quantization_config={**settings, "fmt": "e4m3"})


def as_mxfp4(folder):
    """Store a base's experts as MXFP4 blocks with scales, as gpt-oss' files have them."""
    tensors, stored = load_file(folder / "model.safetensors"), {}
    generator = torch.Generator().manual_seed(0)
    for name, tensor in tensors.items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            experts, rows, columns = tensor.shape
            size = (experts, columns, rows // 32, 16)
            blocks = torch.randint(0, 256, size, generator=generator)
            stored[f"{name}_blocks"] = blocks.to(torch.uint8)
            stored[f"{name}_scales"] = torch.full(size[:3], 124, dtype=torch.uint8)
        else:
            stored[name] = tensor.bfloat16()
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    kept = [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ]
    settings = {"quant_method": "mxfp4", "modules_to_not_convert": kept}
    edit(folder / "config.json", quantization_config=settings)


FLOATS = {
    "fp8": ("LlamaForCausalLM", "LlamaConfig", LLAMA, as_fp8),
    "mxfp4": (
        "GptOssForCausalLM",
        "GptOssConfig",
        {
            **LLAMA,
            "hidden_size": 64,
            "num_key_value_heads": 1,
            "head_dim": 32,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
        },
        as_mxfp4,
    ),
}


@pytest.mark.parametrize("method", FLOATS)
def test_a_base_of_small_floats_is_one_model_with_a_gpu_and_without(method, tmp_path, monkeypatch):
    name, config, settings, store = FLOATS[method]
    made(tmp_path / "base", name, config, **settings)
    store(tmp_path / "base")
    model, _ = load_model(str(tmp_path / "base"))
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    beside, _ = load_model(str(tmp_path / "base"))
    monkeypatch.undo()
    assert base_digest(beside) == base_digest(model)
    run(recipe_of(tmp_path, tmp_path / "base", method=FEEDSIGN), tmp_path / "run")
    tuned = open_tuned(find_source(str(tmp_path / "run")))
    from fedseed.orbit.export import export_model

    export_model(tmp_path / "out", tuned.model, tuned.processor, tuned.header, tuned.facts)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert base_digest(plain) == base_digest(tuned.model)


# Architectures


M2M100 = {**MARIAN, "decoder_start_token_id": 2, "bos_token_id": 1}
SHIFTED = {
    "M2M100ForConditionalGeneration": "M2M100Config",
    "BlenderbotForConditionalGeneration": "BlenderbotConfig",
    "BlenderbotSmallForConditionalGeneration": "BlenderbotSmallConfig",
    "MarianMTModel": "MarianConfig",
}


@pytest.mark.parametrize("name", SHIFTED)
def test_an_encoder_decoder_without_its_own_shift_has_plain_losses(name, tmp_path):
    base = made(tmp_path / "base", name, SHIFTED[name], **M2M100)
    model, tokenizer = load_model(str(tmp_path / "base"), architecture="seq2seq")
    objective = Seq2SeqLM(tokenizer)
    examples = [Example("Say north 3:", " 3 and 4"), Example("Count", " one")]
    items = objective.prepare(examples)
    with torch.no_grad():
        ours = objective.losses(model, items)
        plain = [
            base(
                input_ids=torch.tensor([item.ids[: item.response_start]]),
                labels=torch.tensor([item.ids[item.response_start :]]),
            ).loss
            * item.terms
            for item in items
        ]
    assert torch.allclose(ours, torch.stack(plain), atol=1e-4)


def test_an_encoder_decoder_without_a_start_token_is_refused(tmp_path):
    name = "M2M100ForConditionalGeneration"
    made(tmp_path / "base", name, "M2M100Config", **M2M100)
    model, tokenizer = load_model(str(tmp_path / "base"), architecture="seq2seq")
    model.config.decoder_start_token_id = model.generation_config.decoder_start_token_id = None
    objective = Seq2SeqLM(tokenizer)
    with pytest.raises(RecipeError, match="decoder_start_token_id"):
        objective.losses(model, objective.prepare([Example("Say", " 3")]))


def test_a_model_that_hears_learns_texts(tmp_path):
    made(
        tmp_path / "base",
        "Qwen2AudioForConditionalGeneration",
        "Qwen2AudioConfig",
        audio_config={
            "d_model": 32,
            "encoder_layers": 1,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 32,
            "num_mel_bins": 16,
            "max_source_positions": 32,
        },
        text_config={**LLAMA, "num_key_value_heads": 1, "model_type": "qwen2"},
        audio_token_index=7,
    )
    path = recipe_of(tmp_path, tmp_path / "base", method=FEEDSIGN)
    run(path, tmp_path / "run")
    names = [e.name for e in Orbit.open(tmp_path / "run" / "model.orbit").header.layout.tensors]
    assert names and not any("audio" in name for name in names)
    with pytest.raises(RecipeError, match="continues text, but the task needs an encoder-decoder"):
        load_model(str(tmp_path / "base"), architecture="seq2seq")


# What is said


def test_a_file_of_other_sizes_is_named(tmp_path):
    made(tmp_path / "base", "LlamaForCausalLM", "LlamaConfig", **LLAMA)
    edit(tmp_path / "base" / "config.json", vocab_size=1490)
    line = (
        r"lm_head\.weight of shape \[1488, 32\], but config.json requires \[1490, 32\] \(and 1 "
        r"more"
    )
    with pytest.raises(
        RecipeError, match=line + (r".*: one of the two files belongs to another model")
    ):
        load_model(str(tmp_path / "base"), architecture="causal")


def test_a_base_that_a_newer_version_saved_and_this_one_reads_otherwise_names_both(
    tmp_path, monkeypatch
):
    made(tmp_path / "base", "LlamaForCausalLM", "LlamaConfig", **LLAMA)
    here = transformers.__version__
    saved = r"saved by transformers 99\.1\.0, and the installed version "
    both = saved + rf"\({here}\).*install transformers 99\.1"
    # a setting has another name there
    settings = {"vocab_size": 1490, "transformers_version": "99.1.0"}
    edit(tmp_path / "base" / "config.json", **settings)
    with pytest.raises(RecipeError, match=rf"of shape \[1488, 32\], .* \[1490, 32\].*{both}"):
        load_model(str(tmp_path / "base"), architecture="causal")

    # before 5 transformers reports names without shapes
    load = AutoModelForCausalLM.from_pretrained.__func__

    def load_as_before_5(cls, *args, **kwargs):
        model, report = load(cls, *args, **kwargs)
        return model, {**report, "mismatched_keys": [key[0] for key in report["mismatched_keys"]]}

    with monkeypatch.context() as patched:
        patched.setattr(AutoModelForCausalLM, "from_pretrained", classmethod(load_as_before_5))
        line = r"weight of another shape than config\.json requires \(\[1490, 32\]\) \(and 1"
        with pytest.raises(RecipeError, match=rf"{line}.*{both}"):
            load_model(str(tmp_path / "base"), architecture="causal")
    # tensors are missing
    edit(tmp_path / "base" / "config.json", vocab_size=1488, num_hidden_layers=2)
    with pytest.raises(RecipeError, match=rf"\): it was {both}"):
        load_model(str(tmp_path / "base"), architecture="causal")


def test_a_tokenizer_of_a_newer_transformers_is_named(tmp_path):
    made(tmp_path / "base", "LlamaForCausalLM", "LlamaConfig", **LLAMA)
    edit(tmp_path / "base" / "tokenizer_config.json", tokenizer_class="TomorrowsTokenizer")
    try:
        AutoTokenizer.from_pretrained(tmp_path / "base")
    except ValueError:
        with pytest.raises(RecipeError, match=rf"saved by transformers {transformers.__version__}"):
            load_model(str(tmp_path / "base"))
    else:  # this version takes another class for it, and loads
        load_model(str(tmp_path / "base"))
    from fedseed.models.loading import _tokenizer_remedy

    error = ValueError("Tokenizer class X does not exist or is not currently imported.")
    (tmp_path / "elsewhere").mkdir()
    assert "newer transformers" in _tokenizer_remedy(str(tmp_path / "elsewhere"), error)
    for settings, saver in (
        ('{"transformers_version": "9.8.7"}', "transformers 9.8.7"),
        ('{"model_type": "llama"}', "a newer transformers"),
        ("[]", "a newer transformers"),
        ("{", "a newer transformers"),
    ):
        (tmp_path / "elsewhere" / "config.json").write_text(settings)
        remedy = _tokenizer_remedy(str(tmp_path / "elsewhere"), error)
        assert (
            f"saved by {saver}, but transformers {transformers.__version__}, which is installed"
        ) in remedy


def test_a_gguf_alone_is_named(tmp_path):
    made(tmp_path / "base", "LlamaForCausalLM", "LlamaConfig", **LLAMA)
    (tmp_path / "base" / "model.safetensors").unlink()
    (tmp_path / "base" / "model-q4.gguf").write_bytes(b"GGUF")
    with pytest.raises(RecipeError, match=r"model-q4\.gguf, which can't be tuned"):
        load_model(str(tmp_path / "base"))


def test_an_adapter_that_was_not_merged_is_named(tmp_path):
    import peft

    model = made(tmp_path / "base", "LlamaForCausalLM", "LlamaConfig", **LLAMA)
    wrapped = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"]))
    tensors = {n.removeprefix("base_model.model."): t for n, t in wrapped.state_dict().items()}
    save_file(tensors, tmp_path / "base" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(RecipeError, match="adapter that were not merged"):
        load_model(str(tmp_path / "base"))


def test_an_orbit_of_another_version_names_both(tmp_path):
    """An orbit whose tensors have the names that another transformers gives them."""
    from dataclasses import replace

    from fedseed.orbit.replay import check_base, space_of
    from fedseed.weights.layout import Layout

    made(tmp_path / "base", "MixtralForCausalLM", "MixtralConfig", **MIXTRAL)
    run(recipe_of(tmp_path, tmp_path / "base", method=FEEDSIGN), tmp_path / "run")
    header = Orbit.open(tmp_path / "run" / "model.orbit").header
    assert header.libraries == f"transformers {transformers.__version__}"
    tensors = [
        replace(one, name=one.name.replace("experts.gate_up_proj", "experts.0.w1.weight"))
        for one in header.layout.tensors
    ]
    assert tuple(tensors) != header.layout.tensors
    older = replace(
        header,
        libraries="transformers 4.56.2",
        base_digest="ab" * 16,
        layout=Layout(tuple(tensors), header.layout.boundaries),
    )
    model, _ = load_model(str(tmp_path / "base"))
    both = rf"transformers 4\.56\.2.*experts\.0\.w1\.weight.*{transformers.__version__}"
    with pytest.raises(OrbitError, match=both):
        check_base(older, model)
    with pytest.raises(OrbitError, match=r"it has no .*experts\.0\.w1\.weight"):
        space_of(older, model)
    said = header.versions_apart(older)
    assert "4.56.2" in said and transformers.__version__ in said and "one version" in said
    # of one layout, such as an adapter's, the versions are named where the bases differ
    adapted = replace(header, libraries="transformers 4.56.2", base_digest="ab" * 16)
    with pytest.raises(OrbitError, match=rf"{transformers.__version__} here.*4\.56\.2 there"):
        check_base(adapted, model)
    said = header.versions_apart(adapted)
    assert f"transformers {transformers.__version__} here" in said and "4.56.2 there" in said
    # nothing is known of versions that a header does not name
    assert header.versions_apart(replace(adapted, libraries="")) == ""
    with pytest.raises(OrbitError, match=r"the orbit's base has (ab)+$"):
        check_base(replace(adapted, libraries=""), model)
    # the version alone is no difference, and stands in no header of the project's own bases
    assert header.differences(replace(header, libraries="transformers 4.56.2")) == []
    check_base(replace(header, libraries="transformers 4.56.2"), model)
