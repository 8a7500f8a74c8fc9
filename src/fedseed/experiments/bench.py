"""Estimate a run's cost on this machine: its memory from the shapes of its base, its time from one
round with few local steps.

Memory is computed from the base's configuration; no weights are read. The sum is less than a run's
peak: activations of the layers, messages, libraries and data come on top of it.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from rich.table import Table

from fedseed.errors import RecipeError, plural
from fedseed.federation.coordinator.summed import SummedCoordinator
from fedseed.federation.messages import FRAME_BYTES
from fedseed.methods import Method
from fedseed.models import adapters
from fedseed.models.architectures import architecture_of
from fedseed.models.loading import (
    base_config,
    choose_trainable,
    has_weights,
    outline,
    trainable_names,
)
from fedseed.models.stored import stored_files
from fedseed.models.targets import chosen_targets
from fedseed.objectives.tokens import longest_input
from fedseed.recipe.settings import Recipe
from fedseed.reports.machine import available_memory, resident_memory
from fedseed.reports.tables import human_bytes, human_seconds, plain_table
from fedseed.runs.assembly import build
from fedseed.runs.model_setup import choose_kind
from fedseed.runs.parties import load_data
from fedseed.runs.simulation import sum_round
from fedseed.training.settings import LocalTraining
from fedseed.weights.devices import peak_on
from fedseed.weights.digest import dtype_name
from fedseed.weights.layout import Layout, TensorEntry, cut
from fedseed.weights.space import LARGE_BYTES, ParameterSpace

# numbers that torch's optimisers keep for each weight; others: 2
REMEMBERED = {"sgd": 0, "rmsprop": 1, "adagrad": 1}
# float32 numbers kept for each weight
AVERAGES = {"momentum": 1, "nesterov": 1, "adam": 2, "rmsprop": 1, "hiso": 1}
# local steps that are timed; the time of the recipe's number of steps is computed from them
FEW_STEPS = 3
Shown = list[Table | str]  # what a terminal shows, from top to bottom


@dataclass(frozen=True)
class Reckoned:
    """A recipe's memory, by purpose."""

    parameters: int  # how many the model has
    trained: int  # how many of them train
    dtype: str  # the weights' dtype
    # (name, bytes); what takes nothing is left out
    parts: Sequence[tuple[str, int]]
    libraries: int = field(default=0, compare=False)  # what Python takes with them

    @property
    def total(self) -> int:
        """Return the bytes of all parts together, without libraries."""
        return sum(size for _, size in self.parts)


def reckon(recipe: Recipe, tokens: int | None = None) -> Reckoned:
    """Compute a recipe's memory without reading its weights and, if they can't be had, without its
    data.

    Args:
        recipe: the recipe; of its base only the configuration is read.
        tokens: the length of an example; None: the longest that the recipe and the model take.

    Raises:
        RecipeError: the base's configuration can't be had, or does not fit the recipe.
    """
    settings, method = recipe.model, recipe.method
    model = _outline(recipe)
    tensors = list(model.parameters())
    training: LocalTraining | None = getattr(method, "training", None)
    tuned = [p for p in tensors if p.requires_grad]
    count, trained = sum(p.numel() for p in tuned), sum(p.nbytes for p in tuned)
    largest = max(p.nbytes for p in tuned)
    parts = [("weights", sum(t.nbytes for t in (*tensors, *model.buffers())))]
    if method.from_base and not _reads_base(recipe, model, trained):
        parts.append(("copy of the base", trained))
    entries = [
        TensorEntry(name, tuple(p.shape), dtype_name(p))
        for name, p in model.named_parameters()
        if p.requires_grad
    ]
    beside = method.trained_numbers(Layout(tuple(entries), cut([e.size for e in entries], "one")))
    parts += _training_parts(method, training, beside, trained, largest)
    averages = AVERAGES.get(getattr(method, "optimizer", getattr(method, "server", "")), 0)
    parts.append(("averages of the steps", 4 * count * averages))
    vocabulary = getattr(model.config.get_text_config(), "vocab_size", None)
    if vocabulary is not None:
        limits = (recipe.evaluation.max_length if tokens is None else tokens, longest_input(model))
        length, training_settings = min(n for n in limits if n is not None), training or method
        # that go through it at a time
        batch = int(getattr(method, "micro_batch", 0) or getattr(training_settings, "batch", 1))
        size = batch * length * vocabulary * getattr(torch, settings.dtype).itemsize
        parts.append((f"logits of {plural(batch, 'example')} of {length:,} tokens", size))
    memory_here = resident_memory()  # this process has loaded no weights yet
    return Reckoned(
        sum(p.numel() for p in tensors),
        count,
        settings.dtype,
        [part for part in parts if part[1]],
        memory_here,
    )


def _reads_base(recipe: Recipe, model: Any, trained: int) -> bool:
    """Return whether weights are rebuilt from the base's files, not from a copy in memory.

    A folder without weights, which has nothing but a configuration, counts as one with safetensors.

    Args:
        recipe: the recipe.
        model: what it would tune.
        trained: bytes of the weights that train.
    """
    settings = recipe.model
    if trained < LARGE_BYTES or adapters.is_installed(model) or settings.quantization is not None:
        return False
    on_gpu = settings.device != "cpu" and torch.cuda.is_available()
    if on_gpu and recipe.method.rebuilds_each_step:
        return False
    return bool(stored_files(settings.base)) or not has_weights(settings.base)


def _training_parts(
    method: Any, training: LocalTraining | None, beside: int | None, trained: int, largest: int
) -> list[tuple[str, int]]:
    """Return what training needs beside the weights, each part with its bytes.

    Args:
        method: the method.
        training: its local training, if it has any.
        beside: how many numbers are trained beside the weights; None: the weights are trained.
        trained: bytes of the weights that train.
        largest: bytes of the largest tensor among them.
    """
    parts: list[tuple[str, int]] = []
    if beside is not None:
        remembered = 0
        if training is not None:
            remembered = REMEMBERED.get(training.optimizer, 2)
        parts += [
            ("what is trained beside the weights", 4 * beside),
            ("its gradients", 4 * beside),
            ("optimiser's averages", 4 * remembered * beside),
        ]
    elif getattr(method, "streaming", False):
        parts += [("start copy of the weights", trained), ("the largest gradient", largest)]
    elif method.needs_gradients:
        parts.append(("gradients", trained))
        if training is not None:
            momentum = training.momentum > 0 and training.optimizer in ("sgd", "rmsprop")
            remembered = REMEMBERED.get(training.optimizer, 2) + momentum
            parts += [
                ("start copy of the weights", trained),
                ("optimiser's averages", remembered * trained),
            ]
    elif not method.from_base and not method.stepwise:
        parts.append(("start copy of the weights", trained))
    if not method.needs_gradients:
        parts.append(("the largest tensor, perturbed", largest))
    return parts


def _outline(recipe: Recipe) -> Any:
    """Return the model that the recipe would tune, on "meta"."""
    settings = recipe.model
    architecture, head = settings.architecture or architecture_of(base_config(settings.base)), None
    try:
        kind, head = choose_kind(recipe, load_data(recipe))
        architecture = kind.architecture
    except (
        RecipeError
    ):  # the data are not here: a model that writes texts, unless the recipe names another kind
        pass
    model = outline(
        settings.base,
        settings.dtype,
        settings.trust_remote_code,
        architecture,
        head,
        settings.attention,
        settings.quantization,
    )
    trainable = trainable_names(model, settings.base, settings.trainable)
    adapter = adapters.choose_adapter(settings.adapter, recipe.method.adapter, recipe.method.name)
    if adapter is not None:
        with torch.device("meta"):
            model = adapters.wrap(model, adapter, settings.base)
    elif trainable is None:
        trainable = chosen_targets(recipe.method, model)
    if adapter is None or trainable is not None:
        choose_trainable(model, trainable)
    return model


@dataclass(frozen=True)
class MeasuredRound:
    """The measurements of one round."""

    parameters: int  # d
    dtype: str  # the weights' dtype
    threads: int  # how many threads torch uses
    # seconds by phase, of all clients of a round, for the recipe's number of local steps
    round: dict[str, float]
    clients: int  # clients in a round
    rounds: int  # rounds of the recipe
    evaluations: int  # how often the recipe evaluates
    evaluation: float  # seconds of one evaluation
    bytes_up: int  # payload bytes of an update
    bytes_down: int  # payload bytes of a plan and a step
    # bytes of this process, or on its GPUs, with the answers of all clients of a round
    peak_memory: int
    training_memory: int  # the same before the model is evaluated

    @property
    def total(self) -> float:
        """Return the seconds of the whole run."""
        return self.rounds * sum(self.round.values()) + self.evaluations * self.evaluation


def shortened(method: Method) -> tuple[Method, float]:
    """Return the method with few local steps, and how many times as many the recipe asks for."""
    steps = getattr(method, "steps", None)
    if isinstance(steps, int) and steps > FEW_STEPS:
        return method.model_copy(update={"steps": FEW_STEPS}), steps / FEW_STEPS
    training = getattr(method, "training", None)
    if training is not None and training.epochs is None and training.steps > FEW_STEPS:
        shorter = training.model_copy(update={"steps": FEW_STEPS})
        return method.model_copy(update={"training": shorter}), training.steps / FEW_STEPS
    return method, 1.0


def measure(recipe: Recipe) -> MeasuredRound:
    """Run one shortened round of a recipe twice (the first warms up), and return the run's cost.

    Args:
        recipe: the recipe; it is not changed, and no files are written.

    Raises:
        RecipeError: the recipe's model or data can't be had.
    """
    method, factor = shortened(recipe.method)
    federation = build(recipe.model_copy(update={"method": method}))
    coordinator, worker = federation.coordinator, federation.worker
    # a private run's clients hide their seconds, but the holder of their data may see them
    worker.private = False
    space = worker.space
    together = worker.method.shares_losses or worker.method.sums_gradients
    bytes_up, bytes_down, waiting = 0, 0, 0
    for number in (1, 2):
        opened = coordinator.open(number)
        measured_clients = opened if together else opened[:1]  # the others cost the same
        plans = [coordinator.plan(c) for c in measured_clients]
        items = [federation.items[client] for client in measured_clients]
        if isinstance(coordinator, SummedCoordinator):
            by_client = dict(zip(measured_clients, plans, strict=True))
            answers = sum_round(coordinator, worker, by_client, items)
        else:
            answers = worker.train_all(plans, measured_clients, items)
        phases: dict[str, float] = {}
        for answer in answers:
            for phase, seconds in answer.cost.seconds.items():
                phases[phase] = phases.get(phase, 0.0) + seconds * coordinator.per_round / len(
                    measured_clients
                )
        phases["local"] = phases.get("local", 0.0) * factor
        for answer, client in zip(answers, measured_clients, strict=True):
            if answer.message is not None:
                coordinator.receive(answer.message, client)
                bytes_up = coordinator.current.received[client].bytes
                waiting = len(answer.message) * (coordinator.per_round - len(measured_clients))
        phases["aggregation"], step = _timed(coordinator.close)
        phases["rebuild"], _ = _timed(partial(worker.apply_payload, step.payload))
        phases["digest"], _ = _timed(space.digest)
        bytes_down = len(plans[0]) - FRAME_BYTES + len(step.payload)
    every, digest_every = recipe.evaluation.every, recipe.evaluation.digest_every
    # hashed where a line is logged
    phases["digest"] /= every if worker.method.stepwise else min(every, digest_every)
    if hasattr(worker.method, "steps"):  # an update carries a pair for each local step
        bytes_up = round(bytes_up * factor)
    training_memory = _peak_memory(space) + waiting
    evaluation, _ = _timed(lambda: federation.hosted.evaluate(space.model))
    return MeasuredRound(
        parameters=space.size,
        dtype=recipe.model.dtype,
        threads=torch.get_num_threads(),
        round=phases,
        clients=coordinator.per_round,
        rounds=recipe.rounds,
        evaluations=recipe.rounds // recipe.evaluation.every + 1,
        evaluation=evaluation,
        bytes_up=bytes_up,
        bytes_down=bytes_down,
        peak_memory=_peak_memory(space) + waiting,
        training_memory=training_memory,
    )


def _peak_memory(space: ParameterSpace) -> int:
    """Return the peak bytes so far, on GPUs or of the process."""
    return peak_on(space.devices) or resident_memory(peak=True)


def _timed(act: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    result = act()
    return time.perf_counter() - begin, result


def fits(reckoned: Reckoned, device: str) -> tuple[bool, str]:
    """Return whether this machine has enough free memory, and a line for people about it.

    Args:
        reckoned: a recipe's memory.
        device: where its model is, as in `model.device`.
    """
    on_gpu = device != "cpu" and torch.cuda.is_available()
    free = torch.cuda.mem_get_info()[0] if on_gpu else available_memory()[1]
    total, libraries = reckoned.total, reckoned.libraries
    if on_gpu:
        libraries = 0
    libraries_text = ""
    if libraries:
        libraries_text = f" and {human_bytes(libraries)} for Python and libraries"
    takes = f"That is {human_bytes(total)}{libraries_text}, and more with activations and messages"
    place, enough = "of the GPU's memory" if on_gpu else "of memory", total + libraries <= free
    return (
        enough,
        f"{takes}; {human_bytes(free)} {place} are free: it "
        f"{'may fit' if enough else 'does not fit'}.",
    )


def memory_table(reckoned: Reckoned) -> Shown:
    """Return a title and a table of a recipe's memory, part by part."""
    trained_text = ""
    if reckoned.trained != reckoned.parameters:
        trained_text = f", {reckoned.trained:,} of them trained"
    size = f"{reckoned.parameters:,} parameters in {reckoned.dtype}{trained_text}"
    title = f"memory by the base's shapes: {size}"
    return [
        title,
        plain_table(("", ""), [(name, human_bytes(size)) for name, size in reckoned.parts]),
    ]


def cost_table(cost: MeasuredRound) -> Shown:
    """Return a title, a table and a text that say what a run will cost."""
    model = f"{cost.parameters:,} parameters in {cost.dtype}"
    per_round = sum(cost.round.values())
    rows = [(phase, f"{human_seconds(s)}  {s / per_round:5.1%}") for phase, s in cost.round.items()]
    return [
        f"a round with {cost.clients} clients, {model}, {cost.threads} threads",
        plain_table(("", ""), [*rows, ("together", f"{human_seconds(per_round)} 100.0%")]),
        f"{cost.rounds:,} rounds and {cost.evaluations:,} evaluations of "
        f"{human_seconds(cost.evaluation)}: about {human_seconds(cost.total)}. A client sends "
        f"{human_bytes(cost.bytes_up)} a round and receives {human_bytes(cost.bytes_down)}. Peak "
        f"memory: {human_bytes(cost.training_memory)}, {human_bytes(cost.peak_memory)} with the "
        "evaluation.",
    ]
