"""A model and what is known of it before the first step: the worker that trains it, and the orbit's header."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fedseed.errors import RecipeError
from fedseed.federation.worker import Worker
from fedseed.methods import Method
from fedseed.models import adapters
from fedseed.models.adapters import Adapter
from fedseed.models.base_files import BaseFiles
from fedseed.objectives.losses import Objective
from fedseed.orbit import AdapterStart, Header
from fedseed.weights.digest import base_digest
from fedseed.weights.layout import DigestKind
from fedseed.weights.offload import Offload


def check_examples(method: Method, held: Mapping[str, Sequence[Any]]) -> None:
    """Whether clients have as many examples as `[privacy]` reckons with.

    Args:
        method: the method and its settings.
        held: the usable examples by client.

    Raises:
        RecipeError: one has fewer; names it.
    """
    privacy = method.private
    if privacy is None or privacy.sampling != "fixed" or privacy.examples is None:
        return
    for name, items in held.items():
        if len(items) < privacy.examples:
            raise RecipeError(
                f'privacy.examples = {privacy.examples}: {name} has {len(items)}, and with sampling = "fixed" each '
                'client needs as many; set it lower, or take sampling = "poisson"'
            )


def make_learner(
    model: torch.nn.Module,
    method: Method,
    objective: Objective,
    seed: int,
    base: str = "",
    trainable: Sequence[str] | None = None,
    classes: Sequence[str] = (),
    adapter: Adapter | None = None,
    joint: bool = True,
    offload_base: Offload = "auto",
    apart: bool = True,
    digest_kind: DigestKind = "blake2b",
    base_files: BaseFiles | None = None,
) -> tuple[Worker, Header]:
    """A worker at the base, and the header; `Simulation` and `Worker` have the arguments.

    Raises:
        RecipeError: the method or adapter does not fit the model.
    """
    base_dtype = str(next(p for p in model.parameters() if p.is_floating_point()).dtype).removeprefix("torch.")
    digest = base_digest(model, digest_kind) if base_files is None else base_files.digest(model, digest_kind)
    chosen = adapters.chosen(adapter, method.adapter, method.name)
    if chosen is not None:
        model = adapters.install(model, chosen, seed, base)
        if trainable is not None:
            from fedseed.models.loading import choose_trainable  # brings transformers; models without it do without

            choose_trainable(model, trainable)
    try:
        worker = Worker(model, method, objective, seed, joint, offload_base, apart, digest_kind)
    except ValueError as error:
        raise RecipeError(str(error)) from error
    patterns = None if trainable is None else tuple(trainable)
    start = None if chosen is None else AdapterStart(chosen, worker.space.digest())
    layout = worker.space.layout
    header = Header(
        base, digest, base_dtype, layout, method, seed, patterns, adapter=start, classes=tuple(classes),
        digest_kind=digest_kind,
    )  # fmt: skip
    return worker, header
