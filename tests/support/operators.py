"""An operator who does at random what operators do to a server while a run goes on, and a person
who then does what each party's last line says.

After it everybody must end with one digest, that of the same run in one process.
"""

import asyncio
import fcntl
import random
import shutil
import signal
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

import nats
import nats.errors
from nats.js.errors import NotFoundError

from support.certificates import Authority
from support.clocks import Clock, find_library
from support.disks import SmallDisk, can_mount
from support.network import Network, Server, extra_server, in_process, keyed_server, until
from support.problem import METHODS, Problem

ALL = {"minimum": 5, "per_round": 5, "deadline": 3600.0, "dead_after": 60.0}
RUNS = {
    name: {
        "method": METHODS[name],
        "rounds": rounds,
        "federation": ALL,
        "evaluation": {"every": 10},
    }
    for name, rounds in (("feedsign", 120), ("ferret", 50), ("fedavg", 40))
}
QUIET = 0.75  # the share of the rounds after which the operator leaves the run alone
MOST_STARTS = 12  # of one party, until what its lines say is taken for not working
END_SECONDS = 300.0  # from the operator's last act to everybody's end
CLIENTS = [f"client-{number}" for number in range(5)]
# what a last line may ask for, and what the person then does
FRESH, AGAIN = "with --fresh and the same --out", "again"
SERVER_AGAIN = "start nats-server again"
ROOM = "make room there, then"
WAYS_OUT = (ROOM, FRESH, "start `fedseed serve` again", "then start this again", "start this again")


ACTS = (
    *("restart", "stop_jetstream", "seal", "cut", "limit", "delete", "purge"),
    *("pause_server", "pause_coordinator", "pause_client", "set_back", "expire"),
    *("kill_coordinator", "kill_client", "start_second", "start_second_elsewhere"),
    *("stop_repeats", "fill_server", "fill_coordinator", "fill_client"),
    *("set_clock_forward", "set_clock_back"),
)
DISK_BYTES = 256 << 20  # of each party's disk, where it may be filled up
CLOCK_JUMPS = (90, 7200, 40 * 86400, 4000 * 86400)  # seconds, the longest beyond certificates' days


class Deck:
    """All acts in a random order, so that each comes as often as any other.

    Args:
        seed: draws the order.
    """

    def __init__(self, seed):
        self._draw, self._acts = random.Random(seed), []

    def take(self, possible):
        """Take the next act that is possible; the others stay where they are."""
        if not any(possible(act) for act in self._acts):
            self._acts += self._draw.sample(ACTS, len(ACTS))
        number = next(number for number, act in enumerate(self._acts) if possible(act))
        return self._acts.pop(number)


@dataclass
class Trial:
    """One run under an operator.

    Args:
        seed: draws everything but the acts.
        folder: an empty one.
        deck: has the acts.
    """

    seed: int
    folder: object
    deck: Deck
    acts: list[str] = field(default_factory=list)

    def __post_init__(self):
        self.draw = random.Random(self.seed)
        self.method = self.draw.choice(list(RUNS))
        self.binary = self.draw.choice([None, extra_server()])
        self.secured = self.draw.random() < 0.4
        self.hosts, self.starts, self.obeyed = {}, {}, {}
        self.lost_its_log = None  # the coordinator whose stream was deleted last
        self.disks, self.clocks = {}, {}  # by party
        # each of them makes a trial slower
        special = self.draw.random()
        self.has_disks = special < 0.4 and can_mount()
        self.has_clocks = special >= 0.7 and find_library() is not None

    def __str__(self):
        binary = "the extra's server" if self.binary else "the system's server"
        keys = "with keys" if self.secured else "without keys"
        special = ""
        if self.has_disks:
            special = ", small disks"
        elif self.has_clocks:
            special = ", clocks that jump"
        acts = ", ".join(self.acts)
        return f"seed {self.seed}: {self.method}, {binary}, {keys}{special}: {acts}"

    def run(self):
        """Run it; returns None, or what went wrong."""
        problem = Problem()
        if self.has_disks:
            for party in ("server", "coordinator", "three", "two"):
                self.disks[party] = SmallDisk(self.folder / f"{party}-disk", DISK_BYTES)
        if self.has_clocks:
            for party in ("coordinator", "three", "two"):
                self.clocks[party] = Clock(self.folder / f"{party}-clock")
        try:
            return self._run_on_disks(problem)
        finally:
            for disk in self.disks.values():
                disk.remove()

    def _folder_of(self, party):
        """The folder of a party's files."""
        return self.disks[party].folder if party in self.disks else self.folder

    def _run_on_disks(self, problem):
        self._start_server()
        self.net = Network(self.server, self.folder, RUNS[self.method], run="operated", inline=200)
        self.net.out = self._folder_of("coordinator") / "run"
        try:
            self._start_parties()
            self._operate()
            self._mend()
            self._follow_lines()
            self._check(problem)
        except AssertionError as error:
            return f"{self}: {error}"
        finally:
            self.net.stop()
            self.server.kill()
        return None

    # -- parties

    def _start_server(self):
        folder = self._folder_of("server") / "nats"
        if self.secured:
            hosted = ["three=client-0,client-1,client-2", "two=client-3,client-4"]
            self.server = keyed_server(
                folder, "operated", hosted, server=str(self.binary or "nats-server")
            )
            self.authority = Authority(self.server.keys)
            self.server.kill()
            self.server.start()
        else:
            self.server = Server(folder, binary=str(self.binary or "nats-server"))

    def _with_keys(self, name):
        if not self.secured:
            return {}
        keys = self.server.keys
        return {"key": str(keys / f"{name}.nk"), "ca": str(keys / "ca.pem")}

    def _start_coordinator(self, **order):
        order = {"clock": self.clocks.get("coordinator"), **order}
        self.coordinator = self.net.coordinator(**self._with_keys("coordinator"), **order)

    def _start_host(self, name):
        numbers = {"three": (0, 1, 2), "two": (3, 4)}[name]
        order = {"slow": 0.03, "clock": self.clocks.get(name), **self._with_keys(name)}
        if name in self.disks:
            order["orbit"] = str(self._folder_of(name) / "model.orbit")
        self.hosts[name] = self.net.host(*numbers, **order)

    def _start_parties(self):
        self._start_coordinator()
        for name in ("three", "two"):
            self._start_host(name)
        until(self._has_begun, END_SECONDS, f"it does not begin: {self._lines()}")

    def _has_begun(self):
        return all(host.reached(2) for host in self.hosts.values())

    def _parties(self):
        return {"the coordinator": self.coordinator, **self.hosts}

    def _lines(self):
        """The last line of each party."""
        last = {}
        for name, child in self._parties().items():
            said = child.said.splitlines()[-3:] + child.text.splitlines()[-1:]
            last[name] = f"{child.code}: {' | '.join(said)}"
        return last

    # -- the operator

    def _operate(self):
        count = self.draw.randint(2, 6)
        for _ in range(count):
            if self.coordinator.code == 0 or self._is_late():
                return
            act = self.deck.take(self._is_possible)
            self.acts.append(act)
            getattr(self, f"_{act}")()
            self._wait(0.0, 1.5)
            if self.draw.random() < 0.5:  # the person looks now and then
                self._restart_ended()

    def _is_late(self):
        return max(h.round() for h in self.hosts.values()) > QUIET * RUNS[self.method]["rounds"]

    def _is_possible(self, act):
        if act.startswith("fill"):
            return self.has_disks
        if act.startswith("set_clock"):
            return self.has_clocks
        return self.secured or act != "expire"

    def _wait(self, least, most):
        time.sleep(self.draw.uniform(least, most))

    def _stream(self, act):
        """Do something with the run's stream, if it is there."""

        async def go():
            options = {}
            if self.secured:
                from fedseed.transport.base import Access
                from fedseed.transport.nats_connection import connect
                from fedseed.transport.subjects import Subjects

                keys = self.server.keys
                access = Access(self.server.url, keys / "coordinator.nk", keys / "ca.pem")
                connection = await connect(access, Subjects("operated"), "coordinator")
            else:
                connection = await nats.connect(self.server.url, **options)
            try:
                with suppress(NotFoundError, nats.errors.Error, TimeoutError):
                    await act(connection.jetstream(timeout=5))
            finally:
                await connection.close()

        asyncio.run(go())

    def _edit(self, **changes):
        async def act(stream):
            info = await stream.stream_info("fedseed--operated")
            await stream.update_stream(info.config.evolve(**changes))

        self._stream(act)

    def _restart(self):
        self.server.kill()
        self._wait(0.0, 3.0)
        self.server.start()

    def _stop_jetstream(self):
        self.server.kill()
        config = self.server.config
        if config is None:
            self.server.start(jetstream=False)
        else:
            text = config.read_text()
            lines = [line for line in text.splitlines() if not line.startswith("jetstream")]
            config.write_text("\n".join(lines) + "\n")
            self.server.start()
            config.write_text(text)
        self._wait(0.5, 6.0)
        self.server.kill()
        self.server.start()

    def _seal(self):
        self._edit(sealed=True)

    def _cut(self):
        self._edit(max_msgs=self.draw.randint(1, 20))

    def _limit(self):
        self._edit(max_msgs=self.draw.randint(10, 60), discard="new")

    def _stop_repeats(self):
        """End the server's repeating of entries to clients; 2.9.10 refuses such an edit."""
        self._edit(republish=None)

    def _delete(self):
        self.lost_its_log = self.coordinator
        self._stream(lambda stream: stream.delete_stream("fedseed--operated"))

    def _purge(self):
        """The stream does not allow it; what the object store holds goes."""

        async def act(stream):
            with suppress(nats.errors.Error):
                await stream.purge_stream("fedseed--operated")
            await stream.purge_stream("OBJ_fedseed--operated")

        self._stream(act)

    def _pause(self, process_id, most):
        from os import kill

        kill(process_id, signal.SIGSTOP)
        self._wait(0.2, most)
        kill(process_id, signal.SIGCONT)

    def _pause_server(self):
        self._pause(self.server.process.pid, 5.0)

    def _pause_coordinator(self):
        if not self.coordinator.ended():
            self._pause(self.coordinator.process.pid, 4.0)

    def _pause_client(self):
        host = self.draw.choice(list(self.hosts.values()))
        if not host.ended():
            self._pause(host.process.pid, 4.0)

    def _set_back(self):
        kept = self.folder / f"kept-{len(self.acts)}"
        self.server.exchange_store(kept)
        self._wait(0.2, 2.0)
        self.server.exchange_store(kept)

    def _kill_coordinator(self):
        self.coordinator.kill()
        self._start_coordinator()

    def _kill_client(self):
        name = self.draw.choice(list(self.hosts))
        self.hosts[name].kill()
        self._start_host(name)

    def _second(self, out):
        """A second coordinator while the first is paused is refused.

        Where the first one's log is gone, the first ends, and the second may begin anew; it is
        taken away, and the person goes by the first one's last line.
        """
        first = self.coordinator
        if first.ended():
            return
        first.signal(signal.SIGSTOP)
        if not self._is_folder_locked():
            # it has not begun yet, or is about to end: nothing keeps another one out
            first.signal(signal.SIGCONT)
            return
        second = self.net.coordinator(**self._with_keys("coordinator"), out=str(out))
        with suppress(AssertionError):
            until(second.ended, END_SECONDS, "")
        first.signal(signal.SIGCONT)
        if second.code is None and first is self.lost_its_log:
            second.kill()
            until(first.ended, END_SECONDS, f"it goes on without its log: {first.said}")
            return
        assert second.code not in (None, 0), f"a second coordinator goes on: {second.said}"

    def _is_folder_locked(self):
        """Whether a coordinator has taken the run's folder."""
        try:
            with (self.net.out / "progress.jsonl").open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except FileNotFoundError:
            pass
        return False

    def _start_second(self):
        self._second(self.net.out)

    def _start_second_elsewhere(self):
        self._second(self.folder / f"elsewhere-{len(self.acts)}")

    def _expire(self):
        self.authority.write_server(days=-1)
        self.server.kill()
        self.server.start()
        self._wait(0.5, 4.0)
        self.authority.write_server(days=100)
        self.server.kill()
        self.server.start()

    def _fill(self, party):
        """Fill a party's disk up for a while, in which the person looks now and then."""
        self.disks[party].fill()
        self._wait(0.5, 6.0)
        if self.draw.random() < 0.5:
            self._restart_ended(makes_room=self.draw.random() < 0.5)
        self._wait(0.0, 1.0)
        self.disks[party].make_room()

    def _fill_server(self):
        if self.draw.random() < 0.3:
            self.server.kill()
            self.disks["server"].fill()
            self.server.start()
        self._fill("server")

    def _fill_coordinator(self):
        self._fill("coordinator")

    def _fill_client(self):
        """Up to the end: a client writes its orbit then; the person makes room."""
        name = self.draw.choice(list(self.hosts))
        self.disks[name].fill()

    def _jump(self, seconds):
        party = self.draw.choice(list(self.clocks))
        self.clocks[party].set_off(seconds)
        if self.draw.random() < 0.3:  # with a new connection
            self._restart()
        self._wait(0.5, 3.0)
        # the person sets it right, or the clock stays
        if self.draw.random() < 0.5:
            self.clocks[party].set_off(0)

    def _set_clock_forward(self):
        self._jump(self.draw.choice(CLOCK_JUMPS))

    def _set_clock_back(self):
        self._jump(-self.draw.choice(CLOCK_JUMPS))

    # -- the person

    def _mend(self):
        """The operator is done: the server is as it should be, but for what can't be undone."""
        self._edit(max_msgs=-1)
        for clock in self.clocks.values():
            clock.set_off(0)

    def _restart_ended(self, makes_room=True):
        """Do what the last line of each party that has ended says.

        Args:
            makes_room: whether disks get room where a line says so; otherwise the person starts
                again all the same.
        """
        for name, child in self._parties().items():
            if child.code in (None, 0):
                continue
            line = child.text.splitlines()[-1]
            assert any(way in line for way in WAYS_OUT), f"{name} says no way out: {line}"
            if SERVER_AGAIN in line and makes_room:
                self._restart_server()
            if ROOM in line and makes_room:
                self._make_room("coordinator" if name == "the coordinator" else name)
            self.starts[name] = self.starts.get(name, 0) + 1
            assert self.starts[name] <= MOST_STARTS, f"{name}: what it says does not work: {line}"
            if name != "the coordinator":
                self._start_host(name)
                continue
            if "raise the limits" in line:
                self._edit(max_msgs=-1)
            self._start_coordinator(fresh=FRESH in line)

    def _obey_waiting(self):
        """Do what a party that goes on has said last, each line once."""
        for name, child in self._parties().items():
            lines = child.said.splitlines()
            if lines and SERVER_AGAIN in lines[-1] and self.obeyed.get(name) != len(lines):
                self.obeyed[name] = len(lines)
                self._restart_server()

    def _restart_server(self):
        self._make_room("server")
        self.server.kill()
        self.server.start()

    def _make_room(self, party):
        if party in self.disks:
            self.disks[party].make_room()

    def _follow_lines(self):
        give_up = time.monotonic() + END_SECONDS
        while any(child.code != 0 for child in self._parties().values()):
            self._restart_ended()
            self._obey_waiting()
            assert time.monotonic() < give_up, f"not everybody ends: {self._lines()}"
            time.sleep(0.1)

    def _check(self, problem):
        expected = in_process(problem, self.net.recipe).summary["weights_digest"]
        found = {name: child.digest for name, child in self._parties().items()}
        assert set(found.values()) == {expected}, f"{found}, {expected} in one process"


def operate(seconds, folder, first=0, tell=print):
    """Run trials one after the other.

    Args:
        seconds: for which new ones are begun.
        folder: where they work.
        first: the seed of the first trial and of the acts' order; each trial has the next.
        tell: shown each trial and what went wrong.

    Returns:
        The number of trials, what went wrong in each that failed, and how often each act was done.
    """
    if not can_mount():
        tell("no full disks are tried: this user may not mount a tmpfs")
    if find_library() is None:
        tell("no clocks jump: libfaketime is missing (apt-get install faketime)")
    end, count, failures, deck = time.monotonic() + seconds, 0, [], Deck(first)
    acts = Counter()
    while time.monotonic() < end:
        trial = Trial(first + count, folder / str(first + count), deck)
        trial.folder.mkdir(parents=True)
        failure = trial.run()
        count += 1
        acts.update(trial.acts)
        if failure is not None:
            failures.append(failure)
        else:
            shutil.rmtree(trial.folder)
        tell(f"{trial}: {'ends as it should' if failure is None else 'FAILS'}")
        if failure is not None:
            tell(f"  {failure}")
    return count, failures, acts
