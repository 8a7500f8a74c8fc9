"""Direct preference optimisation (DPO): the model learns to prefer the chosen answers.

Rafailov, Sharma, Mitchell, Ermon, Manning, Finn: "Direct Preference Optimization: Your Language
Model is Secretly a Reward Model", NeurIPS 2023, equation 7:

    loss = -log sigmoid(beta ((log p(c) - log p_base(c)) - (log p(r) - log p_base(r))))

c is the chosen answer and r the rejected one, each after the prompt. beta (log p - log p_base) is
an answer's implicit reward. The base contributes one number to a pair's loss. It is computed before
training (`Preferences.with_reference`), so no second model is needed.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch.nn.functional import logsigmoid

from fedseed.errors import RecipeError
from fedseed.objectives.losses import Objective, TextObjective
from fedseed.objectives.tokens import Tokens, to_device
from fedseed.tasks.data import BETA, Chat, Preference


@dataclass(frozen=True)
class Pair:
    """A tokenised pair of answers.

    An answer has several sequences if the chat template rewrites earlier messages.
    """

    # the sequences of the chosen answer, then those of the rejected one
    sequences: tuple[Tokens, ...]
    chosen_count: int  # number of sequences of the chosen answer
    # log p_base(c) - log p_base(r); None: not computed yet
    reference: float | None = None

    @property
    def cut(self) -> int:
        """Return the number of tokens that were cut off."""
        return sum(sequence.cut for sequence in self.sequences)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Return the other changes to the pair (`fedseed.objectives.prepared.REMARKS`)."""
        return tuple(chain.from_iterable(sequence.remarks for sequence in self.sequences))


class Preferences(Objective):
    """DPO's loss on pairs of answers.

    Args:
        language: tokenises answers and computes their likelihood: `CausalLM` or `Seq2SeqLM`.
        beta: DPO's beta: how strongly the loss keeps the model near its base.
    """

    batch = 16  # pairs in an evaluation batch
    # no dropout, because the base's log-probabilities are computed without it
    with_dropout = False

    def __init__(self, language: TextObjective, beta: float = BETA) -> None:
        self.language = language
        self.tokenizer = language.tokenizer
        self.beta = beta
        # without a limit, to find how many sequences a complete answer has
        self._whole = type(language)(language.tokenizer, sys.maxsize, prefix=language.prefix)

    def items_of_each(self, examples: Sequence[Preference]) -> list[list[Pair]]:
        """Tokenise pairs.

        Raises:
            RecipeError: the chat template rejects a chat.
        """
        chosen_answers = self._sides([example.chosen for example in examples])
        rejected_answers = self._sides([example.rejected for example in examples])
        pairs: list[list[Pair]] = []
        for better, worse in zip(chosen_answers, rejected_answers, strict=True):
            is_usable = better and worse
            pairs.append([Pair((*better, *worse), len(better))] if is_usable else [])
        return pairs

    def items(self, example: Preference) -> list[Pair]:
        return self.items_of_each([example])[0]

    def _sides(self, answers: Sequence[Any]) -> list[list[Tokens]]:
        """Return the sequences of each answer; empty for an answer that does not fit completely."""
        sequences = self.language.items_of_each(answers)
        for number, answer in enumerate(answers):
            if isinstance(answer, Chat) and len(self._whole.items(answer)) != len(
                sequences[number]
            ):
                sequences[number] = []
        return sequences

    def differences(self, model: Any, items: Sequence[Pair]) -> torch.Tensor:
        """Return log p(c) - log p(r) of each pair, float32, shape (items,), differentiable."""
        sequences = list(chain.from_iterable(item.sequences for item in items))
        losses = self.language.losses(model, sequences)
        signs: list[float] = []
        for item in items:
            rejected_count = len(item.sequences) - item.chosen_count
            signs += [-1.0] * item.chosen_count + [1.0] * rejected_count
        parts = torch.split(
            losses * to_device(signs, losses.device), [len(item.sequences) for item in items]
        )
        return torch.stack([part.sum() for part in parts])

    @torch.no_grad()
    def with_reference(self, model: Any, items: Sequence[Pair]) -> list[Pair]:
        """Return the pairs with the base's log-probabilities. `model` is the base."""
        model.eval()
        references: list[float] = []
        for begin in range(0, len(items), self.batch):
            references += self.differences(model, items[begin : begin + self.batch]).tolist()
        return [
            replace(item, reference=value) for item, value in zip(items, references, strict=True)
        ]

    def margins(self, model: Any, items: Sequence[Pair]) -> torch.Tensor:
        """Return the margin of each pair: the chosen answer's implicit reward minus the rejected
        one's.

        Returns:
            float32, shape (items,), differentiable.

        Raises:
            RecipeError: a pair has no reference values (`with_reference`).
        """
        references = [item.reference for item in items if item.reference is not None]
        if len(references) < len(items):
            raise RecipeError(
                "Preferences: a pair lacks the base's log-probabilities: call with_reference with "
                "the base before training"
            )
        differences = self.differences(model, items)
        return self.beta * (differences - to_device(references, differences.device))

    def losses(self, model: Any, items: Sequence[Pair]) -> torch.Tensor:
        """Return DPO's loss of each pair, shape (items,)."""
        return -logsigmoid(self.margins(model, items))
