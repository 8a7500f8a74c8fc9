"""ZO-FedSGD: MeZO with several clients, scalars of one byte."""

import numpy as np

from fedseed import MeZO, ZOFedSGD
from fedseed.methods.zofedsgd import from_byte, to_byte
from support.zeroth_order import QUICK, federation


def test_zo_fedsgd_with_one_client_is_mezo_bit_for_bit():
    a = federation(ZOFedSGD(**QUICK, seeds="shared"), 1, evaluate_every=1).run()
    b = federation(MeZO(**QUICK), 1, evaluate_every=1).run()
    assert [x["weights_digest"] for x in a.metrics] == [x["weights_digest"] for x in b.metrics]


def test_one_byte_scalars_keep_the_sign_and_eight_percent():
    values = np.concatenate([[0.0], np.geomspace(1e-4, 500, 200), -np.geomspace(1e-4, 500, 200)]).astype(np.float32)
    back = from_byte(to_byte(values))
    np.testing.assert_allclose(back, values, rtol=0.08)
    beyond = from_byte(to_byte(np.array([1e9, -1e9, 1e-30], dtype=np.float32)))
    np.testing.assert_allclose(beyond, [2 ** (47 / 5), -(2 ** (47 / 5)), 0], rtol=1e-6)
