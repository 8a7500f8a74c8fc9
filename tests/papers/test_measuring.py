"""What small figures measure without a sweep, at a reduced cost: real kernels, a real run; times are not judged."""

import pytest

from fedseed_papers import measuring


def test_rebuilds_are_measured_for_every_number_of_steps():
    finding = measuring.rebuild_steps(length=3000, steps=(1, 8, 64), candidates=16)
    repeated, rebuilt = finding.panels[0].series
    assert [x for x, _ in repeated.points] == [x for x, _ in rebuilt.points] == [1, 8, 64]
    assert all(seconds > 0 for _, seconds in (*repeated.points, *rebuilt.points))
    # what is rebuilt is what was done: each step's scalar is in its candidate's place
    pool, steps = measuring._pool(64, 16), measuring._steps(64)
    over = measuring.rebuild_candidates(length=3000, candidates=(4, 16))
    assert [[x for x, _ in line.points] for line in over.panels[0].series] == [[4, 16]] * 2
    assert pool.shape == (16,) and float(pool.sum()) == pytest.approx(float(steps.sum()), rel=1e-5)


@pytest.mark.long
def test_batches_are_looked_at_along_directions_before_and_in_a_run():
    finding = measuring.batch_projections(
        8, directions=3, batches=400, batch=4, steps=(0, 2), seeds=(1, 2), settings=["method.batch=4"]
    )
    reversal, shape = finding.panels
    assert [len(line.points) for line in reversal.series] == [6, 6]
    assert all(0 <= probability <= 1 for line in reversal.series for _, probability in line.points)
    assert [sum(share for _, share in line.points) for line in shape.series] == pytest.approx([1, 1])
