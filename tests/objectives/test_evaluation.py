"""Losses and scores of language models by their definitions.

Evaluation in batches is evaluation one by one.

Greedy texts must be the same exactly; losses and scores may differ by the float rounding of another
batch's matrix products: 1e-4 relative is allowed, in float32, and about 1e-6 is seen."""

import pytest
import torch

from fedseed import Federation
from fedseed.objectives.evaluation import choice_metrics
from fedseed.objectives.generation import generate
from fedseed.objectives.losses import CausalLM, Choices
from fedseed.objectives.tokens import IGNORE, longest_input
from fedseed.tasks.data import Choice, Example
from support.text_bases import random_model

PROMPTS = [
    "a",
    "Sort these words : b a c",
    "### Instruction:\nSay what the longest word of this line is",
    "x y z",
]
ROOM = 64
CHOICES = [
    Choice("a fine film It was", (" terrible", " great"), 1),
    Choice("no It was", (" terrible", " great"), 0),
    Choice(
        "the longest of the prompts , with many words in it . It was",
        (" great", " not that bad", " bad"),
        2,
    ),
    Choice("Say yes:", (" yes", " no , never"), 0),
]


@pytest.fixture(params=["opt", "llama"], scope="module")
def model(request, small):
    ids = {
        "pad_token_id": small[1].pad_token_id,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "vocab_size": len(small[1]),
    }
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": ROOM,
    }
    own = {"ffn_dim": 64, "word_embed_proj_dim": 32, "init_std": 0.3}
    own = own if request.param == "opt" else {"intermediate_size": 64, "initializer_range": 0.3}
    return random_model(request.param, **sizes, **ids, **own).eval()


def one_by_one(model, tokenizer, prompt, new):
    """Greedy decoding as it is defined: no cache, no padding, one prompt's tokens."""
    said = []
    with torch.no_grad():
        while len(said) < new and said[-1:] != [tokenizer.eos_token_id]:
            said.append(
                int(model(input_ids=torch.tensor([[*prompt, *said]])).logits[0, -1].argmax())
            )
    return tokenizer.decode(said, skip_special_tokens=True)


def test_greedy_texts(model, small):
    objective = CausalLM(small[1])
    prompts = [objective.prompt_ids(prompt) for prompt in PROMPTS]
    assert len(set(map(len, prompts))) == 4  # of four lengths
    expected = [one_by_one(model, small[1], prompt, 12) for prompt in prompts]
    assert len(set(expected)) > 1
    for batch in (1, 2, 3, 64):
        assert generate(model, objective, PROMPTS, 12, batch=batch) == expected


def test_teacher_forcing_is_language_on_the_right_option_alone(model, small):
    objective, language = Choices(small[1]), CausalLM(small[1])
    forced = Choice(PROMPTS[1], (" a b c", " c"), 0, teacher_forcing=True)
    plain = Choice(PROMPTS[2], (" yes", " no"), 1)
    (item, other) = objective.prepare([forced, plain])
    # after a prompt an option gets no blank of the tokenizer's own
    assert [small[1].decode([i]) for i in item.sequences[0].ids[-3:]] == ["a", "b", "c"]
    assert objective.weight(item) == 3
    with torch.no_grad():
        loss = float(objective.losses(model, [item]))
        assert loss == pytest.approx(float(language.losses(model, [item.sequences[0]])), rel=1e-5)
        mixed = objective.losses(model, [item, other])
        assert mixed.tolist() == pytest.approx(
            [loss, float(objective.losses(model, [other]))], rel=1e-4
        )
    assert small[1].eos_token_id not in item.sequences[0].ids  # nothing stands after an option
    measured = choice_metrics(model, objective, [item])
    assert measured["loss"] == pytest.approx(loss / objective.weight(item), rel=1e-5)


def test_any_right_option_counts(small):
    model, tokenizer = small
    objective = Choices(tokenizer)
    options = (" a", " b", " c")
    with torch.no_grad():
        scores = objective.scores(model, objective.prepare([Choice("x", options, 0)]))[0].tolist()
    best = scores.index(max(scores))
    worse = (best + 1) % 3
    for right, accuracy in (((), 0), ((best, worse), 100)):
        items = objective.prepare([Choice("x", options, worse, right)])
        assert choice_metrics(model, objective, items)["accuracy"] == accuracy
    for gold, right in ((0, (1, 2)), (0, (0, 3)), (0, (-1, 0))):
        with pytest.raises(ValueError, match="right = "):
            Choice("x", options, gold, right)


# -- what carries loss, and scores
# ------------------------------------------------------------------------------------


def mean_log_p(model, tokenizer, prompt, option):
    """The definition, one sequence alone, without padding."""
    before = tokenizer(prompt)["input_ids"]
    after = tokenizer(prompt + option)["input_ids"][len(before) :]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([before + after])).logits[0].float()
    log_p = logits.log_softmax(-1)
    return sum(float(log_p[len(before) + i - 1, token]) for i, token in enumerate(after)) / len(
        after
    )


def test_scores_are_the_options_mean_token_log_probabilities(model, small):
    objective = Choices(small[1])
    with torch.no_grad():
        scores = objective.scores(model, objective.prepare(CHOICES))
    assert scores.shape == (4, 3) and scores.dtype == torch.float32
    for row, example in zip(scores, CHOICES, strict=True):
        expected = [
            mean_log_p(model, small[1], example.prompt, option) for option in example.options
        ]
        assert row[: len(expected)].tolist() == pytest.approx(expected, rel=1e-4)
        assert all(value == -torch.inf for value in row[len(expected) :])


def test_only_response_tokens_and_the_end_carry_loss(small):
    _model, tokenizer = small
    objective = CausalLM(tokenizer)
    (item,) = objective.prepare([Example("### Response:\n", "seven")])
    assert item.ids[0] == tokenizer.bos_token_id
    kept = [label for label in item.labels if label != IGNORE]
    assert len(kept) == objective.weight(item) == len(item.ids) - item.response_start
    assert (
        tokenizer.decode(kept, skip_special_tokens=True) == "seven"
        and kept[-1] == tokenizer.eos_token_id
    )


# -- within the room that there is
# -----------------------------------------------------------------------------------


def test_prompts_near_the_end_get_what_room_there_is(model, small):
    """With a padded batch's length in place of a prompt's own, texts would depend on the batch."""
    objective = CausalLM(small[1])
    assert longest_input(model) == ROOM
    a, b = objective.prompt_ids("a b")[-2:]
    long, full = [a, b] * (ROOM // 2 - 2), [a, b] * ROOM  # room for four tokens, and for none
    prompts = [*PROMPTS, long, full]
    texts = generate(model, objective, prompts, 12, batch=64)
    assert texts == generate(model, objective, prompts, 12, batch=1)
    assert texts[:4] == generate(model, objective, PROMPTS, 12)
    assert texts[4:] == [one_by_one(model, small[1], long, 4), ""]


def test_a_stop_ends_and_cuts_a_response(small):
    model, tokenizer = small
    objective = CausalLM(tokenizer)
    whole = generate(model, objective, PROMPTS, 12)
    stop = whole[1][2]
    assert generate(model, objective, PROMPTS, 12, stop=stop) == [
        text.split(stop)[0] for text in whole
    ]
    item = objective.prepare([Example("a", " b", stop="\n")])[0]
    assert tokenizer.decode(item.ids[item.response_start :]).endswith("b\n")
    assert tokenizer.eos_token_id not in item.ids


def test_what_a_model_has_no_room_for_is_counted_and_left_out(natural_instructions, tmp_path):
    """The small base has 256 positions, the recipe allows 1,024 tokens."""
    rows = [(f"number {i}", ["yes"]) for i in range(20)]
    folder = natural_instructions(
        train={"task001_a": rows},
        test={"task002_b": [*rows[:3], ("word " * 150, ["no"]), ("a " * 400, ["no"])]},
    )
    (tmp_path / "recipe.toml").write_text(f'''
        rounds = 1
        task = {{name = "natural-instructions", path = "{folder}", fraction = 0.1}}
        method = {{name = "ferret", directions = 10, training.steps = 1}}
        evaluation = {{max_new_tokens = 150, max_length = 1024}}
    ''')
    assert Federation.from_file(tmp_path / "recipe.toml").spec.notes[2:] == (
        "1 of 5 examples of the evaluation set left out (over the model's 256 positions)",
        (
            "1 answers are shorter than evaluation.max_new_tokens = 150, because the model has "
            "only 256 positions"
        ),
    )
