"""The live page of a run: a small server on this machine, for this machine only.

GET /        the page
GET /body    what stands on it; with the ETag of the last answer 304 as long as nothing has changed
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fedseed.errors import FedseedError
from fedseed.reports.pages import run_body, run_page
from fedseed.reports.view import RunView

HOST = "127.0.0.1"
HERE = ("127.0.0.1", "localhost")  # what a browser on this machine may call it: no other name leads here by accident
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; connect-src 'self'"


class LiveServer:
    """Serves a page about something that changes.

    Args:
        look: what is to be shown now, and something that differs when it has changed. Called from several threads, one
            at a time. A FedseedError is shown on the page.
        port: 0: one that is free.
        every: seconds after which to look also when no browser asks; None: then it does not matter.

    Raises:
        FedseedError: the port is taken.
    """

    def __init__(
        self, look: Callable[[], tuple[object, Callable[[], RunView]]], port: int = 0, every: float | None = None
    ) -> None:
        self._look = look
        self._every = every
        self._over = threading.Event()
        self._lock = threading.Lock()
        try:
            self._server = ThreadingHTTPServer((HOST, port), _handler(self))
        except (OSError, OverflowError) as error:
            raise FedseedError(f"--port {port}: {error}: choose another, or 0 for any that is free") from error
        self._server.daemon_threads = True

    @property
    def address(self) -> str:
        """Returns where the page is."""
        return f"http://{HOST}:{self._server.server_address[1]}/"

    def serve(self) -> None:
        """Answer until `stop`, or until Ctrl-C."""

        def keep_looking() -> None:
            while not self._over.wait(self._every):
                with suppress(FedseedError), self._lock:
                    self._look()

        if self._every is not None:
            threading.Thread(target=keep_looking, daemon=True).start()
        self._server.serve_forever(poll_interval=0.2)

    def stop(self) -> None:
        """End `serve`, from another thread, and free the port."""
        self._server.shutdown()
        self.close()

    def close(self) -> None:
        """Free the port."""
        self._over.set()
        self._server.server_close()

    def page(self) -> bytes:
        """Returns the whole page."""
        with self._lock:
            return run_page(self._look()[1](), live=True).encode()

    def body(self, known: str) -> tuple[str, bytes | None]:
        """Returns a tag, and what stands on the page; None where that is what `known` is the tag of."""
        with self._lock:
            changed, view = self._look()
            tag = f'"{hash(changed) & (1 << 64) - 1:x}"'
            return tag, None if tag == known else str(run_body(view())).encode()


def _handler(live: LiveServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "fedseed", ""

        def do_GET(self) -> None:
            try:
                if (self.headers.get("Host") or "").partition(":")[0] not in HERE:  # a page elsewhere leads here
                    self._answer(403, b"this page is for this machine only\n", "text/plain")
                elif self.path == "/":
                    self._answer(200, live.page())
                elif self.path == "/body":
                    tag, body = live.body(self.headers.get("If-None-Match") or "")
                    self._answer(304 if body is None else 200, body or b"", tag=tag)
                else:
                    self._answer(404, b"there is / and /body\n", "text/plain")
            except FedseedError as error:
                self._answer(503, f"{error}\n".encode(), "text/plain")

        def _answer(self, code: int, body: bytes, kind: str = "text/html", tag: str | None = None) -> None:
            self.send_response(code)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Security-Policy", POLICY)
            self.send_header("Cache-Control", "no-store")
            if tag is not None:
                self.send_header("ETag", tag)
            self.end_headers()
            if code != 304:
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing of requests."""

    return Handler
