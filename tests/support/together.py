"""A run's clients and coordinator in threads of this process."""

import threading

import torch

from fedseed.federation.client.network import NetworkClient
from fedseed.runs.network import coordinate

# models are drawn by torch's global generator, and loaded by transformers one at a time
LOADING = threading.Lock()


class Together:
    """Who takes part in one run.

    Args:
        checked: the recipe.
        way: makes a transport of the run.
        run: the run's name.
    """

    def __init__(self, checked, way, run="run"):
        self.checked, self.way, self.run = checked, way, run
        self.digests, self.failures, self.clients = {}, {}, {}  # by who it is
        self.result, self._threads = None, []

    def begin(self, name, act):
        """Do something in a thread of its own; a client's ends with a digest."""

        def live():
            torch.set_num_threads(1)
            try:
                digest = act()
                if digest is not None:
                    self.digests[name] = digest
            except Exception as error:
                self.failures[name] = error

        self._threads.append(threading.Thread(target=live, daemon=True))
        self._threads[-1].start()

    def host(self, name, load, progress=None):
        """A process of clients; `load` makes its part of the federation."""

        def live():
            self.clients[name] = NetworkClient(
                self.way(), self.run, load, self.checked.rounds, progress
            )
            return self.clients[name].run()

        self.begin(name, live)

    def coordinator(self, out, progress=None):
        def run():
            self.result = coordinate(self.checked, self.run, self.way(), out, progress=progress)

        self.begin("coordinator", run)

    def coordinate(self, out, progress=None):
        """The coordinator's result; it would wait for ever for a client that has failed."""
        self.coordinator(out, progress)
        self._until_ended(self._threads[-1:])
        return self.result

    def wait(self, failing=()):
        """Wait until all have ended, of whom these fail; the others' digests."""
        self._until_ended(self._threads, failing)
        assert set(self.failures) == set(failing)
        return set(self.digests.values())

    def _until_ended(self, threads, failing=()):
        for thread in threads:
            while thread.is_alive():
                thread.join(0.1)
                assert set(self.failures) <= set(failing), self.failures
        assert set(self.failures) <= set(failing), self.failures
