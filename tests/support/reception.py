"""A coordinator's reception without a network."""

import asyncio
import base64
import json

from fedseed.federation.control import Attach, Hello
from fedseed.federation.coordinator.admission import Reception
from fedseed.federation.coordinator.membership import Roster
from fedseed.federation.coordinator.session import CoordinatorSettings, Rejected, Session
from fedseed.federation.messages import Message, MessageKind
from fedseed.methods import FeedSign
from fedseed.orbit import Header
from fedseed.orbit.file import begin
from fedseed.reports.progress import Progress
from fedseed.transport.memory import Hub
from fedseed.weights.layout import Layout, TensorEntry

LAYOUT = Layout((TensorEntry("w", (4, 4), "float32"),), (0, 16))


class Talk:
    """A coordinator's reception, asked without a network."""

    method = FeedSign()

    def __init__(self, **settings):
        self.settings = CoordinatorSettings(dead_after=1000.0, **settings)
        self.header = Header("small", "ab" * 16, "float32", LAYOUT, self.method, 0)

    async def start(self):
        end = await Hub().transport("run").coordinator()
        self.rejected = Rejected(Progress(), "run")
        session = Session(end, self.settings, Progress(), self.rejected)
        self.roster = Roster(1000.0, list(self.settings.names), self.settings.enrols)
        self.reception = Reception(session, self.roster, self.method, 0)
        self.base = self.reception.base
        return self

    async def hello(
        self, names, party=True, attach=True, host=None, header=None, weights=None, **more
    ):
        """A process of some clients comes; what it is told, once the start has looked at it."""
        host = host or names[0]
        for name in names if attach else ():
            self.reception.attach(name, Attach(client=name, host=host, examples=3))
        start = base64.b64encode(begin(header or self.header)).decode()
        if weights is not None:
            frame = Message(MessageKind.STEP, self.method.code, 0, 0, b"").encode()
            more["weights"] = base64.b64encode(frame + weights).decode()
        about = Hello(host=host, header=start, names=names, at=0, names_matter=not party, **more)
        told = json.loads(await self.reception.hello(host, about))
        for _ in range(20):
            await asyncio.sleep(0)
        return told
