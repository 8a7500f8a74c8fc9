"""RandOpt: what is averaged are the best of the drawn models, and the orbit is k numbers."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedseed import Orbit, ParameterSpace, RandOpt
from fedseed.errors import MessageError
from fedseed.methods.randopt import Scores, Selection
from support.rounds import answers
from support.zeroth_order import LAYOUT, data, federation, model

METHOD = RandOpt(candidates=16, best=3, scale=0.05, learning_rate=0.05, batch=40)
STATE = METHOD.start(LAYOUT, 1)


def scores(*values):
    return Scores(np.array(values, dtype=np.float32))


@pytest.mark.parametrize("small_steps", ["nearest", "from-base"])
def test_a_round_is_the_average_of_the_best_models(small_steps, tmp_path, without_pictures):
    method = METHOD.model_copy(update={"small_steps": small_steps})
    summary = federation(method, 1, rounds=1, out=tmp_path / "run").run().summary
    tuned, losses, models = model(), [], []
    inputs, targets = (torch.stack([pair[i] for pair in data(1)[0][0]]) for i in (0, 1))
    space, basis = ParameterSpace(tuned), METHOD.directions(3)
    for j in range(16):
        with space.perturbed(basis, j, 0.05), torch.no_grad():
            losses.append(float(cross_entropy(tuned(inputs), targets)))
            models.append(space.snapshot())
    best = sorted(np.argsort(losses)[:3].tolist())
    orbit = Orbit.open(tmp_path / "run" / "model.orbit")
    step = orbit.header.method.decode_step(orbit.header.start(), orbit.records[0].payload)
    assert step.directions.tolist() == best and len(orbit.records[0].payload) == 12
    again = model()
    assert orbit.replay(again) == summary["weights_digest"]
    for i, found in enumerate(again.parameters()):
        torch.testing.assert_close(found.detach(), sum(models[j][i] for j in best) / 3)


def test_scores_and_numbers_have_their_sizes_and_lies_are_refused():
    assert len(scores(*range(16)).encode()) == 64
    step = METHOD.aggregate(
        STATE, answers(1, [(0, 0.5, scores(*range(16))), (1, 0.5, scores(*[0] * 15, -99))])
    )
    assert step.directions.tolist() == [0, 1, 15] and len(step.encode()) == 12
    for wrong in ([1, 1, 2], [2, 1, 0], [0, 1, 16]):
        with pytest.raises(MessageError, match="not in order, or not of the round"):
            METHOD.decode_step(STATE, Selection(np.array(wrong, dtype=np.uint32)).encode())
    nobody = METHOD.decode_step(STATE, METHOD.aggregate(STATE, answers(1, [])).encode())
    assert not METHOD.change(STATE, nobody).terms and METHOD.advance(STATE, nobody).steps_done == 1
