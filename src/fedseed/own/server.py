"""Serves models as OpenAI's interface has it: one base in memory becomes the model of the orbit
that a request names.

One thread answers requests, one after the other. What speaks HTTP comes with the extra `serve`.
"""

import json
import secrets
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import uvicorn
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fedseed.errors import FedseedError, OrbitError, RecipeError, did_you_mean
from fedseed.federation.hosted import WorkThread
from fedseed.objectives.generation import Writer, Written
from fedseed.orbit import Orbit
from fedseed.own.swapper import Swapper
from fedseed.runs.tuned import Source, base_of, find_source

LARGEST = 1 << 20  # bytes of a request
MOST_WAITING = 64  # requests at a time
MOST_PROMPTS = 64  # of a request
Text = Annotated[str, Field(min_length=1)]


class RefusedError(Exception):
    """Says why a request is not answered: HTTP's status, what is wrong, the key that is, what
    OpenAI calls it.
    """


def _refusal(
    status: int, message: str, param: str | None = None, code: str | None = None
) -> Response:
    """Returns a refusal as OpenAI's interface says it."""
    kind = "invalid_request_error" if status < 429 else "server_error"
    return JSONResponse(
        {"error": {"message": message, "type": kind, "param": param, "code": code}}, status
    )


class Asked(BaseModel):
    """Has what all requests have: OpenAI's keys and defaults."""

    model_config = ConfigDict(extra="forbid")

    model: str
    max_tokens: PositiveInt | None = None
    temperature: Annotated[float, Field(ge=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] | None = None
    stop: Text | Annotated[list[Text], Field(max_length=16)] = Field(default_factory=list)
    n: Literal[1] = 1
    stream: bool = False
    stream_options: Any = None
    user: str = ""

    @property
    def stops(self) -> list[str]:
        """Returns the texts that end an answer."""
        return [self.stop] if isinstance(self.stop, str) else self.stop


class Completion(Asked):
    """A request for what follows a prompt, or each of some."""

    prompt: str | Annotated[list[str], Field(min_length=1, max_length=MOST_PROMPTS)]
    max_tokens: PositiveInt | None = 16


class Part(BaseModel):
    """A part of a message."""

    type: Literal["text"]
    text: str


class Turn(BaseModel):
    """A message of a conversation."""

    role: str
    content: str | list[Part]

    def plain(self) -> dict[str, str]:
        """Returns it as chat templates take it."""
        text = (
            self.content
            if isinstance(self.content, str)
            else "".join(part.text for part in self.content)
        )
        return {"role": self.role, "content": text}


class ChatCompletion(Asked):
    """A request for the next turn of a conversation."""

    messages: Annotated[list[Turn], Field(min_length=1)]
    max_completion_tokens: PositiveInt | None = None


async def _read(request: Request, kind: type[Asked]) -> Any:
    """Returns what a request asks for.

    Null is the default, and so is what would change nothing (logprobs: false).
    """
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > LARGEST:
            raise RefusedError(413, f"the request has more than {LARGEST:,} bytes")
    try:
        given = json.loads(data)
        known = given.items() if isinstance(given, dict) else ()
        kept = {
            key: value
            for key, value in known
            if value is not None and (value or key in kind.model_fields)
        }
        return kind.model_validate(kept)
    except ValidationError as error:
        first = error.errors()[0]
        param = ".".join(str(part) for part in first["loc"])
        why = (
            "this server knows no such key" if first["type"] == "extra_forbidden" else first["msg"]
        )
        raise RefusedError(400, f"{param}: {why}", param) from error
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, f"the request is not JSON: {error}") from error


def named(orbits: Sequence[str]) -> dict[str, Source]:
    """Returns where orbits are, by the names that requests call them by.

    Args:
        orbits: runs' folders and orbits' files; one goes by the name of its folder or file, or by
            NAME as "NAME=PATH".

    Raises:
        RecipeError: there is no such orbit, or two have one name.
    """
    found: dict[str, Source] = {}
    for text in orbits:
        name, given, place = ("", "", text) if Path(text).exists() else text.partition("=")
        source = find_source(place if given else text)
        if source.orbit is None:
            raise RecipeError(
                f"{text}: not an orbit: whole weights can't be swapped; serve their export alone"
            )
        path = source.orbit.resolve()
        name = name or (path.parent.name if path.stem == "model" else path.stem)
        if name in found:
            raise RecipeError(f'{text}: another one is called "{name}"; name it, as in mine={text}')
        found[name] = source
    return found


class Service:
    """Models of orbits of one base, behind OpenAI's interface.

    Args:
        sources: what `named` returns.
        base: where the base is; None: where the first orbit's run had it.
        device: where it lies.
        keep: weights of so many models, those used last, stay in memory (`Swapper`).
        most: new tokens of an answer at most.

    Raises:
        RecipeError: the base can't be had, or writes no text.
        OrbitError: one is damaged, of another base, or tunes an adapter.
    """

    def __init__(
        self,
        sources: dict[str, Source],
        base: str | None = None,
        device: str = "cpu",
        keep: int = 0,
        most: int = 1024,
    ) -> None:
        first = next(one.orbit for one in sources.values() if one.orbit is not None)
        model, self.tokenizer = base_of(Orbit.open(first).header, first, base, device)
        Writer(model, self.tokenizer)
        self.swapper = Swapper(
            model, {name: one.orbit for name, one in sources.items() if one.orbit}, keep
        )
        self.templates = {
            name: one.chat_template or self.tokenizer.chat_template for name, one in sources.items()
        }
        self.most = most
        self.began = int(time.time())
        self._waiting = 0
        self._thread = WorkThread()

    def app(self) -> Starlette:
        """Returns what answers requests."""
        handlers: dict[Any, Any] = {
            RefusedError: lambda _, error: _refusal(*error.args),
            HTTPException: lambda _, error: _refusal(error.status_code, error.detail),
            OrbitError: lambda _, error: _refusal(500, str(error)),
            FedseedError: lambda _, error: _refusal(400, str(error)),
            Exception: lambda _, error: _refusal(500, f"{type(error).__name__}: {error}"),
        }
        routes = [
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.models),
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
        ]
        return Starlette(routes=routes, exception_handlers=handlers)

    async def models(self, request: Request) -> Response:
        """Answers which models there are, or that there is one."""
        name = request.path_params.get("name")
        about = [
            {"id": one, "object": "model", "created": self.began, "owned_by": "fedseed"}
            for one in ([self._known(name)] if name else self.swapper.names)
        ]
        return JSONResponse(about[0] if name else {"object": "list", "data": about})

    async def completions(self, request: Request) -> Response:
        """Answers with what follows a prompt, or each of some."""
        asked = await _read(request, Completion)
        prompts = [asked.prompt] if isinstance(asked.prompt, str) else asked.prompt
        written = await self._do(
            asked, asked.max_tokens, lambda writer: [writer.after(prompt) for prompt in prompts]
        )
        return self._response(
            asked, "cmpl-", "text_completion", written, lambda one: {"text": one.text}
        )

    async def chat(self, request: Request) -> Response:
        """Answers with the next turn of a conversation."""
        asked = await _read(request, ChatCompletion)
        if not self.templates[self._known(asked.model)]:
            why = f"{asked.model} has no chat template: ask /v1/completions with a prompt"
            raise RefusedError(400, why, "messages")
        turns, most = (
            [turn.plain() for turn in asked.messages],
            asked.max_completion_tokens or asked.max_tokens,
        )
        written = await self._do(asked, most, lambda writer: [writer.answer(turns)])
        said, kind = ("delta", ".chunk") if asked.stream else ("message", "")
        return self._response(
            asked,
            "chatcmpl-",
            f"chat.completion{kind}",
            written,
            lambda one: {said: {"role": "assistant", "content": one.text}},
        )

    def _known(self, name: str) -> str:
        """Returns a model's name. Raises RefusedError if there is none of this name."""
        if name not in self.templates:
            guess = did_you_mean(name, self.swapper.names, "") or "/v1/models lists them"
            raise RefusedError(
                404, f"there is no model {name!r} here: {guess}", "model", "model_not_found"
            )
        return name

    async def _do(self, asked: Asked, most: int | None, write: Any) -> list[Written]:
        """Returns what a model writes, once all that was asked before is answered."""
        name = self._known(asked.model)
        if most is not None and most > self.most:
            raise RefusedError(
                400,
                f"max_tokens = {most:,}: this server writes {self.most:,} at most",
                "max_tokens",
            )
        if self._waiting >= MOST_WAITING:
            raise RefusedError(503, f"{MOST_WAITING} requests are waiting: ask again later")
        seed = secrets.randbits(63) if asked.seed is None else asked.seed
        how = most or self.most, asked.temperature, asked.top_p, seed, asked.stops
        self._waiting += 1
        try:
            return list(await self._thread.do(self._written, name, how, write))
        finally:
            self._waiting -= 1

    def _written(self, name: str, how: Sequence[Any], write: Any) -> list[Written]:
        model = self.swapper.to(name)
        self.tokenizer.chat_template = self.templates[name]
        return list(write(Writer(model, self.tokenizer, *how)))

    def _response(
        self, asked: Asked, prefix: str, kind: str, written: Sequence[Written], said: Any
    ) -> Response:
        """Returns answers as OpenAI's interface has them; a stream has all of them as one event."""
        given, new = sum(one.asked for one in written), sum(one.new for one in written)
        about = {
            "id": prefix + secrets.token_hex(12),
            "object": kind,
            "created": int(time.time()),
            "model": asked.model,
            "choices": [
                {
                    "index": i,
                    **said(one),
                    "logprobs": None,
                    "finish_reason": "stop" if one.ended else "length",
                }
                for i, one in enumerate(written)
            ],
            "usage": {
                "prompt_tokens": given,
                "completion_tokens": new,
                "total_tokens": given + new,
            },
        }
        if not asked.stream:
            return JSONResponse(about)
        return Response(
            f"data: {json.dumps(about)}\n\ndata: [DONE]\n\n", media_type="text/event-stream"
        )

    def serve(self, host: str, port: int, ready: Any = print) -> None:
        """Answers requests until it is interrupted.

        Args:
            host: the address.
            port: the port; 0: any.
            ready: is told the address once requests are taken.

        Raises:
            OSError: the port is not to be had.
        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, port), family=family) as listening:
            shown = f"[{host}]" if ":" in host else host
            ready(f"http://{shown}:{listening.getsockname()[1]}/v1")
            server = uvicorn.Server(uvicorn.Config(self.app(), log_level="warning"))
            try:
                server.run(sockets=[listening])
            finally:
                self._thread.end()
