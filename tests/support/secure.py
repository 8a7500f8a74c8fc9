"""A room with a coordinator and some clients of a secure sum, and somebody who hears everything."""

import numpy as np

from fedseed.privacy.secure.client import SecureClient
from fedseed.privacy.secure.fixed import FixedPoint
from fedseed.privacy.secure.messages import unframed
from fedseed.privacy.secure.summing import Summing, converse

FORM = FixedPoint(64, 20, 16)


class Room:
    """Args: how many clients; how many open; gone: phase -> who is silent from there on; changed: what is done to what.

    `changed` is called with (client, phase, answer) and returns what the coordinator gets.
    """

    def __init__(self, clients=5, threshold=3, form=FORM, ahead=1, **client):
        self.clients = {n: SecureClient(n, threshold, form, **client) for n in range(clients)}
        self.summing = Summing(threshold, form, ahead)
        self.form = form
        self.gone = {}
        self.changed = lambda client, phase, answer: answer
        self.asked = lambda client, phase, ask: ask
        self.heard = []  # what the coordinator got: (client, phase or "vector", bytes)

    def say(self, client, ask):
        phase = unframed(ask)[0]
        if client in self.gone.get(phase, ()):
            return None
        answer = self.changed(client, phase, self.clients[client].answer(self.asked(client, phase, ask)))
        if answer is not None:
            self.heard.append((client, phase, answer))
        return answer

    def prepare(self, round=1, attempt=0, clients=None):
        return converse(self.summing.prepare(round, attempt, clients or sorted(self.clients)), self.say)

    def vectors(self, values, round=1, attempt=0):
        """Masked words of the members who do not go before they send them."""
        found = {}
        for client in self.summing.setup.members:
            if client not in self.gone.get("vector", ()):
                data = self.clients[client].masked(round, attempt, values[client])
                self.heard.append((client, "vector", data))
                assert data[:8] == self.summing.setup.terms.setup
                found[client] = np.frombuffer(data[8:], dtype=self.form.dtype)
        return found

    def open(self, vectors, round=1, attempt=0):
        return converse(self.summing.open(round, attempt, vectors), self.say)

    def total(self, values, round=1, attempt=0, clients=None):
        """A whole round: the sum, and who is in it."""
        self.prepare(round, attempt, clients)
        vectors = self.vectors(values, round, attempt)
        return self.open(vectors, round, attempt), sorted(vectors)
