"""Tokenised examples: which tokens count for the loss, and what is cut from examples that are too
long.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch.nn.utils.rnn import pad_sequence

from fedseed.models import adapters

# index of a span's first token, and of the first token after it
Span = tuple[int, int]
Truncate = Literal["drop", "left", "right", "split"]
PROBE = "a"  # any text will do
# how vocabularies write a blank at the beginning of a token
BLANKS = ("▁", "Ġ")
# texts after which a token certainly ends, in one tokenizer or another
GUARDS = (":", ".", "\n", "0", "a")
IGNORE = -100  # label of a token that does not count for the loss


@dataclass(frozen=True)
class Tokens:
    """A tokenised example."""

    ids: tuple[int, ...]
    # where the last response begins; generation continues from the tokens before it
    response_start: int
    # spans of the tokens that count for the loss, in ascending order; empty: all from
    # `response_start` on
    spans: tuple[Span, ...] = ()
    cut: int = 0  # number of tokens that were cut off
    # other changes to the example (`fedseed.objectives.prepared.REMARKS`)
    remarks: tuple[str, ...] = ()
    # whether an encoder reads the tokens before the response, and a decoder writes the rest
    encoded: bool = False

    @property
    def learnt(self) -> tuple[Span, ...]:
        """Return the spans of the tokens that count for the loss."""
        return self.spans or ((self.response_start, len(self.ids)),)

    @property
    def labels(self) -> list[int]:
        """Return the tokens, with IGNORE in place of those that do not count for the loss."""
        labels = [IGNORE] * len(self.ids)
        for begin, end in self.learnt:
            labels[begin:end] = self.ids[begin:end]
        return labels

    @property
    def terms(self) -> int:
        """Return the number of tokens that count for the loss."""
        return sum(end - begin for begin, end in self.learnt)


def start_tokens(tokenizer: Any) -> tuple[int, ...]:
    """Return the tokens that a tokenizer puts before a text in plain transformers: usually BOS, or
    none.

    Training uses the same beginning that the exported model will see. The tokenizer's BOS token
    alone does not show it: GPT-2's tokenizer has one but never puts it before a text.
    """
    return _around(tokenizer)[0]


def _around(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the tokens that a tokenizer puts before a text and after it."""
    whole, text = (
        tokenizer(PROBE, add_special_tokens=special)["input_ids"] for special in (True, False)
    )
    starts = range(len(whole) - len(text) + 1)
    begin = next((start for start in starts if whole[start : start + len(text)] == text), 0)
    return tuple(whole[:begin]), tuple(whole[begin + len(text) :])


class TextTokens:
    """Tokenises texts in parts, with the same tokens as plain transformers makes of the whole.

    Many tokenizers put a blank before any text. A text that continues another one must not get it.
    Texts written by a template already have special tokens, and must not get them twice.

    Args:
        tokenizer: a `transformers` tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        # the newest text and its tokens, because a prompt is tokenised alone and then again before
        # its response
        self._last: tuple[str, list[int]] = ("", [])

    @cached_property
    def start(self) -> tuple[int, ...]:
        """Return the tokens at the beginning of every text."""
        return start_tokens(self.tokenizer)

    @cached_property
    def adds_blank(self) -> bool:
        """Return whether the tokenizer puts a blank before a text that does not begin with one."""
        alone = self.ids(PROBE)
        first = self.tokenizer.convert_ids_to_tokens(alone[:1])
        if str(first[0] if first else "").startswith(BLANKS):
            return True
        # vocabularies may write a blank in another way, but then the text's tokens differ after a
        # sign
        for guard in GUARDS:
            guard_ids, joined_ids = self.ids(guard), self.ids(guard + PROBE)
            if joined_ids[: len(guard_ids)] == guard_ids:
                return joined_ids[len(guard_ids) :] != alone
        return False

    def ids(self, text: str) -> list[int]:
        """Return a text's tokens, without special tokens around it."""
        last = self._last
        if not text or last[0] != text:
            last = (text, list(self.tokenizer(text, add_special_tokens=False)["input_ids"]))
            self._last = last  # a single assignment, because threads of a server share this object
        return list(last[1])

    def from_start(self, ids: Sequence[int]) -> list[int]:
        """Return tokens with the beginning of every text before them, unless they already have
        it.
        """
        begins = tuple(ids[: len(self.start)]) == self.start
        if begins:
            return [*ids]
        return [*self.start, *ids]

    def whole(self, text: str) -> list[int]:
        """Return a text's tokens with special tokens around it, without repeating those that the
        text has.
        """
        ids = list(self.tokenizer(text)["input_ids"])
        start, end = _around(self.tokenizer)
        if start and tuple(ids[: 2 * len(start)]) == start + start:
            ids = ids[len(start) :]
        if end and tuple(ids[-2 * len(end) :]) == end + end:
            ids = ids[: -len(end)]
        return ids

    def ids_after(self, prefix: str, text: str) -> list[int]:
        """Return the tokens of a text that continues another one.

        If the tokenizer puts no blank before a text, they do not depend on the other text. In any
        case no token crosses the boundary.
        """
        if not self.adds_blank or not prefix:
            return self.ids(text)
        for guard in (prefix, prefix[-1], *GUARDS):
            guard_ids, joined_ids = self.ids(guard), self.ids(guard + text)
            if joined_ids[: len(guard_ids)] == guard_ids:
                return joined_ids[len(guard_ids) :]
        return self.ids(text)

    @cached_property
    def enders(self) -> Mapping[str, int]:
        """Return the special tokens that can end a text, longest first."""
        tokenizer = self.tokenizer
        others = {
            getattr(tokenizer, f"{name}_token", None) for name in ("bos", "unk", "mask", "cls")
        }
        special = {
            str(token): number
            for number, token in getattr(tokenizer, "added_tokens_decoder", {}).items()
            if token.special
        }
        endings = {
            text: number
            for text, number in special.items()
            if text == tokenizer.eos_token or text not in {*others, tokenizer.pad_token}
        }
        return dict(sorted(endings.items(), key=lambda one: -len(one[0])))

    def ender_of(self, text: str) -> str:
        """Return the special token at the end of a text, ignoring blanks; "" if there is none."""
        text = text.rstrip()
        return next((ender for ender in self.enders if text.endswith(ender)), "")


def fit_to_limit(tokens: Tokens, limit: int, truncate: Truncate, kept_count: int) -> list[Tokens]:
    """Return the part of an example that fits into `limit` tokens.

    "left" cuts at the beginning, but never in the last response. "right" cuts at the end, and
    leaves out an example if none of its remaining tokens counts for the loss. "split" divides a
    text without a prompt into several examples, and leaves out others.

    Args:
        tokens: the example.
        limit: the most tokens.
        truncate: how to cut.
        kept_count: number of tokens to keep at the beginning (`start_tokens`).

    Returns:
        The example or its pieces; empty if it is left out.
    """
    excess = len(tokens.ids) - limit
    if excess <= 0:
        return [tokens]
    # index of the first learnt token of a text without a prompt
    whole = max(1, kept_count)
    if truncate == "left":
        if tokens.response_start > whole and tokens.response_start - excess < kept_count:
            return []
        ids = tokens.ids[:kept_count] + tokens.ids[kept_count + excess :]
        start, spans = (
            max(whole, tokens.response_start - excess),
            _shift_spans(tokens.learnt, -excess, whole, limit),
        )
        if spans:
            return [replace(tokens, ids=ids, response_start=start, spans=spans, cut=excess)]
        return []
    if truncate == "right":
        spans = _shift_spans(tokens.learnt, 0, 0, limit)
        if not spans:
            return []
        start = min(tokens.response_start, spans[-1][0])
        return [
            replace(tokens, ids=tokens.ids[:limit], response_start=start, spans=spans, cut=excess)
        ]
    if truncate == "split" and tokens.response_start <= whole and limit > whole:
        begin, body = tokens.ids[:kept_count], tokens.ids[kept_count:]
        size = limit - kept_count
        pieces = [
            begin + body[start_of_piece : start_of_piece + size]
            for start_of_piece in range(0, len(body), size)
        ]
        return [
            Tokens(ids, whole, ((whole, len(ids)),), 0, ("split",))
            for ids in pieces
            if len(ids) > whole
        ]
    return []


def _shift_spans(spans: tuple[Span, ...], offset: int, first: int, end: int) -> tuple[Span, ...]:
    """Return the parts of spans between `first` and `end`, moved by `shift`."""
    shifted = ((max(first, begin + offset), min(end, stop + offset)) for begin, stop in spans)
    return tuple((begin, stop) for begin, stop in shifted if begin < stop)


def stated_positions(config: Any) -> int | None:
    """Return the number of positions in a model's configuration; None if there is none, or if any
    number is possible.
    """
    limit: int | None = getattr(config.get_text_config(), "max_position_embeddings", None)
    # XLNet's configuration has -1, which means any number of positions
    if limit is None or limit < 1:
        return None
    return limit


def longest_input(model: Any) -> int | None:
    """Return the number of positions of a model; None if its configuration does not have it.

    Models such as RoBERTa count positions from their padding index on, so they have fewer than
    their configuration says.
    """
    config = getattr(model, "config", None)
    if config is None:
        return None
    limit = stated_positions(config)
    for name, module in model.named_modules():
        if (
            isinstance(module, torch.nn.Embedding)
            and "position" in name
            and module.padding_idx is not None
        ):
            room = module.num_embeddings - module.padding_idx - 1
            if limit is None or room < limit:
                limit = room
    if limit is not None and adapters.has_virtual_tokens(model):
        limit -= model.active_peft_config.num_virtual_tokens
    return limit


def pad_rows(
    rows: Sequence[Sequence[int]], pad: int, left: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows padded with `pad` at the end, or at the beginning if `left`, and a mask that is 1
    at the rows' own tokens.

    Both are int64, have shape (rows, longest) and are on the CPU. There must be at least one row.
    """
    side = "left" if left else "right"
    tensors = [torch.tensor(row, dtype=torch.long, device="cpu") for row in rows]
    ids = pad_sequence(tensors, batch_first=True, padding_value=pad, padding_side=side)
    return ids, pad_sequence(
        [torch.ones_like(row) for row in tensors], batch_first=True, padding_side=side
    )


def to_device(values: torch.Tensor | Sequence[Any], device: torch.device) -> torch.Tensor:
    """Return a tensor, or a tensor of these numbers, on a device. The copy is asynchronous, unlike
    that of `torch.tensor(..., device)`.
    """
    tensor = values if isinstance(values, torch.Tensor) else torch.tensor(values, device="cpu")
    return tensor.to(device, non_blocking=True)
