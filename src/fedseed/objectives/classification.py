"""Sequence classification (BERT, RoBERTa, LLaMA with a classification head): a text in, a class out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fedseed.objectives.losses import Scoring
from fedseed.objectives.tokens import padded
from fedseed.tasks.data import MASK, Choice, Cloze


@dataclass(frozen=True)
class ClassifiedText:
    """A tokenised text, with the tokenizer's special tokens, and the number of its class."""

    ids: tuple[int, ...]
    gold: int


def classes_of(examples: Sequence[Choice | Cloze]) -> tuple[str, ...]:
    """The classes' names: what the first example chooses among.

    Raises:
        ValueError: examples have options of their own, as in tasks of multiple choice.
    """
    first = _options(examples[0])
    if any(_options(example) != first for example in examples):
        raise ValueError("each example has options of its own, which are no classes: it needs a language model")
    return tuple(option.strip() for option in first)


def _options(example: Choice | Cloze) -> tuple[str, ...]:
    return example.options if isinstance(example, Choice) else example.words


class TextClasses(Scoring):
    """Which class a text is of: cross-entropy of the logits of a classification head.

    The text is a `Choice`'s own, or its prompt if it has none; of a `Cloze` the text with the tokenizer's mask token in
    its blank, or nothing there where the tokenizer has none.

    Args:
        tokenizer: a `transformers` tokenizer.
        max_length: texts with more tokens are dropped and counted in `dropped`.

    Raises:
        ValueError: the tokenizer has nothing to fill up shorter texts with.
    """

    def __init__(self, tokenizer: Any, max_length: int = 512) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.dropped = 0
        pads = [pad for pad in (tokenizer.pad_token_id, tokenizer.eos_token_id) if pad is not None]
        if not pads:
            raise ValueError("its tokenizer has no token to pad with (pad_token)")
        self.pad = int(pads[0])

    def prepare(self, examples: Sequence[Choice | Cloze]) -> list[ClassifiedText]:
        """Tokenise; drop what is longer than `max_length`."""
        items = []
        for example in examples:
            if isinstance(example, Choice):
                text = example.text or example.prompt
            else:
                text = example.text.replace(MASK, self.tokenizer.mask_token or "")
            ids = tuple(self.tokenizer(text)["input_ids"])
            if len(ids) > self.max_length:
                self.dropped += 1
            else:
                items.append(ClassifiedText(ids, example.gold))
        return items

    def scores(self, model: Any, items: Sequence[ClassifiedText], at_once: int | None = None) -> torch.Tensor:
        """Returns the classes' logits."""
        device = next(model.parameters()).device
        ids, mask = padded([item.ids for item in items], self.pad)
        logits: torch.Tensor = model(input_ids=ids.to(device), attention_mask=mask.to(device)).logits
        return logits.float()
