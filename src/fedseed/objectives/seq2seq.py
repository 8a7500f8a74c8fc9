"""Encoder-decoders (T5, BART): the encoder reads the prompt, the loss is on what the decoder answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fedseed.objectives.losses import IGNORE, Choices, Options, losses_of_rows
from fedseed.objectives.tokens import longest_input, padded
from fedseed.tasks.data import Choice, Example


@dataclass(frozen=True)
class Pair:
    """A tokenised example: what the encoder reads, and what the decoder is to say, each with its special tokens."""

    source: tuple[int, ...]
    target: tuple[int, ...]

    @property
    def ids(self) -> tuple[int, ...]:
        """All tokens."""
        return (*self.source, *self.target)


class Seq2SeqLM:
    """Next-token loss of the decoder on the response and its special tokens.

    Prompt and response get the special tokens that the tokenizer puts around a text (T5: </s> after it; BART: <s> and
    </s> around it). The decoder starts with the model's own start token. A response's outer white space is left out,
    and so is an example's own `stop`: an encoder-decoder ends with its end-of-sequence token.

    Args:
        tokenizer: a `transformers` tokenizer with an EOS token.
        max_length: examples whose prompt or response is longer are dropped and counted in `dropped`.
        prefix: stands before every prompt, such as T5's "summarize: ".

    Raises:
        ValueError: the tokenizer has no EOS token.
    """

    def __init__(self, tokenizer: Any, max_length: int = 1024, prefix: str = "") -> None:
        if tokenizer.eos_token_id is None:
            raise ValueError("its tokenizer has no end-of-sequence token (eos_token)")
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.prefix = prefix
        self.dropped = 0
        self.pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id

    def pair(self, prompt: str, response: str) -> Pair:
        """A prompt, with the prefix before it, and a response as tokens."""
        source = self.tokenizer(self.prefix + prompt)["input_ids"]
        return Pair(tuple(source), tuple(self.tokenizer(text_target=response.strip())["input_ids"]))

    def fits(self, *pairs: Pair) -> bool:
        """Whether none of them is longer than `max_length`."""
        return max(max(len(pair.source), len(pair.target)) for pair in pairs) <= self.max_length

    def prepare(self, examples: Sequence[Example]) -> list[Pair]:
        """Tokenise; drop what is longer than `max_length`."""
        made = [self.pair(example.prompt, example.response) for example in examples]
        kept = [pair for pair in made if self.fits(pair)]
        self.dropped += len(made) - len(kept)
        return kept

    def weight(self, item: Pair) -> int:
        """Response tokens, with the special ones."""
        return len(item.target)

    def losses(self, model: Any, items: Sequence[Pair]) -> torch.Tensor:
        """Sum of -log p over the response tokens of each item."""
        device = next(model.parameters()).device
        ids, mask = padded([item.source for item in items], self.pad)
        labels = padded([item.target for item in items], IGNORE)[0].to(device)
        shifted = model.prepare_decoder_input_ids_from_labels(labels=labels)
        logits = model(
            input_ids=ids.to(device), attention_mask=mask.to(device), decoder_input_ids=shifted, use_cache=False
        ).logits
        return losses_of_rows(logits, labels)


class Seq2SeqChoices(Choices):
    """Which of an example's options the decoder would rather answer; `Choices` has the scores and the loss.

    An option is tokenised as a response is, and its score is its mean token log-probability, special tokens included.

    Args:
        tokenizer: a `transformers` tokenizer with an EOS token.
        max_length: examples with a longer prompt or option are dropped and counted in `dropped`.
        prefix: stands before every prompt.
    """

    def __init__(self, tokenizer: Any, max_length: int = 1024, prefix: str = "") -> None:
        super().__init__(tokenizer, max_length)
        self._language = Seq2SeqLM(tokenizer, max_length, prefix)  # type: ignore[assignment]  # as far as it is used

    def item(self, example: Choice) -> Options | None:
        language: Any = self._language
        pairs: Any = tuple(language.pair(example.prompt, option) for option in example.options)
        right = example.right or (example.gold,)
        return Options(pairs, example.gold, right, example.teacher_forcing) if language.fits(*pairs) else None


@torch.no_grad()
def answers_of(
    model: Any, objective: Seq2SeqLM, prompts: Sequence[str], max_new_tokens: int, batch: int = 64
) -> list[str]:
    """Greedy answers, in the order of the prompts, which are batched by length.

    Args:
        model: an encoder-decoder.
        objective: tokenises the prompts.
        prompts: ready to be tokenised, but for the objective's prefix.
        max_new_tokens: of each answer; fewer where the decoder has fewer positions.
        batch: prompts in a batch.
    """
    model.eval()
    limit = longest_input(model)
    room = max_new_tokens if limit is None else min(max_new_tokens, limit - 1)  # the start token takes one
    device = next(model.parameters()).device
    encoded = [objective.pair(prompt, "").source for prompt in prompts]
    order = sorted(range(len(encoded)), key=lambda i: (len(encoded[i]), i))
    texts = [""] * len(prompts)
    for at in range(0, len(order), batch):
        rows = order[at : at + batch]
        ids, mask = padded([encoded[i] for i in rows], objective.pad)
        output = model.generate(
            input_ids=ids.to(device), attention_mask=mask.to(device), pad_token_id=objective.pad, max_new_tokens=room,
            do_sample=False, num_beams=1,
        )  # fmt: skip
        for i, tokens in zip(rows, output.tolist(), strict=True):
            texts[i] = objective.tokenizer.decode(tokens, skip_special_tokens=True)
    return texts
