"""What a recipe will take in memory on this machine, reckoned before anything of its base is loaded.

The base's configuration gives its outline, the outline its tensors and the memory of passes (`passes`), a rehearsal
the messages (`rehearsal`). What the program itself takes, with its libraries and the recipe's data, is looked up: it is
this one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich import box
from rich.table import Table

from fedseed.errors import RecipeError
from fedseed.experiments.passes import Passes
from fedseed.experiments.rehearsal import Asked, Rehearsed, rehearse
from fedseed.models import adapters, quantized
from fedseed.models.architectures import LOADERS, architecture_of
from fedseed.models.checkpointing import checkpoint_activations
from fedseed.models.heads import Head, head_parameters
from fedseed.models.hub import reach
from fedseed.models.loading import base_config, choose_trainable, locate
from fedseed.models.outline import outline
from fedseed.models.placement import find_device
from fedseed.objectives.batches import length_of, micro_batches
from fedseed.objectives.classification import ClassifiedText
from fedseed.objectives.evaluation import longest_input
from fedseed.objectives.kinds import KINDS, ExampleKind
from fedseed.objectives.losses import Blank, Objective, Options
from fedseed.objectives.seq2seq import Pair
from fedseed.objectives.tokens import Tokens
from fedseed.randomness import Basis
from fedseed.reports.memory import available_memory, resident_memory
from fedseed.reports.tables import human_bytes
from fedseed.runs.equipment import kind_for
from fedseed.runs.parties import load_data
from fedseed.runs.recipe import Recipe
from fedseed.tasks.data import Choice, Example, TaskData
from fedseed.training.settings import OPTIMIZERS, LocalTraining
from fedseed.weights.change import Average, Optimize, Replace
from fedseed.weights.offload import PIECE, out_of_the_way
from fedseed.weights.perturbation import LARGE
from fedseed.weights.space import ParameterSpace

EVALUATED = 32  # examples in a batch of `mean_loss`


@dataclass(frozen=True)
class Phase:
    """What there is at a time besides what is always there, in bytes.

    Args:
        name: what is done.
        model: where the model is: activations, gradients, averages, copies.
        messages: in this process' own memory: answers and steps.
    """

    name: str
    model: int
    messages: int = 0


@dataclass(frozen=True)
class Prediction:
    """What a recipe takes, in bytes where nothing else is said.

    Args:
        parameters: how many the model has.
        trained: how many of them train.
        dtype: of the weights.
        device: "cpu" or "cuda".
        batch: what goes through the model at a time, for a person.
        program: libraries, data and all else that is in memory before the model is.
        weights: parameters and buffers.
        base: the copy of the base that some methods rebuild from; 0: none, or it is in a file.
        averages: of a server optimiser, beside the weights.
        parts: (name, bytes) of what a client's work needs besides, at its peak.
        phases: of a round.
        loading: the peak while the base is loaded, beyond the program.
        evaluation: activations of evaluation.
        kept: what coordinator and worker hold between rounds.
        bytes_up: payload of an update.
        bytes_down: payload of a plan and a step.
    """

    parameters: int
    trained: int
    dtype: str
    device: str
    batch: str
    program: int
    weights: int
    base: int
    averages: int
    parts: Sequence[tuple[str, int]]
    phases: Sequence[Phase]
    loading: int
    evaluation: int
    kept: int
    bytes_up: int
    bytes_down: int

    @property
    def held(self) -> int:
        """What is there all the time where the model is."""
        return self.weights + self.base + self.averages

    @property
    def round_peak(self) -> int:
        """The peak of a round, the program included: resident memory; with a GPU, both memories together."""
        return self.program + self.held + max(p.model + p.messages for p in self.phases)

    @property
    def peak(self) -> int:
        """The peak of the whole run."""
        return max(self.round_peak, self.program + self.loading, self.peak_of_evaluation)

    @property
    def peak_of_evaluation(self) -> int:
        """The peak while losses are evaluated."""
        return self.program + self.held + self.evaluation + self.kept

    @property
    def on_device(self) -> int:
        """With a GPU: the peak of its memory."""
        return self.held + max(self.evaluation, *(p.model for p in self.phases))

    @property
    def in_host(self) -> int:
        """With a GPU: the peak of the process' own memory."""
        return self.program + max(p.messages for p in self.phases)


def predict(recipe: Recipe, tokens: int | None = None) -> Prediction:
    """Reckon a recipe's memory.

    Args:
        recipe: nothing of it is changed, nothing of its base but the configuration and the tokenizer is read.
        tokens: the length of an example; None: of the longest in the data, or, where the base has no tokenizer or the
            data is not there, the longest that is taken.

    Raises:
        RecipeError: the base's configuration can't be had, or does not fit the recipe.
    """
    data = _data(recipe)
    kind, classes = _kind(recipe, data)
    where = find_device(recipe.model.device)
    device = where.type if where is not None else "cuda" if torch.cuda.is_available() else "cpu"
    head = Head(classes, recipe.seed) if classes else None
    examples = _Examples(recipe, data, kind, tokens)
    program = settled()
    settings = recipe.model
    adapter = adapters.chosen(settings.adapter, recipe.method.adapter, recipe.method.name)

    model = outline(
        settings.base, settings.dtype, settings.trust_remote_code, kind.architecture, head, settings.attention, "meta"
    )
    saved = 0 if settings.quantization is None else quantized.saved_by(model, settings.quantization)
    if settings.activation_checkpointing:
        checkpoint_activations(model, settings.base)
    trainable = head_parameters(model, settings.base) if settings.trainable == "head" else settings.trainable
    if adapter is not None:
        with torch.device("meta"):
            model = adapters.wrap(model, adapter, settings.base)
    if adapter is None or trainable is not None:
        choose_trainable(model, trainable)
    examples.fit(longest_input(model))
    try:
        passes = Passes(model, recipe.method.blocks, device)
        count = len(data.clients) if data is not None else None
        least = recipe.aggregation.least  # of clients that nobody knows yet there are at least so many
        per_round = recipe.federation.count(count or recipe.federation.per_round or least)
        apart = recipe.attack is not None or recipe.aggregation.compares or not recipe.federation.joint
        rehearsed = rehearse(
            recipe.method, passes.space.layout, max(count or 0, per_round), per_round, recipe.aggregation, apart
        )
    except ValueError as error:
        raise RecipeError(f"{recipe.method.name}: {error}") from error
    together = per_round if recipe.method.together == "losses" and not apart else 1
    work = _Work(recipe, passes, examples, together, per_round)
    phases, parts = work.phases(rehearsed)
    method, space = recipe.method, passes.space
    offloaded = settings.offload_base is True or (
        settings.offload_base == "auto" and out_of_the_way(space.parameters, method.rebuilds_often)
    )
    change = rehearsed.change
    moments = change.rule.averages if isinstance(change, Optimize) and change.past is None else 0
    layout = space.layout
    return Prediction(
        parameters=sum(p.numel() for p in passes.model.parameters()),
        trained=layout.size,
        dtype=settings.dtype,
        device=device,
        batch=work.batch,
        program=program,
        weights=passes.weights - saved,
        base=layout.dense_bytes if method.from_base and not offloaded else 0,
        averages=4 * layout.size * moments,
        parts=parts,
        phases=phases,
        loading=passes.weights,
        evaluation=work.evaluation(),
        kept=rehearsed.kept,
        bytes_up=rehearsed.bytes_up,
        bytes_down=rehearsed.bytes_down,
    )


class _Work:
    """What a client's work takes: passes through the outline.

    Args:
        recipe: the recipe.
        passes: its model's.
        examples: makes batches.
        together: how many clients' batches go through the model in one.
        clients: in a round.
    """

    def __init__(self, recipe: Recipe, passes: Passes, examples: "_Examples", together: int, clients: int) -> None:
        self._recipe = recipe
        self._passes = passes
        self._examples = examples
        self._together = together
        self._clients = clients
        self.batch = ""
        # a CPU perturbs a large matrix slice by slice, or in its cache; a GPU makes a copy of it
        self._whole = max(p.numel() * p.element_size() for p in passes.space.parameters)
        on_cpu = passes.space.devices[0].type == "cpu"
        self._scratch = LARGE * passes.space.parameters[0].element_size() if on_cpu else self._whole

    def phases(self, rehearsed: Rehearsed) -> tuple[list[Phase], list[tuple[str, int]]]:
        """A round's phases; and the parts of what training takes."""
        trained, layout = self._passes.trained, self._passes.space.layout
        copy, peak = 0, 0
        parts: list[tuple[str, int]] = []
        zeroth = all(asked.what in ("loss", "change") for asked in rehearsed.asked)
        scaled = isinstance(rehearsed.change, Optimize) and rehearsed.change.rule.kind == "hiso"
        for asked in rehearsed.asked:
            if asked.what == "change":
                copy = 0 if self._recipe.method.from_base else trained
            elif asked.what in ("train", "gradient", "stream"):
                peak, parts, copy = self._backward(asked)
            elif zeroth:
                activations = self._forward(asked.examples or 1)
                if copy + activations >= peak:
                    peak = copy + activations + (self._whole if scaled else self._scratch)
                    parts = [("start copy of the weights", copy), ("activations (forward)", activations)]
        applying = 0
        if isinstance(rehearsed.change, Replace):
            applying = trained
        elif isinstance(rehearsed.change, Average):
            applying = trained + 12 * layout.size  # a snapshot, the sum in double precision, its rounding
        return [
            Phase("training", peak, rehearsed.waiting),
            Phase("making the update", copy, rehearsed.answer),
            Phase("combining the answers", 0, rehearsed.closing),
            Phase("applying the step", applying, rehearsed.applying),
        ], [part for part in parts if part[1]]

    def _forward(self, examples: int) -> int:
        items = self._examples.longest(examples * self._together)
        self._name(items)
        return self._passes.forward(self._examples.objective, items)

    def _backward(self, asked: Asked) -> tuple[int, list[tuple[str, int]], int]:
        """The peak, its parts, and the copy that stays."""
        passes, objective = self._passes, self._examples.objective
        trained = passes.trained
        if asked.what == "gradient":
            everything = asked.examples is None
            size = asked.micro_batch if everything else min(asked.micro_batch, asked.examples or 1)
            items = self._examples.longest(size)
            more = everything or size < (asked.examples or 1) or self._clients > 1  # gradients are added to others
            peak = passes.gradient(objective, items, more)
            made = trained  # the gradient once more, as bytes
            parts = [("gradients", trained), ("activations (forward and backward)", max(0, peak - trained))]
            self._name(items)
            return max(peak, 2 * trained), parts, made
        training = asked.training
        assert training is not None
        together = training.batch if training.batch_tokens is None else training.step_examples
        items = list(next(micro_batches(self._examples.longest(together), training.batch, training.batch_tokens)))
        self._name(items)
        if asked.what == "stream":
            peak = passes.streaming(objective, items, training)
            return peak, [("activations, and the gradient in hand", peak)], 0
        peak = max(passes.first_order(objective, items, training), 2 * trained) + 4 * PIECE
        states = averages_of(training) * trained
        rest = max(0, peak - 2 * trained - states)
        parts = [("start copy of the weights", trained), ("gradients", trained), ("optimiser's averages", states),
                 ("activations (forward and backward)", rest)]  # fmt: skip
        return peak, parts, trained

    def evaluation(self) -> int:
        """Activations while losses are evaluated."""
        items = self._examples.longest(min(EVALUATED, self._examples.evaluated), evaluated=True)
        return self._passes.forward(self._examples.objective, items)

    def _name(self, items: Sequence[Any]) -> None:
        longest = max(map(length_of, items))
        self.batch = f"{len(items)} example{'s' * (len(items) != 1)}" + (f" of {longest:,} tokens" if longest else "")


class _Examples:
    """A recipe's longest examples, or some as long as they may be; and what makes losses of them.

    Args:
        recipe: the recipe.
        data: its data, if that can be had.
        kind: of the examples.
        tokens: how long they are to be.
    """

    def __init__(self, recipe: Recipe, data: TaskData | None, kind: ExampleKind, tokens: int | None) -> None:
        self._limit = recipe.evaluation.max_length if tokens is None else tokens
        sizes = [EVALUATED] if data is None else [len(examples) for examples in data.evaluation.values()]
        self.evaluated = max(sizes, default=1)  # examples of the largest set
        self._items: dict[bool, list[Any]] = {False: [], True: []}
        self._kind = kind
        self._options = _options_of(data)
        self.objective: Objective
        settings = recipe.evaluation
        processor = None
        try:
            place = reach(locate(recipe.model.base))
            processor = LOADERS[kind.architecture].processor(place, recipe.model.trust_remote_code)
        except (OSError, ValueError, ImportError) as error:
            if kind.architecture == "image":
                raise RecipeError(
                    f'model.base = "{recipe.model.base}": its image processor can\'t be loaded; memory depends on the '
                    "size of its images (save preprocessor_config.json into the same folder)"
                ) from error
        if processor is None or (tokens is not None and kind.architecture != "image"):
            self.objective = kind.objective(_NoTokenizer(), settings)
            return
        self.objective = kind.objective(processor, settings)
        if data is not None:
            held = [example for client in data.clients for example in client.examples]
            out = [example for examples in data.evaluation.values() for example in examples]
            for which, examples in ((False, held), (True, out)):
                self._items[which] = sorted(self.objective.prepare(examples), key=length_of, reverse=True)[:1024]
        if kind.architecture == "image":
            for item in self._items.values():
                self.objective.pixel_values(item[:EVALUATED])  # type: ignore[attr-defined]

    def fit(self, room: int | None) -> None:
        """The model has positions for so many tokens."""
        self._limit = self._limit if room is None else min(self._limit, room)
        for which, items in self._items.items():
            self._items[which] = [item for item in items if length_of(item) <= self._limit]

    def longest(self, count: int, evaluated: bool = False) -> list[Any]:
        """A batch of the longest ones."""
        items = self._items[evaluated] or self._items[False] or [self._made()]
        return [items[at % len(items)] for at in range(count)]

    def _made(self) -> Any:
        tokens = Tokens((0,) * self._limit, 1)
        if self._kind.architecture == "masked":
            return Blank(tokens.ids, 0, (0,) * self._options, 0)
        if self._kind.architecture == "classification":
            return ClassifiedText(tokens.ids, 0)
        if self._kind.architecture == "seq2seq":
            pair: Any = Pair(tokens.ids, tokens.ids)
            return Options((pair,) * self._options, 0, (0,), False) if issubclass(self._kind.example, Choice) else pair
        if issubclass(self._kind.example, Choice):
            return Options((tokens,) * self._options, 0, (0,), False)
        return tokens


class _NoTokenizer:
    """In place of a tokenizer where only lengths matter."""

    eos_token_id = pad_token_id = mask_token_id = 0
    bos_token_id = None


def averages_of(training: LocalTraining) -> int:
    """How many numbers an optimiser remembers of each weight."""
    options: dict[str, Any] = {"momentum": training.momentum} if training.optimizer in ("sgd", "rmsprop") else {}
    p = torch.nn.Parameter(torch.ones(64, device="cpu"))
    p.grad = torch.ones_like(p)
    optimizer = getattr(torch.optim, OPTIMIZERS[training.optimizer])([p], lr=1e-3, **options)
    optimizer.step()
    remembered = (t for state in optimizer.state.values() for t in state.values() if isinstance(t, torch.Tensor))
    return sum(t.numel() == 64 for t in remembered)


def _data(recipe: Recipe) -> TaskData | None:
    """A recipe's data; None if it can't be had here."""
    try:
        return load_data(recipe)
    except RecipeError:
        return None


def _kind(recipe: Recipe, data: TaskData | None) -> tuple[ExampleKind, tuple[str, ...]]:
    """The kind of a recipe's examples, and the classes its model tells apart; without data, of texts to answer."""
    if data is not None:
        return kind_for(recipe, data)
    wanted = recipe.model.architecture or architecture_of(base_config(recipe.model.base))
    fitting = [kind for kind in KINDS if kind.example is Example]
    return next((kind for kind in fitting if kind.architecture == wanted), fitting[0]), ()


def _options_of(data: TaskData | None) -> int:
    """The most options that an example has."""
    counts = [2]
    for client in data.clients if data is not None else ():
        for example in client.examples:
            counts.append(len(getattr(example, "options", getattr(example, "words", ()))))
    return max(counts)


def settled() -> int:
    """What this process takes once its libraries have done something: they bring compilers, threads and tables."""
    space = ParameterSpace(torch.nn.Linear(512, 512))
    for basis in (Basis("hadamard", size=4096), Basis("rademacher")):
        space.add(basis, [0.0], 1.0)
        space.project(torch.zeros(space.size), basis, 2)
        with torch.no_grad(), space.perturbed(basis, 0, 1e-3):
            space.model(torch.zeros(16, 512))
    return resident_memory()


def memory_table(found: Prediction) -> list[Table | str]:
    """A prediction for a terminal, from top to bottom."""
    table = Table(
        title=f"memory, reckoned from the configuration: {found.parameters:,} parameters in {found.dtype}"
        + ("" if found.trained == found.parameters else f", {found.trained:,} of them trained"),
        title_justify="left", box=box.SIMPLE_HEAD, show_header=False, pad_edge=False,
    )  # fmt: skip
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    rows = [("this program, its libraries and the data", found.program), ("weights", found.weights)]
    rows += [(name, size) for name, size in (("copy of the base", found.base), ("averages", found.averages)) if size]
    rows += [(f"training: {name}", size) for name, size in found.parts]
    waiting = next(p.messages for p in found.phases if p.name == "training")
    rows += [("messages that wait while the last client trains", waiting)]
    worst = max(found.phases, key=lambda p: p.model + p.messages)
    rows += [(f"a round's peak ({worst.name})", found.round_peak)]
    rows += [
        ("peak of loading", found.program + found.loading),
        ("peak of evaluation (losses)", found.peak_of_evaluation),
    ]
    for name, size in rows:
        table.add_row(name, human_bytes(size))
    return [
        table,
        f"Through the model go {found.batch} at a time. A client sends {human_bytes(found.bytes_up)} a round and "
        f"receives {human_bytes(found.bytes_down)}.",
        *fits(found)[1],
    ]


def fits(found: Prediction) -> tuple[bool, list[str]]:
    """Whether a recipe fits this machine, and lines that say so; what can't be told is taken to fit."""
    needs = [("memory", found.peak, available_memory())]
    if found.device != "cpu":
        free, total = torch.cuda.mem_get_info()
        needs = [("memory of the GPU", found.on_device, (total, free)), ("memory", found.in_host, available_memory())]
    fine, lines = True, []
    for what, need, there in needs:
        if there is None:
            lines.append(f"At its peak it takes {human_bytes(need)}.")
            continue
        enough = need <= there[1]
        fine = fine and enough
        lines.append(
            f"{'It fits' if enough else 'It does not fit'}: it takes {human_bytes(need)} of {what} at its peak; of "
            f"{human_bytes(there[0])} here {human_bytes(there[1])} are free."
        )
    return fine, lines
