"""Objectives on words that are single tokens: one pass over a text scores them all, at its blank or
after its last token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from fedseed.objectives.losses import Scoring, TextObjective
from fedseed.objectives.tokens import GUARDS, pad_rows, to_device
from fedseed.tasks.data import MASK


@dataclass(frozen=True)
class Blank:
    """A tokenised cloze: all ids, the mask's position, the words' ids, and the number of the right
    word.
    """

    ids: tuple[int, ...]
    mask: int
    words: tuple[int, ...]
    gold: int


class Prompted(Blank):
    """A tokenised prompt and the words that may follow it.

    The blank is after the last token; `mask` is that token's position.
    """


class MaskedLM(Scoring, TextObjective):
    """Chooses the word that fills a blank (prompt-based tuning of masked language models).

    Gao, Fisch, Chen, "Making Pre-trained Language Models Better Few-shot Learners", 2021, Section
    4: the scores are the words' logits at the mask. The loss is their cross-entropy, and the
    prediction is the word with the highest score. The arguments and errors are those of
    `TextObjective`.
    """

    needed = ("mask_token", "mask token")
    reads_both_sides = True
    options: ClassVar[Mapping[str, Any]] = {}  # options of the forward pass

    def _word_ids(self, words: tuple[str, ...]) -> tuple[int, ...]:
        """Return the words' tokens.

        Raises ValueError if a word is not a single token, or if two words are the same token.
        """
        if words in self._cache:
            known_ids: tuple[int, ...] = self._cache[words]
            return known_ids
        ids: list[int] = []
        for word in words:
            tokens = self._word_tokens(word)
            if len(tokens) != 1 or tokens[0] == self.tokenizer.unk_token_id:
                parts = self.tokenizer.convert_ids_to_tokens(tokens)
                raise ValueError(
                    f"the label word {word!r} is not one token of the model's tokenizer: {parts}"
                )
            ids += tokens
        if len(set(ids)) < len(ids):
            raise ValueError(
                f"the label words {words} are not different tokens of the model's tokenizer"
            )
        self._cache[words] = tuple(ids)
        return tuple(ids)

    def _word_tokens(self, word: str) -> list[int]:
        """Return a word's tokens at its place in the text."""
        return self.ids_of(word)

    def items(self, example: Any) -> list[Blank]:
        words, mask = self._word_ids(example.words), self.tokenizer.mask_token_id
        ids = self.text_tokens.whole(example.text.replace(MASK, self.tokenizer.mask_token))
        if ids.count(mask) != 1:
            raise ValueError(
                f"the text must have one {self.tokenizer.mask_token}: {example.text[:60]!r}"
            )
        if len(ids) <= self.max_length:
            return [Blank(tuple(ids), ids.index(mask), words, example.gold)]
        return []

    def scores(
        self, model: Any, items: Sequence[Blank], at_once: int | None = None
    ) -> torch.Tensor:
        """Return the logits of each item's words at its blank."""
        logits = self.logits_of(model, [item.ids for item in items], **self.options)
        rows = torch.arange(len(items), device=logits.device)[:, None]
        blanks = to_device([item.mask for item in items], logits.device)[:, None]
        words = to_device(pad_rows([item.words for item in items], -1)[0], logits.device)
        word_logits: torch.Tensor = logits[rows, blanks, words].float()
        return word_logits.masked_fill(words < 0, -torch.inf)


class NextWords(MaskedLM):
    """Chooses the word that follows a prompt: `Choices` for options that are single tokens.

    The blank is after the prompt, so the scores are the logits at the prompt's last token. They
    differ from log-probabilities by a term common to all options, which does not change the loss or
    the prediction. The arguments and errors are those of `TextObjective`.
    """

    needed = TextObjective.needed
    reads_both_sides = False
    options: ClassVar[Mapping[str, Any]] = {"use_cache": False}

    def _word_tokens(self, word: str) -> list[int]:
        return self.text_tokens.ids_after(GUARDS[0], word)

    def items(self, example: Any) -> list[Blank]:
        words, ids = self._word_ids(example.options), self.prompt_ids(example.prompt)
        if len(ids) < self.max_length:
            return [Prompted(tuple(ids), len(ids) - 1, words, example.gold)]
        return []
