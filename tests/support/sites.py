"""Sites with data of their own that take part in a run, in threads of this process."""

import asyncio
import json

from fedseed.runs.joining import Loading, make_client, prepare_orbit_file, save_model
from fedseed.transport.memory import Hub
from support.heard import Heard
from support.network import until
from support.together import LOADING, Together

PATIENCE = 300.0


class Said(Heard):
    """Keeps what is said, and acts when a round is over."""

    def __init__(self, at=None, act=None):
        super().__init__()
        self.at, self.act = at, act

    def round(self, line):
        self.advance(line.round)

    def advance(self, number):
        if self.at is not None and number >= self.at:
            self.at = None
            self.act()


class Sites(Together):
    """Sites in threads of this process, at a hub or a server."""

    def __init__(self, checked, way):
        super().__init__(checked, way)
        self.said = {}

    def site(self, name, own, out=None, hold=None, clients=None):
        """`clients`: all that it hosts.

        `hold`: what it waits for after its first round, with the others waiting.
        """
        self.said[name] = Said(1, lambda: until(hold, PATIENCE, "nobody comes")) if hold else Said()

        def live():
            orbit = None if out is None else prepare_orbit_file(out)
            with LOADING:
                load = Loading(
                    self.checked, clients or [name], progress=self.said[name], own_data=own
                )
                self.clients[name] = client = make_client(load, "run", self.way(), orbit)
            digest = client.run()
            if out is not None:
                with LOADING:
                    save_model(client, digest, out)
            return digest

        self.begin(name, live)

    def status(self):
        async def ask():
            end = await self.way().watcher()
            try:
                answer, log = await end.status(5), await end.log()
                return (
                    None
                    if answer is None
                    else {**json.loads(answer), "log": None if log is None else log.last}
                )
            finally:
                await end.close()

        return asyncio.run(ask())


def at_hub(checked):
    hub = Hub()
    return Sites(checked, lambda: hub.transport("run"))
