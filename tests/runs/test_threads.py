"""torch and numba compute with the same number of threads."""

import numba
import pytest
import torch

from fedseed.runs.learner import limited


@pytest.fixture
def numbers():
    before = torch.get_num_threads(), numba.get_num_threads()
    yield lambda: (torch.get_num_threads(), numba.get_num_threads())
    torch.set_num_threads(before[0])
    numba.set_num_threads(before[1])


def test_numba_takes_as_many_threads_as_torch_has(numbers):
    numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
    torch.set_num_threads(1)
    before = numbers()
    with limited(None):
        assert numbers() == (1, 1)
    assert numbers() == before


def test_a_number_is_for_both_and_only_inside(numbers):
    before = numbers()
    with limited(numba.config.NUMBA_NUM_THREADS + 1):
        assert numbers() == (numba.config.NUMBA_NUM_THREADS + 1, numba.config.NUMBA_NUM_THREADS)
    assert numbers() == before
