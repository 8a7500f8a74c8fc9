"""Sequence classification (BERT, RoBERTa, LLaMA with a classification head): a text in, a class out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from fedseed.objectives.evaluation import check_some
from fedseed.objectives.seq2seq import right_padded
from fedseed.tasks.data import MASK, Choice, Cloze
from fedseed.tasks.metrics import macro_f1


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


class TextClasses:
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
        self.pad = padding_of(tokenizer)

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

    def weight(self, item: ClassifiedText) -> int:
        """Each text is one term."""
        return 1

    def scores(self, model: Any, items: Sequence[ClassifiedText]) -> torch.Tensor:
        """The classes' logits: float32, shape (items, classes), differentiable."""
        device = next(model.parameters()).device
        ids, mask = right_padded([item.ids for item in items], self.pad)
        logits: torch.Tensor = model(input_ids=ids.to(device), attention_mask=mask.to(device)).logits
        return logits.float()

    def losses_of(self, scores: torch.Tensor, items: Sequence[ClassifiedText]) -> torch.Tensor:
        """Cross-entropy of each text's scores, shape (items,)."""
        gold = torch.tensor([item.gold for item in items], device=scores.device)
        return cross_entropy(scores, gold, reduction="none")

    def losses(self, model: Any, items: Sequence[ClassifiedText]) -> torch.Tensor:
        """-log p of each text's class."""
        return self.losses_of(self.scores(model, items), items)


def padding_of(tokenizer: Any) -> int:
    """The token that shorter texts are filled up with.

    Raises:
        ValueError: there is none.
    """
    for found in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if found is not None:
            return int(found)
    raise ValueError("its tokenizer has no token to pad with (pad_token)")


@torch.no_grad()
def class_metrics(
    model: Any, objective: TextClasses, examples: Sequence[Choice | Cloze], batch: int = 64
) -> dict[str, float]:
    """Loss; accuracy in percent: how often the right class has the highest score (the first of equal ones); macro F1.

    Raises:
        ValueError: no example is usable.
    """
    model.eval()
    items = objective.prepare(examples)
    check_some(items, examples, objective.max_length)
    loss, found = 0.0, []
    for at in range(0, len(items), batch):
        part = items[at : at + batch]
        scores = objective.scores(model, part)
        loss += float(objective.losses_of(scores, part).sum())
        found += [row.index(max(row)) for row in scores.tolist()]
    gold = [item.gold for item in items]
    right = sum(said == true for said, true in zip(found, gold, strict=True))
    return {"loss": loss / len(items), "accuracy": 100.0 * right / len(items), "macro_f1": macro_f1(found, gold)}
