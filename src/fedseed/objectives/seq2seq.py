"""Encoder-decoders (T5, BART): the encoder reads the prompt, the loss is on what the decoder answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from fedseed.objectives.evaluation import language_metrics, longest_input
from fedseed.objectives.losses import IGNORE, Choices, Options
from fedseed.objectives.tokens import padded
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
        self.pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id

    def source_ids(self, prompt: str) -> tuple[int, ...]:
        """What the encoder reads."""
        return tuple(self.tokenizer(self.prefix + prompt)["input_ids"])

    def target_ids(self, response: str) -> tuple[int, ...]:
        """What the decoder is to say."""
        return tuple(self.tokenizer(text_target=response.strip())["input_ids"])

    def fits(self, *pairs: Pair) -> bool:
        """Whether none of them is longer than `max_length`."""
        return max(max(len(pair.source), len(pair.target)) for pair in pairs) <= self.max_length

    def prepare(self, examples: Sequence[Example]) -> list[Pair]:
        """Tokenise; drop what is longer than `max_length`."""
        made = [Pair(self.source_ids(example.prompt), self.target_ids(example.response)) for example in examples]
        kept = [pair for pair in made if self.fits(pair)]
        self.dropped += len(made) - len(kept)
        return kept

    def weight(self, item: Pair) -> int:
        """Response tokens, with the special ones."""
        return len(item.target)

    def collate(self, items: Sequence[Pair]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Right-padded input_ids and attention_mask, (batch, longest prompt), and labels, (batch, longest response)."""
        ids, mask = padded([item.source for item in items], self.pad)
        labels, _ = padded([item.target for item in items], IGNORE)
        return ids, mask, labels

    def losses(self, model: Any, items: Sequence[Pair]) -> torch.Tensor:
        """Sum of -log p over the response tokens of each item."""
        device = next(model.parameters()).device
        ids, mask, labels = (tensor.to(device) for tensor in self.collate(items))
        shifted = model.prepare_decoder_input_ids_from_labels(labels=labels)
        logits = model(input_ids=ids, attention_mask=mask, decoder_input_ids=shifted, use_cache=False).logits
        targets = labels.reshape(-1)
        kept = targets != IGNORE  # only positions that carry loss go through the softmax
        each = cross_entropy(logits.reshape(-1, logits.shape[-1])[kept].float(), targets[kept], reduction="none")
        rows = torch.arange(len(items), device=device).repeat_interleave(labels.shape[1])[kept]
        return torch.zeros(len(items), device=device).index_add(0, rows, each)


class Seq2SeqChoices(Choices):
    """Which of an example's options the decoder would rather answer; `Choices` has the scores and the loss.

    An option is tokenised as a response is, and its score is its mean token log-probability, special tokens included.

    Args:
        tokenizer: a `transformers` tokenizer with an EOS token.
        max_length: examples with a longer prompt or option are dropped and counted in `dropped`.
        prefix: stands before every prompt.
    """

    def __init__(self, tokenizer: Any, max_length: int = 1024, prefix: str = "") -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.dropped = 0
        self._language = Seq2SeqLM(tokenizer, max_length, prefix)  # type: ignore[assignment]  # as far as it is used

    def prepare(self, examples: Sequence[Choice]) -> list[Options]:
        """Tokenise; drop what is longer than `max_length`."""
        language: Any = self._language
        items = []
        for example in examples:
            source = language.source_ids(example.prompt)
            pairs: Any = tuple(Pair(source, language.target_ids(option)) for option in example.options)
            if not language.fits(*pairs):
                self.dropped += 1
                continue
            right = example.right or (example.gold,)
            items.append(Options(pairs, example.gold, right, example.teacher_forcing))
        return items


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
    encoded = [objective.source_ids(prompt) for prompt in prompts]
    order = sorted(range(len(encoded)), key=lambda i: (len(encoded[i]), i))
    texts = [""] * len(prompts)
    for at in range(0, len(order), batch):
        rows = order[at : at + batch]
        ids, mask = padded([encoded[i] for i in rows], objective.pad)
        output = model.generate(
            **{"input_ids": ids.to(device), "attention_mask": mask.to(device), "pad_token_id": objective.pad},
            **{"max_new_tokens": room, "do_sample": False, "num_beams": 1},
        )
        for i, tokens in zip(rows, output.tolist(), strict=True):
            texts[i] = objective.tokenizer.decode(tokens, skip_special_tokens=True)
    return texts


def seq2seq_metrics(
    model: Any,
    objective: Seq2SeqLM,
    examples: Sequence[Example],
    max_new_tokens: int = 32,
    scores: Sequence[str] = ("rouge_l",),
) -> dict[str, float]:
    """Returns what `language_metrics` does, of the decoder's answers."""

    def said(usable: Sequence[Example], items: Sequence[Pair]) -> list[str]:
        return answers_of(model, objective, [example.prompt for example in usable], max_new_tokens)

    return language_metrics(model, objective, examples, max_new_tokens, scores, said)
