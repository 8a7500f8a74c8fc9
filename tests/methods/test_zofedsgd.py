"""ZO-FedSGD: MeZO with several clients, scalars of one byte."""

import numpy as np

from fedseed import MeZO, ZOFedSGD
from fedseed.methods.zofedsgd import ByteProjections
from support.zeroth_order import LAYOUT, QUICK, federation


def test_zo_fedsgd_with_one_client_is_mezo_bit_for_bit():
    a = federation(ZOFedSGD(**QUICK, seeds="shared"), 1, evaluate_every=1).run()
    b = federation(MeZO(**QUICK), 1, evaluate_every=1).run()
    assert [x["weights_digest"] for x in a.metrics] == [x["weights_digest"] for x in b.metrics]


def sent(values):
    """What arrives of scalars that travel in a byte each."""
    method = ZOFedSGD(seeds="shared", scalars="byte")
    state = method.start(LAYOUT, 1)
    each = (ByteProjections(np.array([value], dtype=np.float32)).encode() for value in values)
    return np.concatenate([method.decode_update(state, 1, data).scalars for data in each])


def test_one_byte_scalars_keep_the_sign_and_eight_percent():
    values = np.concatenate([[0.0], np.geomspace(1e-4, 500, 200), -np.geomspace(1e-4, 500, 200)]).astype(np.float32)
    np.testing.assert_allclose(sent(values), values, rtol=0.08)
    np.testing.assert_allclose(sent([1e9, -1e9, 1e-30]), [2 ** (47 / 5), -(2 ** (47 / 5)), 0], rtol=1e-6)
