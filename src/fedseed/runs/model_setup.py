"""Sets up a run's model: loads it, and makes its objective and its evaluation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch

from fedseed.attacks.updates import SINGLE
from fedseed.errors import RecipeError
from fedseed.federation.client.group import lead_group, space_of
from fedseed.federation.client.state import Hosted
from fedseed.federation.client.worker import Worker
from fedseed.federation.control import HELD_OUT, VALIDATION, average_metrics
from fedseed.federation.fingerprint import Fingerprint
from fedseed.models import PACKAGED, adapters
from fedseed.models.heads import Head
from fedseed.models.quantization import BITS, check_tunable, describe_quantized, quantization_of
from fedseed.models.targets import chosen_targets, freeze_others
from fedseed.objectives.evaluation import mean_loss, measure, score_notes
from fedseed.objectives.losses import Choices, Objective, Scoring, TextObjective
from fedseed.objectives.preferences import Preferences
from fedseed.objectives.prepared import (
    Prepared,
    describe_changes,
    describe_idle,
    describe_left_out,
    prepare,
    prepare_sets,
    with_reference,
)
from fedseed.objectives.settings import EvaluationSettings
from fedseed.objectives.tokens import longest_input
from fedseed.orbit import AdapterStart, Header
from fedseed.orbit.replay import libraries_here
from fedseed.processes import GROUP
from fedseed.recipe.settings import Recipe
from fedseed.runs.spec import RunSpec
from fedseed.runs.stopping import VALIDATION_LOSS
from fedseed.tasks.data import ClientData, Example, TaskData
from fedseed.text import listed
from fedseed.weights.digest import base_digest, dtype_name

# modules that load transformers are imported where they are used, because a user's torch model
# needs none of them
if TYPE_CHECKING:
    from fedseed.objectives.kinds import ExampleKind


SHOWN = 6  # how many classes a message names
# measures a model: returns metrics by name, and by client where clients hold out data
Evaluation = Callable[[Any], dict[str, Any]]


@dataclass(frozen=True)
class Equipment:
    """A recipe's model, with its objective and settings."""

    model: Any  # the base
    processor: Any  # its tokenizer or image processor
    # name patterns of the parameters that train; None: all
    trainable: Sequence[str] | None
    objective: Objective  # makes losses of examples
    measured: EvaluationSettings  # the recipe's settings, limited to what the model can take
    limit: str  # the limit on an example's length, as a text for messages
    # how many tokens the base can take; None: any number
    room: int | None
    # a classifier's classes, in the order of its outputs
    classes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # notes about the base, for the user


def equip(recipe: Recipe, data: TaskData) -> Equipment:
    """Load a recipe's model for the examples of its task.

    Raises:
        RecipeError: the model can't be loaded, or does not fit the data or the method.
    """
    from fedseed.models.loading import (
        checkpoint_activations,
        choose_trainable,
        load_model,
        trainable_names,
    )
    from fedseed.models.traits import traits_of

    settings = recipe.model
    kind, head = choose_kind(recipe, data)
    model, processor = load_model(
        settings.base,
        settings.dtype,
        settings.trust_remote_code,
        kind.architecture,
        head,
        # in a group of processes, each loads the whole model into memory and keeps its shard
        settings.device if GROUP == 1 else "cpu",
        settings.attention,
        settings.quantization,
    )
    if settings.activation_checkpointing:
        checkpoint_activations(model, settings.base)
    trainable = trainable_names(model, settings.base, settings.trainable)
    adapter = adapters.choose_adapter(settings.adapter, recipe.method.adapter, recipe.method.name)
    if adapters.is_installed(model):
        if settings.adapter is not None:
            raise RecipeError(
                f'model.adapter: model.base = "{settings.base}" is an adapter already, and this '
                "run tunes it further: leave out model.adapter, or merge the adapter into its "
                "base first (merge_and_unload of peft)"
            )
        adapter = adapters.settings_of(model)
    equipment = assemble_equipment(
        recipe, data, kind, model, processor, room_left(recipe, longest_input(model)), trainable
    )
    if adapter is None:  # with an adapter, they are chosen after it is installed
        key = "model.trainable"
        if trainable is None:
            key = "method.targets"
            # check before the method's own choice, which would pick only parameters that are not
            # quantised
            check_tunable(model)
            trainable = chosen_targets(recipe.method, model)
        choose_trainable(model, trainable, key)
    elif settings.trainable == "head":
        raise RecipeError(
            'model.trainable = "head": can\'t be combined with an adapter; give name patterns '
            'instead, such as ["*lora*", "*classifier*"] for both'
        )
    return replace(equipment, trainable=trainable, notes=tuple(traits_of(model).notes))


def choose_kind(
    recipe: Recipe, data: TaskData, config: Mapping[str, Any] | None = None
) -> "tuple[ExampleKind, Head | None]":
    """Return the kind of a recipe's examples, and the head of a classifier (None for other models).

    Args:
        recipe: the recipe.
        data: the task's data.
        config: the config of a model that is loaded already; None: the config of the recipe's base.

    Raises:
        RecipeError: the model can't learn from such examples, or its base can't be loaded; or the
            recipe scores answers or counts tokens, but the examples have none.
    """
    from fedseed.models.architectures import architecture_of
    from fedseed.models.loading import base_config
    from fedseed.objectives.kinds import kind_of, rewarded

    settings = recipe.model
    try:
        base = architecture_of(base_config(settings.base) if config is None else config)
        kind, classes = kind_of(data, base, settings.architecture, settings.prefix)
        if recipe.reward is not None:
            kind = rewarded(kind, recipe.reward)
    except ValueError as error:
        raise RecipeError(f'task.name = "{recipe.task.name}": {error}') from error
    if recipe.evaluation.metrics and (kind.example is not Example or not data.scores):
        raise RecipeError(
            f'evaluation.metrics = {recipe.evaluation.metrics}: task.name = "{recipe.task.name}" '
            "has no generated answers to score; remove this key"
        )
    tokens = getattr(getattr(recipe.method, "training", None), "batch_tokens", None)
    if tokens is not None and kind.architecture == "image":
        raise RecipeError(
            f"method.training.batch_tokens = {tokens}: pictures (task.name = "
            f'"{recipe.task.name}") have no tokens; remove this key and set method.training.batch'
        )
    return kind, Head(classes, recipe.seed) if classes else None


def room_left(recipe: Recipe, room: int | None) -> int | None:
    """Return how many tokens an example may have: what the base can take, minus the adapter's
    virtual tokens.

    Args:
        recipe: the recipe.
        room: the number of tokens that the base can take; None: any number.
    """
    adapter = adapters.choose_adapter(
        recipe.model.adapter, recipe.method.adapter, recipe.method.name
    )
    if room is None:
        return None
    return room - adapters.virtual_tokens(adapter)


def assemble_equipment(
    recipe: Recipe,
    data: TaskData,
    kind: "ExampleKind",
    model: Any,
    processor: Any,
    positions: int | None,
    trainable: Sequence[str] | None = None,
) -> Equipment:
    """Return a loaded model with its objective and evaluation settings.

    Examples may have at most `positions` tokens; None: any number.

    The processor gets the chat template that the data uses, so that the exported model has it. A
    few passes examine the model (`fedseed.models.traits`).

    Raises:
        RecipeError: this processor can't prepare the examples, the model's classes differ from the
            data's, or the model's losses would be meaningless.
    """
    objective, measured, limit, classes = make_objective(
        recipe, data, kind, model.config, processor, positions
    )
    examine_base(model, objective)
    return Equipment(
        model, processor, trainable, objective, measured, limit, longest_input(model), classes
    )


def make_objective(
    recipe: Recipe,
    data: TaskData,
    kind: "ExampleKind",
    config: Any,
    processor: Any,
    positions: int | None,
) -> tuple[Objective, EvaluationSettings, str, tuple[str, ...]]:
    """Make the objective of a recipe's examples, without a model.

    The processor gets the chat template that the data uses.

    Args:
        recipe: the recipe.
        data: the task's data.
        kind: the kind of the examples.
        config: the model's transformers configuration.
        processor: the base's tokenizer or image processor.
        positions: the most tokens of an example; None: any number.

    Returns:
        The objective; the evaluation settings, limited to the model's positions; the limit on an
        example's length as a text for messages; and a classifier's classes in the order of its
        outputs.

    Raises:
        RecipeError: this processor can't prepare the examples, or the model's classes differ from
            the data's.
    """
    measured, limit = limit_settings(recipe.evaluation, positions)
    if data.chat_template:
        processor.chat_template = data.chat_template
    try:
        objective = kind.objective(processor, measured)
    except ValueError as error:
        raise RecipeError(f'model.base = "{recipe.model.base}": {error}') from error
    classes: tuple[str, ...] = ()
    if kind.architecture in ("classification", "image"):
        classes = match_outputs(recipe, data, kind, config, objective)
    return objective, measured, limit, classes


def match_outputs(
    recipe: Recipe, data: TaskData, kind: "ExampleKind", config: Any, objective: Objective
) -> tuple[str, ...]:
    """Set in a classifier's objective which output stands for which class of the data.

    Returns:
        The names of the model's outputs, in order.

    Raises:
        RecipeError: the model's classes differ from the data's.
    """
    from fedseed.models.heads import match_classes, output_names
    from fedseed.objectives.kinds import classes_of

    names, classes = output_names(config.to_dict()), classes_of(kind, data)
    if not classes:
        return ()
    outputs = match_classes(classes, names)
    if outputs is None and len(classes) == 1:
        raise RecipeError(
            f'task.name = "{recipe.task.name}": the model classifies into {listed(names, SHOWN)} '
            "and does not predict a number; fedseed run would give it a new head"
        )
    if outputs is None:
        raise RecipeError(
            f'task.name = "{recipe.task.name}": the model\'s classes are {listed(names, SHOWN)}, '
            f"but the data's are {listed(classes, SHOWN)}; to evaluate this model, use its class "
            "names (fedseed run would give it a new head)"
        )
    if outputs != tuple(range(len(names))) and isinstance(objective, Scoring):
        others = [output for output in range(len(names)) if output not in outputs]
        objective.outputs = (*outputs, *others)
    return names


def examine_base(model: Any, objective: Objective) -> None:
    """Examine a language model with a few short passes (`fedseed.models.traits`), and set the size
    of its embedding in the objective.

    Raises:
        RecipeError: the model's losses would be meaningless, or it can't compute a loss from text
            alone.
    """
    from fedseed.models.loading import embedding_rows
    from fedseed.models.traits import examine

    objective.rows = embedding_rows(model)
    language = _language_of(objective)
    texts = _probe_texts(language)
    if language is not None and texts:
        examine(model, texts, language.reads_both_sides)


def _examine_lora(model: Any, objective: Objective) -> list[str]:
    """Freeze the parts of a new LoRA that no text reaches, such as those in a vision tower, and
    return notes about them.

    Raises RecipeError if no text reaches any of it.
    """
    from fedseed.models.traits import rest_unreached_parts

    language = _language_of(objective)
    texts = _probe_texts(language)
    if language is None or not texts:
        return []
    return rest_unreached_parts(model, texts, language.reads_both_sides)


def _language_of(objective: Objective) -> TextObjective | None:
    """Return the objective that computes the losses of texts; None if there are no texts."""
    from fedseed.objectives.rewarded import Rewarded

    around_language = Rewarded | Choices | Preferences
    language = objective
    if isinstance(objective, around_language):
        language = objective.language
    return language if isinstance(language, TextObjective) else None


def _probe_texts(language: TextObjective | None) -> list[list[int]]:
    """Return the tokens of two texts to examine a model with; empty if it has no tokens for one."""
    from fedseed.models.traits import PROBES

    texts = [] if language is None else [list(language.probe_ids(text)) for text in PROBES]
    return texts if all(texts) else []


def fingerprint_of(processor: Any) -> Fingerprint | None:
    """Return the fingerprint of a base's tokenizer and chat template.

    Args:
        processor: the tokenizer, with the template used for chats.

    Returns:
        The fingerprint; None for an image processor or without a processor.
    """
    if not hasattr(processor, "convert_ids_to_tokens"):
        return None
    # these modules load transformers, which a user's own torch model does not need
    from fedseed.objectives.fingerprint import template_digest, tokens_digest, versions_here

    return Fingerprint(tokens_digest(processor), template_digest(processor), versions_here())


def limit_settings(
    settings: EvaluationSettings, positions: int | None
) -> tuple[EvaluationSettings, str]:
    """Return the settings limited to this number of positions, and the limit on an example's length
    as a text for messages.

    `positions` is None for any number.
    """
    if positions is not None and positions < settings.max_length:
        return settings.model_copy(
            update={"max_length": positions}
        ), f"the model's {positions:,} positions"
    return settings, f"evaluation.max_length = {settings.max_length:,} tokens"


def make_evaluation(
    recipe: Recipe,
    equipment: Equipment,
    data: TaskData,
    parts: Sequence[TaskData] | None = None,
    base: Callable[[], Any] | None = None,
) -> tuple[Evaluation, list[str]]:
    """Return a function that measures the model on a task's evaluation sets, and notes about the
    examples left out of them.

    Args:
        recipe: the recipe.
        equipment: the model.
        data: has the evaluation sets.
        parts: each party's own data. If the task has no shared evaluation set, each party is
            measured on its held-out examples, and the metrics are the means and, under "by_client",
            each client's own.
        base: loads the base model again, for objectives that compare with it; None: the equipment's
            model is still the base.

    Raises:
        RecipeError: no example of a set is usable.
    """
    add_reference = _referring(equipment, base)
    if parts is not None and not recipe.task.shares_evaluation:
        return _of_parties(recipe, equipment, parts, add_reference)
    from fedseed.objectives.kinds import short_answers

    objective, measured = equipment.objective, equipment.measured
    if recipe.stopping is not None and not data.validation:
        raise RecipeError(
            f'stopping: task.name = "{recipe.task.name}" has no validation examples, which '
            "early stopping needs"
        )
    validation_sets = {}
    if recipe.stopping:
        validation_sets = {"validation_": data.validation}
    try:
        sets, notes = prepare_sets(
            objective, {**data.evaluation, **validation_sets}, equipment.limit
        )
    except ValueError as error:
        name, remedy = recipe.model.base, ""
        # "words" and "digits" name a task and the packaged base that was trained for it
        if recipe.task.name in PACKAGED and recipe.task.name != name:
            remedy = f'; this task is for the packaged base: set model.base = "{recipe.task.name}"'
        raise RecipeError(
            f'task.name = "{recipe.task.name}" with model.base = "{name}": {error}{remedy}'
        ) from error
    sets = {prefix: add_reference(one) for prefix, one in sets.items()}
    validation = list(chain.from_iterable(sets.pop(prefix).items for prefix in validation_sets))
    if data.scores:
        notes += short_answers(objective, sets, equipment.room, measured)
        for one in sets.values():
            notes += score_notes(objective, one, data.scores, measured)

    def evaluate(model: Any) -> dict[str, float]:
        metrics: dict[str, float] = {}
        for prefix, examples in sets.items():
            figures = measure(model, objective, examples, data.scores, measured)
            metrics |= {prefix + name: value for name, value in figures.items()}
        if validation:
            metrics[VALIDATION_LOSS] = mean_loss(model, objective, validation)
        return metrics

    return evaluate, notes


def _referring(
    equipment: Equipment, base: Callable[[], Any] | None
) -> Callable[[Prepared], Prepared]:
    """Return a function that adds the base's log-probabilities to examples, if the loss needs them.
    `base` is that of `make_evaluation`.
    """
    if not isinstance(equipment.objective, Preferences):
        return lambda prepared: prepared
    model = equipment.model
    if base is not None:
        model = base()
    return lambda prepared: with_reference(equipment.objective, model, prepared)


def _of_parties(
    recipe: Recipe,
    equipment: Equipment,
    parts: Sequence[TaskData],
    add_reference: Callable[[Prepared], Prepared],
) -> tuple[Evaluation, list[str]]:
    objective = equipment.objective
    parties: list[tuple[str, TaskData, Prepared, list[Any]]] = []
    notes = []
    for data in parts:
        name = data.clients[0].name
        held_out = prepare(objective, f"the held-out examples of {name}", data.evaluation[""])
        notes += describe_left_out(held_out, equipment.limit)
        if data.scores and held_out.examples:
            notes += score_notes(objective, held_out, data.scores, equipment.measured)
        prepared_validation = prepare(objective, name, data.validation if recipe.stopping else ())
        parties.append(
            (name, data, add_reference(held_out), add_reference(prepared_validation).items)
        )

    def evaluate(model: Any) -> dict[str, Any]:
        by_client: dict[str, dict[str, float]] = {}
        for name, data, held_out, validation in parties:
            figures = by_client[name] = {HELD_OUT: len(held_out.examples)}
            if held_out.examples:
                figures |= measure(model, objective, held_out, data.scores, equipment.measured)
            if validation:
                figures |= {
                    VALIDATION: len(validation),
                    VALIDATION_LOSS: mean_loss(model, objective, validation),
                }
        return {"by_client": by_client, **average_metrics(by_client)}

    return evaluate, notes


def make_loss_evaluation(
    objective: Objective, sets: Mapping[str, Sequence[Any]], model: Any = None
) -> Evaluation:
    """Return a function that measures the mean loss on each set of held-out examples.

    Args:
        objective: computes losses of examples.
        sets: the examples, by the prefix of the set's metrics.
        model: the base model, for objectives that compare with it.

    Raises:
        RecipeError: a set has no usable example.
    """
    prepared_sets = {
        prefix: prepare(objective, prefix, examples) for prefix, examples in sets.items()
    }
    prepared = {
        prefix: with_reference(objective, model, one).items for prefix, one in prepared_sets.items()
    }
    for prefix, items in prepared.items():
        if not items:
            raise RecipeError(
                f'none of the {len(sets[prefix])} examples of the evaluation set "{prefix}" is '
                "usable"
            )

    def evaluate(model: torch.nn.Module) -> dict[str, float]:
        return {
            f"{prefix}loss": mean_loss(model, objective, items)
            for prefix, items in prepared.items()
        }

    return evaluate


def host_examples(
    spec: RunSpec,
    model: torch.nn.Module,
    objective: Objective,
    clients: Sequence[ClientData],
    names: Sequence[str],
    evaluate: Evaluation,
) -> Hosted:
    """Return the base model with some clients' examples.

    Each client sends its answers in its own messages.

    Args:
        spec: the run's specification.
        model: the base model, with no step applied. It is tuned in place.
        objective: computes losses of examples.
        clients: the clients in this process, with their examples.
        names: the clients of the run that this process knows, in the order of their numbers.
        evaluate: the evaluation function.

    Raises:
        RecipeError: the method or adapter does not fit the model or the examples; two clients have
            the same name.
    """
    prepared = [
        with_reference(objective, model, prepare(objective, client.name, client.examples))
        for client in clients
    ]
    items = {client.name: client.items for client in prepared}
    if len(items) < len(prepared):
        raise RecipeError("two clients have the same name")
    method, seed = spec.method, spec.seed
    quantization = _check_quantization(spec, model)
    base_dtype = dtype_name(next(p for p in model.parameters() if p.is_floating_point()))
    quantised = describe_quantized(model)
    # the base is an adapter, which the run tunes further
    has_adapter = adapters.is_installed(model)
    hashed = base_digest
    if has_adapter:
        hashed = adapters.base_digest
    digest = spec.base_digest or hashed(model, spec.digest)
    adapter = adapters.choose_adapter(spec.adapter, method.adapter, method.name)
    idle_notes: list[str] = []
    if has_adapter:
        adapter = adapters.settings_of(model)
    elif adapter is not None:
        model = adapters.install(model, adapter, seed, spec.base)
        if isinstance(adapter, adapters.LoRA):
            idle_notes = _examine_lora(model, objective)
    if adapter is not None and spec.trainable is not None:
        # imported here because it imports transformers, which other models do not need
        from fedseed.models.loading import choose_trainable

        choose_trainable(model, spec.trainable)
    check_tunable(model)
    trainable = spec.trainable
    if trainable is None and adapter is None:
        trainable = chosen_targets(method, model)
        if trainable is not None:
            freeze_others(model, trainable)
    try:
        worker = Worker(model, method, objective, seed, spec.joint, spec.digest, space_of(model))
    except ValueError as error:
        raise RecipeError(str(error)) from error
    worker.private = spec.private
    patterns = None
    if trainable is not None:
        patterns = tuple(trainable)
    start = None
    if adapter is not None:
        start = AdapterStart(adapter, adapters.start_digest(model, worker.space))
    header = Header(
        spec.base,
        digest,
        base_dtype,
        worker.space.layout,
        method,
        seed,
        patterns,
        adapter=start,
        classes=tuple(spec.classes),
        digest_kind=spec.digest,
        libraries=libraries_of(spec.base, model),
        quantization=quantization,
    )
    notes = (
        *spec.notes,
        *filter(None, [quantised]),
        *idle_notes,
        *describe_idle(prepared),
        *(describe_changes(prepared, spec.limit) if spec.limit else ()),
    )
    attack = None
    if spec.attack in SINGLE:
        attack = spec.attack
    return lead_group(
        Hosted(
            names,
            items,
            worker,
            header,
            evaluate,
            attack,
            spec.byzantine,
            notes,
            secure=spec.secure_sums,
        )
    )


def _check_quantization(spec: RunSpec, model: torch.nn.Module) -> str:
    """Return the model's quantisation; "" if it has none.

    Raises RecipeError if the run asks for another quantisation.
    """
    quantization = spec.quantization or quantization_of(model)
    if quantization in BITS and quantization_of(model) != quantization:
        raise RecipeError(
            f'model.quantization = "{quantization}": the model is not quantised this way; load it '
            f'with load_model(base, quantization="{quantization}")'
        )
    return quantization


def libraries_of(base: str, model: Any) -> str:
    """Return the library and version that determine a model's tensor names; "" for fedseed's own
    bases and for models without a config.
    """
    return "" if base in PACKAGED else libraries_here(model)
