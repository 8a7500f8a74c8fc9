"""Secure sums in a federation: the coordinator works with a sum instead of single answers.

    client        update -> vector -> whole numbers -> masked words -> an update message
    coordinator   masked words -> their sum -> one update in place of all -> method.aggregate

Over a transport the coordinator broadcasts its asks, and clients reply as they do to plans:

    broadcast     K | clients, as in a plan | ask
    reply         FK | the ask's first 15 bytes | kind | body

Kind 1 is an answer. Kind 0 means that there is none, and the body has the reason. Kind 2 means that
there is none because the client has opened the round before. The cryptography is in
`fedseed.privacy.secure`, the client's side in `client.secure`, the coordinator's in
`coordinator.secure`. This module does not import torch.
"""

from fedseed.methods import Method
from fedseed.methods.payload import DecodeContext, State
from fedseed.privacy.protection import summand

ASK_ID_BYTES = 15  # phase, setup and, if they matter, round and attempt
NOTHING, SOMETHING, OPENED = 0, 1, 2


def count_words(method: Method, state: State) -> int:
    """Return how many words a client sends: a vector, and a weight unless votes are counted."""
    kind = summand(method)
    return kind.words(DecodeContext(method, state, "update")) + (not kind.counted)
