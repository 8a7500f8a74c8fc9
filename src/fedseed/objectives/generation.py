"""Texts that a language model writes: answers to examples, and for a person after a prompt or in a
conversation.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import torch
from jinja2 import TemplateError

from fedseed.errors import FedseedError, RecipeError
from fedseed.models import adapters
from fedseed.objectives.losses import TextObjective
from fedseed.objectives.tokens import TextTokens, longest_input, padded
from fedseed.tasks.data import Example
from fedseed.weights.row_losses import Around

Turns = Sequence[Mapping[str, str]]  # {"role": ..., "content": ...} each


@torch.no_grad()
def continued(
    model: Any,
    prompts: Sequence[Sequence[int]],
    pad: int | None,
    room: int,
    encodes: bool,
    **how: Any,
) -> list[list[int]]:
    """Returns the tokens that a model makes of each of some prompts, which go through it together.

    Args:
        model: a causal (or encoder-decoder) language model, with an adapter or without.
        prompts: tokens.
        pad: what fills up shorter prompts, at their beginning or, for an encoder, at their end;
            None: 0.
        room: new tokens at most.
        encodes: whether an encoder reads the prompts.
        how: what else `generate` of transformers is given.
    """
    ids, mask = padded(prompts, pad or 0, left=not encodes)
    device = next(model.parameters()).device
    with adapters.at_home(model, device), adapters.hushed():
        output = model.generate(
            input_ids=ids.to(device),
            attention_mask=mask.to(device),
            max_new_tokens=room,
            num_beams=1,
            pad_token_id=pad,
            **{"do_sample": False, **how},
        )
    return list(output[:, 0 if encodes else ids.shape[1] :].tolist())


@torch.no_grad()
def generate(
    model: Any,
    objective: TextObjective,
    prompts: Sequence[str] | Sequence[Sequence[int]],
    max_new_tokens: int,
    batch: int = 64,
    stop: str = "",
    ends: Sequence[int] = (),
    around: Around | None = None,
) -> list[str]:
    """Returns greedy responses, in the order of the prompts, which are batched by length.

    A prompt that leaves fewer positions than `max_new_tokens` gets as many tokens as the model has
    room for. With an adapter's virtual tokens only prompts of one length share a batch: padding
    would stand between the virtual tokens and the prompt, and push them away from each other.

    Args:
        model: a causal language model, or an encoder-decoder.
        objective: tokenises the prompts.
        prompts: ready to be tokenised, or tokens (a chat's, say).
        max_new_tokens: of each response.
        batch: prompts in a batch; the texts do not depend on it.
        stop: what ends a response, besides the end-of-sequence token; the text is cut before it.
        ends: tokens that end a response, besides the end-of-sequence token.
        around: gives what each batch is generated in, from its prompts' numbers, row by row.
    """
    model.eval()
    tokenizer = objective.tokenizer
    encoded = [
        objective.prompt_ids(prompt) if isinstance(prompt, str) else list(prompt)
        for prompt in prompts
    ]
    limit, encodes = longest_input(model), objective.encodes
    # of the positions: an encoder-decoder's start token
    taken = [1 if encodes else len(ids) for ids in encoded]
    room = [
        max_new_tokens if limit is None else min(max_new_tokens, limit - count) for count in taken
    ]
    stops = [tokenizer.eos_token_id, *ends]
    if stop:  # generation may end early where the stop is one token; the text is cut in any case
        last = objective.ids_of(stop)[-1]
        stops += [last] if tokenizer.decode([last]) == stop else []
    # an encoder-decoder's configuration says it
    how: dict[str, Any] = {} if encodes else {"eos_token_id": stops}
    texts = [""] * len(prompts)
    apart = adapters.has_virtual_tokens(model)
    most = max(room, default=0)
    order = sorted(
        (i for i in range(len(encoded)) if 0 < room[i] == most), key=lambda i: (len(encoded[i]), i)
    )
    parts = [list(group) for _, group in groupby(order, lambda i: len(encoded[i]) if apart else 0)]
    batches = [part[at : at + batch] for part in parts for at in range(0, len(part), batch)]
    # alone where there is less room than wanted, for that depends on a prompt's length
    for rows in [*batches, *([i] for i in range(len(encoded)) if 0 < room[i] < most)]:
        with around(rows) if around else nullcontext():
            found = continued(
                model, [encoded[i] for i in rows], objective.pad, room[rows[0]], encodes, **how
            )
        for i, tokens in zip(rows, found, strict=True):
            said = next((at for at, token in enumerate(tokens) if token in ends), len(tokens))
            text = tokenizer.decode(tokens[:said], skip_special_tokens=True)
            texts[i] = text.split(stop)[0] if stop else text
    return texts


def responses_to(
    model: torch.nn.Module,
    objective: TextObjective,
    examples: Sequence[Example],
    items: Sequence[Any],
    max_new_tokens: int,
    around: Around | None = None,
) -> list[str]:
    """Returns greedy responses to examples, each ended as the example's are.

    Args:
        model: a causal language model, or an encoder-decoder.
        objective: made the items.
        examples: the examples.
        items: the last item of each.
        max_new_tokens: of each response.
        around: gives what a batch is generated in, from its examples' numbers, row by row.
    """
    texts = [""] * len(examples)
    ended = [("" if objective.encodes else e.stop, objective.ends_of(e)) for e in examples]
    for stop, ends in sorted(set(ended)):
        rows = [i for i, how in enumerate(ended) if how == (stop, ends)]
        prompts = [items[i].ids[: items[i].response_start] for i in rows]
        own = (
            partial(lambda rows, numbers: around([rows[n] for n in numbers]), rows)
            if around
            else None
        )
        found = generate(
            model, objective, prompts, max_new_tokens, stop=stop, ends=ends, around=own
        )
        for i, text in zip(rows, found, strict=True):
            texts[i] = text
    return texts


class Written(NamedTuple):
    """A text that a model has written."""

    text: str  # without special tokens, up to what stops it
    asked: int  # tokens that the model was given
    new: int  # tokens that it has written
    ended: bool  # it came to its end; otherwise there was no more room


class Writer:
    """A model that writes.

    Args:
        model: a causal (or encoder-decoder) language model, with an adapter or without.
        tokenizer: its tokenizer.
        max_tokens: the most new tokens of a text.
        temperature: 0: always the likeliest token; above: drawn, the more evenly the higher.
        top_p: draw from the likeliest tokens that together have this probability.
        seed: of what is drawn: the same text for the same seed on one machine.
        stops: texts that end what is written; it is cut before the first one.

    Raises:
        RecipeError: the model writes no text.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        max_tokens: int = 128,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
        stops: Sequence[str] = (),
    ) -> None:
        whole = model.get_base_model() if adapters.is_installed(model) else model
        if not getattr(whole, "can_generate", lambda: False)():
            raise RecipeError(
                f"a {type(whole).__name__} writes no text: take a causal language model"
            )
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.max_tokens = max_tokens
        self.seed = seed
        self.stops = stops
        self._encodes = bool(getattr(whole.config, "is_encoder_decoder", False))
        ends = getattr(whole.generation_config, "eos_token_id", None)
        self._ends = sorted(
            {tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])} - {None}
        )
        self._how: dict[str, Any] = {"eos_token_id": self._ends or None}
        if temperature > 0:
            self._how |= {"do_sample": True, "temperature": temperature, "top_p": top_p, "top_k": 0}

    def after(self, prompt: str) -> Written:
        """Returns what follows a prompt, which the model sees as training has shown it prompts: as
        it stands.
        """
        tokens = TextTokens(self.tokenizer)
        if self._encodes:
            return self._write(tokens.whole(prompt))
        return self._write(tokens.from_start(tokens.ids(prompt)))

    def answer(self, turns: Turns) -> Written:
        """Returns the assistant's next turn, by the tokenizer's chat template.

        Args:
            turns: the conversation so far.

        Raises:
            RecipeError: the tokenizer has no chat template, or it takes no such turns.
        """
        if not getattr(self.tokenizer, "chat_template", None):
            raise RecipeError(
                "--chat: the model's tokenizer has no chat template; without --chat a prompt is "
                "used as it is"
            )
        try:
            text = self.tokenizer.apply_chat_template(
                list(turns), tokenize=False, add_generation_prompt=True
            )
        except TemplateError as error:
            raise RecipeError(f"the chat template does not take these turns: {error}") from error
        return self._write(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _write(self, ids: Sequence[int]) -> Written:
        if not ids:
            raise RecipeError("the prompt is empty")
        limit = None if self._encodes else longest_input(self.model)
        room = self.max_tokens if limit is None else min(self.max_tokens, limit - len(ids))
        if room < 1:
            raise FedseedError(
                f"the prompt has {len(ids):,} tokens, the model has {limit:,} positions: shorten it"
            )
        device, pad = next(self.model.parameters()).device, self.tokenizer.pad_token_id
        pad = self._ends[0] if pad is None and self._ends else pad
        more = (
            {"stopping_criteria": [partial(self._stopped, 0 if self._encodes else len(ids))]}
            if self.stops
            else {}
        )
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(self.seed)
            (new,) = continued(self.model, [ids], pad, room, self._encodes, **self._how, **more)
        text = str(self.tokenizer.decode(new, skip_special_tokens=True))
        found = [at for stop in self.stops if (at := text.find(stop)) >= 0]
        return Written(
            text[: min(found, default=None)],
            len(ids),
            len(new),
            bool(found) or new[-1] in self._ends,
        )

    def _stopped(self, start: int, ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        """Says to transformers whether the text from a token on holds one that stops it."""
        text = self.tokenizer.decode(ids[0, start:].tolist(), skip_special_tokens=True)
        return torch.tensor([any(stop in text for stop in self.stops)], device=ids.device)
