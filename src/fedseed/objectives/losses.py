"""Objectives: from examples to a loss."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.nn.functional import cross_entropy

from fedseed.errors import RecipeError
from fedseed.models import adapters
from fedseed.objectives.encoding import Encoder
from fedseed.objectives.tokens import Tokens, Truncate, fitted, padded
from fedseed.tasks.data import MASK, Choice, Cloze, Example

IGNORE = -100  # label of a token without loss


class Objective(Protocol):
    """What training and evaluation ask of an objective.

    Args:
        dropped: how many examples could not be used so far.
    """

    dropped: int

    def prepare(self, examples: Sequence[Any]) -> list[Any]:
        """Turn examples into items once (tokenise, ...); examples that can't be used are left out."""
        ...

    def weight(self, item: Any) -> int:
        """How many terms the item's loss is a sum of (response tokens, or 1)."""
        ...

    def losses(self, model: torch.nn.Module, items: Sequence[Any]) -> torch.Tensor:
        """Each item's loss, summed over its terms: float32, shape (items,), differentiable."""
        ...


class Scoring(ABC):
    """What objectives share that score an item's options, words or classes, of which number `item.gold` is right.

    The loss is the cross-entropy of the scores, the prediction the highest.

    Attributes:
        dropped: how many examples could not be used so far.
    """

    dropped: int = 0

    @abstractmethod
    def prepare(self, examples: Sequence[Any]) -> list[Any]:
        """Turns examples into items; drops what is too long."""

    @abstractmethod
    def scores(self, model: Any, items: Sequence[Any], at_once: int | None = None) -> torch.Tensor:
        """Returns the scores of every item's options.

        Args:
            model: what scores them.
            items: prepared examples.
            at_once: sequences in a batch; None: all in one.

        Returns:
            float32, shape (items, most options), differentiable; -inf where an item has fewer options.
        """

    def weight(self, item: Any) -> int:
        """Returns how many terms the item's loss is a sum of: each choice is one."""
        return 1

    def losses_of(self, scores: torch.Tensor, items: Sequence[Any]) -> torch.Tensor:
        """Returns each item's loss from its scores, summed over its terms, shape (items,)."""
        gold = torch.tensor([item.gold for item in items], device=scores.device)
        return cross_entropy(scores, gold, reduction="none")

    def losses(self, model: Any, items: Sequence[Any]) -> torch.Tensor:
        """Returns -log p of what is right, shape (items,)."""
        return self.losses_of(self.scores(model, items), items)


class CausalLM:
    """Next-token loss on the response only (and on the end-of-sequence token after it).

    The sequence is BOS (if the tokenizer has one), prompt, response, EOS (or the example's own `stop`); prompt and
    response are tokenised apart, so that the boundary does not depend on merges across it. Without a prompt all of the
    text is learnt. A chat is what its tokenizer's template writes (`fedseed.objectives.chats`), with loss on what the
    assistant says.

    Args:
        tokenizer: a `transformers` tokenizer with an EOS token.
        max_length: tokens that an example may have.
        truncate: what becomes of longer ones (`fedseed.objectives.tokens.fitted`); those that are left out are counted
            in `dropped`.

    Raises:
        ValueError: the tokenizer has no EOS token.
    """

    def __init__(self, tokenizer: Any, max_length: int = 1024, truncate: Truncate = "drop") -> None:
        if tokenizer.eos_token_id is None:
            raise ValueError("its tokenizer has no end-of-sequence token (eos_token)")
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.truncate = truncate
        self.dropped = 0
        self.pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        self.encoder = Encoder(tokenizer)

    def prompt_ids(self, prompt: str) -> list[int]:
        """Ids of what stands before the response."""
        return self.encoder.prompt_ids(prompt)

    def prepare(self, examples: Sequence[Example]) -> list[Tokens]:
        """Tokenise; cut or drop what is longer than `max_length`.

        A chat may become several items, one for each answer: in the plain form, and where its template rewrites
        earlier answers. So may a text that is split.

        Raises:
            RecipeError: a chat template refuses a chat.
        """
        items = []
        for made in self.encoder.encode(examples):
            kept = [one for tokens in made for one in self._fitted(tokens)]
            self.dropped += not kept
            items += kept
        return items

    def _fitted(self, tokens: Tokens) -> list[Tokens]:
        begins = int(tokens.ids[:1] == (self.tokenizer.bos_token_id,))
        return [one for one in fitted(tokens, self.max_length, self.truncate, begins) if one.terms]

    def weight(self, item: Tokens) -> int:
        """Response tokens, with what ends the response."""
        return item.terms

    def collate(self, items: Sequence[Tokens], device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Right-padded (input_ids, attention_mask, labels), each (batch, longest)."""
        ids, mask = padded([item.ids for item in items], self.pad)
        labels = torch.full_like(ids, IGNORE)
        for row, item in enumerate(items):
            for begin, end in item.learnt:
                labels[row, begin:end] = ids[row, begin:end]
        return ids.to(device), mask.to(device), labels.to(device)

    def losses(self, model: torch.nn.Module, items: Sequence[Tokens]) -> torch.Tensor:
        """Sum of -log p over the response tokens of each item."""
        device = next(model.parameters()).device
        ids, mask, labels = self.collate(items, device)
        with adapters.at_home(model, device):
            logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        logits = logits[:, -ids.shape[1] :]  # an adapter's virtual tokens stand before the prompt
        targets = labels[:, 1:].reshape(-1)
        kept = targets != IGNORE  # only positions that carry loss go through the softmax
        predicted = logits[:, :-1].reshape(-1, logits.shape[-1])[kept]
        each = cross_entropy(predicted.float(), targets[kept], reduction="none")
        rows = torch.arange(len(items), device=device).repeat_interleave(labels.shape[1] - 1)[kept]
        return torch.zeros(len(items), device=device).index_add(0, rows, each)


@dataclass(frozen=True)
class Options:
    """A tokenised choice: the prompt with each option after it, which one is right, and which ones count as right."""

    sequences: tuple[Tokens, ...]
    gold: int
    right: tuple[int, ...]
    teacher_forcing: bool


class Choices(Scoring):
    """Which of an example's options follows its prompt (MeZO's classification and multiple choice).

    An option's score is its mean token log-probability after the prompt; the loss is the cross-entropy of the scores,
    the prediction the highest. Nothing stands after an option, no EOS either. With `teacher_forcing` the prediction is
    the same, but the loss is that of the right option's tokens.

    Args:
        tokenizer: a `transformers` tokenizer with an EOS token.
        max_length: tokens that a sequence may have.
        truncate: "left": longer prompts are cut at their beginning. Else such examples are dropped, and counted in
            `dropped`; so are those whose options alone are too long.
    """

    def __init__(self, tokenizer: Any, max_length: int = 1024, truncate: Truncate = "drop") -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.truncate = truncate
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
            over = max(len(sequence.ids) for sequence in sequences) - self.max_length
            kept = int(prompt[:1] == [self.tokenizer.bos_token_id])
            if over > 0 and (self.truncate != "left" or len(prompt) - over <= kept):
                self.dropped += 1
                continue
            if over > 0:  # all options stand after the same prompt
                sequences = [
                    Tokens(s.ids[:kept] + s.ids[kept + over :], s.response_start - over, cut=over) for s in sequences
                ]
            right = example.right or (example.gold,)
            items.append(Options(tuple(sequences), example.gold, right, example.teacher_forcing))
        return items

    def weight(self, item: Options) -> int:
        """Each choice is one term; with teacher forcing, each token of the right option."""
        return self._language.weight(item.sequences[item.gold]) if item.teacher_forcing else 1

    def scores(self, model: Any, items: Sequence[Options], at_once: int | None = None) -> torch.Tensor:
        """Returns the mean token log-probability of every option."""
        sequences = [sequence for item in items for sequence in item.sequences]
        size = at_once or len(sequences)
        parts = [self._language.losses(model, sequences[at : at + size]) for at in range(0, len(sequences), size)]
        summed = torch.cat(parts)
        lengths = torch.tensor([self._language.weight(s) for s in sequences], device=summed.device)
        places = [(row, column) for row, item in enumerate(items) for column in range(len(item.sequences))]
        rows, columns = torch.tensor(places, device=summed.device).T
        empty = summed.new_full((len(items), max(len(item.sequences) for item in items)), -torch.inf)
        return empty.index_put((rows, columns), -summed / lengths)

    def losses_of(self, scores: torch.Tensor, items: Sequence[Options]) -> torch.Tensor:
        chosen = super().losses_of(scores, items)
        if not any(item.teacher_forcing for item in items):
            return chosen
        weights = torch.tensor([self.weight(item) for item in items], device=scores.device)
        gold = torch.tensor([item.gold for item in items], device=scores.device)
        spoken = -scores.gather(1, gold[:, None])[:, 0] * weights
        forced = torch.tensor([item.teacher_forcing for item in items], device=scores.device)
        return torch.where(forced, spoken, chosen)

    def losses(self, model: Any, items: Sequence[Options]) -> torch.Tensor:
        if all(item.teacher_forcing for item in items):  # the other options are not needed
            return self._language.losses(model, [item.sequences[item.gold] for item in items])
        return super().losses(model, items)


@dataclass(frozen=True)
class Blank:
    """A tokenised cloze: all ids, where the mask is, the words' ids, and which one is right."""

    ids: tuple[int, ...]
    mask: int
    words: tuple[int, ...]
    gold: int


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

    def __init__(self, tokenizer: Any, max_length: int = 512) -> None:
        if tokenizer.mask_token_id is None:
            raise ValueError("its tokenizer has no mask token (mask_token)")
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.dropped = 0
        self.pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.mask_token_id
        self._word_ids: dict[tuple[str, ...], tuple[int, ...]] = {}

    def word_ids(self, words: tuple[str, ...]) -> tuple[int, ...]:
        """The words' tokens.

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

    def prepare(self, examples: Sequence[Cloze]) -> list[Blank]:
        """Tokenise; drop what is longer than `max_length`.

        Raises:
            ValueError: a label word is not one token, or a text has other masks than its blank.
        """
        items = []
        for example in examples:
            words = self.word_ids(example.words)
            ids = self.tokenizer(example.text.replace(MASK, self.tokenizer.mask_token))["input_ids"]
            if ids.count(self.tokenizer.mask_token_id) != 1:
                raise ValueError(f"the text must have one {self.tokenizer.mask_token}: {example.text[:60]!r}")
            if len(ids) > self.max_length:
                self.dropped += 1
            else:
                items.append(Blank(tuple(ids), ids.index(self.tokenizer.mask_token_id), words, example.gold))
        return items

    def scores(self, model: Any, items: Sequence[Blank], at_once: int | None = None) -> torch.Tensor:
        """Returns the logits of each item's words at its blank."""
        size, most = at_once or len(items), max(len(item.words) for item in items)
        return torch.cat([self._scores(model, items[at : at + size], most) for at in range(0, len(items), size)])

    def logits(self, model: Any, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Returns the logits of a batch, (items, tokens, vocabulary)."""
        logits: torch.Tensor = model(input_ids=ids, attention_mask=mask).logits
        return logits

    def _scores(self, model: torch.nn.Module, items: Sequence[Blank], most: int) -> torch.Tensor:
        device = next(model.parameters()).device
        ids, mask = padded([item.ids for item in items], self.pad)
        logits = self.logits(model, ids.to(device), mask.to(device))
        blanks = torch.tensor([item.mask for item in items], device=device)
        words = torch.tensor([[*i.words, *[0] * (most - len(i.words))] for i in items], device=device)
        found = logits[torch.arange(len(items), device=device)[:, None], blanks[:, None], words].float()
        if all(len(item.words) == most for item in items):
            return found
        absent = torch.tensor([[column >= len(i.words) for column in range(most)] for i in items], device=device)
        return found.masked_fill(absent, -torch.inf)


class Supervised:
    """(input, target) pairs of tensors for any torch module.

    Args:
        loss: takes (model output, stacked targets) and returns one loss for each pair, shape (batch,).
    """

    def __init__(self, loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        self.loss = loss
        self.dropped = 0

    def prepare(self, examples: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The pairs as they are."""
        return list(examples)

    def weight(self, item: tuple[torch.Tensor, torch.Tensor]) -> int:
        """Each pair is one term."""
        return 1

    def losses(self, model: torch.nn.Module, items: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        """The pairs' losses.

        Raises:
            RecipeError: the loss function does not return one for each pair.
        """
        device = next(model.parameters()).device
        inputs = torch.stack([x for x, _ in items]).to(device)
        targets = torch.stack([y for _, y in items]).to(device)
        losses = self.loss(model(inputs), targets)
        if losses.shape != (len(items),):  # a mean would be taken for a sum, and train with a rate of its own
            raise RecipeError(
                f"Supervised: the loss of {len(items)} pairs has shape {tuple(losses.shape)}, not ({len(items)},): "
                'give one for each pair, such as CrossEntropyLoss(reduction="none")'
            )
        return losses
