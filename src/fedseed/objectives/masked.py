"""Words of one token each: one pass over a text scores them all, at its blank or after its last token."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from fedseed.models import adapters
from fedseed.objectives.losses import CausalLM, Scoring
from fedseed.objectives.tokens import padded
from fedseed.tasks.data import MASK


@dataclass(frozen=True)
class Blank:
    """A tokenised cloze: all ids, where the mask is, the words' ids, and which one is right."""

    ids: tuple[int, ...]
    mask: int
    words: tuple[int, ...]
    gold: int


class Prompted(Blank):
    """A tokenised prompt, and the words that may follow it; the blank is after the last of `ids`, which is `mask`."""


class MaskedLM(Scoring):
    """Which of an example's words fills its blank (prompt-based tuning of masked language models).

    Gao, Fisch, Chen, "Making Pre-trained Language Models Better Few-shot Learners", 2021, Section 4: the words' logits
    at the mask are the scores, the loss is their cross-entropy, the prediction the highest.

    Args:
        tokenizer: a `transformers` tokenizer with a mask token.
        max_length: examples with more tokens are dropped and counted in `dropped`.

    Raises:
        ValueError: the tokenizer has no mask token.
    """

    options: ClassVar[Mapping[str, Any]] = {}  # of a forward pass

    def __init__(self, tokenizer: Any, max_length: int = 512) -> None:
        if tokenizer.mask_token_id is None:
            raise ValueError("its tokenizer has no mask token (mask_token)")
        super().__init__(tokenizer, max_length)
        self.pad = tokenizer.mask_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        self._word_ids: dict[tuple[str, ...], tuple[int, ...]] = {}

    def word_ids(self, words: tuple[str, ...]) -> tuple[int, ...]:
        """Returns the words' tokens.

        Raises:
            ValueError: a word is not one token of the tokenizer, or two words are the same token.
        """
        if words not in self._word_ids:
            ids = []
            for word in words:
                tokens = self.tokenizer(word, add_special_tokens=False)["input_ids"]
                if len(tokens) != 1 or tokens[0] == self.tokenizer.unk_token_id:
                    parts = self.tokenizer.convert_ids_to_tokens(tokens)
                    raise ValueError(f"the label word {word!r} is not one token of the model's tokenizer: {parts}")
                ids.append(int(tokens[0]))
            if len(set(ids)) < len(ids):
                raise ValueError(f"the label words {words} are not different tokens of the model's tokenizer")
            self._word_ids[words] = tuple(ids)
        return self._word_ids[words]

    def item(self, example: Any) -> Blank | None:
        words, mask = self.word_ids(example.words), self.tokenizer.mask_token_id
        ids = self.tokenizer(example.text.replace(MASK, self.tokenizer.mask_token))["input_ids"]
        if ids.count(mask) != 1:
            raise ValueError(f"the text must have one {self.tokenizer.mask_token}: {example.text[:60]!r}")
        return None if len(ids) > self.max_length else Blank(tuple(ids), ids.index(mask), words, example.gold)

    def scores(self, model: Any, items: Sequence[Blank], at_once: int | None = None) -> torch.Tensor:
        """Returns the logits of each item's words at its blank."""
        size, most = at_once or len(items), max(len(item.words) for item in items)
        return torch.cat([self._scores(model, items[at : at + size], most) for at in range(0, len(items), size)])

    def _scores(self, model: Any, items: Sequence[Blank], most: int) -> torch.Tensor:
        device = next(model.parameters()).device
        ids, mask = padded([item.ids for item in items], self.pad)
        with adapters.at_home(model, device):
            logits = model(input_ids=ids.to(device), attention_mask=mask.to(device), **self.options).logits
        logits = logits[:, -ids.shape[1] :]  # an adapter's virtual tokens stand before the prompt
        blanks = torch.tensor([item.mask for item in items], device=device)
        words = torch.tensor([[*i.words, *[0] * (most - len(i.words))] for i in items], device=device)
        found: torch.Tensor = logits[torch.arange(len(items), device=device)[:, None], blanks[:, None], words].float()
        if all(len(item.words) == most for item in items):
            return found
        absent = torch.tensor([[column >= len(i.words) for column in range(most)] for i in items], device=device)
        return found.masked_fill(absent, -torch.inf)


class NextWords(MaskedLM):
    """Which of an example's words follows its prompt: `Choices` for options of one token.

    The blank is after the prompt, so the logits are those of the prompt's last token. They differ from
    log-probabilities by a term that all options share, which changes neither the loss nor the prediction.

    Args:
        tokenizer: a `transformers` tokenizer with an EOS token.
        max_length: examples whose prompt and option have more tokens are dropped and counted in `dropped`.
    """

    options: ClassVar[Mapping[str, Any]] = {"use_cache": False}

    def __init__(self, tokenizer: Any, max_length: int = 1024) -> None:
        Scoring.__init__(self, tokenizer, max_length)
        self._language = CausalLM(tokenizer, max_length)
        self.pad = self._language.pad
        self._word_ids = {}

    def item(self, example: Any) -> Blank | None:
        words, ids = self.word_ids(example.options), self._language.prompt_ids(example.prompt)
        return None if len(ids) >= self.max_length else Prompted(tuple(ids), len(ids) - 1, words, example.gold)
