"""The base's weights, brought by a client: what a coordinator begins with where steps are whole weights.

They must have the digest that most clients say theirs have (`agreement`), and come from one that was asked.
"""

import asyncio
import base64
import time
from dataclasses import dataclass, field
from typing import Any

from fedseed.errors import MessageError
from fedseed.federation.large import fetch
from fedseed.federation.messages import FRAME_BYTES
from fedseed.federation.session import Session
from fedseed.orbit import Header
from fedseed.weights.dense_digest import dense_digest

BRING_SECONDS = 60.0  # for a client to bring them, before another is asked


@dataclass
class BaseWeights:
    """Asks clients for the weights until one has brought them."""

    session: Session
    needed: bool  # whether the coordinator wants them at all
    data: bytes | None = None  # once they are here
    digest: str | None = None  # what they must have; None: nobody says
    _ask_again: float = 0.0  # when to ask another client
    _asked: set[str] = field(default_factory=set)  # who may bring them
    _failed: set[str] = field(default_factory=set)  # who has brought something else
    _fetching: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def missing(self) -> bool:
        """Returns whether they are still to come."""
        return self.needed and self.data is None

    def hello(self, host: str, brought: str | None, answer: dict[str, Any], header: Header | None, most: int) -> None:
        """A client has said hello, with the weights perhaps; if not, the answer asks for them.

        Args:
            host: who it is.
            brought: the weights that it has brought, or a reference to them.
            answer: what it will be told.
            header: what the run is; None: that is not known yet.
            most: bytes of the largest message that a client may send.
        """
        if brought is not None:
            if host not in self._asked:
                self.session.rejected.add(host, "base weights that it was not asked for")
                return
            self._asked.discard(host)
            if not self.missing or header is None:
                return  # another was faster
            task = asyncio.create_task(self._take(host, base64.b64decode(brought), header, most))
            self._fetching.add(task)
            task.add_done_callback(self._fetching.discard)
        elif header is not None and self.missing and host not in self._failed and time.monotonic() > self._ask_again:
            # one client is enough; another is asked if this one does not
            self._ask_again = time.monotonic() + BRING_SECONDS
            self._asked.add(host)
            answer["bring"] = "weights"

    async def _take(self, host: str, carried: bytes, header: Header, most: int) -> None:
        try:
            weights = (await fetch(self.session.end, carried, host, most))[FRAME_BYTES:]
            if len(weights) != header.layout.dense_bytes:
                raise MessageError(f"{len(weights)} bytes of weights")
            digest = self.digest and await asyncio.to_thread(dense_digest, header.layout, weights, header.digest_kind)
            if digest != self.digest:
                raise MessageError(f"base weights with the digest {digest}: this run's have {self.digest}")
            if self.missing:
                self.data = weights
        except MessageError as error:
            self.session.rejected.add(host, str(error))
            self._failed.add(host)
            self._ask_again = 0.0
        self.session.stir()

    def hand_over(self) -> bytes | None:
        """Returns the weights, which are needed no longer here."""
        data, self.data, self.needed = self.data, None, False
        return data
