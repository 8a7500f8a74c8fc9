"""The side of a run that has the model: clients with their examples, the orbit's header, threads, memory, losses."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from fedseed.attacks.updates import SINGLE
from fedseed.errors import RecipeError
from fedseed.federation.hosted import Hosted
from fedseed.federation.worker import Worker
from fedseed.models import adapters
from fedseed.objectives.evaluation import mean_loss
from fedseed.objectives.losses import Objective
from fedseed.objectives.prepared import about, idle, prepare
from fedseed.orbit import AdapterStart, Header
from fedseed.reports.machine import resident_memory
from fedseed.runs.equipment import Evaluation
from fedseed.runs.spec import RunSpec
from fedseed.tasks.data import ClientData
from fedseed.weights.devices import peak_on
from fedseed.weights.digest import base_digest


def hosted_of(
    spec: RunSpec, model: torch.nn.Module, objective: Objective, clients: Sequence[ClientData], names: Sequence[str],
    evaluate: Evaluation,
) -> Hosted:  # fmt: skip
    """Returns a model at its base with some clients' examples; every client's answer is a message of its own.

    Args:
        spec: what the run is.
        model: the base; it is tuned in place.
        objective: makes losses of examples.
        clients: those whose examples are here.
        names: all clients of the run, in the order of their numbers, as far as they are known here.
        evaluate: measures the model.

    Raises:
        RecipeError: the method or adapter does not fit the model or the examples; two clients have one name.
    """
    prepared = [prepare(objective, client.name, client.examples) for client in clients]
    items = {client.name: client.items for client in prepared}
    if len(items) < len(prepared):
        raise RecipeError("two clients have the same name")
    method, seed = spec.method, spec.seed
    base_dtype = str(next(p for p in model.parameters() if p.is_floating_point()).dtype).removeprefix("torch.")
    digest = spec.base_digest or base_digest(model, spec.digest)
    chosen = adapters.chosen(spec.adapter, method.adapter, method.name)
    if chosen is not None:
        model = adapters.install(model, chosen, seed, spec.base)
        if spec.trainable is not None:
            from fedseed.models.loading import choose_trainable  # brings transformers; models without it do without

            choose_trainable(model, spec.trainable)
    try:
        worker = Worker(model, method, objective, seed, spec.joint, spec.digest)
    except ValueError as error:
        raise RecipeError(str(error)) from error
    worker.private = spec.private
    patterns = None if spec.trainable is None else tuple(spec.trainable)
    start = None if chosen is None else AdapterStart(chosen, worker.space.digest())
    header = Header(
        spec.base, digest, base_dtype, worker.space.layout, method, seed, patterns, adapter=start,
        classes=tuple(spec.classes), digest_kind=spec.digest,
    )  # fmt: skip
    notes = (*spec.notes, *idle(prepared), *(about(prepared, spec.limit) if spec.limit else ()))
    attack = spec.attack if spec.attack in SINGLE else None
    return Hosted(names, items, worker, header, evaluate, attack, spec.byzantine, notes, secure=spec.secure_sums)


def loss_of(objective: Objective, sets: Mapping[str, Sequence[Any]]) -> Evaluation:
    """Measures mean losses on sets of held-out examples, by their prefixes. Raises RecipeError if one has none."""
    prepared = {prefix: objective.prepare(examples) for prefix, examples in sets.items()}
    for prefix, items in prepared.items():
        if not items:
            raise RecipeError(f'none of the {len(sets[prefix])} examples of the evaluation set "{prefix}" is usable')

    def evaluate(model: torch.nn.Module) -> dict[str, float]:
        return {f"{prefix}loss": mean_loss(model, objective, items) for prefix, items in prepared.items()}

    return evaluate


def peak_memory(devices: Sequence[torch.device] = ()) -> int:
    """Returns the process' peak memory in bytes: on the GPUs among some devices, otherwise resident memory."""
    held = peak_on(devices)
    return resident_memory(peak=True) if held is None else held


@contextmanager
def limited(threads: int | None) -> Iterator[None]:
    """Inside, torch and numba compute with so many threads each; None: with as many as torch had before.

    Sums in torch are split by threads, so their last bits depend on the number. numba's kernels have the same bits with
    any number; with more threads than torch they would have two on a core, which halves its cache, where torch has one.
    """
    import numba

    before = torch.get_num_threads(), numba.get_num_threads()
    wanted = before[0] if threads is None else threads
    torch.set_num_threads(wanted)
    numba.set_num_threads(min(wanted, numba.config.NUMBA_NUM_THREADS))
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        numba.set_num_threads(before[1])
