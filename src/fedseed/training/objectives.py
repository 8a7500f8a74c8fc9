"""Objectives: from examples to a loss."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.nn.functional import cross_entropy

from fedseed.tasks.data import Choice, Example

IGNORE = -100  # label of a token without loss


class Objective(Protocol):
    """What training and evaluation ask of an objective."""

    def prepare(self, examples: Sequence[Any]) -> list[Any]:
        """Turn examples into items once (tokenise, ...); examples that can't be used are left out."""
        ...

    def weight(self, item: Any) -> int:
        """How many terms the item's loss is a sum of (response tokens, or 1)."""
        ...

    def losses(self, model: torch.nn.Module, items: Sequence[Any]) -> torch.Tensor:
        """Each item's loss, summed over its terms: float32, shape (items,), differentiable."""
        ...


@dataclass(frozen=True)
class Tokens:
    """A tokenised example: all ids, and where the response begins."""

    ids: tuple[int, ...]
    response_start: int


class CausalLM:
    """Next-token loss on the response only (and on the end-of-sequence token after it).

    The sequence is BOS (if the tokenizer has one), prompt, response, EOS; prompt and response are tokenised apart,
    so that the boundary does not depend on merges across it.

    Args:
        tokenizer: a `transformers` tokenizer with an EOS token.
        max_length: longer examples are dropped and counted in `dropped`.
    """

    def __init__(self, tokenizer: Any, max_length: int = 1024) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.dropped = 0
        self.pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id

    def prompt_ids(self, prompt: str) -> list[int]:
        """Ids of what stands before the response."""
        start = [self.tokenizer.bos_token_id] if self.tokenizer.bos_token_id is not None else []
        ids: list[int] = self.tokenizer(prompt, add_special_tokens=False)["input_ids"]
        return start + ids

    def prepare(self, examples: Sequence[Example]) -> list[Tokens]:
        """Tokenise; drop what is longer than `max_length`."""
        items = []
        for example in examples:
            prompt = self.prompt_ids(example.prompt)
            response = self.tokenizer(example.response, add_special_tokens=False)["input_ids"]
            ids = (*prompt, *response, self.tokenizer.eos_token_id)
            if len(ids) > self.max_length:
                self.dropped += 1
            else:
                items.append(Tokens(ids, len(prompt)))
        return items

    def weight(self, item: Tokens) -> int:
        """Response tokens, the EOS included."""
        return len(item.ids) - item.response_start

    def collate(self, items: Sequence[Tokens], device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Right-padded (input_ids, attention_mask, labels), each (batch, longest)."""
        longest = max(len(item.ids) for item in items)
        ids = torch.full((len(items), longest), self.pad, dtype=torch.long)
        mask = torch.zeros_like(ids)
        labels = torch.full_like(ids, IGNORE)
        for row, item in enumerate(items):
            n = len(item.ids)
            ids[row, :n] = torch.tensor(item.ids)
            mask[row, :n] = 1
            labels[row, item.response_start : n] = ids[row, item.response_start : n]
        return ids.to(device), mask.to(device), labels.to(device)

    def losses(self, model: torch.nn.Module, items: Sequence[Tokens]) -> torch.Tensor:
        """Sum of -log p over the response tokens of each item."""
        device = next(model.parameters()).device
        ids, mask, labels = self.collate(items, device)
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        targets = labels[:, 1:].reshape(-1)
        kept = targets != IGNORE  # only positions that carry loss go through the softmax
        predicted = logits[:, :-1].reshape(-1, logits.shape[-1])[kept]
        each = cross_entropy(predicted.float(), targets[kept], reduction="none")
        rows = torch.arange(len(items), device=device).repeat_interleave(labels.shape[1] - 1)[kept]
        return torch.zeros(len(items), device=device).index_add(0, rows, each)


@dataclass(frozen=True)
class Options:
    """A tokenised choice: the prompt with each option after it, and which one is right."""

    sequences: tuple[Tokens, ...]
    gold: int


class Choices:
    """Which of an example's options follows its prompt (MeZO's classification).

    An option's score is its mean token log-probability after the prompt; the loss is the cross-entropy of the scores,
    the prediction the highest. Nothing stands after an option, no EOS either.

    Args:
        tokenizer: a `transformers` tokenizer with an EOS token.
        max_length: examples with a longer sequence are dropped and counted in `dropped`.
    """

    def __init__(self, tokenizer: Any, max_length: int = 1024) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.dropped = 0
        self._language = CausalLM(tokenizer, max_length)

    def prepare(self, examples: Sequence[Choice]) -> list[Options]:
        """Tokenise; drop what is longer than `max_length`.

        Raises:
            ValueError: the tokenizer makes nothing of an option.
        """
        items = []
        for example in examples:
            prompt = self._language.prompt_ids(example.prompt)
            sequences = []
            for option in example.options:
                ids = self.tokenizer(option, add_special_tokens=False)["input_ids"]
                if not ids:
                    raise ValueError(f"option {option!r} has no token")
                sequences.append(Tokens((*prompt, *ids), len(prompt)))
            if max(len(sequence.ids) for sequence in sequences) > self.max_length:
                self.dropped += 1
            else:
                items.append(Options(tuple(sequences), example.gold))
        return items

    def weight(self, item: Options) -> int:
        """Each choice is one term."""
        return 1

    def scores(self, model: torch.nn.Module, items: Sequence[Options]) -> torch.Tensor:
        """Mean token log-probability of every option, all in one batch.

        Returns:
            float32, shape (items, most options), differentiable; -inf where an item has fewer options.
        """
        sequences = [sequence for item in items for sequence in item.sequences]
        summed = self._language.losses(model, sequences)
        lengths = torch.tensor([self._language.weight(s) for s in sequences], device=summed.device)
        places = [(row, column) for row, item in enumerate(items) for column in range(len(item.sequences))]
        rows, columns = torch.tensor(places, device=summed.device).T
        empty = summed.new_full((len(items), max(len(item.sequences) for item in items)), -torch.inf)
        return empty.index_put((rows, columns), -summed / lengths)

    def losses_of(self, scores: torch.Tensor, items: Sequence[Options]) -> torch.Tensor:
        """Cross-entropy of each item's scores, shape (items,)."""
        gold = torch.tensor([item.gold for item in items], device=scores.device)
        return cross_entropy(scores, gold, reduction="none")

    def losses(self, model: torch.nn.Module, items: Sequence[Options]) -> torch.Tensor:
        """-log p of each item's right option among its options."""
        return self.losses_of(self.scores(model, items), items)


class Supervised:
    """(input, target) pairs of tensors for any torch module.

    Args:
        loss: takes (model output, stacked targets) and returns one loss for each pair, shape (batch,).
    """

    def __init__(self, loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        self.loss = loss

    def prepare(self, examples: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The pairs as they are."""
        return list(examples)

    def weight(self, item: tuple[torch.Tensor, torch.Tensor]) -> int:
        """Each pair is one term."""
        return 1

    def losses(self, model: torch.nn.Module, items: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        """The pairs' losses."""
        device = next(model.parameters()).device
        inputs = torch.stack([x for x, _ in items]).to(device)
        targets = torch.stack([y for _, y in items]).to(device)
        return self.loss(model(inputs), targets)
