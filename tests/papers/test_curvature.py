"""The curvature of a model's loss, against its whole Hessian."""

import pytest
import torch

from fedseed import FeedSign
from fedseed.federation.client.worker import Worker
from fedseed_papers.curvature import Curvature
from fedseed_papers.measuring import snapshot_ensemble
from fedseed_papers.theorems import descent_factor
from support.zeroth_order import OBJECTIVE, QUICK, data, model


@pytest.fixture(scope="module")
def measured():
    worker = Worker(model(), FeedSign(**QUICK), OBJECTIVE, 3)
    items = data(1)[0][0]
    return worker, items, Curvature.measure(worker, items, 5)


def hessian_of(worker, items):
    """The whole Hessian of the mean loss, shape (d, d), in double precision."""
    net = worker.space.model
    shapes = [p.shape for p in worker.space.parameters]
    names = [name for name, _ in net.named_parameters()]

    def loss(flat):
        parts = flat.split([shape.numel() for shape in shapes])
        weights = {
            name: part.view(shape) for name, part, shape in zip(names, parts, shapes, strict=True)
        }
        stacked = torch.stack([x for x, _ in items]).double()
        predictions = torch.func.functional_call(net, weights, (stacked,))
        targets = torch.stack([y for _, y in items])
        return torch.nn.functional.cross_entropy(predictions, targets)

    start = torch.cat([p.detach().reshape(-1) for p in worker.space.parameters]).double()
    return torch.autograd.functional.hessian(loss, start)


def test_trace_and_largest_eigenvalue_are_those_of_the_hessian(measured):
    worker, items, curvature = measured
    whole = hessian_of(worker, items)
    assert curvature.largest == pytest.approx(float(torch.linalg.eigvalsh(whole)[-1]), rel=0.01)
    # Hutchinson's deviation over 64 probes of signs: the root of 2 |off-diagonal|^2 / 64
    off = whole - torch.diag(torch.diag(whole))
    deviation = (2 * float((off * off).sum()) / 64) ** 0.5
    assert abs(curvature.trace - float(whole.trace())) < 4 * deviation
    assert curvature.rank == curvature.trace / curvature.largest


def test_steps_lower_the_loss_about_as_the_lemma_says_and_leave_the_weights(measured):
    worker, _, curvature = measured
    before = worker.space.digest()
    ratio = curvature.descent_over_bound(directions=400)
    assert worker.space.digest() == before
    # on a quadratic: between the bound itself, for a gradient along the largest eigenvalue, and
    # 2 - (r + 2 h) / zeta for one of curvature h
    zeta = descent_factor(len(curvature.gradient), curvature.rank)
    assert 0.7 < ratio < 2 - curvature.rank / (2 * zeta)


@pytest.mark.long
def test_an_ensemble_of_snapshots_is_no_worse_than_their_mean_and_a_snapshot_has_k_scalars():
    finding = snapshot_ensemble((1, 2))
    (sheet,) = finding.sheets
    assert sheet.head == ("seed", "last", "ensemble", "mean of single ones")
    for _, last, ensemble, mean in sheet.rows:
        assert float(ensemble) <= float(mean) and float(last) > 0
    # K = 128 numbers of four bytes
    assert finding.claims[0].here.startswith("512 bytes of a round's record")
