"""Serve models with OpenAI's interface: one base in memory is turned into the model of the orbit
that a request names.

One thread answers requests, one after the other. The HTTP libraries come with the extra `serve`.
"""

import asyncio
import logging
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from fedseed.errors import FedseedError, NonFiniteError, OrbitError, RecipeError, did_you_mean
from fedseed.objectives.generation import Writer
from fedseed.orbit import Orbit
from fedseed.own.catalogue import Catalogue, name_sources, stamp_of
from fedseed.own.jobs import Job, JobCancelledError, JobQueue, QueueFullError
from fedseed.own.replies import (
    LAST_EVENT,
    Begun,
    ChatReply,
    CompletionReply,
    Finished,
    Reply,
    TextPiece,
    error_body,
    event,
    refusal,
)
from fedseed.own.requests import (
    SHOWN,
    Asked,
    ChatCompletion,
    Completion,
    RefusedError,
    Turn,
    read_request,
)
from fedseed.own.swapper import Swapper
from fedseed.own.tool_calls import ToolFormat, find_tool_format
from fedseed.reports.listening import open_port
from fedseed.runs.tuned import Source, base_of

__all__ = ["ChatCompletion", "Completion", "Service", "Turn", "name_sources"]

MOST_WAITING = 64  # requests at a time
# seconds for finishing answers when the server ends
ENDING_SECONDS = 5
# no client sees this text: it has left
CLIENT_LEFT = 499
ENDING = "the server ends: ask again once it is back"
FAILED = "the server has failed; see the reason in its log"
STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
LOG = logging.getLogger(__name__)

# returns each prompt's tokens, and how the answer writes tool calls
Prepare = Callable[[Writer], tuple[list[list[int]], ToolFormat | None]]


class Service:
    """Models of orbits of one base, behind OpenAI's interface.

    An orbit whose file is written anew is read again; one whose file is gone is not served.

    Args:
        sources: orbits by name, from `name_sources`.
        base: name or folder of the base; None: as in the first orbit's run.
        device: the base's device.
        keep: the number of models whose weights stay in memory, those used last (`Swapper`).
        most_tokens: the most new tokens of an answer.
        folders: folders of runs and orbits; each orbit in them, now or later, is served.

    Raises:
        RecipeError: there is no orbit, or the base can't be loaded or writes no text.
        OrbitError: one is damaged, of another base, or tunes an adapter.
    """

    def __init__(
        self,
        sources: dict[str, Source],
        base: str | None = None,
        device: str = "cpu",
        keep: int = 0,
        most_tokens: int = 1024,
        folders: Sequence[Path] = (),
    ) -> None:
        self._catalogue = Catalogue(sources, folders)
        sources_there = self._catalogue.sources()
        first = next((one.orbit for one in sources_there.values() if one.orbit is not None), None)
        if first is None:
            raise RecipeError("there is no orbit to serve")
        model, self.tokenizer = base_of(Orbit.open(first).header, first, base, device)
        Writer(model, self.tokenizer)
        self._base_template = self.tokenizer.chat_template
        self._stamps: dict[str, Any] = {}  # the orbits in memory
        self.templates: dict[str, Any] = {}
        self.swapper = Swapper(model, keep=keep)
        for name, source in sources.items():
            self._load(name, source)
        self.most = most_tokens
        self.began = int(time.time())
        self._queue = JobQueue()

    @property
    def names(self) -> list[str]:
        """Return the names of the models whose files are there."""
        return list(self._catalogue.sources())

    def app(self) -> Starlette:
        """Return the application that answers requests."""
        handlers: dict[Any, Any] = {
            RefusedError: lambda _, error: refusal(error),
            HTTPException: lambda _, error: refusal(RefusedError(error.status_code, error.detail)),
            FedseedError: lambda _, error: refusal(_as_refusal(error)),
            ClientDisconnect: lambda _, error: Response(status_code=CLIENT_LEFT),
            # the client has left and gets no reply, or the server is ending
            JobCancelledError: lambda _, error: refusal(RefusedError(503, ENDING)),
            # uvicorn writes the error into the log
            Exception: lambda _, error: refusal(RefusedError(500, FAILED)),
        }
        routes = [
            Route("/health", self.health),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.models),
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
        ]
        return Starlette(routes=routes, exception_handlers=handlers)

    async def health(self, request: Request) -> Response:
        """Answer with the server's state: whether it takes requests, and its current work."""
        queue = self._queue
        return JSONResponse(
            {
                "status": "ok" if len(queue) < MOST_WAITING else "full",
                "models": self.names,
                "loaded": sorted(self._stamps),
                "active": self.swapper.active,
                "queue": {
                    "length": len(queue),
                    "limit": MOST_WAITING,
                    "working_seconds": round(queue.working_seconds, 3),
                },
            }
        )

    async def models(self, request: Request) -> Response:
        """List the models, or describe the one that the path names."""
        name = request.path_params.get("name")
        names = self.names
        if name:
            self._find(name)
            names = [name]
        models = [
            {"id": one, "object": "model", "created": self.began, "owned_by": "fedseed"}
            for one in names
        ]
        return JSONResponse(models[0] if name else {"object": "list", "data": models})

    async def completions(self, request: Request) -> Response:
        """Answer with the continuation of each prompt."""
        completion_request = await read_request(request, Completion)

        def prepare(writer: Writer) -> tuple[list[list[int]], None]:
            return [writer.prompt_ids(prompt) for prompt in completion_request.prompts], None

        return await self._answer(
            request, completion_request, prepare, CompletionReply(completion_request)
        )

    async def chat(self, request: Request) -> Response:
        """Answer with the next turn of a conversation."""
        chat_request = await read_request(request, ChatCompletion)
        turns = [turn.plain() for turn in chat_request.messages]
        tools = chat_request.offered_tools

        def prepare(writer: Writer) -> tuple[list[list[int]], ToolFormat | None]:
            if not writer.tokenizer.chat_template:
                problem = (
                    f"{chat_request.model} has no chat template: ask /v1/completions with a prompt"
                )
                raise RefusedError(400, problem, "messages")
            ids = writer.chat_ids(turns, tools, chat_request.template_options)
            if not tools:
                return [ids], None
            return [ids], find_tool_format(writer.tokenizer.get_chat_template(None, tools))

        return await self._answer(request, chat_request, prepare, ChatReply(chat_request))

    def _find(self, name: str) -> Source:
        """Return the place of an orbit. Raises RefusedError if no orbit has this name now."""
        sources = self._catalogue.sources()
        if name not in sources:
            guess = did_you_mean(name, sources, "") or "/v1/models lists them"
            raise RefusedError(
                404,
                f"there is no model {name[:SHOWN]!r} here: {guess}",
                "model",
                "model_not_found",
            )
        return sources[name]

    async def _answer(
        self, request: Request, completion_request: Asked, prepare: Prepare, reply: Reply
    ) -> Response:
        """Return the answers to a request after all earlier requests are answered."""
        source = self._find(completion_request.model)
        most_tokens = completion_request.most_tokens
        if most_tokens is not None and most_tokens > self.most:
            raise RefusedError(
                400,
                f"max_tokens = {most_tokens:,}: this server writes {self.most:,} at most",
                "max_tokens",
            )
        job = self._submit(lambda job: self._write(job, completion_request, source, prepare))
        watcher = asyncio.ensure_future(_cancel_when_client_leaves(request, job))
        job.on_end(watcher.cancel)
        events = job.events()
        # errors of the request appear before its first event
        beginning = await anext(events)
        if completion_request.stream:
            return StreamingResponse(
                _stream(job, reply, beginning, events),
                media_type="text/event-stream",
                headers=STREAM_HEADERS,
            )
        for _ in reply.begin(beginning):
            pass
        return reply.response([one async for one in events if isinstance(one, Finished)])

    def _submit(self, work: Callable[[Job], None]) -> Job:
        try:
            return self._queue.submit(work, MOST_WAITING)
        except QueueFullError as error:
            raise RefusedError(
                503,
                f"{MOST_WAITING} requests are waiting: ask again later",
                retry_seconds=self._queue.retry_seconds,
            ) from error

    def _write(self, job: Job, completion_request: Asked, source: Source, prepare: Prepare) -> None:
        """Pass the model's text to a job's client; runs in the queue's thread."""
        model = self._model_of(completion_request.model, source)
        self.tokenizer.chat_template = self.templates[completion_request.model]
        seed = secrets.randbits(63) if completion_request.seed is None else completion_request.seed
        most_tokens = completion_request.most_tokens or self.most
        writer = Writer(
            model,
            self.tokenizer,
            most_tokens,
            completion_request.temperature,
            completion_request.top_p,
            seed,
            completion_request.stops,
        )
        prompts, tool_format = prepare(writer)
        job.tell(Begun(tool_format))
        for index, ids in enumerate(prompts):
            completion = writer.write(
                ids,
                _teller(job, index) if completion_request.stream else None,
                job.is_cancelled,
                tool_format.markers if tool_format else (),
            )
            if job.is_cancelled():
                return
            job.tell(Finished(index, completion))

    def _model_of(self, name: str, source: Source) -> Any:
        """Return the base as an orbit's model, by the orbit's file as it is now."""
        served = self._catalogue.sources()
        for gone in self._stamps.keys() - served.keys():
            self._forget(gone)
        if self._stamps.get(name) != stamp_of(source):
            self._forget(name)
            try:
                self._load(name, source)
            except FedseedError as error:
                # a file that is being copied or deleted is damaged or missing for a moment
                raise RefusedError(
                    503, f"{name} can't be read now: {error}", "model", retry_seconds=1
                ) from error
        return self.swapper.to(name)

    def _load(self, name: str, source: Source) -> None:
        assert source.orbit is not None
        stamp = stamp_of(source)
        self.swapper.add(name, source.orbit)
        try:
            self.templates[name] = source.chat_template or self._base_template
        except (OSError, UnicodeDecodeError) as error:
            raise RecipeError(f"{name}: its chat template can't be read: {error}") from error
        self._stamps[name] = stamp

    def _forget(self, name: str) -> None:
        self.swapper.remove(name)
        self._stamps.pop(name, None)

    def serve(self, host: str, port: int, ready: Any = print) -> None:
        """Answer requests until the program is interrupted.

        Args:
            host: the address.
            port: the port; 0: any.
            ready: called with the address once requests are taken.

        Raises:
            OSError: the port is taken or not allowed.
        """
        with open_port(host, port) as (listening, address):
            ready(f"{address}/v1")
            config = uvicorn.Config(
                self.app(), log_level="warning", timeout_graceful_shutdown=2 * ENDING_SECONDS
            )
            try:
                _PatientServer(config, self._queue).run(sockets=[listening])
            finally:
                self._queue.end()


class _PatientServer(uvicorn.Server):
    """A server that ends when its answers are finished, or after a time limit."""

    def __init__(self, config: uvicorn.Config, queue: JobQueue) -> None:
        super().__init__(config)
        self._queue = queue

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        ending = asyncio.get_running_loop().call_later(ENDING_SECONDS, self._queue.cancel_all)
        await super().shutdown(sockets)
        ending.cancel()


async def _cancel_when_client_leaves(request: Request, job: Job) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    job.cancel()


def _teller(job: Job, index: int) -> Callable[[str], None]:
    return lambda text: job.tell(TextPiece(index, text))


async def _stream(
    job: Job, reply: Reply, beginning: Begun, events: AsyncIterator[Any]
) -> AsyncIterator[str]:
    """Yield a reply as server-sent events, while it is written."""
    try:
        for one in reply.begin(beginning):
            yield one
        async for next_event in events:
            if isinstance(next_event, TextPiece):
                parts = reply.add(next_event)
            else:
                parts = reply.finish(next_event)
            for one in parts:
                yield one
        for one in reply.end():
            yield one
    except JobCancelledError:
        yield event({"error": error_body(RefusedError(503, ENDING))})
        yield LAST_EVENT
    except Exception as error:  # the HTTP status is sent already, so the error goes into an event
        yield event({"error": error_body(_as_refusal(error))})
        yield LAST_EVENT
    finally:
        job.cancel()


def _as_refusal(error: Exception) -> RefusedError:
    """Return an error in the form that a client gets."""
    if isinstance(error, RefusedError):
        return error
    if isinstance(error, OrbitError | NonFiniteError):
        return RefusedError(500, str(error))
    if isinstance(error, FedseedError):
        return RefusedError(400, str(error))
    LOG.error("a request has failed", exc_info=error)
    return RefusedError(500, FAILED)
