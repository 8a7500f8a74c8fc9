import numpy as np
import pytest
import torch

from fedseed import FedAvg, ParameterSpace
from fedseed.errors import MessageError
from fedseed.methods.dense import Weights
from fedseed.methods.payload import to_floats
from support.rounds import answers

DTYPES = ["float32", "bfloat16", "float16"]


def model(dtype, seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Linear(5, 3)).to(getattr(torch, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_aggregate_is_the_weighted_average(dtype):
    spaces = [ParameterSpace(model(dtype, seed)) for seed in range(3)]
    method = FedAvg()
    state = method.start(spaces[0].layout, 1)
    weights = (0.5, 0.3, 0.2)
    updates = [
        (i, weight, method.decode_update(state, 1, s.dense()))
        for i, (s, weight) in enumerate(zip(spaces, weights, strict=True))
    ]
    expected = [
        sum(weight * s.parameters[j].detach().double() for s, weight in zip(spaces, weights, strict=True))
        .float()
        .to(getattr(torch, dtype))
        for j in range(len(spaces[0].parameters))
    ]
    step = method.decode_step(state, method.aggregate(state, answers(1, updates)).encode())
    target = ParameterSpace(model(dtype, 9))
    target.apply(method.change(state, step))
    for p, e in zip(target.parameters, expected, strict=True):
        torch.testing.assert_close(p.detach(), e, rtol=0, atol=0)


def test_global_rate_moves_from_the_old_weights():
    spaces = [ParameterSpace(model("float32", seed)) for seed in range(2)]
    method = FedAvg(global_rate=0.25)
    state = method.advance(method.start(spaces[0].layout, 1), Weights(spaces[0].dense()))
    step = method.aggregate(state, answers(1, [(0, 1.0, Weights(spaces[1].dense()))]))
    a, b = (to_floats(s.dense(), "float32") for s in spaces)
    np.testing.assert_allclose(to_floats(step.data, "float32"), a + 0.25 * (b - a), rtol=1e-6, atol=1e-7)


def test_wrong_weights_are_refused():
    where = ParameterSpace(model("bfloat16", 0))
    method = FedAvg()
    state = method.start(where.layout, 1)
    with pytest.raises(MessageError, match="bytes of weights"):
        method.decode_update(state, 1, where.dense()[:-2])
    with torch.no_grad():
        where.parameters[2][0, 0] = float("inf")
    with pytest.raises(MessageError, match=r"tensor 1\.weight"):
        method.decode_update(state, 1, where.dense())


def test_server_optimisers_take_the_papers_steps():
    """FedAvgM (Hsu et al., 2019) and FedAdam (Reddi et al., 2021, Algorithm 2), beside their equations in float64."""
    space = ParameterSpace(model("float32", 0))
    start = to_floats(space.dense(), "float32").astype(np.float64)
    rng = np.random.default_rng(1)
    for method in (
        FedAvg(server="momentum", server_beta1=0.8, global_rate=0.5),
        FedAvg(server="adam", server_beta1=0.7, server_beta2=0.9, server_eps=1e-2, global_rate=0.1),
    ):
        state = method.advance(method.start(space.layout, 1), Weights(space.dense()))
        w, m, v = start, np.zeros_like(start), np.zeros_like(start)
        for number in range(1, 5):
            sent = [(w + rng.normal(size=w.shape)).astype(np.float32) for _ in range(2)]
            made = answers(number, [(i, (0.3, 0.7)[i], Weights(sent[i].tobytes())) for i in range(2)])
            state = method.remember(state, made)
            step = method.decode_step(state, method.aggregate(state, made).encode())
            state = method.advance(state, step)
            change = 0.3 * sent[0].astype(np.float64) + 0.7 * sent[1].astype(np.float64) - w
            if method.server == "momentum":
                m = 0.8 * m + change
                w = w + 0.5 * m
            else:
                m = 0.7 * m + 0.3 * change
                v = 0.9 * v + 0.1 * change**2
                w = w + 0.1 * m / (np.sqrt(v) + 1e-2)
            np.testing.assert_allclose(to_floats(step.data, "float32"), w, rtol=1e-5, atol=1e-5)
            again = method.start(space.layout, 1).load_state_dict(state.state_dict())
            np.testing.assert_array_equal(again.first, state.first)
            w = to_floats(step.data, "float32").astype(np.float64)
