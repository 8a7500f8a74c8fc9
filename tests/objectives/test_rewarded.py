"""Rewards of generated answers: of what the model at those weights says, alone or in a batch of
rows.
"""

from functools import partial

import pytest
import torch

from fedseed import Basis, FedAvg, MeZO, ParameterSpace
from fedseed.errors import RecipeError
from fedseed.models.loading import load_model
from fedseed.objectives.generation import generate
from fedseed.objectives.losses import CausalLM
from fedseed.objectives.rewarded import Rewarded
from fedseed.objectives.seq2seq import Seq2SeqLM
from fedseed.runs.assembly import Federation
from fedseed.tasks.data import Example
from fedseed.weights.row_losses import row_losses
from support.text_bases import random_model, write
from support.tiers import mark

NEW = 6
EXAMPLES = [
    Example("a", "b"),
    Example("Sort these words : b a c", "a b c", stop="\n"),
    Example("### Instruction:\nSay what the longest word of this line is", "Instruction"),
    Example("x y z", "w"),
    Example("one two", "three"),
]


class Heard:
    """A reward that remembers what was said."""

    def __init__(self):
        self.said = []

    def __call__(self, prompt, answer, example):
        self.said.append(answer)
        return len(answer) / 8


def tiny(kind, tokenizer):
    ids = {
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "vocab_size": len(tokenizer),
    }
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
    }
    own = {"num_key_value_heads": 2, "sliding_window": 6} if kind == "mistral" else {}
    return random_model(
        kind, **sizes, **ids, intermediate_size=64, initializer_range=0.3, **own
    ).eval()


def test_a_loss_is_minus_the_reward_of_what_is_generated(small):
    model, tokenizer = small
    heard = Heard()
    objective = Rewarded(CausalLM(tokenizer, max_length=30), heard, NEW)
    items = objective.prepare([*EXAMPLES, Example("long " * 40, "x")])
    assert len(items) == 5 == len(EXAMPLES)
    losses = objective.losses(model, items)
    expected = [
        generate(model, objective.language, [e.prompt], NEW, stop=e.stop)[0] for e in EXAMPLES
    ]
    assert heard.said == expected and len(set(expected)) > 2
    assert losses.tolist() == [-len(text) / 8 for text in expected]
    assert (
        losses.dtype == torch.float32
        and not losses.requires_grad
        and [*map(objective.weight, items)] == [1] * 5
    )


def rows_and_alone(space, objective, items, basis, directions, scales):
    """The losses of rows with weights of their own, and those of each answer by itself at its
    weights.
    """
    losses, together = (partial(act, space.model) for act in (objective.losses, objective.together))
    found = row_losses(
        space, losses, items, basis, directions, scales, evaluate_batches=partial(together, items)
    )
    said = []
    for item, k, scale in zip(items, directions, scales, strict=True):
        with space.perturbed(basis, k, scale):
            said += objective.answers(space.model, [item])
    # the directions matter
    assert said != [objective.answers(space.model, [item])[0] for item in items]
    return found.tolist(), [-len(text) / 8 for text in said]


DIRECTIONS, SCALES = [3, 8, 3, 0, 3], [0.05, -0.05, 0.05, 0.1, -0.2]


@pytest.mark.parametrize("kind", mark(["llama", "mistral"], lambda kind: kind != "llama", "long"))
def test_rows_with_weights_of_their_own_say_what_they_say_alone(kind, small):
    model, heard = tiny(kind, small[1]), Heard()
    space, objective = ParameterSpace(model), Rewarded(CausalLM(small[1]), heard, NEW)
    items, before = objective.prepare(EXAMPLES), space.digest()
    found, expected = rows_and_alone(
        space, objective, items, Basis("lowrank", 7), DIRECTIONS, SCALES
    )
    assert found == expected and len(heard.said) == len(items)
    assert space.rows.reason is None and space.digest() == before  # in one go: nothing fell back


def test_what_cant_be_mapped_is_generated_by_direction(small, tmp_path):
    model, heard = tiny("llama", small[1]), Heard()
    space, objective = ParameterSpace(model), Rewarded(CausalLM(small[1]), heard, NEW)
    items, basis = objective.prepare(EXAMPLES), Basis("rademacher", 7)
    found, expected = rows_and_alone(space, objective, items, basis, DIRECTIONS, SCALES)
    assert found == expected
    with pytest.raises(ValueError, match="5 items for 4 directions"):
        rows_and_alone(space, objective, items, basis, DIRECTIONS[1:], 0.1)
    model, tokenizer = load_model(str(write(tmp_path / "t5", "t5")))
    space, objective = ParameterSpace(model), Rewarded(Seq2SeqLM(tokenizer), heard, 4)
    prompts = ["the film was great", "so bad"]
    items = objective.prepare([Example(prompt, "good") for prompt in prompts])
    said = generate(model, objective.language, prompts, 4)
    assert objective.losses(model, items).tolist() == [-len(text) / 8 for text in said]
    found, expected = rows_and_alone(
        space, objective, items, Basis("lowrank", 3), [1, 2], [0.3, 0.3]
    )
    assert found == expected


def test_a_method_that_needs_gradients_is_refused_in_python_too(small):
    objective = Rewarded(CausalLM(small[1]), Heard(), 2)
    with pytest.raises(
        RecipeError, match=r"reward: fedavg needs gradients, but a reward has none: choose .*mezo"
    ):
        Federation(tiny("llama", small[1]), [[EXAMPLES[0]]], FedAvg(), objective, rounds=1)
    run = Federation(
        tiny("llama", small[1]),
        [EXAMPLES],
        MeZO(batch=2),
        objective,
        rounds=2,
        evaluation={"": EXAMPLES},
    )
    summary = run.run().summary
    assert set(summary["final"]) == {"loss"} and summary["backward_passes"] == 0
