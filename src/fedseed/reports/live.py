"""A live page of a run: the report, made again when the run's files have changed.

The browser opens `/`, and gets each change as a server-sent event from `/events`. It then fetches
`/page`, the current report, and shows its body. The HTTP libraries come with the extra `serve`.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from fedseed.errors import FedseedError
from fedseed.reports.listening import open_port
from fedseed.reports.pages import framed_page, run_page
from fedseed.reports.view import view_folder

FILES = ("recipe.toml", "progress.jsonl", "metrics.jsonl", "summary.json")
LOOK_SECONDS = 1.0  # between looks at the files
KEEP_SECONDS = 15.0  # seconds between keep-alive messages, so that no proxy ends the connection
SCRIPT = """
<script>
const events = new EventSource("events");
events.onmessage = async () => {
  const answer = await fetch("page");
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const open = [...document.querySelectorAll("details")].map(one => one.open);
  document.title = page.title;
  document.body.replaceChildren(...page.body.childNodes);
  document.querySelectorAll("details").forEach((one, at) => { one.open = open[at] ?? one.open; });
};
events.addEventListener("over", () => events.close());
</script>
"""
Stamp = tuple[tuple[int, int, int] | None, ...]


def stamp_of(folder: Path) -> Stamp:
    """Return a stamp that changes whenever one of a run's files changes."""
    stamps: list[tuple[int, int, int] | None] = []
    for name in FILES:
        try:
            status = (folder / name).stat()
            stamps.append((status.st_ino, status.st_size, status.st_mtime_ns))
        except OSError:
            stamps.append(None)
    return tuple(stamps)


async def follow_run(
    folder: Path, look_seconds: float = LOOK_SECONDS, keep_seconds: float = KEEP_SECONDS
) -> AsyncIterator[str]:
    """Yield server-sent events: one at once, one at each change, and "over" once the run is over.

    Args:
        folder: the run's.
        look_seconds: seconds between looks at the files.
        keep_seconds: seconds between keep-alive messages.
    """
    last_stamp: Stamp | None = None
    alive = time.monotonic()
    while True:
        stamp = stamp_of(folder)
        if stamp != last_stamp:
            last_stamp, alive = stamp, time.monotonic()
            is_over = stamp[FILES.index("summary.json")] is not None
            yield f"data: {json.dumps({'over': is_over})}\n\n"
            if is_over:
                yield "event: over\ndata: {}\n\n"
                return
        elif time.monotonic() - alive >= keep_seconds:
            alive = time.monotonic()
            yield ": the run goes on\n\n"
        await asyncio.sleep(look_seconds)


class LivePage:
    """The page of one run's folder.

    Args:
        folder: the run's folder; it may still be empty.
        look_seconds: seconds between looks at its files.
    """

    def __init__(self, folder: Path, look_seconds: float = LOOK_SECONDS) -> None:
        self.folder = folder
        self.look_seconds = look_seconds

    def app(self) -> Starlette:
        """Return the application: `/`, `/page` and `/events`."""
        return Starlette(
            routes=[
                Route("/", self._index),
                Route("/page", self._page),
                Route("/events", self._events),
            ]
        )

    def text(self) -> str:
        """Return the current report, or a page without figures if there is no run yet."""
        try:
            return run_page(view_folder(self.folder))
        except FedseedError:
            return framed_page(self.folder.resolve().name, "waiting.html")

    async def _index(self, request: Request) -> Response:
        text = await asyncio.to_thread(self.text)
        # the script is in the head, which stays when the page replaces its body
        return HTMLResponse(text.replace("</head>", f"{SCRIPT}</head>", 1))

    async def _page(self, request: Request) -> Response:
        return HTMLResponse(await asyncio.to_thread(self.text))

    async def _events(self, request: Request) -> Response:
        return StreamingResponse(
            follow_run(self.folder, self.look_seconds),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store"},
        )

    def serve(self, host: str, port: int, ready: Callable[[str], None]) -> None:
        """Serve the page until the process is interrupted.

        Args:
            host: the address.
            port: the port; 0: any free one.
            ready: called with the page's address.

        Raises:
            OSError: the port is taken or not allowed.
        """
        with open_port(host, port) as (listening, address):
            ready(f"{address}/")
            config = uvicorn.Config(self.app(), log_level="warning", timeout_graceful_shutdown=1)
            uvicorn.Server(config).run(sockets=[listening])
