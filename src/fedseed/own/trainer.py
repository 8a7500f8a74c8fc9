"""A `Trainer` of transformers (or TRL) as a client of a federation, in one line."""

import asyncio
import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from glob import escape
from math import nan
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from fedseed.errors import RecipeError
from fedseed.federation.client.state import Hosted
from fedseed.federation.control import HELD_OUT
from fedseed.models.architectures import architecture_of
from fedseed.models.loading import choose_trainable, trainable_names
from fedseed.models.traits import PROBES, examine, settle
from fedseed.objectives.evaluation import mean_loss
from fedseed.objectives.losses import Objective, losses_of_rows
from fedseed.objectives.tokens import IGNORE
from fedseed.recipe.reading import read_recipe
from fedseed.recipe.settings import Recipe
from fedseed.reports.progress import Progress, choose_progress
from fedseed.runs.joining import Loading, make_client, read_identities
from fedseed.runs.model_setup import host_examples
from fedseed.runs.spec import RunSpec
from fedseed.tasks.data import ClientData
from fedseed.transport import transport
from fedseed.transport.base import check_run
from fedseed.weights.codes import plain_parameters


@dataclass(frozen=True, eq=False)
class _Row:
    """A row of a Trainer's data set."""

    number: int  # its index in the data set
    features: Any  # the collator's input
    # number of labels that count for the loss; 1 if it has no row of labels
    terms: int


class TrainerLoss(Objective):
    """A Trainer's loss on its rows: its collator makes batches, its `compute_loss` their mean loss.

    A causal language model's own loss is taken row by row from the logits of the whole batch. Any
    other, such as a `compute_loss` of your own, is called for one row at a time, as a batch's mean
    does not give the rows' losses. A collator's random choices (masks) are repeated with the same
    seed for the same rows, so that both sides of an estimate see the same data.

    Args:
        trainer: the Trainer.
    """

    def __init__(self, trainer: Any) -> None:
        from transformers import Trainer

        self.trainer = trainer
        self._collate = trainer.get_train_dataloader().collate_fn
        config = {**trainer.model.config.to_dict(), "architectures": [type(trainer.model).__name__]}
        self._causal = architecture_of(config) == "causal"
        overridden = type(trainer).compute_loss
        plain = trainer.compute_loss_func is None and trainer.label_smoother is None
        # TRL's own loss is the model's loss, except for these settings
        if overridden.__module__ == "trl.trainer.sft_trainer":
            plain &= trainer.args.loss_type == "nll" and not trainer.aux_loss_enabled
            overridden = Trainer.compute_loss
        self._whole = self._causal and plain and overridden is Trainer.compute_loss
        self._made = 0

    def items(self, example: Any) -> list[_Row]:
        row = _Row(self._made, example, 1)
        self._made += 1
        labels = self._batch([row], torch.device("cpu")).get("labels")
        if labels is None or labels.ndim < 2 or labels.is_floating_point():
            return [row]
        terms = int((labels[:, 1:] if self._causal else labels).ne(IGNORE).sum())
        if terms:
            return [replace(row, terms=terms)]
        return []

    def weight(self, item: _Row) -> int:
        return item.terms

    def losses(self, model: torch.nn.Module, items: Sequence[_Row]) -> torch.Tensor:
        device = next(model.parameters()).device
        batch = {}
        if self._whole:
            batch = self._batch(items, device)
        labels = batch.pop("labels", None)
        # not if a collator packs all rows into one
        if labels is not None and len(labels) == len(items):
            logits = model(**batch, use_cache=False).logits
            return losses_of_rows(logits[:, -labels.shape[1] :][:, :-1], labels[:, 1:])
        alone = (
            (self.trainer.compute_loss(model, self._batch([item], device)), item) for item in items
        )
        return torch.stack([loss.float().reshape(()) * item.terms for loss, item in alone])

    def _batch(self, items: Sequence[_Row], device: torch.device) -> dict[str, Any]:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(
                hash(tuple(item.number for item in items)) & (1 << 62) - 1
            )
            collated = self._collate([copy.copy(item.features) for item in items])
        return {
            name: one.to(device) if isinstance(one, torch.Tensor) else one
            for name, one in collated.items()
        }


class _TrainersPart(Loading):
    """A Trainer's parts for a run: its model, its loss, its rows."""

    def __init__(
        self, trainer: Any, recipe: Recipe, client: str, identity: Path | None, progress: Progress
    ) -> None:
        if not recipe.of_parties:
            raise RecipeError(
                "patch: the recipe divides data of its own among clients; name the clients in "
                "federation.clients"
            )
        if hasattr(trainer.model, "peft_config"):
            raise RecipeError(
                "patch: give the Trainer the base, and the recipe the adapter (model.adapter)"
            )
        self.names = recipe.federation.clients or [client]
        if client not in self.names:
            raise RecipeError(
                f"patch: client {client} is not in the recipe: choose one of "
                f"{', '.join(self.names)}"
            )
        self.recipe, self.progress, self.party = recipe, progress, True
        self.identities = read_identities(recipe, [client], identity)
        self._trainer, self._client = trainer, client
        self._base: torch.nn.Module | None = None

    def __call__(self) -> Hosted:
        """Return the Trainer's model at its base, with its rows.

        Further calls return a copy, in case the weights have to be rebuilt.
        """
        trainer, client, recipe = self._trainer, self._client, self.recipe
        if self._base is None:
            self._base = copy.deepcopy(trainer.model)
        else:
            trainer.model = trainer.model_wrapped = copy.deepcopy(self._base)
        model = trainer.model
        patterns = trainable_names(model, recipe.model.base, recipe.model.trainable)
        if patterns is not None:
            choose_trainable(model, patterns)
        elif not all(parameter.requires_grad for _, parameter in plain_parameters(model)):
            patterns = [escape(name) for name, p in model.named_parameters() if p.requires_grad]
        if hasattr(model, "config"):
            settle(model, recipe.model.base)
            tokenizer = trainer.processing_class
            if isinstance(tokenizer, PreTrainedTokenizerBase):
                examine(model, [tokenizer(text)["input_ids"] for text in PROBES])
        objective = TrainerLoss(trainer)
        spec = RunSpec.from_recipe(recipe, trainable=patterns)
        data = trainer.get_train_dataloader().dataset
        rows = [ClientData(client, [data[i] for i in range(len(data))])]
        dataset = None
        if trainer.eval_dataset is not None:
            dataset = trainer.get_eval_dataloader().dataset
        held_out = []
        if dataset is not None:
            held_out = objective.prepare([dataset[i] for i in range(len(dataset))])

        def evaluate(model: Any) -> dict[str, Any]:
            # in a private run a client evaluates nothing, whatever the coordinator asks for
            if not recipe.evaluates:
                return {}
            metrics = {}
            if held_out:
                metrics = {"loss": mean_loss(model, objective, held_out)}
            return {"by_client": {client: {HELD_OUT: len(held_out), **metrics}}, **metrics}

        hosted = host_examples(spec, model, objective, rows, self.names, evaluate)
        return replace(
            hosted,
            party=True,
            identities=self.identities,
            opened=self.opened,
            processor=trainer.processing_class,
        )


def _apart(act: Callable[[], str]) -> str:
    """Return a function's result; it runs in a thread of its own if this thread runs an event loop,
    as in a notebook.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return act()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(act).result()


def patch(
    trainer: Any,
    recipe: str | Path | Recipe,
    client: str,
    nats: str | None = None,
    run: str | None = None,
    key: Path | None = None,
    ca: Path | None = None,
    identity: Path | None = None,
) -> None:
    """Make a Trainer a client of a federation: its `train()` takes part in the run, and its model
    is the tuned one afterwards.

    The Trainer's model is the base that all share, its `train_dataset`, collator and loss are this
    client's; it evaluates on its `eval_dataset`. Method, rates, batches and rounds come from the
    recipe, which all clients share: those in `TrainingArguments` are ignored, and callbacks are not
    called.

    Args:
        trainer: a `transformers.Trainer`, or one of a subclass (TRL's `SFTTrainer`).
        recipe: the run's: a TOML file, or the recipe.
        client: the name of this client.
        nats: the server; None: the recipe's. The next three have the same default.
        run: the run's name on the server.
        key: file with this client's NKEY seed.
        ca: file with the certificates to trust.
        identity: file with the key that signs for it in secure sums.

    Raises:
        RecipeError: the recipe has no such client, divides data of its own among clients, or has no
            address of the server.
    """
    from transformers.trainer_utils import TrainOutput

    if isinstance(recipe, Recipe):
        checked, file_name = recipe, ""
    else:
        checked, file_name = read_recipe(recipe), Path(recipe).stem
    name = run or checked.federation.run or file_name
    way = transport(checked.federation.access(client, nats, key, ca), check_run(name))
    load = _TrainersPart(trainer, checked, client, identity, choose_progress(None))

    def train(*_: Any, **__: Any) -> TrainOutput:
        """Take part in the run until it is over.

        Returns the rounds as steps, the mean loss of all its local training (NaN with a private
        method, which does not disclose it), and the weights' digest.
        """
        process = make_client(load, name, way)
        digest = _apart(process.run)
        assert process.replica is not None
        trainer.model = trainer.model_wrapped = process.replica.hosted.worker.space.model
        trainer.state.global_step = process.last_step
        last = {}
        if process.evaluations:
            last = process.evaluations[-1]
        measured = {key: value for key, value in last.items() if isinstance(value, float)}
        training = process.training
        loss = nan
        if training.counted:
            loss = training.losses / training.counted
        return TrainOutput(process.last_step, loss, {**measured, "weights_digest": digest})

    trainer.train = train
