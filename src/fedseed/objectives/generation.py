"""Text that a language model writes for a person: after a prompt, or as the next turn of a conversation."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from fedseed.errors import FedseedError, RecipeError
from fedseed.models import adapters
from fedseed.objectives.tokens import beginning, longest_input, padded

Turns = Sequence[Mapping[str, str]]  # {"role": ..., "content": ...} each


@torch.no_grad()
def continued(
    model: Any, prompts: Sequence[Sequence[int]], pad: int | None, room: int, encodes: bool, **how: Any
) -> list[list[int]]:
    """Returns the tokens that a model makes of each of some prompts, which go through it together.

    Args:
        model: a causal (or encoder-decoder) language model, with an adapter or without.
        prompts: tokens.
        pad: what fills up shorter prompts, at their beginning or, for an encoder, at their end; None: 0.
        room: new tokens at most.
        encodes: whether an encoder reads the prompts.
        how: what else `generate` of transformers is given.
    """
    ids, mask = padded(prompts, pad or 0, left=not encodes)
    device = next(model.parameters()).device
    with adapters.at_home(model, device), adapters.hushed():
        output = model.generate(
            input_ids=ids.to(device), attention_mask=mask.to(device), max_new_tokens=room, num_beams=1,
            pad_token_id=pad, **{"do_sample": False, **how},
        )  # fmt: skip
    made: list[list[int]] = output[:, 0 if encodes else ids.shape[1] :].tolist()
    return made


class Written(NamedTuple):
    """A text that a model has written.

    Args:
        text: it, without special tokens, up to what stops it.
        asked: tokens that the model was given.
        new: tokens that it has written.
        ended: it came to its end; otherwise there was no more room.
    """

    text: str
    asked: int
    new: int
    ended: bool


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
        self, model: Any, tokenizer: Any, max_tokens: int = 128, temperature: float = 0.0, top_p: float = 1.0,
        seed: int = 0, stops: Sequence[str] = (),
    ) -> None:  # fmt: skip
        whole = model.get_base_model() if adapters.is_installed(model) else model
        if not getattr(whole, "can_generate", lambda: False)():
            raise RecipeError(f"a {type(whole).__name__} writes no text: take a causal language model")
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.max_tokens = max_tokens
        self.seed = seed
        self.stops = stops
        self._encodes = bool(getattr(whole.config, "is_encoder_decoder", False))
        ends = getattr(whole.generation_config, "eos_token_id", None)
        self._ends = sorted({tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])} - {None})
        self._how: dict[str, Any] = {"eos_token_id": self._ends or None}
        if temperature > 0:
            self._how |= {"do_sample": True, "temperature": temperature, "top_p": top_p, "top_k": 0}

    def after(self, prompt: str) -> Written:
        """Returns what follows a prompt, which the model sees as training has shown it prompts: as it stands."""
        start = () if self._encodes else beginning(self.tokenizer)
        return self._write([*start, *self._ids(prompt, self._encodes)])

    def answer(self, turns: Turns) -> Written:
        """Returns the assistant's next turn, by the tokenizer's chat template.

        Args:
            turns: the conversation so far.

        Raises:
            RecipeError: the tokenizer has no chat template, or it takes no such turns.
        """
        if not getattr(self.tokenizer, "chat_template", None):
            raise RecipeError(
                "--chat: the model's tokenizer has no chat template; without --chat a prompt is used as it is"
            )
        from jinja2.exceptions import TemplateError

        try:
            text = self.tokenizer.apply_chat_template(list(turns), tokenize=False, add_generation_prompt=True)
        except TemplateError as error:
            raise RecipeError(f"the chat template does not take these turns: {error}") from error
        return self._write(self._ids(text, False))

    def _ids(self, text: str, special: bool) -> list[int]:
        found: list[int] = self.tokenizer(text, add_special_tokens=special)["input_ids"]
        return found

    def _write(self, ids: Sequence[int]) -> Written:
        if not ids:
            raise RecipeError("the prompt is empty")
        limit = None if self._encodes else longest_input(self.model)
        room = self.max_tokens if limit is None else min(self.max_tokens, limit - len(ids))
        if room < 1:
            raise FedseedError(f"the prompt has {len(ids):,} tokens, the model has {limit:,} positions: shorten it")
        device, pad = next(self.model.parameters()).device, self.tokenizer.pad_token_id
        pad = self._ends[0] if pad is None and self._ends else pad
        more = {"stopping_criteria": [partial(self._stopped, 0 if self._encodes else len(ids))]} if self.stops else {}
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(self.seed)
            (new,) = continued(self.model, [ids], pad, room, self._encodes, **self._how, **more)
        text = self._text(new)
        found = [at for stop in self.stops if (at := text.find(stop)) >= 0]
        return Written(text[: min(found, default=None)], len(ids), len(new), bool(found) or new[-1] in self._ends)

    def _text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def _stopped(self, start: int, ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        """Says to transformers whether the text from a token on holds one that stops it."""
        text = self._text(ids[0, start:].tolist())
        return torch.tensor([any(stop in text for stop in self.stops)], device=ids.device)
