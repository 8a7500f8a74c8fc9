"""Generates text with a language model: answers to examples, and continuations of a user's prompt
or chat.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import torch
from jinja2 import TemplateError

from fedseed.errors import FedseedError, NonFiniteError, RecipeError
from fedseed.models import adapters, writing
from fedseed.models.traits import traits_of
from fedseed.objectives.losses import TextObjective
from fedseed.objectives.template_variables import template_variables
from fedseed.objectives.tokens import TextTokens, longest_input, pad_rows
from fedseed.tasks.data import Example
from fedseed.weights.row_losses import EnterRows

# each message: {"role": ..., "content": ..., "tool_calls": ...}
Turns = Sequence[Mapping[str, Any]]
OnText = Callable[[str], None]
# Below this temperature a draw always gives the likeliest token, and dividing logits by it may
# overflow.
GREEDY_TEMPERATURE = 1e-5


@torch.no_grad()
def continue_prompts(
    model: Any,
    prompts: Sequence[Sequence[int]],
    pad: int | None,
    room: int,
    encodes: bool,
    scored: bool = True,
    **options: Any,
) -> list[list[int]]:
    """Generate a continuation of each prompt, all in one batch, and return their tokens.

    Args:
        model: a causal (or encoder-decoder) language model, with an adapter or without.
        prompts: tokens of each prompt.
        pad: the token that pads shorter prompts, at their beginning or, for an encoder, at their
            end; None: token 0.
        room: the most new tokens.
        encodes: whether an encoder reads the prompts.
        scored: whether the answers will be scored. If so, they depend only on their prompts; if
            not, the model's own generation settings apply.
        options: further options of transformers' `generate`.
    """
    ids, mask = pad_rows(prompts, pad or 0, left=not encodes)
    device = next(model.parameters()).device
    whole = _without_adapter(model)
    settings = writing.for_scoring(whole) if scored else writing.for_people(whole)
    with (
        adapters.at_home(model, device),
        adapters.hushed(),
        writing.generating(whole, settings),
    ):
        output = model.generate(
            input_ids=ids.to(device),
            attention_mask=mask.to(device),
            max_new_tokens=room,
            num_beams=1,
            pad_token_id=pad,
            **{"do_sample": False, **options},
        )
    return list(output[:, 0 if encodes else ids.shape[1] :].tolist())


def _without_adapter(model: Any) -> Any:
    """Return the model under an adapter, or the model if it has none."""
    if adapters.is_installed(model):
        return model.get_base_model()
    return model


@torch.no_grad()
def generate(
    model: Any,
    objective: TextObjective,
    prompts: Sequence[str] | Sequence[Sequence[int]],
    max_new_tokens: int,
    batch: int = 64,
    stop: str = "",
    ends: Sequence[int] = (),
    around: EnterRows | None = None,
) -> list[str]:
    """Return greedy responses in the order of the prompts. Prompts are batched by length.

    A prompt that leaves fewer positions than `max_new_tokens` gets a response as long as the model
    has room for. With an adapter's virtual tokens, only prompts of equal length share a batch,
    because padding would separate the virtual tokens from the prompt. The same holds for models
    whose output depends on padding (`fedseed.models.traits`).

    Args:
        model: a causal language model, or an encoder-decoder.
        objective: tokenises the prompts.
        prompts: texts ready to be tokenised, or tokens, for example of a chat.
        max_new_tokens: the most tokens of a response.
        batch: prompts in a batch; the responses do not depend on it.
        stop: text that ends a response, besides the end-of-sequence token; the response is cut
            before it.
        ends: tokens that end a response, besides the end-of-sequence token.
        around: returns a context manager in which a batch is generated, from the numbers of the
            prompts in its rows.
    """
    model.eval()
    tokenizer = objective.tokenizer
    encoded = [
        objective.prompt_ids(prompt) if isinstance(prompt, str) else list(prompt)
        for prompt in prompts
    ]
    encodes = objective.encodes
    room = _room_for_answers(model, encoded, encodes, max_new_tokens)
    options: dict[str, Any] = {}
    # an encoder-decoder's configuration has its end token
    if not encodes:
        options["eos_token_id"] = [tokenizer.eos_token_id, *ends, *_stop_token(objective, stop)]
    texts = [""] * len(prompts)
    for rows in _generation_batches(model, [len(ids) for ids in encoded], room, batch):
        with around(rows) if around else nullcontext():
            answers = continue_prompts(
                model, [encoded[i] for i in rows], objective.pad, room[rows[0]], encodes, **options
            )
        for i, tokens in zip(rows, answers, strict=True):
            end = next((place for place, token in enumerate(tokens) if token in ends), len(tokens))
            text = tokenizer.decode(tokens[:end], skip_special_tokens=True)
            if stop:
                text = text.split(stop)[0]
            texts[i] = text
    return texts


def _room_for_answers(
    model: Any, prompts: Sequence[Sequence[int]], encodes: bool, max_new_tokens: int
) -> list[int]:
    """Return how many tokens a model may write after each prompt."""
    limit = longest_input(model)
    if limit is None:
        return [max_new_tokens] * len(prompts)
    # the decoder's text begins with only the start token
    positions = [1 if encodes else len(ids) for ids in prompts]
    return [min(max_new_tokens, limit - count) for count in positions]


def _stop_token(objective: TextObjective, stop: str) -> list[int]:
    """Return the token of a stop text if it is a single token, so that generation can end early.

    Other stop texts only cut the result.
    """
    if not stop:
        return []
    last = objective.ids_of(stop)[-1]
    if objective.tokenizer.decode([last]) != stop:
        return []
    return [last]


def _generation_batches(
    model: Any, lengths: Sequence[int], room: Sequence[int], batch: int
) -> list[list[int]]:
    """Return the numbers of the prompts in each batch. A prompt without room for a response is left
    out.

    Args:
        model: the model.
        lengths: the number of tokens of each prompt.
        room: the number of tokens that may follow each prompt.
        batch: the largest number of prompts in a batch.
    """
    traits = traits_of(model)
    # padding would change such a model's output
    needs_equal_lengths = (
        adapters.has_virtual_tokens(model) or traits.equal_lengths or traits.equal_prompts
    )
    full_room = max(room, default=0)
    with_full_room = [i for i in range(len(lengths)) if 0 < room[i] == full_room]
    with_full_room.sort(key=lambda i: (lengths[i], i))
    batches: list[list[int]] = []
    for _, group in groupby(with_full_room, lambda i: lengths[i] if needs_equal_lengths else 0):
        rows = list(group)
        batches += [rows[start : start + batch] for start in range(0, len(rows), batch)]
    # with too little room a prompt is alone in its batch, because the room depends on its length
    batches += [[i] for i in range(len(lengths)) if 0 < room[i] < full_room]
    return batches


def responses_to(
    model: torch.nn.Module,
    objective: TextObjective,
    examples: Sequence[Example],
    items: Sequence[Any],
    max_new_tokens: int,
    around: EnterRows | None = None,
) -> list[str]:
    """Return greedy responses to examples, each with its example's stop text and end tokens.

    Args:
        model: a causal language model, or an encoder-decoder.
        objective: the objective that made the items.
        examples: the examples.
        items: the last item of each example.
        max_new_tokens: the most tokens of a response.
        around: returns a context manager in which a batch is generated, from the numbers of the
            examples in its rows.
    """
    texts = [""] * len(examples)
    ended = [("" if objective.encodes else e.stop, objective.ends_of(e)) for e in examples]
    for stop, ends in sorted(set(ended)):
        rows = [i for i, ending in enumerate(ended) if ending == (stop, ends)]
        prompts = [items[i].ids[: items[i].response_start] for i in rows]
        if around:
            enter_rows = partial(lambda rows, numbers: around([rows[n] for n in numbers]), rows)
        else:
            enter_rows = None
        answers = generate(
            model, objective, prompts, max_new_tokens, stop=stop, ends=ends, around=enter_rows
        )
        for i, text in zip(rows, answers, strict=True):
            texts[i] = text
    return texts


class Written(NamedTuple):
    """A text written by a model."""

    text: str  # without special tokens, up to the stop text
    prompt_tokens: int  # number of tokens in the prompt
    new: int  # number of tokens written
    # whether the text is complete; if not, it ran out of room
    is_complete: bool


class Writer:
    """Writes text with a model.

    Args:
        model: a causal (or encoder-decoder) language model, with an adapter or without.
        tokenizer: its tokenizer.
        max_tokens: the most new tokens of a text.
        temperature: 0: always the likeliest token; higher: random draws, more even at higher
            temperatures.
        top_p: draw only from the likeliest tokens that together have this probability.
        seed: seed of the draws; on one machine the same seed gives the same text.
        stops: texts that end the answer, which is cut before the first of them.

    Raises:
        RecipeError: the model can't generate text.
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
        whole = _without_adapter(model)
        if not getattr(whole, "can_generate", lambda: False)():
            raise RecipeError(
                f"a {type(whole).__name__} can't generate text: use a causal language model"
            )
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.max_tokens = max_tokens
        self.seed = seed
        self.stops = stops
        self._encodes = bool(getattr(whole.config, "is_encoder_decoder", False))
        ends = getattr(whole.generation_config, "eos_token_id", None)
        if not isinstance(ends, list):
            ends = [ends]
        self._ends = sorted({tokenizer.eos_token_id, *ends} - {None})
        self._options: dict[str, Any] = {
            "eos_token_id": self._ends or None,
            "logits_processor": [_refuse_nan],
        }
        if temperature >= GREEDY_TEMPERATURE:
            self._options |= {
                "do_sample": True,
                "temperature": temperature,
                "top_p": top_p,
                "top_k": 0,
            }

    def continue_prompt(self, prompt: str) -> Written:
        """Return the continuation of a prompt. The model reads the prompt unchanged, as in
        training.
        """
        return self.write(self.prompt_ids(prompt))

    def answer(
        self,
        turns: Turns,
        tools: Sequence[Mapping[str, Any]] = (),
        options: Mapping[str, Any] | None = None,
    ) -> Written:
        """Return the assistant's next turn, using the tokenizer's chat template (`chat_ids`)."""
        return self.write(self.chat_ids(turns, tools, options))

    def prompt_ids(self, prompt: str) -> list[int]:
        """Return a prompt's tokens.

        Raises:
            RecipeError: the prompt is empty.
            FedseedError: the prompt leaves no room for an answer.
        """
        tokens = TextTokens(self.tokenizer)
        if self._encodes:
            return self._check_prompt(tokens.whole(prompt))
        return self._check_prompt(tokens.from_start(tokens.ids(prompt)))

    def chat_ids(
        self,
        turns: Turns,
        tools: Sequence[Mapping[str, Any]] = (),
        options: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the tokens of a conversation that asks for the assistant's next turn.

        Args:
            turns: the conversation so far; arguments of tool calls are objects.
            tools: functions that the assistant may call, in OpenAI's format.
            options: further variables of the chat template, such as {"enable_thinking": False}.

        Raises:
            RecipeError: the tokenizer has no chat template, or the template rejects these turns or
                ignores a tool, a call or an option.
            FedseedError: the conversation leaves no room for an answer.
        """
        if not getattr(self.tokenizer, "chat_template", None):
            raise RecipeError(
                "--chat: the model's tokenizer has no chat template; leave out --chat to use the "
                "prompt as plain text"
            )
        if options:
            self._check_options(options, tools)
        text = self._render(turns, tools, options or {})
        self._check_functions(turns, tools, options or {})
        return self._check_prompt(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _render(
        self, turns: Turns, tools: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> str:
        """Return a conversation as text, written by the chat template."""
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    list(turns),
                    tools=list(tools) or None,
                    tokenize=False,
                    add_generation_prompt=True,
                    **options,
                )
            )
        except TemplateError as error:
            raise RecipeError(f"the chat template rejects these turns: {error}") from error
        except (TypeError, KeyError, AttributeError, ValueError, RecursionError) as error:
            # the template needs something that these turns do not have
            raise RecipeError(
                f"the chat template fails on these turns: {type(error).__name__}: {error}"
            ) from error

    def _check_functions(
        self, turns: Turns, tools: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> None:
        """Raise RecipeError if the chat template ignores a tool or a call of one.

        A function's name may also occur elsewhere in the conversation, so this test replaces the
        names by unique ones.
        """
        # kind and name of each function, by the unique name that replaces it
        names: dict[str, tuple[str, str]] = {}

        def renamed(kind: str, one: Mapping[str, Any]) -> dict[str, Any]:
            function = one.get("function", one)
            probe = f"function_probe_{len(names)}_"
            names[probe] = kind, str(function["name"])
            changed = {**function, "name": probe}
            if "function" in one:
                return {**one, "function": changed}
            return changed

        probed_tools = [renamed("tools", tool) for tool in tools]
        probed_turns = []
        for turn in turns:
            calls = [renamed("tool calls", call) for call in turn.get("tool_calls") or ()]
            probed_turns.append({**turn, "tool_calls": calls} if calls else turn)
        text = self._render(probed_turns, probed_tools, options) if names else ""
        for probe, (kind, name) in names.items():
            if probe not in text:
                raise RecipeError(
                    f"the chat template does not write {kind}, so the model would not see "
                    f"{name[:60]!r}"
                )

    def _check_options(
        self, options: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]
    ) -> None:
        """Check that the chat template uses each option, and that users may set it.

        Raises:
            RecipeError: an option is unknown or reserved.
        """
        template = self.tokenizer.get_chat_template(None, list(tools) or None)
        reserved = {
            "messages",
            *inspect.signature(self.tokenizer.apply_chat_template).parameters,
            *self.tokenizer.special_tokens_map,
        }
        known_options = sorted(template_variables(template) - reserved)
        for name in options:
            if name not in known_options:
                raise RecipeError(
                    f"the chat template has no option {name[:60]!r}; its options are "
                    f"{', '.join(known_options) or 'none'}"
                )

    def _check_prompt(self, ids: Sequence[int]) -> list[int]:
        """Return a prompt's tokens. Raises RecipeError if there are none, and FedseedError if there
        are too many.
        """
        if not ids:
            raise RecipeError("the prompt is empty")
        self._room(ids)
        return list(ids)

    def _room(self, ids: Sequence[int]) -> int:
        """Return how many tokens may be written after a prompt."""
        room = self.max_tokens
        limit = None if self._encodes else longest_input(self.model)
        if limit is not None:
            room = min(room, limit - len(ids))
        if room < 1:
            raise FedseedError(
                f"the prompt has {len(ids):,} tokens, but the model has only {limit:,} "
                "positions: shorten the prompt"
            )
        return room

    def write(
        self,
        ids: Sequence[int],
        on_text: OnText | None = None,
        is_cancelled: Callable[[], bool] = lambda: False,
        markers: Sequence[str] = (),
    ) -> Written:
        """Return the model's continuation of a prompt.

        Args:
            ids: the prompt's tokens (`prompt_ids`, `chat_ids`).
            on_text: called with pieces of the text, each as soon as no later token can change it.
                Joined, they are the returned text.
            is_cancelled: called after each token; if it returns True, the text ends there.
            markers: special tokens to keep in the text, such as one that begins a tool call.

        Raises:
            NonFiniteError: the model's logits are not numbers.
        """
        room = self._room(ids)
        device, pad = next(self.model.parameters()).device, self.tokenizer.pad_token_id
        if pad is None and self._ends:
            pad = self._ends[0]
        decode = partial(self._decode, markers=self._marker_ids(markers))
        follower = _TextFollower(
            decode,
            self.stops,
            on_text,
            is_cancelled,
            0 if self._encodes else len(ids),
            bool(getattr(self.tokenizer, "clean_up_tokenization_spaces", False)),
        )
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(self.seed)
            (new,) = continue_prompts(
                self.model,
                [ids],
                pad,
                room,
                self._encodes,
                scored=False,
                tokenizer=self.tokenizer,  # needed if the base's settings have stop strings
                **self._options,
                stopping_criteria=[follower],
            )
        text = decode(new)
        stop = _first_stop(text, self.stops)
        text = text[:stop]
        follower.finish(text)
        # there was room left, so something else ended the text
        has_ended = new[-1] in self._ends or len(new) < room
        return Written(text, len(ids), len(new), stop is not None or has_ended)

    def _marker_ids(self, markers: Sequence[str]) -> frozenset[int]:
        """Return the special tokens among these texts."""
        special = {
            str(token): number
            for number, token in self.tokenizer.added_tokens_decoder.items()
            if token.special
        }
        return frozenset(special[text] for text in markers if text in special)

    def _decode(self, ids: Sequence[int], markers: frozenset[int]) -> str:
        """Return tokens as text, without special tokens except `markers`."""
        if not markers.intersection(ids):
            return str(self.tokenizer.decode(ids, skip_special_tokens=True))
        dropped = {
            number
            for number, token in self.tokenizer.added_tokens_decoder.items()
            if token.special and number not in markers
        }
        kept_ids = [token for token in ids if token not in dropped]
        return str(self.tokenizer.decode(kept_ids, skip_special_tokens=False))


class _TextFollower:
    """A stopping criterion for transformers' `generate` that passes on the text while it is
    written.

    Args:
        decode: turns tokens into text.
        stops: texts that end the answer.
        on_text: called with pieces of the text; None: not called.
        is_cancelled: if it returns True, the text ends.
        start: index of the first new token.
        cleans_up: whether decoding removes blanks from earlier text ("do n't").
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        stops: Sequence[str],
        on_text: OnText | None,
        is_cancelled: Callable[[], bool],
        start: int,
        cleans_up: bool,
    ) -> None:
        self._decode = decode
        self._stops = stops
        self._on_text = on_text
        self._is_cancelled = is_cancelled
        self._start = start
        self._cleans_up = cleans_up
        self._sent = 0  # number of characters passed on

    def __call__(self, ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        is_over = self._is_cancelled()
        if not is_over and (self._stops or self._on_text):
            text = self._decode(ids[0, self._start :].tolist())
            stop = _first_stop(text, self._stops)
            is_over = stop is not None
            end = self._settled_length(text) if stop is None else stop
            self.finish(text[:end])
        return torch.tensor([is_over], device=ids.device)

    def finish(self, text: str) -> None:
        """Pass on the rest of a text."""
        if self._on_text is not None and len(text) > self._sent:
            self._on_text(text[self._sent :])
            self._sent = len(text)

    def _settled_length(self, text: str) -> int:
        """Return how many characters of a text no later token can change or cut off."""
        # the text may end with the first bytes of a character whose other bytes follow
        end = len(text.rstrip("\ufffd"))
        if self._cleans_up:
            end = max(0, text.rfind(" ", 0, end))
        longest = 0
        for stop in self._stops:
            for length in range(1, min(len(stop), end + 1)):
                if text.endswith(stop[:length], 0, end):
                    longest = max(longest, length)
        return end - longest


def _first_stop(text: str, stops: Sequence[str]) -> int | None:
    """Return the position of the first stop text in a text; None if it has none."""
    places = [text.find(stop) for stop in stops]
    return min((place for place in places if place >= 0), default=None)


def _refuse_nan(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Return the logits unchanged. Raises NonFiniteError if one of them is not finite."""
    if torch.isnan(scores).any():
        raise NonFiniteError(
            "the model's logits are not numbers, because its run has diverged; use an earlier round"
        )
    return scores
