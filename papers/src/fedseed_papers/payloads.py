"""What a client's messages of one round take, from payloads that are encoded, not from formulas."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedseed.aggregation import Mean
from fedseed.methods import FedAvg, FedKSeed, FedZO, FeedSign, Ferret, ZOFedSGD
from fedseed.methods.base import Answer, Answers, Method, Round
from fedseed.methods.payload import NUMBERS, Content, Payload
from fedseed.randomness.stream import words
from fedseed.weights.layout import Layout, TensorEntry


@dataclass(frozen=True)
class Exchange:
    """A client's round.

    Args:
        plan: down, before.
        update: up.
        step: down, after.
    """

    plan: Content
    update: Content
    step: Content

    @property
    def bytes(self) -> int:
        """Return the bytes both ways."""
        return self.plan.bytes + self.update.bytes + self.step.bytes

    @property
    def bits_up(self) -> int:
        """Return the bits of the update's numbers, without the padding to whole bytes."""
        wide = sum(getattr(self.update, kind) for kind in NUMBERS if kind != "bits")
        return 32 * wide + self.update.bits


def exchange(method: Method, update: dict[str, Any], length: int) -> Exchange:
    """Encode the messages of a round with one client.

    Args:
        method: the method.
        update: the fields of its update.
        length: d; the model is one float32 tensor.
    """
    layout = Layout((TensorEntry("weights", (length,), "float32"),), (0, length))
    state = method.start(layout, 7)
    plan = method.plan(state, Round(1, 0, (0,)))
    update_sent: Payload = method.update_type(**update)
    step = method.aggregate(state, Answers(1, [Answer(0, 1.0, update_sent)], Mean()))
    # of a method whose next plan carries the model nobody waits for the step
    content_after = Content() if method.catch_up.may_drop else step.content(length, step.encode())
    return Exchange(
        plan.content(length, plan.encode()),
        update_sent.content(length, update_sent.encode()),
        content_after,
    )


def sample_numbers(count: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return numbers to be sent, shape (count,): their values do not matter, their count does."""
    words_drawn = words(1, 0, 0, 0, (count + 3) // 4).reshape(-1)[:count]
    return (words_drawn.astype(np.float64) / 2**32 - 0.5).astype(np.float32)


def fedkseed(
    candidates: int,
    pro: bool = False,
    steps: int = 200,
    length: int = 1000,
    scalars: Literal["float32", "float16"] = "float32",
) -> Exchange:
    """FedKSeed's round: a pool of `candidates`, `steps` pairs."""
    method = FedKSeed(candidates=candidates, importance=pro, steps=steps, scalars=scalars)
    pairs = {
        "indices": np.arange(steps, dtype=np.uint32) % candidates,
        "scalars": sample_numbers(steps),
    }
    return exchange(method, pairs, length)


def fedavg(length: int) -> Exchange:
    """FedAvg's round on `length` float32 parameters."""
    return exchange(FedAvg(), {"data": sample_numbers(length).tobytes()}, length)


def fedzo(length: int) -> Exchange:
    """FedZO's round, which sends weights, on `length` float32 parameters."""
    return exchange(FedZO(), {"data": sample_numbers(length).tobytes()}, length)


def ferret(directions: int, length: int = 1000) -> Exchange:
    """Ferret's round with a shared seed and one block."""
    method = Ferret(directions=directions, blocks="one", allocation="size", seeds="shared")
    state = method.start(Layout((TensorEntry("weights", (length,), "float32"),), (0, length)), 7)
    return exchange(
        method,
        {"seed": method.round_seed(state, 1), "gammas": (sample_numbers(directions),)},
        length,
    )


def feedsign() -> Exchange:
    """FeedSign's step."""
    return exchange(FeedSign(), {"signs": np.ones(1, dtype=np.int8)}, 1000)


def zofedsgd() -> Exchange:
    """ZO-FedSGD's step with seeds of the clients' own."""
    return exchange(
        ZOFedSGD(), {"indices": np.ones(1, dtype=np.uint32), "scalars": sample_numbers(1)}, 1000
    )


def llama_size(layers: int, width: int, inner: int, vocabulary: int = 32_000) -> int:
    """Parameters of a LLaMA with untied embeddings: attention, gated MLP and two norms a layer, and
    a last norm.
    """
    return 2 * vocabulary * width + layers * (4 * width**2 + 3 * width * inner + 2 * width) + width


DATAJUICER = llama_size(24, 2048, 5504)  # DataJuicer-1.3B
LLAMA_3B = llama_size(26, 3200, 8640)  # OpenLLaMA-3B
