"""A coordinator's reception without a network."""

import base64
import json
import time

from fedseed.federation.base_weights import BaseWeights
from fedseed.federation.control import Attach, Hello
from fedseed.federation.membership import Roster
from fedseed.federation.reception import Reception
from fedseed.federation.session import CoordinatorSettings, Rejected, Session
from fedseed.methods import FeedSign
from fedseed.orbit import Header
from fedseed.orbit.file import begin
from fedseed.reports.progress import Silent
from fedseed.transport.memory import Hub
from fedseed.weights.layout import Layout, TensorEntry


class Talk:
    """A coordinator's reception, asked without a network."""

    def __init__(self, **settings):
        self.settings = CoordinatorSettings(dead_after=1000.0, **settings)
        self.refused = []

    async def start(self):
        end = await Hub().transport("run").coordinator()
        session = Session(end, self.settings, Silent(), Rejected(Silent(), "run"))
        self.roster = Roster(1000.0, self.settings.names, self.settings.enrols)
        self.reception = Reception(session, self.roster, FeedSign(), 0, BaseWeights(session, False))

    async def hello(self, names, party=True, attach=True, host=None):
        """A process of some clients comes; what it is told."""
        host = host or names[0]
        for name in names if attach else ():
            self.reception.attach(name, Attach(client=name, host=host, examples=3))
        layout = Layout((TensorEntry("w", (4, 4), "float32"),), (0, 16))
        header = Header("small", "ab" * 16, "float32", layout, FeedSign(), 0)
        start = base64.b64encode(begin(header)).decode()
        about = Hello(host=host, header=start, names=names, at=0, time=time.time(), names_matter=not party)
        return json.loads(await self.reception.hello(host, about, lambda who, why: self.refused.append(why)))
