"""Shows a recipe's examples as its model will see them: tokens, and which of them count for the
loss.

Reads no weights.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

from fedseed.errors import RecipeError, plural
from fedseed.models.architectures import LOADERS
from fedseed.models.checkpoint import find_checkpoint
from fedseed.models.loading import outline, read_config, read_processor
from fedseed.objectives.classification import ClassifiedText, ScoredText
from fedseed.objectives.kinds import ExampleKind
from fedseed.objectives.losses import Objective, Options
from fedseed.objectives.masked import Blank, Prompted
from fedseed.objectives.preferences import Pair
from fedseed.objectives.prepared import Prepared, describe_changes, describe_idle, prepare
from fedseed.objectives.rewarded import RewardedTokens
from fedseed.objectives.tokens import Tokens, longest_input, stated_positions
from fedseed.recipe.settings import Recipe
from fedseed.runs.model_setup import (
    assemble_equipment,
    choose_kind,
    make_objective,
    room_left,
)
from fedseed.runs.parties import load_present
from fedseed.tasks.data import Picture, TaskData

PART = "\ufffd"  # what a tokenizer writes for a part of a character
MOST_PARTS = 8  # tokens that may be needed for whole characters
REST = "·"  # a token that is the rest of a character


class ExamplePreview(NamedTuple):
    """An example as tokens."""

    title: str  # the example's number and how it was prepared
    # the tokens' texts, and whether each counts for the loss
    pieces: tuple[tuple[str, bool], ...]
    # further information, such as the other options
    note: str = ""


def preview(
    recipe: Recipe, client: str | None = None, examples: int = 2
) -> tuple[list[ExamplePreview], tuple[str, ...]]:
    """Prepare a recipe's examples, and return some of them as tokens, with notes about all.

    Args:
        recipe: the recipe.
        client: the client whose examples are shown; None: the first.
        examples: how many examples are shown.

    Raises:
        RecipeError: the data or the tokenizer can't be loaded, there is no such client, or the
            examples are pictures.
    """
    data = load_present(recipe)
    clients_by_name = {one.name: one for one in data.clients}
    if client is not None and client not in clients_by_name:
        raise RecipeError(
            f"--client {client}: no such client; the clients are "
            f"{', '.join(list(clients_by_name)[:12])}"
        )
    objective, limit, prepared = _prepare(recipe, data)
    whose = clients_by_name[client] if client is not None else data.clients[0]
    previews = []
    for number, example in enumerate(whose.examples[:examples], 1):
        place = ""
        if getattr(example, "place", ""):
            place = f" ({example.place})"
        title = f"{whose.name}, example {number} of {len(whose.examples):,}{place}"
        items = objective.prepare([example])
        if not items:
            previews.append(ExamplePreview(f"{title}: left out (over {limit})", ()))
        for part_number, item in enumerate(items, 1):
            part = ""
            if len(items) > 1:
                part = f", part {part_number} of {len(items)}"
            if isinstance(item, Pair):
                previews += _preview_pair(title, item, objective)
            else:
                previews.append(_preview_item(f"{title}{part}", item, objective, example))
    notes = (
        *data.notes,
        *describe_idle(prepared),
        *describe_changes(prepared, limit),
        *_step_size(recipe),
    )
    return previews, notes


def _step_size(recipe: Recipe) -> tuple[str, ...]:
    """Return a note on how many examples an optimiser step uses; empty for methods without local
    steps.
    """
    training = getattr(recipe.method, "training", None)
    if training is None:
        return ()
    count, batch, accumulation = (
        training.batch * training.accumulation,
        training.batch,
        training.accumulation,
    )
    return (
        f"each local step uses {plural(count, 'example')}: method.training.batch = {batch} times "
        f"method.training.accumulation = {accumulation}",
    )


def _prepare(recipe: Recipe, data: TaskData) -> tuple[Objective, str, list[Prepared]]:
    """Prepare all clients' examples, and return them with their objective and the limit on an
    example's length.

    A model's class takes seconds to import. It is imported only if it is needed: when examples may
    be too long for the model, or may have tokens without an embedding.
    """
    kind, head = choose_kind(recipe, data)
    if kind.example is Picture:
        raise RecipeError(
            f'task.name = "{recipe.task.name}": its examples are pictures, but a preview '
            "shows tokens"
        )
    base, code = recipe.model.base, recipe.model.trust_remote_code
    checkpoint, loader = find_checkpoint(base), LOADERS[kind.architecture]
    processor = read_processor(checkpoint, loader, code)
    config = read_config(base, code, kind.architecture, head)
    if checkpoint.adapter is None and config.model_type in loader.names:
        prepared = _prepare_by_config(recipe, data, kind, config, processor)
        if prepared is not None:
            return prepared
    model = outline(base, trust_remote_code=code, architecture=kind.architecture, head=head)
    room = room_left(recipe, longest_input(model))
    equipment = assemble_equipment(recipe, data, kind, model, processor, room)
    objective = equipment.objective
    examples = [prepare(objective, one.name, one.examples) for one in data.clients]
    return objective, equipment.limit, examples


def _prepare_by_config(
    recipe: Recipe, data: TaskData, kind: ExampleKind, config: Any, processor: Any
) -> tuple[Objective, str, list[Prepared]] | None:
    """Do the work of `_prepare` with only the model's configuration.

    Returns:
        None if only the model itself can show how an example is prepared.
    """
    # models such as RoBERTa have no positions below that of padding
    positions = stated_positions(config)
    if positions is not None:
        positions -= 1 + (config.get_text_config().pad_token_id or 0)
    room = room_left(recipe, positions)
    objective, _, limit, _ = make_objective(recipe, data, kind, config, processor, room)
    objective.rows = getattr(config.get_text_config(), "vocab_size", None)
    try:
        prepared = [prepare(objective, one.name, one.examples) for one in data.clients]
    except RecipeError:  # a token beyond the embeddings
        return None
    if any(one.dropped or one.cut for one in prepared):
        return None
    return objective, limit, prepared


def _preview_pair(title: str, pair: Pair, objective: Any) -> list[ExamplePreview]:
    """Return previews of both answers of a preference, each after the prompt."""
    note = (
        "the loss compares how much the model and the base prefer this answer (DPO, beta = "
        f"{objective.beta:g})"
    )
    previews = []
    for place, sequence in enumerate(pair.sequences):
        is_chosen = place < pair.chosen_count
        side = "chosen" if is_chosen else "rejected"
        one = _preview_item(f"{title}, {side}", sequence, objective, None)
        previews.append(ExamplePreview(one.title, one.pieces, note if is_chosen else ""))
    return previews


def _preview_item(title: str, item: Any, objective: Any, example: Any) -> ExamplePreview:
    """Return an item as tokens: its text, its text with the right option, or its text with the
    blank.
    """
    tokens, counts, note = item, "", ""
    if isinstance(item, Options | Prompted):
        counts = "the loss is about which option follows"
        note = f"options: {' / '.join(option.strip() for option in example.options)}"
    if isinstance(item, Options):
        tokens = item.sequences[item.gold]
        if item.teacher_forcing:
            counts = ""
    elif isinstance(item, Prompted):
        tokens = Tokens((*item.ids, item.words[item.gold]), len(item.ids))
    elif isinstance(item, Blank):
        tokens = Tokens(item.ids, item.mask, ((item.mask, item.mask + 1),))
        counts, note = (
            "the loss is about which word fills the blank",
            f"words: {' / '.join(w.strip() for w in example.words)}",
        )
    elif isinstance(item, ClassifiedText):
        tokens = Tokens(item.ids, len(item.ids), ((0, 0),))
        counts, note = "the loss is about the class", f"class: {item.gold}"
    elif isinstance(item, ScoredText):
        tokens = Tokens(item.ids, len(item.ids), ((0, 0),))
        counts, note = "the loss is the error of the predicted number", f"score: {item.value:g}"
    elif isinstance(item, RewardedTokens):
        counts = "the reward scores what the model generates after the prompt"
    elif not isinstance(item, Tokens):
        raise RecipeError(
            f"a preview shows tokens, but these examples have none ({type(item).__name__})"
        )
    learnt = set(chain.from_iterable(range(begin, end) for begin, end in tokens.learnt))
    texts = _texts(objective.tokenizer, tokens.ids)
    pieces = tuple((text, position in learnt) for position, text in enumerate(texts))
    counts = counts or f"{tokens.terms:,} of them count for the loss"
    cut = ""
    if tokens.cut:
        cut = f", {tokens.cut:,} more were cut"
    return ExamplePreview(f"{title}: {len(tokens.ids):,} tokens, {counts}{cut}", pieces, note)


def _texts(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Return the text of each token; of tokens that make up a character together, the first has it
    and the others are `REST`.

    Decoding tokens one by one would lose the blank at the beginning of a text, which is part of its
    first token.
    """
    raw_tokens = tokenizer.convert_ids_to_tokens(list(ids))
    texts: list[str] = []
    while len(texts) < len(ids):
        begin = len(texts)
        text, count = _whole_characters(tokenizer, ids[begin:])
        raw = str(raw_tokens[begin])
        blank = raw.startswith(("▁", "Ġ")) and not text.startswith(" ")
        texts += [f" {text}" if blank else text or raw, *[REST] * (count - 1)]
    return texts


def _whole_characters(tokenizer: Any, ids: Sequence[int]) -> tuple[str, int]:
    """Return the text of the fewest first tokens that end in no part of a character, and their
    number.

    Byte-level tokenizers have several tokens for a character that is rare in their data, such as
    an umlaut.
    """
    for count in range(1, min(len(ids), MOST_PARTS) + 1):
        text = str(tokenizer.decode(list(ids[:count])))
        if PART not in text:
            return text, count
    return str(tokenizer.decode([ids[0]])), 1
