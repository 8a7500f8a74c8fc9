"""An attack on the inputs of linear layers: which tokens of a text, or which pictures, are behind a
message, and behind a sum of several clients' messages.

The messages are the methods' own, of one local step of plain SGD, made by a worker and combined by
a coordinator. The attack reads the change of the weights that they stand for, as whoever has the
step does.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError

from fedseed import methods
from fedseed.errors import RecipeError
from fedseed.federation.client.worker import Worker
from fedseed.federation.coordinator.coordinator import Coordinator
from fedseed.federation.messages import Message
from fedseed.methods import Method
from fedseed.methods.payload import DecodeContext
from fedseed.methods.subspace import Subspace
from fedseed.objectives.classification import Images
from fedseed.recipe.settings import Recipe
from fedseed.runs.model_setup import equip
from fedseed.runs.parties import load_data
from fedseed.tasks.data import Picture
from fedseed.weights.space import ParameterSpace
from fedseed.weights.subspace import RandomSubspace, matrices_of
from fedseed_papers.audits.inverting import last_layer
from fedseed_papers.audits.reconstruct import PixelLayer
from fedseed_papers.audits.spans import (
    Array,
    LayerGradient,
    pick_by_pursuit,
    pick_by_span,
    rank_share,
    similarity,
)

Say = Callable[[str], None]
# what is attacked, and settings of the method; {count} stands for the numbers of a message
ATTACKED: dict[str, dict[str, Any]] = {
    "fedsgd": {"name": "fedsgd"},
    "ferret": {"name": "ferret", "blocks": "one", "seeds": "shared", "scalars": "float32"},
    "ferret-bits": {"name": "ferret", "blocks": "one", "seeds": "shared", "scalars": "bit"},
    "subspace": {"name": "subspace", "targets": "all", "up_bits": 32, "down_bits": 32},
    "subspace-bits": {"name": "subspace", "targets": "all", "up_bits": 1, "down_bits": 32},
}
COUNTED = ("ferret", "ferret-bits")
RANKED = ("subspace", "subspace-bits")
RATE = 0.1  # of the one local step: messages are in proportion to it, or do not depend on it
PICTURES = 100  # candidates of pictures


@dataclass(frozen=True)
class Attacked:
    """What is attacked.

    Args:
        kinds: of `ATTACKED`.
        counts: K of Ferret's messages.
        ranks: r of subspace's.
        clients: how many clients' messages are in a sum, each in a series of its own; 1: a client's
            own message.
        examples: how many examples a client has; all go into its one step.
        candidates: clients whose own messages the attacker can make, those of the sum among them.
        seeds: each draws the examples and the directions anew.
    """

    kinds: Sequence[str]
    counts: Sequence[int]
    ranks: Sequence[int]
    clients: Sequence[int]
    examples: int
    candidates: int
    seeds: Sequence[int]


@dataclass(frozen=True)
class Attempt:
    """A message, or a sum, attacked.

    Args:
        kind: whose message, of `ATTACKED`.
        setting: K or r; 0: neither.
        numbers: in a client's message.
        payload_bytes: of a client's message.
        clients: in the sum; 1: a message by itself.
        seed: drew the examples.
        wanted: how many inputs there were to find, apart from those that all candidates share.
        span: the share of them that is found by the span; 0 if it says nothing.
        pursuit: the share that pursuit finds.
        chance: the share that as many random candidates hit, on average.
        other: the share of a client's inputs that pursuit "finds", of a client that has no part.
        member: the probability that a client of the sum has a message more like it than another
            client; 0.5 is chance.
        error: of pictures, |found - true| over that of the mean picture, of the first client; None:
            texts.
    """

    kind: str
    setting: int
    numbers: int
    payload_bytes: int
    clients: int
    seed: int
    wanted: int
    span: float
    pursuit: float
    chance: float
    other: float
    member: float
    error: float | None


@dataclass(frozen=True)
class Found:
    """What came of it.

    Args:
        attempts: all.
        size: d, the parameters that train.
        vocabulary: how many candidate inputs there are.
        layers: the names of the matrices that were read.
        of_pictures: whether inputs are pictures, not tokens.
    """

    attempts: Sequence[Attempt]
    size: int
    vocabulary: int
    layers: Sequence[str]
    of_pictures: bool

    def attempts_of(self, kind: str, setting: int, clients: int) -> list[Attempt]:
        """Return the attempts on one kind of message, or of sum."""
        return [
            a for a in self.attempts if (a.kind, a.setting, a.clients) == (kind, setting, clients)
        ]


@dataclass
class Target:
    """The model under attack, and the inputs that its first matrices may have.

    Args:
        model: at the round's weights.
        objective: makes losses of examples.
        vocabulary: candidate inputs, one row each.
        layers: names of the matrices whose inputs are rows of the vocabulary.
        inputs_of: from an example to the numbers of its inputs.
        examples: what clients may have.
    """

    model: torch.nn.Module
    objective: Any
    vocabulary: Array
    layers: Sequence[str]
    inputs_of: Callable[[Any], set[int]]
    examples: Sequence[Any]


def find_inputs(recipe: Recipe, attacked: Attacked, say: Say = lambda text: None) -> Found:
    """Attack messages of several methods on a recipe's model and data.

    Args:
        recipe: model and data; its method may be any.
        attacked: which messages.
        say: shows a line of progress.

    Raises:
        RecipeError: a setting does not fit, or no matrix of the model has inputs that depend on one
            token alone.
    """
    data = load_data(recipe)
    examples = list(chain.from_iterable(client.examples for client in data.clients))
    if not examples:
        raise RecipeError(f'audit inputs: task.name = "{recipe.task.name}" has no examples')
    equipment = equip(recipe, data)
    objective = equipment.objective
    if isinstance(objective, Images):
        target = _of_pictures(recipe, objective, examples, len(data.classes))
    else:
        target = _of_texts(equipment.model, objective, examples, recipe.model.base)
    needed = attacked.candidates * attacked.examples
    if needed > len(target.examples) or max(attacked.clients) >= attacked.candidates:
        raise RecipeError(
            f"audit inputs: {attacked.candidates} candidates of {attacked.examples} examples each, "
            f"{max(attacked.clients)} of them in a sum: there are {len(target.examples)} examples, "
            "and one candidate at least has to stay out"
        )
    attempts = []
    size = 0
    for seed in attacked.seeds:
        order = np.random.default_rng(seed).permutation(len(target.examples))[:needed]
        sampled_examples = [target.examples[number] for number in order]
        step = attacked.examples
        clients = [sampled_examples[start : start + step] for start in range(0, needed, step)]
        for kind, setting in _messages(attacked):
            batch = _Messages(target, clients, kind, setting, seed)
            size = batch.worker.space.size
            for count in attacked.clients:
                attempt = batch.attempt(count)
                attempts.append(attempt)
                say(
                    f"seed {seed}, {kind} {setting or ''}, {count} in the sum: span "
                    f"{attempt.span:.2f}, pursuit {attempt.pursuit:.2f}, chance "
                    f"{attempt.chance:.2f}, member {attempt.member:.2f}"
                )
    of_pictures = isinstance(objective, Images)
    return Found(attempts, size, len(target.vocabulary), target.layers, of_pictures)


def _messages(attacked: Attacked) -> list[tuple[str, int]]:
    """Return kinds of messages with their settings."""
    messages = []
    for kind in attacked.kinds:
        settings: Sequence[int] = [0]
        if kind in COUNTED:
            settings = attacked.counts
        elif kind in RANKED:
            settings = attacked.ranks
        messages += [(kind, setting) for setting in settings]
    return messages


def settings_for(kind: str, setting: int, examples: int) -> Method:
    """Return a method whose clients take one step of plain SGD on all their examples.

    Raises:
        RecipeError: no attack is known for the kind, or the setting is not possible.
    """
    if kind not in ATTACKED:
        raise RecipeError(f"--methods {kind}: attacks are known for {', '.join(ATTACKED)}")
    settings = dict(ATTACKED[kind])
    if kind in COUNTED:
        settings |= {"directions": setting, "allocation": "size"}
    elif kind in RANKED:
        settings["rank"] = setting
    if kind == "fedsgd":
        settings["micro_batch"] = examples
    else:
        step = {"optimizer": "sgd", "learning_rate": RATE, "steps": 1}
        settings["training"] = {**step, "batch": examples, "accumulation": 1}
    try:
        return methods.REGISTRY.get(settings["name"]).model_validate(settings)
    except ValidationError as error:
        raise RecipeError(
            f"audit inputs: {kind} with {setting}: {error.errors()[0]['msg']}"
        ) from error


class _Messages:
    """All candidates' messages of one kind, in one round.

    Args:
        target: what is attacked.
        clients: each candidate's examples.
        kind: of `ATTACKED`.
        setting: K or r.
        seed: of the run.
    """

    def __init__(
        self, target: Target, clients: Sequence[Sequence[Any]], kind: str, setting: int, seed: int
    ) -> None:
        self.target, self.kind, self.setting, self.seed = target, kind, setting, seed
        examples = len(clients[0])
        method = settings_for(kind, setting, examples)
        self.worker = Worker(target.model, method, target.objective, seed)
        self.layout = self.worker.space.layout
        self.inputs = [
            set().union(*map(target.inputs_of, client_examples)) for client_examples in clients
        ]
        self.messages, self.vectors = self._answers(clients)
        # what is in every candidate's examples: a template's words
        self.common = set.intersection(*self.inputs)

    def _coordinator(self, clients: int) -> Coordinator:
        method = self.worker.method
        coordinator = Coordinator(method, self.layout, self.seed, [1] * clients, clients)
        if method.catch_up.replaces:
            coordinator.weights = self.worker.space.dense()
        coordinator.open(1)
        return coordinator

    def _answers(self, clients: Sequence[Sequence[Any]]) -> tuple[list[bytes], list[Array]]:
        """Return each client's message, and its numbers."""
        coordinator = self._coordinator(len(clients))
        method, state = self.worker.method, coordinator.state
        context = DecodeContext(method, state, "update", 1)
        messages, vectors = [], []
        for number, client_examples in enumerate(clients):
            items = self.target.objective.prepare(client_examples)
            answer = self.worker.train(coordinator.plan(number), number, items)
            if answer.message is None:
                raise RecipeError(f"audit inputs: a client sends nothing: {answer.reason}")
            update = method.decode_update(state, 1, Message.decode(answer.message).payload)
            messages.append(answer.message)
            vectors.append(np.asarray(update.vector(context), dtype=np.float64))
        return messages, vectors

    def attempt(self, clients: int) -> Attempt:
        """Attack the message of the first client, or the sum of the first clients."""
        layers = self._read_layers(clients)
        targets = set().union(*self.inputs[:clients]) - self.common
        allowed = sorted(set(range(len(self.target.vocabulary))) - self.common)
        count = len(targets)
        candidates = pick_by_pursuit(layers, count, allowed, sorted(self.common))
        outsider = self.inputs[-1] - self.common
        total = np.mean(self.vectors[:clients], axis=0)
        likeness = [similarity(vector, total) for vector in self.vectors]
        return Attempt(
            self.kind,
            self.setting,
            len(self.vectors[0]),
            len(Message.decode(self.messages[0]).payload),
            clients,
            self.seed,
            count,
            _hit_share(pick_by_span(layers, count, allowed), targets),
            _hit_share(candidates, targets),
            count / len(allowed),
            _hit_share(candidates, outsider - targets),
            rank_share(likeness[:clients], likeness[clients:]),
            self._error(clients),
        )

    def _change(self, clients: int) -> Array:
        """Return the mean gradient as the step tells it, shape (d,)."""
        coordinator = self._coordinator(clients)
        method = self.worker.method
        if method.catch_up.replaces:
            # the gradient itself: weights would be rounded
            return np.asarray(np.mean(self.vectors[:clients], axis=0))
        for number in range(clients):
            coordinator.receive(self.messages[number], number)
        coordinator.screen()
        step = method.aggregate(coordinator.state, coordinator.weighted_answers())
        # what it adds to weights of zero is not rounded to the weights' last place
        space = ParameterSpace(_Bare(self.layout), method.blocks)
        space.apply(method.change(coordinator.state, step))
        return -np.concatenate([p.detach().double().reshape(-1).numpy() for p in space.parameters])

    def _read_layers(self, clients: int) -> list[LayerGradient]:
        """Return the rows that the step gives of each first matrix, with the candidate inputs."""
        change = self._change(clients)
        method, state = self.worker.method, self.worker.state
        subspace: RandomSubspace | None = None
        if isinstance(method, Subspace):
            subspace = state.subspace(method.subspace_seed(state, 1))
        layers, start = [], 0
        for entry in self.layout.tensors:
            rows = change[start : start + entry.size]
            begin, start = start, start + entry.size
            if entry.name not in self.target.layers:
                continue
            matrix, inputs = rows.reshape(entry.shape), self.target.vocabulary
            if subspace is not None:
                shape = matrices_of(entry.shape)
                if not subspace.is_whole(entry.shape) and not shape.rows_are_longer:
                    # B = (B P) P^+, and a candidate looks like P x in it
                    signs = subspace.signs(begin, shape.longer).astype(np.float64)
                    signs *= subspace.sign_scale
                    matrix, inputs = matrix @ np.linalg.pinv(signs), inputs @ signs.T
            layers.append(LayerGradient(matrix, inputs))
        return layers

    def _error(self, clients: int) -> float | None:
        """Return how far the softmax layer's input, in closed form, is from the first picture."""
        layer = last_layer(self.layout)
        if layer is None or not isinstance(self.target.objective, Images):
            return None
        _, picture = layer.opened(self._change(clients))
        (first,) = sorted(self.inputs[0])[:1]
        truth, mean = self.target.vocabulary[first], self.target.vocabulary.mean(axis=0)
        return float(np.linalg.norm(picture - truth) / np.linalg.norm(mean - truth))


class _Bare(torch.nn.Module):
    """Tensors of zeros in a layout's shapes."""

    def __init__(self, layout: Any) -> None:
        super().__init__()
        self.tensors = torch.nn.ParameterList(
            [torch.nn.Parameter(torch.zeros(entry.shape)) for entry in layout.tensors]
        )


def _hit_share(candidates: Sequence[int], targets: set[int]) -> float:
    """Return the share of the targets that are among the candidates; 0 if there is no target."""
    if not targets:
        return 0.0
    return len(targets.intersection(candidates)) / len(targets)


def _of_pictures(
    recipe: Recipe, objective: Images, examples: Sequence[Picture], classes: int
) -> Target:
    """Return one softmax layer on the pixels, whose inputs are the pictures themselves."""
    order = np.random.default_rng(recipe.seed).permutation(len(examples))[:PICTURES]
    candidates = [examples[number] for number in order]
    values = objective.pixel_values(candidates)
    number_of = {id(picture): number for number, picture in enumerate(candidates)}
    model = PixelLayer(values[0].numel(), classes, recipe.seed)
    return Target(
        model,
        objective,
        values.flatten(1).double().numpy(),
        ["layer.weight"],
        lambda picture: {number_of[id(picture)]},
        candidates,
    )


def _of_texts(model: torch.nn.Module, objective: Any, examples: Sequence[Any], base: str) -> Target:
    """Return a language model, with the inputs that its first matrices have for each token."""
    embeddings = getattr(model, "get_input_embeddings", lambda: None)()
    if embeddings is None:
        raise RecipeError(f'audit inputs: model.base = "{base}" has no embeddings of tokens')
    vocabulary, layers = first_inputs(model, embeddings.num_embeddings)
    if not layers:
        raise RecipeError(
            f'audit inputs: no matrix of model.base = "{base}" has inputs that depend on one token '
            "alone (its positions are in its embeddings): take a model with rotary positions"
        )
    usable = [example for example in examples if objective.prepare([example])]

    def inputs_of(example: Any) -> set[int]:
        # the last token of a text is predicted only, and is no input of what carries loss
        return {token for item in objective.prepare([example]) for token in item.ids[:-1]}

    return Target(model, objective, vocabulary, layers, inputs_of, usable)


@torch.no_grad()
def first_inputs(model: torch.nn.Module, tokens: int) -> tuple[Array, list[str]]:
    """Return each token's input to the first matrices, and the names of these matrices.

    They are the linear layers whose input at a position depends on the token there, not on the
    position nor on other tokens.

    Args:
        model: a language model.
        tokens: how many there are.

    Returns:
        Shape (tokens, n), and names of parameters; no names if there is no such layer.
    """
    inputs: dict[str, torch.Tensor] = {}

    def note(name: str) -> Callable[..., None]:
        def hook(module: Any, arguments: tuple[Any, ...]) -> None:
            inputs[name] = arguments[0].detach()

        return hook

    linear = {n: m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
    hooks = [module.register_forward_pre_hook(note(name)) for name, module in linear.items()]
    model.eval()
    try:
        # the same token alone, and behind two different others
        probe = torch.tensor([[1, tokens - 1], [2, tokens - 1]])
        model(input_ids=probe)
        behind = dict(inputs)
        model(input_ids=torch.arange(tokens)[:, None])
    finally:
        for hook in hooks:
            hook.remove()
    layers = [
        name
        for name, values in inputs.items()
        if values.ndim == 3
        and all(torch.allclose(row[1], values[-1, 0], atol=1e-5) for row in behind[name])
        and torch.equal(values, inputs[next(iter(inputs))])
    ]
    if not layers:
        return np.zeros((tokens, 0)), []
    return inputs[layers[0]][:, 0].double().numpy(), [f"{name}.weight" for name in layers]
