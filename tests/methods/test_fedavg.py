import numpy as np
import pytest
import torch

from fedseed import FedAvg, ParameterSpace
from fedseed.methods.dense import Weights
from fedseed.methods.payload import to_floats
from support.rounds import answers


def model(dtype, seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Linear(5, 3)).to(
        getattr(torch, dtype)
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_aggregate_is_the_weighted_average(dtype):
    spaces = [ParameterSpace(model(dtype, seed)) for seed in range(3)]
    method = FedAvg()
    state = method.start(spaces[0].layout, 1)
    weights = (0.5, 0.3, 0.2)
    updates = [
        (i, weights[i], method.decode_update(state, 1, s.dense())) for i, s in enumerate(spaces)
    ]
    columns = zip(*(s.parameters for s in spaces), strict=True)
    means = [
        sum(c * p.detach().double() for c, p in zip(weights, column, strict=True))
        for column in columns
    ]
    expected = [mean.float().to(getattr(torch, dtype)) for mean in means]
    step = method.decode_step(state, method.aggregate(state, answers(1, updates)).encode())
    target = ParameterSpace(model(dtype, 9))
    target.apply(method.change(state, step))
    for p, e in zip(target.parameters, expected, strict=True):
        torch.testing.assert_close(p.detach(), e, rtol=0, atol=0)


def test_server_optimisers_take_the_papers_steps():
    """FedAvgM (Hsu et al., 2019) and FedAdam (Reddi et al., 2021, Algorithm 2), beside their
    equations in float64.
    """
    space = ParameterSpace(model("float32", 0))
    start = to_floats(space.dense(), "float32").astype(np.float64)
    rng = np.random.default_rng(1)
    for method in (
        FedAvg(global_rate=0.25),
        FedAvg(server="momentum", server_beta1=0.8, global_rate=0.5),
        FedAvg(server="adam", server_beta1=0.7, server_beta2=0.9, server_eps=1e-2, global_rate=0.1),
    ):
        state = method.advance(method.start(space.layout, 1), Weights(space.dense()))
        w, m, v = start, np.zeros_like(start), np.zeros_like(start)
        for number in range(1, 5):
            sent = [(w + rng.normal(size=w.shape)).astype(np.float32) for _ in range(2)]
            made = answers(
                number, [(i, (0.3, 0.7)[i], Weights(sent[i].tobytes())) for i in range(2)]
            )
            state = method.remember(state, made)
            step = method.decode_step(state, method.aggregate(state, made).encode())
            state = method.advance(state, step)
            change = 0.3 * sent[0].astype(np.float64) + 0.7 * sent[1].astype(np.float64) - w
            if method.server == "average":
                w = w + 0.25 * change
            elif method.server == "momentum":
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
