"""The client's side of secure sums: masks updates, and answers asks."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedseed.errors import MessageError
from fedseed.federation.messages import Message, MessageKind
from fedseed.federation.protocol import SAID
from fedseed.federation.secure import ASK_ID_BYTES, NOTHING, OPENED, SOMETHING, count_words
from fedseed.methods import Method
from fedseed.methods.payload import DecodeContext, State
from fedseed.privacy.protection import summand
from fedseed.privacy.secure import OpenedBeforeError
from fedseed.privacy.secure.client import SecureClient
from fedseed.privacy.secure.fixed import Words
from fedseed.privacy.secure.messages import Phase, Terms, unframe
from fedseed.privacy.secure.settings import SecureSums

# least size of a vector's largest value, in fixed-point steps; below it, rounding changes the value
# by more than a hundredth
FINE = 50


@dataclass
class Masking:
    """Masks the updates of one process's clients, and holds their secrets by number."""

    settings: SecureSums  # the recipe's settings
    method: Method
    examples: Mapping[int, int]  # each client's number of examples
    warn: Callable[[str], None] | None = None  # called once if values are too small
    # private keys that sign for the clients; a client without one gets a new key, which proves
    # nothing
    identities: Mapping[int, Ed25519PrivateKey] = field(default_factory=dict)
    # public keys of the clients; None: accept any keys that the coordinator sends
    known: Mapping[int, bytes] | None = None
    # files that record the newest round that each client has opened
    places: Mapping[int, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.form = self.settings.form(summand(self.method).counted)
        keys = {
            number: self.identities.get(number) or Ed25519PrivateKey.generate()
            for number in self.examples
        }
        common = self.settings.threshold, self.form
        self.clients = {
            number: SecureClient(number, *common, key, self.known, self.places.get(number))
            for number, key in keys.items()
        }

    def update(self, state: State, plan: Message, client: int, update: bytes | None) -> bytes:
        """Return the masked message that a client sends in place of its update.

        Args:
            state: the state before the round's step.
            plan: the plan that the update answers.
            client: the client's number.
            update: the client's update message; None: it has none, which is kept secret as well.

        Raises MessageError if no keys have been agreed on for this attempt.
        """
        words = self._words(state, plan.round, client, update)
        payload = self.clients[client].mask_words(plan.round, plan.attempt, words)
        return Message(
            MessageKind.UPDATE, self.method.code, plan.round, client, payload, plan.attempt
        ).encode()

    def _words(self, state: State, number: int, client: int, update: bytes | None) -> Words:
        """Return weight * vector, and the weight, as whole numbers; zeros if there is no update."""
        kind, context = summand(self.method), DecodeContext(self.method, state, "update", number)
        if update is None:
            return np.zeros(count_words(self.method, state), self.form.dtype)
        payload = Message.decode(update).payload
        vector = self.method.decode_update(state, number, payload).vector(context)
        if kind.counted:
            return self.form.encode(vector)
        weight = self.examples[client] if self.method.weighting == "examples" else 1
        largest = float(np.abs(vector).max(initial=0.0)) * weight
        step = 2.0**-self.form.fraction
        if self.warn is not None and 0 < largest < FINE * step:
            self.warn(
                f"round {number}: the largest value is {largest:.1e}, but secure sums round to "
                f"steps of {step:.1e}, which loses at least {step / 2 / largest:.0%}; raise "
                f"secure_sums.fraction_bits ({self.form.fraction} now, at most 48)"
            )
            self.warn = None
        return np.append(self.form.encode(vector, weight), self.form.dtype.type(weight))


def first_round(ask: bytes) -> int | None:
    """Return the round that an ask wants new keys for.

    None if it asks for something else or is invalid.
    """
    with suppress(MessageError):
        phase, setup, body = unframe(ask)
        return Terms.decode(setup, body).round if phase is Phase.KEYS else None
    return None


def answer_ask(masking: Masking | None, client: int, ask: bytes) -> bytes:
    """Return a client's reply to an ask.

    Args:
        masking: the process's secrets; None: there are none yet.
        client: the client's number.
        ask: the coordinator's ask.
    """
    try:
        if masking is None:
            raise MessageError("this process has no keys yet")
        kind, data = SOMETHING, masking.clients[client].answer(ask)
    except OpenedBeforeError as error:
        kind, data = OPENED, str(error).encode()
    except MessageError as error:
        kind, data = NOTHING, str(error).encode()
    return SAID + ask[:ASK_ID_BYTES] + bytes([kind]) + data
