"""Objectives: turn examples into items and compute their losses."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, ClassVar

import torch
from torch.nn.functional import cross_entropy, pad
from torch.nn.utils.rnn import pad_sequence

from fedseed.errors import RecipeError
from fedseed.models import adapters
from fedseed.models.traits import traits_of
from fedseed.objectives.chats import ChatTemplate
from fedseed.objectives.tokens import (
    IGNORE,
    TextTokens,
    Tokens,
    Truncate,
    fit_to_limit,
    pad_rows,
    to_device,
)
from fedseed.tasks.chats import plain_form
from fedseed.tasks.data import Chat, ChatStyle, Choice, Example


class Objective(ABC):
    """The interface of objectives for training and evaluation, with what they have in common."""

    # how many tokens the model has embeddings for; None: not known, or the model has no embeddings
    rows: int | None = None
    # whether dropout is on in training, if the model has dropout
    with_dropout: ClassVar[bool] = True

    @abstractmethod
    def items(self, example: Any) -> list[Any]:
        """Return the items of an example: usually one, or none if the example is unusable.

        Raises:
            ValueError: the tokenizer has no tokens for the example.
        """

    def items_of_each(self, examples: Sequence[Any]) -> list[list[Any]]:
        """Return the items of each example; an unusable example has none."""
        return [self.items(example) for example in examples]

    def prepare(self, examples: Sequence[Any]) -> list[Any]:
        """Return the items of all usable examples."""
        return list(chain.from_iterable(self.items_of_each(examples)))

    def weight(self, item: Any) -> int:
        """Return the number of terms in the item's loss: response tokens, or 1."""
        return 1

    @abstractmethod
    def losses(self, model: Any, items: Sequence[Any]) -> torch.Tensor:
        """Return each item's loss, summed over its terms: float32, shape (items,),
        differentiable.
        """


class TextObjective(Objective):
    """The base of objectives on texts.

    Args:
        tokenizer: a `transformers` tokenizer.
        max_length: the most tokens of an item; longer examples are dropped, unless the objective
            cuts them.
        truncate: how longer examples are cut (`fedseed.objectives.tokens.fit_to_limit`), if the
            objective cuts them.
        prefix: text before every prompt, such as T5's "summarize: "; for encoder-decoders.

    Raises:
        ValueError: the tokenizer lacks a special token.
    """

    # the required token; it is also used for padding if the tokenizer has no padding token
    needed: ClassVar[tuple[str, str]] = ("eos_token", "end-of-sequence token")
    # whether the prediction for a token may depend on later tokens
    reads_both_sides: ClassVar[bool] = False
    encodes: ClassVar[bool] = False  # whether an encoder reads the prompts

    def __init__(
        self, tokenizer: Any, max_length: int = 1024, truncate: Truncate = "drop", prefix: str = ""
    ) -> None:
        self.tokenizer = tokenizer
        self.text_tokens = TextTokens(tokenizer)
        self.max_length = max_length
        self.truncate = truncate
        self.prefix = prefix
        needed = getattr(tokenizer, f"{self.needed[0]}_id")
        if needed is None:
            raise ValueError(f"its tokenizer has no {self.needed[1]} ({self.needed[0]})")
        self.pad = needed if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        # values that are computed only once, such as a chat template and the tokens of words
        self._cache: dict[Any, Any] = {}

    @property
    def start(self) -> tuple[int, ...]:
        """Return the tokens at the beginning of every text."""
        return self.text_tokens.start

    def ids_of(self, text: str) -> list[int]:
        """Return a text's tokens, without special tokens."""
        return self.text_tokens.ids(text)

    def prompt_ids(self, prompt: str) -> list[int]:
        """Return the tokens of a prompt, with those at the beginning of every text."""
        return self.text_tokens.from_start(self.ids_of(prompt))

    def references_of(self, example: Example) -> tuple[str, ...]:
        """Return the right answers to an example, in the form of decoded answers of a model.

        A special token at their end is removed.
        """
        references = example.answers or (example.response,)
        return tuple(map(self._without_ender, references))

    def _without_ender(self, text: str) -> str:
        """Return a text without the special token that ends it."""
        ender = self.text_tokens.ender_of(text)
        if ender:
            return text.rstrip().removesuffix(ender)
        return text

    def probe_ids(self, text: str) -> list[int]:
        """Return a text's tokens as model input, for tests of the model."""
        return self.prompt_ids(text)

    def ends_of(self, example: Example) -> tuple[int, ...]:
        """Return the tokens that end a response to an example, besides the end-of-sequence
        token.
        """
        return ()

    def logits_of(
        self,
        model: Any,
        rows: Sequence[Sequence[int]],
        segments: Sequence[Sequence[int]] | None = None,
        **options: Any,
    ) -> torch.Tensor:
        """Return a model's logits for rows of tokens, padded on the right.

        Args:
            model: the model.
            rows: tokens.
            segments: for each token, the number of its text (0 or 1), passed to the model as
                `token_type_ids`; None: not passed.
            options: options of the forward pass.

        Returns:
            The logits of each token, shape (rows, longest row, vocabulary); for a model with a
            classification head, shape (rows, classes).
        """
        device = next(model.parameters()).device

        shortest = shortest_row(model)

        def logits_together(numbers: Sequence[int]) -> torch.Tensor:
            ids, mask = pad_rows([rows[number] for number in numbers], self.pad)
            width = ids.shape[1]
            missing = (0, max(0, shortest - width))
            ids, mask = pad(ids, missing, value=self.pad), pad(mask, missing)
            with adapters.at_home(model, device):
                inputs = {
                    "input_ids": to_device(ids, device),
                    "attention_mask": to_device(mask, device),
                }
                if segments is not None:
                    types, _ = pad_rows([segments[number] for number in numbers], 0)
                    inputs["token_type_ids"] = to_device(pad(types, missing), device)
                logits: torch.Tensor = model(**inputs, **options).logits
            if logits.ndim < 3:
                return logits
            if adapters.has_virtual_tokens(model):
                # virtual tokens come before a row, and their logits are dropped
                return logits[:, -width:]
            # Perceiver returns logits for all its positions; the row's tokens come first
            return logits[:, :width]

        numbers = range(len(rows))
        return by_length(model, numbers, logits_together, lambda number: len(rows[number]))


def shortest_row(model: Any) -> int:
    """Return the fewest tokens that a row of a model's input may have; shorter ones are padded.

    CANINE's convolution reads `downsampling_rate` tokens at a time, and raises an error for less.
    """
    return int(getattr(getattr(model, "config", None), "downsampling_rate", None) or 1)


def by_length(
    model: Any,
    rows: Sequence[Any],
    compute: Callable[[Sequence[Any]], torch.Tensor],
    length: Callable[[Any], Any] = len,
) -> torch.Tensor:
    """Return a model's outputs for rows. All rows go through the model together, unless padding
    would change its outputs (`fedseed.models.traits`); then rows of equal length do.

    Args:
        model: the model.
        rows: the model's input, row by row.
        compute: returns the logits for the rows with these numbers, shape (rows, longest row,
            vocabulary) or (rows, classes).
        length: returns the length of a row; rows of equal length need no padding.

    Returns:
        The logits in the rows' order, with zeros at padding.
    """
    lengths = [length(row) for row in rows]
    if len(set(lengths)) < 2 or not traits_of(model).equal_lengths:
        return compute(rows)
    parts, places = [], []
    for row_length in sorted(set(lengths)):
        row_numbers = [
            place for place, each_length in enumerate(lengths) if each_length == row_length
        ]
        parts.append(compute([rows[place] for place in row_numbers]))
        places += row_numbers
    if parts[0].ndim > 2:
        longest = max(part.shape[1] for part in parts)
        parts = [pad(part, (0, 0, 0, longest - part.shape[1])) for part in parts]
    order = torch.argsort(torch.tensor(places, device="cpu")).to(parts[0].device)
    return torch.cat(parts)[order]


class Scoring(Objective):
    """The base of objectives that score an item's options, words or classes.

    The right option has the number `item.gold`.

    The loss is the cross-entropy of the scores. The prediction is the option with the highest
    score.
    """

    # sequences (options, texts, pictures) in an evaluation batch
    batch: ClassVar[int] = 32
    are_classes: ClassVar[bool] = False  # whether all items have the same options
    # the classifier's outputs in the order of the classes, then its other outputs; None: outputs
    # are in this order already
    outputs: tuple[int, ...] | None = None

    @abstractmethod
    def scores(self, model: Any, items: Sequence[Any], at_once: int | None = None) -> torch.Tensor:
        """Return the scores of every item's options.

        Args:
            model: the model that scores them.
            items: prepared examples.
            at_once: sequences in a batch, if items have several; None: all in one batch.

        Returns:
            Scores in float32, shape (items, most options), differentiable; -inf for the missing
            options of items with fewer.
        """

    def losses_of(self, scores: torch.Tensor, items: Sequence[Any]) -> torch.Tensor:
        """Return each item's loss, computed from its scores and summed over its terms, shape
        (items,).
        """
        gold = to_device([item.gold for item in items], scores.device)
        return cross_entropy(scores, gold, reduction="none")

    def losses(self, model: Any, items: Sequence[Any]) -> torch.Tensor:
        """Return -log p of the right answers, shape (items,)."""
        return self.losses_of(self.scores(model, items), items)


def losses_of_rows(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the sum of -log p over each row's labels. The terms are added in order, so the bits
    are the same each time, also on a GPU.

    (On a GPU `index_add` uses atomic operations, whose order differs from run to run.)

    Args:
        logits: shape (rows, columns, vocabulary).
        labels: shape (rows, columns), on the CPU, so that finding the positions does not wait for a
            GPU. Positions with IGNORE have no loss, and no softmax is computed for them.
    """
    has_label, device = labels != IGNORE, logits.device
    positions = to_device(has_label.reshape(-1).nonzero()[:, 0], device)
    predicted = logits.reshape(-1, logits.shape[-1])[positions]
    token_losses = cross_entropy(
        predicted.float(), to_device(labels[has_label], device), reduction="none"
    )
    return torch.segment_reduce(
        token_losses, "sum", lengths=to_device(has_label.sum(1), device), unsafe=True
    )


class CausalLM(TextObjective):
    """Next-token loss on the response only, including the end-of-sequence token after it.

    The sequence is: the tokens before any text (BOS or nothing,
    `fedseed.objectives.tokens.start_tokens`), prompt, response, EOS or the example's own `stop`. A
    special token that a template has already written is not added again. No token crosses the
    boundary between prompt and response. The response begins with the tokens that it has after the
    prompt in plain transformers (`fedseed.objectives.tokens.TextTokens`). Without a prompt, all
    tokens count for the loss. A chat is written by its tokenizer's template
    (`fedseed.objectives.chats`), with loss on the assistant's messages. `truncate` decides how
    longer examples are cut. The arguments and errors are those of `TextObjective`.
    """

    def items_of_each(self, examples: Sequence[Example]) -> list[list[Tokens]]:
        """Tokenise examples. A chat may become one item for each answer, and a long text may become
        several items.

        Raises:
            RecipeError: the chat template rejects a chat, or the tokenizer can't be used with a
                chat template.
        """
        items, refused = [], []
        for example in examples:
            try:
                items.append(self.items(example))
            except ValueError as error:
                refused.append(str(error))
        if refused:
            problem = refused[0]
            if len(refused) > 1:
                problem += f" (and {len(refused) - 1:,} more chats)"
            raise RecipeError(problem)
        return items

    def items(self, example: Example) -> list[Tokens]:
        whole = self._encoded(example)
        ids = whole[0].ids
        # a chat already has the beginning that its template writes
        begins = int(ids[:1] == (self.tokenizer.bos_token_id,))
        if ids[: len(self.start)] == self.start:
            begins = max(begins, len(self.start))
        cut = (fit_to_limit(tokens, self.max_length, self.truncate, begins) for tokens in whole)
        return [tokens for tokens in chain.from_iterable(cut) if tokens.terms]

    def _encoded(self, example: Example) -> list[Tokens]:
        """Return an example's tokens, without a limit on their number.

        For a chat in plain text, return one sequence for each answer with loss.
        """
        if not isinstance(example, Chat):
            return [self._pair(example.prompt, example.response, example.stop)]
        template = self._template_of(example.style)
        if template is not None:
            return template.prepare(example)
        remarks = example.remarks
        if example.style.writing != "plain":
            remarks += ("plain",)
        if example.style.template_arguments:
            remarks += ("arguments",)
        last = len(example.messages) - 1
        answer_numbers = example.learnt_answers if example.style.loss_on == "all" else [last]
        return [
            self._pair(*plain_form(example.messages, example.tools, i), remarks=remarks)
            for i in answer_numbers
        ]

    def _pair(
        self, prompt: str, response: str, stop: str = "", remarks: tuple[str, ...] = ()
    ) -> Tokens:
        ender = "" if stop else self.text_tokens.ender_of(response)
        if ender:
            response = response.rstrip()
        prompt_ids = self.ids_of(prompt)
        response_ids = self.text_tokens.ids_after(prompt, response + stop)
        if not stop and not ender:
            response_ids = [*response_ids, self.tokenizer.eos_token_id]
        ids = self.text_tokens.from_start([*prompt_ids, *response_ids])
        was_begun = bool(self.start) and len(ids) == len(prompt_ids) + len(response_ids)
        begin = len(ids) - len(response_ids)
        if ender or was_begun:
            remarks += ("rendered",)
        # without a prompt or BOS the first token can't be predicted
        return Tokens(tuple(ids), max(1, begin), remarks=remarks)

    def _template_of(self, style: ChatStyle) -> ChatTemplate | None:
        """Return the template for chats of this style; None if they are written as plain text."""
        if style.writing == "plain" or (
            style.writing == "auto" and not self.tokenizer.chat_template
        ):
            return None
        if style.writing == "own" and not self.tokenizer.chat_template:
            raise RecipeError(
                'task.chat_template = "own": the base\'s tokenizer has no chat template; give a '
                "file with a template"
            )
        arguments = style.template_arguments
        key = style.template, json.dumps(arguments, sort_keys=True, default=str)
        if key not in self._cache:
            try:
                self._cache[key] = ChatTemplate(self.tokenizer, style.template, arguments)
            except ValueError as error:
                raise RecipeError(f"model.base: {error}") from error
        template: ChatTemplate = self._cache[key]
        return template

    def ends_of(self, example: Example) -> tuple[int, ...]:
        template = self._template_of(example.style) if isinstance(example, Chat) else None
        if template is not None:
            end = template.end_of_turn
        else:
            end = self.text_tokens.enders.get(self.text_tokens.ender_of(example.response))
        if end is None or end == self.tokenizer.eos_token_id:
            return ()
        return (end,)

    def weight(self, item: Tokens) -> int:
        return item.terms

    def losses(self, model: Any, items: Sequence[Tokens]) -> torch.Tensor:
        logits = self.logits_of(model, [item.ids for item in items], use_cache=False)
        labels, _ = pad_rows([item.labels for item in items], IGNORE)
        return losses_of_rows(logits[:, :-1], labels[:, 1:])


@dataclass(frozen=True)
class Options:
    """A tokenised choice: the prompt followed by each option, and the other fields of `Choice`."""

    sequences: tuple[Tokens, ...]
    gold: int
    right: tuple[int, ...]
    teacher_forcing: bool


class Choices(Scoring, TextObjective):
    """Chooses the option that follows a prompt (MeZO's classification and multiple choice).

    An option's score is its mean token log-probability after the prompt. The loss is the
    cross-entropy of the scores, and the prediction is the option with the highest score. Nothing
    follows an option, not even EOS. With `teacher_forcing` the prediction is the same, but the loss
    is that of the right option's tokens.

    The arguments and errors are those of `TextObjective`. With `truncate` "left", longer prompts
    are cut at their beginning. With other values such examples are dropped. Examples whose options
    alone are too long are always dropped.
    """

    @cached_property
    def language(self) -> TextObjective:
        """Return the objective that computes the likelihood of sequences."""
        return CausalLM(self.tokenizer, self.max_length)

    def items(self, example: Choice) -> list[Options]:
        prompt, options = (
            self.prompt_ids(example.prompt),
            [self.text_tokens.ids_after(example.prompt, option) for option in example.options],
        )
        if not all(options):
            raise ValueError(f"option {example.options[options.index([])]!r} has no tokens")
        excess = max(0, len(prompt) + max(map(len, options)) - self.max_length)
        fixed = len(self.start)
        if excess and (self.truncate != "left" or len(prompt) - excess <= fixed):
            return []
        prompt = prompt[:fixed] + prompt[fixed + excess :]  # the same cut for all options
        sequences = tuple(Tokens((*prompt, *ids), len(prompt), cut=excess) for ids in options)
        return [Options(sequences, example.gold, example.right, example.teacher_forcing)]

    def weight(self, item: Options) -> int:
        if item.teacher_forcing:
            return item.sequences[item.gold].terms
        return 1

    def scores(
        self, model: Any, items: Sequence[Options], at_once: int | None = None
    ) -> torch.Tensor:
        """Return the mean token log-probability of every option."""
        sequences = list(chain.from_iterable(item.sequences for item in items))
        size = at_once or len(sequences)
        parts = [
            self.language.losses(model, sequences[start : start + size])
            for start in range(0, len(sequences), size)
        ]
        summed = torch.cat(parts)
        lengths = to_device([sequence.terms for sequence in sequences], summed.device)
        scores = torch.split(-summed / lengths, [len(item.sequences) for item in items])
        return pad_sequence(list(scores), batch_first=True, padding_value=-torch.inf)

    def losses_of(self, scores: torch.Tensor, items: Sequence[Options]) -> torch.Tensor:
        losses = super().losses_of(scores, items)
        if not any(item.teacher_forcing for item in items):
            return losses
        forced = to_device([item.teacher_forcing for item in items], scores.device)
        weights = to_device([self.weight(item) for item in items], scores.device)
        gold = to_device([item.gold for item in items], scores.device)
        return torch.where(forced, -scores.gather(1, gold[:, None])[:, 0] * weights, losses)

    def losses(self, model: Any, items: Sequence[Options]) -> torch.Tensor:
        if all(item.teacher_forcing for item in items):  # only the right options are needed
            return self.language.losses(model, [item.sequences[item.gold] for item in items])
        return super().losses(model, items)


class Supervised(Objective):
    """Loss on (input, target) pairs of tensors, for any torch module.

    Args:
        loss: takes (model output, stacked targets) and returns one loss for each pair, shape
            (batch,).
    """

    def __init__(self, loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        self.loss = loss

    def items(
        self, example: tuple[torch.Tensor, torch.Tensor]
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [example]

    def losses(
        self, model: torch.nn.Module, items: Sequence[tuple[torch.Tensor, torch.Tensor]]
    ) -> torch.Tensor:
        """Return the pairs' losses.

        Raises RecipeError if the loss function does not return one loss for each pair.
        """
        device = next(model.parameters()).device
        inputs, targets = (
            to_device(torch.stack(side), device) for side in zip(*items, strict=True)
        )
        losses = self.loss(model(inputs), targets)
        # a mean would be used as if it were a sum, which changes the effective learning rate
        if losses.shape != (len(items),):
            raise RecipeError(
                f"Supervised: the loss of {len(items)} pairs has shape {tuple(losses.shape)}, not "
                f"({len(items)},): return one loss for each pair, such as with "
                'CrossEntropyLoss(reduction="none")'
            )
        return losses
