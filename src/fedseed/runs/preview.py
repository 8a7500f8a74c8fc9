"""A recipe's examples as its model will see them: tokens, and which of them count for the loss.

No weights are read.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from fedseed.errors import RecipeError, plural
from fedseed.models.architectures import LOADERS
from fedseed.models.checkpoint import find_checkpoint
from fedseed.models.loading import outline, read_processor
from fedseed.objectives.classification import ClassifiedText, ScoredText
from fedseed.objectives.losses import Options
from fedseed.objectives.masked import Blank, Prompted
from fedseed.objectives.preferences import Pair
from fedseed.objectives.prepared import describe_changes, describe_idle, prepare
from fedseed.objectives.rewarded import RewardedTokens
from fedseed.objectives.tokens import Tokens
from fedseed.recipe.settings import Recipe
from fedseed.runs.model_setup import Equipment, equipped, kind_for, room_left
from fedseed.tasks.data import Picture, TaskData


class Shown(NamedTuple):
    """An example as tokens."""

    title: str  # which one it is, and what became of it
    # the tokens' texts, and whether each counts for the loss
    pieces: tuple[tuple[str, bool], ...]
    # what else there is to know, such as the other options
    note: str = ""


def preview(
    recipe: Recipe, client: str | None = None, examples: int = 2
) -> tuple[list[Shown], tuple[str, ...]]:
    """Makes a recipe's examples ready; returns some of them as tokens, and notes about all.

    Args:
        recipe: the recipe.
        client: whose examples are shown; None: the first client's.
        examples: how many are shown.

    Raises:
        RecipeError: the data or the tokenizer can't be had, there is no such client, or the
            examples are pictures.
    """
    data = recipe.task.load()
    named = {one.name: one for one in data.clients}
    if client is not None and client not in named:
        raise RecipeError(
            f"--client {client}: there is no such client, but {', '.join(list(named)[:12])}"
        )
    equipment = _equip(recipe, data)
    objective, limit = equipment.objective, equipment.limit
    whose = named[client] if client is not None else data.clients[0]
    prepared = [prepare(objective, one.name, one.examples) for one in data.clients]
    shown = []
    for number, example in enumerate(whose.examples[:examples], 1):
        place = f" ({example.where})" if getattr(example, "where", "") else ""
        title = f"{whose.name}, example {number} of {len(whose.examples):,}{place}"
        items = objective.prepare([example])
        if not items:
            shown.append(Shown(f"{title}: left out (over {limit})", ()))
        for at, item in enumerate(items, 1):
            part = f", part {at} of {len(items)}" if len(items) > 1 else ""
            if isinstance(item, Pair):
                shown += _shown_pair(title, item, objective)
            else:
                shown.append(_shown(f"{title}{part}", item, objective, example))
    notes = (
        *data.notes,
        *describe_idle(prepared),
        *describe_changes(prepared, limit),
        *_step_size(recipe),
    )
    return shown, notes


def _step_size(recipe: Recipe) -> tuple[str, ...]:
    """Return a line about how many examples an optimiser step is of, where clients take such."""
    training = getattr(recipe.method, "training", None)
    if training is None:
        return ()
    count, batch, accumulation = (
        training.batch * training.accumulation,
        training.batch,
        training.accumulation,
    )
    return (
        f"a local step is of {plural(count, 'example')}: method.training.batch = {batch} times "
        f"method.training.accumulation = {accumulation}",
    )


def _equip(recipe: Recipe, data: TaskData) -> Equipment:
    """Return the parts that make tokens of the examples, within the positions of the model, which
    has no weights here.
    """
    settings = recipe.model
    kind, head = kind_for(recipe, data)
    if kind.example is Picture:
        raise RecipeError(
            f'task.name = "{recipe.task.name}": its examples are pictures; a preview shows tokens'
        )
    code = settings.trust_remote_code
    model = outline(
        settings.base, trust_remote_code=code, architecture=kind.architecture, head=head
    )
    loader = LOADERS[kind.architecture]
    processor = read_processor(find_checkpoint(settings.base), loader, code)
    return equipped(recipe, data, kind, model, processor, room_left(recipe, model))


def _shown_pair(title: str, pair: Pair, objective: Any) -> list[Shown]:
    """Return both answers of a preference, each after its prompt."""
    note = (
        "the loss is by how much more than its base the model prefers it (DPO, beta = "
        f"{objective.beta:g})"
    )
    shown = []
    for place, sequence in enumerate(pair.sequences):
        is_chosen = place < pair.chosen_count
        side = "chosen" if is_chosen else "rejected"
        one = _shown(f"{title}, {side}", sequence, objective, None)
        shown.append(Shown(one.title, one.pieces, note if is_chosen else ""))
    return shown


def _shown(title: str, item: Any, objective: Any, example: Any) -> Shown:
    """Returns an item as tokens: its own, its right option's, or those of its text with the
    blank.
    """
    tokens, counts, note = item, "", ""
    if isinstance(item, Options | Prompted):
        counts = "the loss is which option follows"
        note = f"options: {' / '.join(option.strip() for option in example.options)}"
    if isinstance(item, Options):
        tokens = item.sequences[item.gold]
        counts = "" if item.teacher_forcing else counts
    elif isinstance(item, Prompted):
        tokens = Tokens((*item.ids, item.words[item.gold]), len(item.ids))
    elif isinstance(item, Blank):
        tokens = Tokens(item.ids, item.mask, ((item.mask, item.mask + 1),))
        counts, note = (
            "the loss is which word stands there",
            f"words: {' / '.join(w.strip() for w in example.words)}",
        )
    elif isinstance(item, ClassifiedText):
        tokens = Tokens(item.ids, len(item.ids), ((0, 0),))
        counts, note = "the loss is which class it is", f"class: {item.gold}"
    elif isinstance(item, ScoredText):
        tokens = Tokens(item.ids, len(item.ids), ((0, 0),))
        counts, note = "the loss is how far off the predicted number is", f"score: {item.value:g}"
    elif isinstance(item, RewardedTokens):
        counts = "the reward is of what the model says after the prompt"
    elif not isinstance(item, Tokens):
        raise RecipeError(
            f"a preview shows tokens; these examples have none ({type(item).__name__})"
        )
    learnt = {at for begin, end in tokens.learnt for at in range(begin, end)}
    texts = _texts(objective.tokenizer, tokens.ids)
    pieces = tuple((text, at in learnt) for at, text in enumerate(texts))
    counts = counts or f"{tokens.terms:,} of them count"
    cut = f", {tokens.cut:,} more were cut" if tokens.cut else ""
    return Shown(f"{title}: {len(tokens.ids):,} tokens, {counts}{cut}", pieces, note)


def _texts(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Returns the text of each token.

    A decoder leaves out the blank before a text, a part of its first token.
    """
    texts = []
    for token, raw in zip(ids, tokenizer.convert_ids_to_tokens(list(ids)), strict=True):
        text = tokenizer.decode([token])
        blank = str(raw).startswith(("▁", "Ġ")) and not text.startswith(" ")
        texts.append(f" {text}" if blank else text or str(raw))
    return texts
