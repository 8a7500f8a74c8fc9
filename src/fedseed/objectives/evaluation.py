"""Evaluation on held-out examples: batched and deterministic."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import groupby
from math import exp
from typing import Any

import torch

from fedseed.models import adapters
from fedseed.objectives.generation import continued
from fedseed.objectives.losses import Objective, Scoring, TextObjective
from fedseed.objectives.tokens import longest_input
from fedseed.tasks import metrics as scoring
from fedseed.tasks.data import Example


@torch.no_grad()
def mean_loss(model: torch.nn.Module, objective: Objective, items: Sequence[Any], batch: int = 32) -> float:
    """Returns the mean loss over all terms (response tokens) of all items."""
    model.eval()
    parts = (items[at : at + batch] for at in range(0, len(items), batch))
    return sum(float(objective.losses(model, part).sum()) for part in parts) / sum(map(objective.weight, items))


@torch.no_grad()
def generate(
    model: Any,
    objective: TextObjective,
    prompts: Sequence[str] | Sequence[Sequence[int]],
    max_new_tokens: int,
    batch: int = 64,
    stop: str = "",
    ends: Sequence[int] = (),
    around: Callable[[Sequence[int]], AbstractContextManager[Any]] | None = None,
) -> list[str]:
    """Returns greedy responses, in the order of the prompts, which are batched by length.

    A prompt that leaves fewer positions than `max_new_tokens` gets as many tokens as the model has room for.
    With an adapter's virtual tokens only prompts of one length share a batch: padding would stand between the virtual
    tokens and the prompt, and push them away from each other.

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
    encoded = [objective.prompt_ids(prompt) if isinstance(prompt, str) else list(prompt) for prompt in prompts]
    limit, encodes = longest_input(model), objective.encodes
    taken = [1 if encodes else len(ids) for ids in encoded]  # of the positions: an encoder-decoder's start token
    room = [max_new_tokens if limit is None else min(max_new_tokens, limit - count) for count in taken]
    stops = [tokenizer.eos_token_id, *ends]
    if stop:  # generation may end early where the stop is one token; the text is cut in any case
        last = objective.ids_of(stop)[-1]
        stops += [last] if tokenizer.decode([last]) == stop else []
    how: dict[str, Any] = {} if encodes else {"eos_token_id": stops}  # an encoder-decoder's configuration says it
    texts = [""] * len(prompts)
    apart = adapters.has_virtual_tokens(model)
    most = max(room, default=0)
    order = sorted((i for i in range(len(encoded)) if 0 < room[i] == most), key=lambda i: (len(encoded[i]), i))
    parts = [list(group) for _, group in groupby(order, lambda i: len(encoded[i]) if apart else 0)]
    batches = [part[at : at + batch] for part in parts for at in range(0, len(part), batch)]
    # alone where there is less room than wanted, for that depends on a prompt's length
    for rows in [*batches, *([i] for i in range(len(encoded)) if 0 < room[i] < most)]:
        with nullcontext() if around is None else around(rows):
            found = continued(model, [encoded[i] for i in rows], objective.pad, room[rows[0]], encodes, **how)
        for i, tokens in zip(rows, found, strict=True):
            said = next((at for at, token in enumerate(tokens) if token in ends), len(tokens))
            text = tokenizer.decode(tokens[:said], skip_special_tokens=True)
            texts[i] = text.split(stop)[0] if stop else text
    return texts


def language_metrics(
    model: torch.nn.Module,
    objective: Any,
    examples: Sequence[Example],
    max_new_tokens: int = 32,
    scores: Sequence[str] = ("rouge_l",),
) -> dict[str, float]:
    """Returns loss, perplexity and scores of greedy responses (names of `fedseed.tasks.metrics.REGISTRY`).

    Examples that are too long for the objective count for neither.

    Args:
        model: a language model.
        objective: makes items of the examples, and losses.
        examples: what is evaluated on.
        max_new_tokens: of each response.
        scores: which scores.

    Raises:
        ValueError: no example is usable.
    """
    prepared = [(example, items) for example in examples if (items := objective.prepare([example]))]
    usable, last = [example for example, _ in prepared], [items[-1] for _, items in prepared]
    check_some(usable, examples, objective.max_length)
    loss = mean_loss(model, objective, [item for _, items in prepared for item in items])
    metrics = {"loss": loss, "perplexity": exp(min(loss, 700.0))}
    if scores:
        responses = responses_to(model, objective, usable, last, max_new_tokens)
        answers = [e.answers or (e.response,) for e in usable]
        metrics.update({name: scoring.REGISTRY.get(name)(responses, answers) for name in scores})
    return metrics


def responses_to(
    model: torch.nn.Module,
    objective: TextObjective,
    examples: Sequence[Example],
    items: Sequence[Any],
    max_new_tokens: int,
    around: Callable[[Sequence[int]], AbstractContextManager[Any]] | None = None,
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
        own = None if around is None else partial(_among, around, rows)
        found = generate(model, objective, prompts, max_new_tokens, stop=stop, ends=ends, around=own)
        for i, text in zip(rows, found, strict=True):
            texts[i] = text
    return texts


def _among(around: Any, rows: Sequence[int], numbers: Sequence[int]) -> AbstractContextManager[Any]:
    return around([rows[number] for number in numbers])


def choice_metrics(
    model: torch.nn.Module, objective: Scoring, examples: Sequence[Any], batch: int = 32, classes: bool = False
) -> dict[str, float]:
    """Returns loss, and accuracy in percent: how often a right option has the highest score (the first of equal ones).

    Args:
        model: what scores them.
        objective: scores the options.
        examples: of the kind that the objective takes.
        batch: sequences (options, texts, pictures) in a batch.
        classes: the options are classes: give the mean of their F1, too ("macro_f1").

    Raises:
        ValueError: no example is usable.
    """
    model.eval()
    items = objective.prepare(examples)
    check_some(items, examples, getattr(objective, "max_length", 0))
    loss, found = 0.0, []
    for at in range(0, len(items), batch):
        part: list[Any] = list(items[at : at + batch])
        with torch.no_grad():
            scores = objective.scores(model, part, batch)
            loss += float(objective.losses_of(scores, part).sum())
        found += [row.index(max(row)) for row in scores.tolist()]
    gold = [item.gold for item in items]
    right = sum(said in (getattr(item, "right", ()) or (item.gold,)) for said, item in zip(found, items, strict=True))
    metrics = {"loss": loss / sum(map(objective.weight, items)), "accuracy": 100.0 * right / len(items)}
    return metrics | ({"macro_f1": scoring.macro_f1(found, gold)} if classes else {})


def check_some(usable: Sequence[Any], examples: Sequence[Any], max_length: int) -> None:
    """Raises ValueError if none of the examples is usable."""
    if not examples:
        raise ValueError("no example to evaluate on")
    if not usable:
        raise ValueError(f"none of {len(examples)} examples is usable: all are longer than {max_length} tokens")
