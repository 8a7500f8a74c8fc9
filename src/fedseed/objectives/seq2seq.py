"""Objectives for encoder-decoders (T5, BART): the encoder reads the prompt, and the loss is on the
decoder's answer.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch

from fedseed.errors import RecipeError
from fedseed.objectives.losses import (
    Choices,
    Options,
    TextObjective,
    by_length,
    losses_of_rows,
)
from fedseed.objectives.tokens import IGNORE, Tokens, pad_rows, to_device
from fedseed.tasks.data import Choice, Example


class Seq2SeqLM(TextObjective):
    """Next-token loss of the decoder on the response and its special tokens.

    Prompt and response get the special tokens that the tokenizer puts around a text (T5: </s> after
    it; BART: <s> and </s> around it). The decoder starts with the model's own start token. White
    space around a response is removed. An example's own `stop` is not used, because an
    encoder-decoder ends with its end-of-sequence token.

    The arguments and errors are those of `TextObjective`. Examples whose prompt or response is too
    long are dropped.
    """

    encodes = True

    def prompt_ids(self, prompt: str) -> list[int]:
        """Return the tokens of a prompt, with the prefix before it."""
        return self.text_tokens.whole(self.prefix + prompt)

    def pair(self, prompt: str, response: str) -> Tokens:
        """Return a prompt and a response as tokens, each with its special tokens."""
        source, target = (
            self.prompt_ids(prompt),
            self.tokenizer(text_target=response.strip())["input_ids"],
        )
        return Tokens((*source, *target), len(source), encoded=True)

    def fits(self, *pairs: Tokens) -> bool:
        """Return whether no prompt or response is longer than `max_length`."""
        return max(max(pair.response_start, pair.terms) for pair in pairs) <= self.max_length

    def items(self, example: Example) -> list[Tokens]:
        pair = self.pair(example.prompt, example.response)
        if self.fits(pair):
            return [pair]
        return []

    def weight(self, item: Tokens) -> int:
        return item.terms

    def losses(self, model: Any, items: Sequence[Tokens]) -> torch.Tensor:
        device = next(model.parameters()).device

        def logits_together(items: Sequence[Tokens]) -> torch.Tensor:
            ids, mask = pad_rows([item.ids[: item.response_start] for item in items], self.pad)
            labels, _ = pad_rows([item.ids[item.response_start :] for item in items], IGNORE)
            shifted = shifted_right(model, labels, self.pad)
            inputs = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": shifted}
            logits: torch.Tensor = model(
                **{name: to_device(value, device) for name, value in inputs.items()},
                use_cache=False,
            ).logits
            return logits

        logits = by_length(model, items, logits_together, _sides)
        labels, _ = pad_rows([item.ids[item.response_start :] for item in items], IGNORE)
        return losses_of_rows(logits, labels)


def _sides(item: Tokens) -> tuple[int, int]:
    """Return how many tokens of an item the encoder reads, and how many the decoder writes."""
    return item.response_start, item.terms


def shifted_right(model: Any, labels: torch.Tensor, pad: int) -> torch.Tensor:
    """Return the decoder's input for predicting these labels.

    Args:
        model: an encoder-decoder, with an adapter or without.
        labels: shape (rows, columns), IGNORE at padding.
        pad: the token that replaces IGNORE, unless the model's configuration names one.

    Returns:
        The start token, then all labels except the last one, shape (rows, columns).

    Raises:
        RecipeError: the model has no start token.
    """
    shift = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if shift is not None:
        shifted: torch.Tensor = shift(labels=labels)
        return shifted
    # M2M100, NLLB, Blenderbot and others build this input in their forward pass, from the same two
    # tokens
    settings = [model.config, getattr(model, "generation_config", None)]
    tokens = [getattr(one, "decoder_start_token_id", None) for one in settings]
    start = next((token for token in tokens if isinstance(token, int)), None)
    if start is None:
        raise RecipeError(
            f"a {type(model).__name__} needs a start token, but neither its config.json nor its "
            "generation_config.json has decoder_start_token_id: add it there"
        )
    filled = labels.masked_fill(labels == IGNORE, pad)
    return torch.cat([torch.full_like(filled[:, :1], start), filled[:, :-1]], dim=1)


class Seq2SeqChoices(Choices):
    """Chooses among an example's options by the decoder's likelihoods.

    Scores and loss are those of `Choices`.

    An option is tokenised like a response, and its score is its mean token log-probability,
    including special tokens. The arguments and errors are those of `TextObjective`. Examples whose
    prompt or option is too long are dropped.
    """

    @cached_property
    def language(self) -> Seq2SeqLM:
        return Seq2SeqLM(self.tokenizer, self.max_length, prefix=self.prefix)

    def items(self, example: Choice) -> list[Options]:
        pairs = tuple(self.language.pair(example.prompt, option) for option in example.options)
        options = Options(pairs, example.gold, example.right, example.teacher_forcing)
        if self.language.fits(*pairs):
            return [options]
        return []
