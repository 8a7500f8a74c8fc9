"""An optimiser for any torch loop that needs only losses, and can write an orbit: a tuned model in
kilobytes.
"""

from collections.abc import Callable, Sequence
from glob import escape
from math import nan
from pathlib import Path
from typing import Any

import torch

from fedseed.aggregation import Mean
from fedseed.errors import NonFiniteError, OrbitError, RecipeError
from fedseed.methods import Method, MeZO
from fedseed.methods.base import Answer, Answers
from fedseed.methods.payload import Nothing
from fedseed.models.quantization import check_tunable, quantization_of
from fedseed.models.stored import stored_weights
from fedseed.objectives.losses import Objective
from fedseed.orbit import NO_DIGEST, Header, Record
from fedseed.orbit.file import write_orbit
from fedseed.orbit.replay import catch_up
from fedseed.orbit.writer import OrbitWriter
from fedseed.randomness.stream import check_seed
from fedseed.training.client import LocalClient
from fedseed.weights.digest import base_digest, dtype_name
from fedseed.weights.space import ParameterSpace

Closure = Callable[[], Any]


class _Closures(Objective):
    """Treats a closure of the loop as an example whose loss is the closure's result."""

    def items(self, example: Closure) -> list[Closure]:
        return [example]

    def losses(self, model: torch.nn.Module, items: Sequence[Closure]) -> torch.Tensor:
        return torch.tensor([float(item()) for item in items], dtype=torch.float64)


class ZOOptimizer:
    """Tunes a model in the user's own loop by forward passes alone: MeZO, or another method whose
    round is one step.

    A step is a call with a closure that returns the loss of a batch; it is called twice (or more
    often, as the method needs) at weights that are moved a little, without gradients and with the
    model in evaluation mode. Malladi et al., "Fine-Tuning Language Models with Just Forward
    Passes", 2023, Algorithm 1.

    Args:
        model: any torch module; the parameters that require gradients are tuned, in place.
        method: the method; None: MeZO with `settings`.
        seed: decides the directions.
        orbit: a file for the steps, from which `fedseed.from_orbit` makes the tuned model on any
            machine with the base; None: none is written. `close`, or the end of a `with` block,
            completes it.
        resume: if the file exists, apply its steps to the model, which must be the base again, and
            append new ones (`steps` has their number).
        base: the name or folder that others load the base from; None: what transformers calls it.
        settings: MeZO's (`learning_rate=1e-6`, `scale=1e-3`, `estimates=4`, `optimizer="adam"`,
            ...).

    Raises:
        RecipeError: a round of the method is more than one step, the method needs single examples,
            no parameter is trainable, or a whole quantised base is.
        OrbitError: the orbit exists already; with `resume`: it is damaged, or has another base or
            other settings.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        method: Method | None = None,
        *,
        seed: int = 0,
        orbit: str | Path | None = None,
        resume: bool = False,
        base: str | None = None,
        **settings: Any,
    ) -> None:
        self.method = MeZO(**settings) if method is None else method
        if not self.method.stepwise or self.method.needs_gradients:
            raise RecipeError(
                f"ZOOptimizer: a round of {self.method.name} is more than one zeroth-order step"
            )
        if getattr(self.method, "population", 1) > 1 or (settings and method is not None):
            raise RecipeError(
                "ZOOptimizer: give either settings or a method, and no population, which would "
                "divide batches"
            )
        # a closure stands for one example, measured once
        self.method = self.method.model_copy(update={"batch": 1})
        check_tunable(model)
        try:
            self.space = ParameterSpace(model, self.method.blocks)
            self.method.check(self.space.layout)
        except ValueError as error:
            raise RecipeError(f"ZOOptimizer: {error}") from error
        self.state = self.method.start(self.space.layout, check_seed(seed))
        self.steps = 0
        self._writer: OrbitWriter | None = None
        self._ended = False
        # the newest step is held back: the last one is written with the weights' digest
        self._held: Record | None = None
        if self.method.from_base:
            self.space.keep_base(stored_weights(model), often=self.method.rebuilds_each_step)
        if orbit is not None:
            self._open(
                Path(orbit),
                resume,
                str(getattr(model, "name_or_path", "")) if base is None else base,
            )

    def _open(self, path: Path, resume: bool, base: str) -> None:
        parameters = list(self.space.model.named_parameters())
        trained = tuple(escape(name) for name, p in parameters if p.requires_grad)
        trainable = None
        if len(trained) != len(parameters):
            trainable = trained
        dtype = next(dtype_name(p) for _, p in parameters if p.is_floating_point())
        folder = ""
        if base and Path(base).is_dir():
            folder = str(Path(base).resolve())
        header = Header(
            base,
            base_digest(self.space.model),
            dtype,
            self.space.layout,
            self.method,
            self.state.seed,
            trainable,
            base_folder=folder,
            quantization=quantization_of(self.space.model),
        )
        self._writer = OrbitWriter(path, header, resume and path.exists())
        if self._writer.orbit is not None:
            orbit = self._writer.take()
            self.state = catch_up(self.method, self.state, self.space, orbit.records)
            self.steps = len(orbit)
            if orbit.complete:  # the run continues, so the record that ends the file is removed
                self._writer.release()
                write_orbit(path, orbit.start, orbit.parts)
                self._writer = OrbitWriter(path, header, resume=True)

    def step(self, closure: Closure) -> float:
        """Make one step.

        Args:
            closure: returns the loss of a batch, a number or a tensor of one; the same batch at
                each call.

        Returns:
            The mean of the losses that were measured; NaN: one was not finite, and the weights are
            unchanged.

        Raises:
            OrbitError: the orbit is complete, so it could not have the step.
        """
        if self._ended:
            raise OrbitError(
                "this optimiser's orbit was completed by close(): make another optimiser for "
                "further steps"
            )
        self.steps += 1
        training = [module for module in self.space.model.modules() if module.training]
        client = LocalClient(self.space, _Closures(), [closure], self.state.seed, self.steps, 0)
        try:
            answers = [Answer(0, 1.0, self.method.train(self.state, Nothing(), client))]
        except NonFiniteError:
            answers = []
        finally:
            client.put_back()
            for module in training:
                module.training = True
        payload = self.method.aggregate(self.state, Answers(self.steps, answers, Mean())).encode()
        step = self.method.decode_step(self.state, payload)
        self.space.apply(self.method.change(self.state, step))
        self.state = self.method.advance(self.state, step)
        if self._writer is not None:
            self._write()
            self._held = Record(self.steps, payload)
        losses = client.cost.losses
        if answers and losses:
            return sum(losses) / len(losses)
        return nan

    def _write(self, digest: str = NO_DIGEST) -> None:
        if self._writer is not None and self._held is not None:
            self._writer.append(Record(self._held.round, self._held.payload, digest), sync=False)
            self._held = None

    def digest(self) -> str:
        """Return the digest of the weights, which a replay of the orbit ends with."""
        return self.space.digest()

    def close(self) -> None:
        """Complete the orbit, if there is one. Further calls do nothing."""
        if self._writer is not None:
            self._write(self.digest())
            self._writer.close()
            self._writer, self._ended = None, True

    def __enter__(self) -> "ZOOptimizer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
