"""A model and what is known of it before the first step: the worker that trains it, and the orbit's header."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fedseed.errors import RecipeError
from fedseed.federation.worker import Worker
from fedseed.methods import Method
from fedseed.models import adapters
from fedseed.objectives.losses import Objective
from fedseed.orbit import AdapterStart, Header
from fedseed.privacy import settings_of
from fedseed.runs.spec import RunSpec
from fedseed.weights.digest import base_digest


def check_examples(method: Method, held: Mapping[str, Sequence[Any]]) -> None:
    """Whether clients have as many examples as `[privacy]` reckons with.

    Args:
        method: the method and its settings.
        held: the usable examples by client.

    Raises:
        RecipeError: one has fewer; names it.
    """
    privacy = settings_of(method)
    if privacy is None or privacy.sampling != "fixed" or privacy.examples is None:
        return
    for name, items in held.items():
        if len(items) < privacy.examples:
            raise RecipeError(
                f'privacy.examples = {privacy.examples}: {name} has {len(items)}, and with sampling = "fixed" each '
                'client needs as many; set it lower, or take sampling = "poisson"'
            )


def make_learner(
    spec: RunSpec, model: torch.nn.Module, objective: Objective, apart: bool = True
) -> tuple[Worker, Header]:
    """A worker at the base, and the orbit's header.

    Args:
        spec: what the run is.
        model: the base; it is tuned in place.
        objective: makes losses of examples.
        apart: every client's answer is a message of its own.

    Raises:
        RecipeError: the method or adapter does not fit the model.
    """
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
        worker = Worker(model, method, objective, seed, spec.joint, spec.offload_base, apart, spec.digest)
    except ValueError as error:
        raise RecipeError(str(error)) from error
    patterns = None if spec.trainable is None else tuple(spec.trainable)
    start = None if chosen is None else AdapterStart(chosen, worker.space.digest())
    header = Header(
        spec.base, digest, base_dtype, worker.space.layout, method, seed, patterns, adapter=start,
        classes=tuple(spec.classes), digest_kind=spec.digest,
    )  # fmt: skip
    return worker, header
