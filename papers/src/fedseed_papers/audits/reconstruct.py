"""A reconstruction attack: what one client's message in the first round says of a picture that it
trained on.

The messages are the methods' own, made by a worker from a client that has these pictures alone, and
read as the coordinator reads them. It is the attack's best case: one local step of plain SGD on the
very pictures, at weights that everybody knows.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch.nn.functional import one_hot

from fedseed import methods
from fedseed.errors import RecipeError, plural
from fedseed.federation.client.worker import Worker
from fedseed.federation.messages import EVERYBODY, Message, MessageKind
from fedseed.methods import Method
from fedseed.methods.base import Round
from fedseed.objectives.classification import Images
from fedseed.recipe.settings import Recipe
from fedseed.runs.model_setup import equip
from fedseed.runs.parties import load_data
from fedseed.tasks.data import Picture
from fedseed_papers.audits.inverting import (
    STEPS,
    SoftmaxLayer,
    estimated_gradient,
    gradient_by,
    last_layer,
    match,
    relative_error,
)
from fedseed_papers.audits.observing import Known, observed
from fedseed_papers.reconstruction import cosine

Pixels = NDArray[np.float32]
Say = Callable[[str], None]
COUNTED = ("ferret", "fedkseed", "feedsign")  # K numbers a message
WHOLE = ("fedsgd", "fedavg")
KNOWN = (*COUNTED, *WHOLE)
OTHERS = 100  # pictures that a reconstruction is told apart from, the true one among them
# settings that a recipe's method hands on to those that are attacked
KEPT = ("basis", "basis_rank", "scale")
MOST_ENTRIES = 1 << 27  # of the directions that the attack holds


@dataclass(frozen=True)
class Attempt:
    """One message, attacked.

    Args:
        method: whose message.
        count: K, the numbers in it.
        payload_bytes: its length.
        batch: pictures behind it.
        example: the number of the first.
        gradient_error: of linear inversion, |found - true| / |true|.
        gradient_cosine: between both.
        label_right: whether the last layer's bias gives the label away; None: several pictures, or
            no such layer.
        input_error: of the last layer's input, as `gradient_error`.
        error: of matching, |found - true| over that of the mean picture: 1 is no better than the
            mean.
        identified: the share of pictures that are the nearest of all to what was found.
        labels_right: the share of labels that matching finds.
        left: what matching left of its aim, as a share: 0 is a perfect match, of whatever picture.
        pictures: what it found, shape (B, channels, height, width).
    """

    method: str
    count: int
    payload_bytes: int
    batch: int
    example: int
    gradient_error: float
    gradient_cosine: float
    label_right: bool | None
    input_error: float | None
    error: float
    identified: float
    labels_right: float
    left: float
    pictures: Pixels


@dataclass(frozen=True)
class Reconstruction:
    """What came of it.

    Args:
        attempts: all messages.
        truths: the pictures that were attacked, by the number of the first, as `Attempt.pictures`.
        size: d, the parameters that train.
        others: pictures that each was told apart from.
        classes: the classes' names.
    """

    attempts: Sequence[Attempt]
    truths: dict[int, Pixels]
    size: int
    others: int
    classes: Sequence[str]

    def attempts_of(self, method: str, batch: int = 1) -> list[Attempt]:
        """Return the attempts on a method's messages."""
        return [a for a in self.attempts if a.method == method and a.batch == batch]


class PixelLayer(torch.nn.Module):
    """One softmax layer on the pixels: what it learns from one picture is the picture, times a
    number for each class.

    Args:
        pixels: how many numbers a picture has.
        classes: how many classes.
        seed: of its weights.
    """

    def __init__(self, pixels: int, classes: int, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            self.layer = torch.nn.Linear(pixels, classes)

    def forward(self, pixel_values: torch.Tensor) -> SimpleNamespace:
        """Return the logits, as image classifiers return them."""
        return SimpleNamespace(logits=self.layer(pixel_values.flatten(1)))


class Attack:
    """The coordinator's side, with a model that everybody has.

    Args:
        model: an image classifier at the round's weights.
        objective: how pictures become pixel values.
        classes: how many.
        others: pictures that a reconstruction is told apart from.
        steps: of matching.
        seed: of the run, and of what is drawn.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        objective: Images,
        classes: int,
        others: Sequence[Picture],
        steps: int = STEPS,
        seed: int = 1,
    ) -> None:
        self.model, self.objective, self.classes, self.steps, self.seed = (
            model,
            objective,
            classes,
            steps,
            seed,
        )
        self.others = self.to_pixels(others)
        self.mean = self.others.mean(axis=0)

    def attempt(self, method: Method, pictures: Sequence[Picture], example: int) -> Attempt:
        """Let a client that has these pictures alone answer the first plan, and attack its
        answer.
        """
        worker = Worker(self.model, method, self.objective, self.seed)
        payload, knowledge, length = _message(worker, pictures)
        observation = observed(payload, knowledge)
        layer, batch = last_layer(knowledge.layout), len(pictures)
        label_right, input_error = None, None
        with self._as_trained(method):
            gradient_of = gradient_by(self.model, list(worker.space.parameters))
            low, high = self._ends(pictures)
            labels = torch.tensor([picture.label for picture in pictures])
            values = self.objective.pixel_values(pictures)
            true = (
                gradient_of(values, one_hot(labels, self.classes).float()).detach().double().numpy()
            )
            gradient = estimated_gradient(observation)
            if batch == 1 and layer is not None:
                label_right, input_error = _opened(layer, gradient, true)
            start = torch.from_numpy(self._start(batch))
            pictures_shown, guessed, distance = match(
                observation, gradient_of, low, high, self.classes, start, self.steps
            )
        truth = self.to_pixels(pictures)
        order = _assigned(pictures_shown, truth)
        pictures_shown, guessed = pictures_shown[order], [guessed[i] for i in order]
        errors = [
            _distance(s, t) / _distance(self.mean, t)
            for s, t in zip(pictures_shown, truth, strict=True)
        ]
        return Attempt(
            method.name,
            observation.count,
            length,
            batch,
            example,
            relative_error(gradient, true),
            cosine(gradient, true),
            label_right,
            input_error,
            float(np.mean(errors)),
            self._identified(pictures_shown, truth),
            float(
                np.mean([g == picture.label for g, picture in zip(guessed, pictures, strict=True)])
            ),
            distance,
            pictures_shown,
        )

    def to_pixels(self, pictures: Sequence[Picture]) -> Pixels:
        """Return pictures from 0 to 1, as matching finds them."""
        low, high = self._ends(pictures)
        values = self.objective.pixel_values(pictures)
        return np.asarray(((values - low) / (high - low)).numpy(), dtype=np.float32)

    def _start(self, batch: int) -> Pixels:
        """Where matching begins: the mean picture, a little different for each of a batch, so that
        they can part.
        """
        noise = np.random.default_rng(self.seed).normal(scale=0.05, size=(batch, *self.mean.shape))
        return np.asarray(self.mean + noise, dtype=np.float32).clip(0, 1)

    def _ends(self, pictures: Sequence[Picture]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the pixel values of black and of white pictures."""
        ends = []
        for end in (0, 255):
            ends.append([Picture(np.full_like(p.pixels, end), 0) for p in pictures])
        return self.objective.pixel_values(ends[0]), self.objective.pixel_values(ends[1])

    def _identified(self, reconstructed: Pixels, truth: Pixels) -> float:
        """Return how often no other picture is as near as the true one."""
        right = []
        for s, t in zip(reconstructed, truth, strict=True):
            others = [_distance(s, o) for o in self.others if not np.array_equal(o, t)]
            right.append(_distance(s, t) < min(others))
        return float(np.mean(right))

    @contextmanager
    def _as_trained(self, method: Method) -> Iterator[None]:
        """The model as clients of the method call it: batch norm goes by the batch where there are
        gradients.
        """
        buffers = [buffer.clone() for buffer in self.model.buffers()]
        self.model.train(method.needs_gradients)
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, saved in zip(self.model.buffers(), buffers, strict=True):
                    buffer.copy_(saved)
            self.model.eval()


@dataclass(frozen=True)
class Attacked:
    """What is attacked.

    Args:
        methods: whose messages, of `KNOWN`.
        counts: K.
        examples: pictures that are attacked, each alone.
        batches: how many are behind a message with the largest K, in a second series.
        steps: of matching.
        seed: draws the pictures.
        linear: a `PixelLayer` in place of the recipe's model.
    """

    methods: Sequence[str]
    counts: Sequence[int]
    examples: int
    batches: Sequence[int]
    steps: int
    seed: int
    linear: bool


def reconstruction(
    recipe: Recipe, attacked: Attacked, say: Say = lambda text: None
) -> Reconstruction:
    """Attack messages of several methods on a recipe's model and data.

    Args:
        recipe: model and data, and settings of directions; its method may be any.
        attacked: which messages.
        say: shows a line of progress.

    Raises:
        RecipeError: the data are no pictures, or a setting does not fit.
    """
    counts, examples, batches = attacked.counts, attacked.examples, attacked.batches
    data = load_data(recipe)
    examples_held = list(chain.from_iterable(client.examples for client in data.clients))
    if not examples_held or not isinstance(examples_held[0], Picture):
        raise RecipeError(
            f'audit reconstruct: task.name = "{recipe.task.name}": the attack is on pictures, as '
            "in digits-feedsign"
        )
    equipment = equip(recipe, data)
    assert isinstance(equipment.objective, Images)
    model = equipment.model
    if attacked.linear:
        model = PixelLayer(
            equipment.objective.pixel_values(examples_held[:1]).numel(),
            len(data.classes),
            recipe.seed,
        )
    size = Worker(model, settings_for(recipe, "fedsgd", 0, 1), equipment.objective, 1).space.size
    if max(counts) * size > MOST_ENTRIES:
        raise RecipeError(
            f"--numbers {max(counts)}: so many directions of {size:,} parameters are more than "
            "the attack holds; take fewer, or let fewer parameters train, as with --set "
            'model.trainable="head"'
        )
    permutation = np.random.default_rng(attacked.seed).permutation(len(examples_held))
    largest = max([1, *batches])
    if max(examples, largest) > len(examples_held):
        raise RecipeError(
            f"audit reconstruct: {max(examples, largest)} pictures are wanted, the clients have "
            f"{len(examples_held)}"
        )
    others = [examples_held[i] for i in permutation[:OTHERS]]
    attack = Attack(
        model, equipment.objective, len(data.classes), others, attacked.steps, recipe.seed
    )
    attempts = []

    def one(name: str, count: int, first: int, batch: int) -> None:
        attempt = attack.attempt(
            settings_for(recipe, name, count, batch), others[first : first + batch], first
        )
        attempts.append(attempt)
        say(
            f"{name}, {attempt.count:,} numbers, {plural(batch, 'picture')}: gradient's "
            f"cosine {attempt.gradient_cosine:.2f}, picture's error {attempt.error:.2f}, "
            f"{100 * attempt.identified:.0f}% known"
        )

    for name in attacked.methods:
        for first in range(examples):
            for count in counts if name in COUNTED else [0]:
                one(name, count, first, 1)
    for batch in batches:
        for name in attacked.methods:
            if name in ("ferret", *WHOLE):
                one(name, max(counts), 0, batch)
    truths = {first: attack.to_pixels(others[first : first + largest]) for first in range(examples)}
    return Reconstruction(attempts, truths, size, len(others), data.classes)


def settings_for(recipe: Recipe, name: str, count: int, batch: int) -> Method:
    """Return a method whose message has so many numbers, of one step on a batch.

    Raises:
        RecipeError: no attack is known for the method, or it can't send so many.
    """
    if name not in KNOWN:
        raise RecipeError(f"--method {name}: attacks are known for {', '.join(KNOWN)}")
    rate = getattr(getattr(recipe.method, "training", None), "learning_rate", 0.01)
    step = {
        "optimizer": "sgd",
        "learning_rate": rate,
        "steps": 1,
        "batch": batch,
        "accumulation": 1,
    }
    settings_by_method: dict[str, dict[str, Any]] = {
        "ferret": {"directions": count, "blocks": "one", "training": step},
        "fedkseed": {"candidates": max(4096, 4 * count), "steps": count, "batch": batch},
        "feedsign": {"votes_per_round": count, "batch": batch},
        "fedsgd": {"micro_batch": batch},
        "fedavg": {"training": step},
    }
    kind = methods.REGISTRY.get(name)
    settings_there = recipe.method.model_dump(
        include=set(KEPT) & recipe.method.model_fields_set & set(kind.model_fields)
    )
    try:
        return kind.model_validate({**settings_there, **settings_by_method[name]})
    except ValidationError as error:
        raise RecipeError(
            f"audit reconstruct: {name} with {count} numbers: {error.errors()[0]['msg']}"
        ) from error


def _message(worker: Worker, pictures: Sequence[Picture]) -> tuple[Any, Known, int]:
    """Return a client's answer to the first plan, decoded; what is known besides.

    The bytes of its payload.
    """
    method, state = worker.method, worker.state
    plan = method.plan(state, Round(1, 0, (0,)))
    message = Message(MessageKind.PLAN, method.code, 1, EVERYBODY, plan.encode()).encode()
    weights = worker.space.dense()
    answer = worker.train(message, 0, worker.objective.prepare(pictures))
    if answer.message is None:
        raise RecipeError(
            f"audit reconstruct: the client of {method.name} sends nothing: {answer.reason}"
        )
    payload = Message.decode(answer.message).payload
    knowledge = Known(method, state, plan, 1, weights)
    return method.decode_update(state, 1, payload), knowledge, len(payload)


def _opened(
    layer: SoftmaxLayer, gradient: NDArray[np.float64], true: NDArray[np.float64]
) -> tuple[bool, float]:
    """Return whether the label is found, and the relative error of the layer's input."""
    label, input_found = layer.opened(gradient)
    right, inside = layer.opened(true)
    return label == right, relative_error(input_found, inside)


def _distance(a: Pixels, b: Pixels) -> float:
    return float(np.linalg.norm(a.astype(np.float64) - b))


def _assigned(reconstructed: Pixels, truth: Pixels) -> list[int]:
    """Return which of the pictures that were found is taken for which of the true ones: the
    nearest pairs first.
    """
    distances = np.empty((len(reconstructed), len(truth)))
    for s, guess in enumerate(reconstructed):
        distances[s] = [_distance(guess, picture) for picture in truth]
    order = [0] * len(truth)
    for _ in truth:
        nearest = np.unravel_index(distances.argmin(), distances.shape)
        guess_index, true_index = int(nearest[0]), int(nearest[1])
        order[true_index] = guess_index
        distances[guess_index, :] = distances[:, true_index] = np.inf
    return order
