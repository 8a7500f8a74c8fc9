"""A client as a method sees it, of which all is made up: its losses, or what training has
changed.
"""

from contextlib import nullcontext

import numpy as np


class MadeUp:
    """What a method asks of it, it answers; what a method does to it can be seen.

    `losses` are plus and minus of each direction, `here` is the loss at the weights as they are;
    `norms` and `products` are those of the blocks of `change`, which training has made."""

    def __init__(
        self,
        losses=(),
        here=0.0,
        change=None,
        memory=None,
        norms=(),
        products=(),
        number=4,
        round=2,
    ):
        self.losses, self.here, self.change, self.memory = losses, here, change, memory
        self.norms, self.products, self.number, self.round = norms, products, number, round
        self.calls, self.changes, self.bases, self.skipped = [], [], [], 0

    def phase(self, name):
        assert name == "projection"
        return nullcontext()

    def autocast(self, dtype):
        self.cast = dtype
        return nullcontext()

    def batches(self, size):
        while True:
            yield [0] * size

    def estimates(self, method, basis, along, items, one_sided=False):
        return method.measure_projections(self, basis, along, items, one_sided)

    def population_losses(self, basis, along, scale, items):
        return [self.losses[k][scale < 0] if scale else self.here for k in along]

    def apply(self, change):
        self.changes.append(change)

    def skip(self, reason):
        self.skipped += 1
        self.reason = reason

    def weights(self):
        return b"weights"

    def first_order(self, training):
        self.calls.append(("train", training.learning_rate))

    def change_norms(self):
        return np.array(self.norms)

    def project_change(self, basis, counts):
        self.bases.append(basis)
        return [np.array(product, dtype=np.float32) for product in self.products]

    def difference(self):
        return self.change.copy()

    def recall(self):
        self.calls.append("recall")
        return self.memory

    def keep(self, vector):
        self.calls.append("keep")
        self.memory = vector.copy()
