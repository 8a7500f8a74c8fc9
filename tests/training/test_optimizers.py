"""The optimisers of local steps: which are fused, and what that changes in bits."""

import pytest
import torch

from fedseed.training.optimizers import can_fuse, make_optimizer
from fedseed.training.settings import OPTIMIZERS, LocalTraining

FUSED_ON_CPU = {"sgd", "adam", "adamw", "adagrad"}


def weights_of(dtype: torch.dtype, *sizes: int) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [torch.nn.Parameter(torch.randn(size, generator=generator).to(dtype)) for size in sizes]


def take_steps(optimizer: torch.optim.Optimizer, weights: list[torch.nn.Parameter]) -> None:
    generator = torch.Generator().manual_seed(2)
    for _ in range(4):
        for w in weights:
            w.grad = torch.randn(len(w), generator=generator)
        optimizer.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimisers_of_float32_weights_are_fused_where_torch_can(name):
    weights = weights_of(torch.float32, 5, 7)
    optimizer = make_optimizer(LocalTraining(optimizer=name, learning_rate=0.1), weights)
    assert bool(optimizer.defaults.get("fused")) is (name in FUSED_ON_CPU)
    take_steps(optimizer, weights)  # torch refuses a fused one that it has no kernel for


@pytest.mark.parametrize("name", sorted(FUSED_ON_CPU))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_optimisers_of_16_bit_weights_round_as_published_codes_do(name, dtype):
    assert not can_fuse(name, weights_of(dtype, 5))
    # one tensor of another kind decides for all: an optimiser has one implementation
    assert not can_fuse(name, [*weights_of(torch.float32, 5), *weights_of(dtype, 5)])
    assert not can_fuse(name, [torch.nn.Parameter(torch.empty(5, device="meta"))])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_number_of_threads_changes_no_bit(name):
    """Large enough for torch to deal a tensor to several threads, with a rest that fits nowhere."""
    settings = LocalTraining(optimizer=name, learning_rate=0.01, weight_decay=0.01)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            weights = weights_of(torch.float32, 200_003, 31)
            take_steps(make_optimizer(settings, weights), weights)
            found.append(torch.cat([w.detach() for w in weights]))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_fused_sgd_has_the_bits_of_the_plain_one(momentum, decay):
    """So clients that train by SGD send what they sent before steps were fused."""
    ours, plain = weights_of(torch.float32, 1001, 40), weights_of(torch.float32, 1001, 40)
    settings = LocalTraining(learning_rate=0.1, momentum=momentum, weight_decay=decay)
    take_steps(make_optimizer(settings, ours), ours)
    take_steps(
        torch.optim.SGD(plain, lr=0.1, momentum=momentum, weight_decay=decay, fused=False), plain
    )
    assert all(map(torch.equal, ours, plain))
