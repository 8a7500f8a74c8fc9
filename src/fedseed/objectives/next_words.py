"""Options of one token each: one pass over a prompt scores them all."""

from collections.abc import Sequence
from typing import Any

import torch

from fedseed.models import adapters
from fedseed.objectives.losses import Blank, CausalLM, MaskedLM
from fedseed.tasks.data import NextWord


class Prompted(Blank):
    """A tokenised prompt, and the words that may follow it; the blank is after the last of `ids`, which is `mask`."""


class NextWords(MaskedLM):
    """Which of an example's words follows its prompt: `Choices` for options of one token.

    The blank is after the prompt, so the logits are those of the prompt's last token. What they lack to
    log-probabilities is the same for all options, which neither the loss nor the prediction sees.

    Args:
        tokenizer: a `transformers` tokenizer with an EOS token.
        max_length: examples whose prompt and option have more tokens are dropped and counted in `dropped`.
    """

    def __init__(self, tokenizer: Any, max_length: int = 1024) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.dropped = 0
        self._language = CausalLM(tokenizer, max_length)
        self.pad = self._language.pad
        self._word_ids = {}

    def prepare(self, examples: Sequence[NextWord]) -> list[Blank]:  # type: ignore[override]
        """Tokenise; drop what is longer than `max_length`.

        Raises:
            ValueError: an option is not one token, or two are the same.
        """
        items: list[Blank] = []
        for example in examples:
            words = self.word_ids(example.options)
            ids = self._language.prompt_ids(example.prompt)
            if len(ids) >= self.max_length:
                self.dropped += 1
            else:
                items.append(Prompted(tuple(ids), len(ids) - 1, words, example.gold))
        return items

    def logits(self, model: Any, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        with adapters.at_home(model, ids.device):
            logits: torch.Tensor = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        return logits[:, -ids.shape[1] :]  # an adapter's virtual tokens stand before the prompt
