"""Objectives: from examples to a loss."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch.nn.functional import cross_entropy

from fedseed.errors import RecipeError
from fedseed.models import adapters
from fedseed.objectives.chats import ChatTemplate
from fedseed.objectives.tokens import Tokens, Truncate, beginning, fitted, padded
from fedseed.tasks.chats import answers_of, plain_form
from fedseed.tasks.data import Chat, ChatStyle, Choice, Example

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

    Args:
        tokenizer: a `transformers` tokenizer.
        max_length: examples with more tokens are dropped and counted in `dropped`.
    """

    def __init__(self, tokenizer: Any, max_length: int) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.dropped = 0

    @abstractmethod
    def item(self, example: Any) -> Any:
        """Returns what an example becomes; None: it is too long.

        Raises:
            ValueError: the model's tokenizer can't say it.
        """

    def prepare(self, examples: Sequence[Any]) -> list[Any]:
        """Turns examples into items; drops what is too long."""
        made = [self.item(example) for example in examples]
        kept = [item for item in made if item is not None]
        self.dropped += len(made) - len(kept)
        return kept

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


def losses_of_rows(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Returns the sum of -log p over each row's labels, added in their order: the same bits each time, on a GPU too.

    (`index_add` adds there by atomic operations, in an order that differs from run to run.)

    Args:
        logits: shape (rows, columns, vocabulary).
        labels: shape (rows, columns); where it is IGNORE there is no loss, and no softmax.
    """
    kept = labels != IGNORE
    predicted = logits.reshape(-1, logits.shape[-1])[kept.reshape(-1)]
    each = cross_entropy(predicted.float(), labels[kept], reduction="none")
    return torch.segment_reduce(each, "sum", lengths=kept.sum(1), unsafe=True)


class CausalLM:
    """Next-token loss on the response only (and on the end-of-sequence token after it).

    The sequence is what the tokenizer puts before any text (BOS or nothing, `fedseed.objectives.tokens.beginning`),
    prompt, response, EOS (or the example's own `stop`); prompt and response are tokenised apart, so that the boundary
    does not depend on merges across it. Without a prompt all of the text is learnt. A chat is what its tokenizer's
    template writes (`fedseed.objectives.chats`), with loss on what the assistant says.

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
        self._templates: dict[str, ChatTemplate] = {}

    @cached_property
    def start(self) -> tuple[int, ...]:
        """The tokens at the beginning of every text."""
        return beginning(self.tokenizer)

    def prompt_ids(self, prompt: str) -> list[int]:
        """Ids of what stands before the response."""
        ids: list[int] = self.tokenizer(prompt, add_special_tokens=False)["input_ids"]
        return [*self.start, *ids]

    def prepare(self, examples: Sequence[Example]) -> list[Tokens]:
        """Tokenise; cut or drop what is longer than `max_length`.

        A chat may become several items, one for each answer: in the plain form, and where its template rewrites
        earlier answers. So may a text that is split.

        Raises:
            RecipeError: a chat template refuses a chat, or the tokenizer can't be used with one.
        """
        items, refused = [], []
        for example in examples:
            try:
                made = self._encoded(example)
            except ValueError as error:
                refused.append(str(error))
                continue
            ids = made[0].ids
            begins = max(  # a chat begins as its template wants it
                len(self.start) if ids[: len(self.start)] == self.start else 0,
                int(ids[:1] == (self.tokenizer.bos_token_id,)),
            )
            cut = (fitted(tokens, self.max_length, self.truncate, begins) for tokens in made)
            kept = [one for pieces in cut for one in pieces if one.terms]
            self.dropped += not kept
            items += kept
        if refused:
            rest = f" (and {len(refused) - 1:,} more chats)" if len(refused) > 1 else ""
            raise RecipeError(refused[0] + rest)
        return items

    def _encoded(self, example: Example) -> list[Tokens]:
        """An example's tokens, of whatever length; of a chat in its plain form, those of each answer that is learnt."""
        if not isinstance(example, Chat):
            return [self._pair(example.prompt, example.response, example.stop)]
        template = self._template_of(example.style)
        if template is not None:
            return template.prepare(example)
        remarks = () if example.style.writing == "plain" else ("plain",)
        wanted = answers_of(example.messages) if example.style.loss_on == "all" else [len(example.messages) - 1]
        return [self._pair(*plain_form(example.messages, example.tools, i), remarks=remarks) for i in wanted]

    def _pair(self, prompt: str, response: str, stop: str = "", remarks: tuple[str, ...] = ()) -> Tokens:
        before = self.prompt_ids(prompt)
        after = self.tokenizer(response + stop, add_special_tokens=False)["input_ids"]
        ids = (*before, *after) if stop else (*before, *after, self.tokenizer.eos_token_id)
        return Tokens(ids, max(1, len(before)), remarks=remarks)  # nothing says what a first token should be

    def _template_of(self, style: ChatStyle) -> ChatTemplate | None:
        """What writes chats of a style; None: they are written plainly."""
        if style.writing == "plain" or (style.writing == "auto" and not self.tokenizer.chat_template):
            return None
        if style.writing == "own" and not self.tokenizer.chat_template:
            raise RecipeError(
                'task.chat_template = "own": the base\'s tokenizer has no chat template; give a file with one'
            )
        if style.template not in self._templates:
            try:
                self._templates[style.template] = ChatTemplate(self.tokenizer, style.template)
            except ValueError as error:
                raise RecipeError(f"model.base: {error}") from error
        return self._templates[style.template]

    def ends_of(self, example: Example) -> tuple[int, ...]:
        """The tokens that end a response to an example, besides the end-of-sequence token."""
        template = self._template_of(example.style) if isinstance(example, Chat) else None
        end = None if template is None else template.end_of_turn
        return () if end is None or end == self.tokenizer.eos_token_id else (end,)

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
        return losses_of_rows(logits[:, :-1], labels[:, 1:])


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
        super().__init__(tokenizer, max_length)
        self.truncate = truncate
        self._language = CausalLM(tokenizer, max_length)

    def item(self, example: Choice) -> Options | None:
        prompt = self._language.prompt_ids(example.prompt)
        options = [self.tokenizer(option, add_special_tokens=False)["input_ids"] for option in example.options]
        if not all(options):
            raise ValueError(f"option {example.options[options.index([])]!r} has no token")
        over = len(prompt) + max(map(len, options)) - self.max_length
        kept = len(self._language.start)
        if over > 0 and (self.truncate != "left" or len(prompt) - over <= kept):
            return None
        if over > 0:  # all options stand after the same prompt
            prompt = prompt[:kept] + prompt[kept + over :]
        sequences = tuple(Tokens((*prompt, *ids), len(prompt), cut=max(0, over)) for ids in options)
        return Options(sequences, example.gold, example.right or (example.gold,), example.teacher_forcing)

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
