"""Answers in the form of OpenAI's interface: whole, or as a stream of server-sent events."""

import json
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.responses import JSONResponse, Response

from fedseed.objectives.generation import Written
from fedseed.own.requests import Asked, ChatCompletion, RefusedError
from fedseed.own.tool_calls import ToolCall, ToolCallReader, ToolFormat

LAST_EVENT = "data: [DONE]\n\n"


@dataclass(frozen=True)
class Begun:
    """The model begins to write: the request is valid."""

    tool_format: ToolFormat | None = None


@dataclass(frozen=True)
class TextPiece:
    """A further piece of an answer."""

    index: int  # the answer's number
    text: str


@dataclass(frozen=True)
class Finished:
    """An answer is complete."""

    index: int  # the answer's number
    written: Written


def refusal(error: RefusedError) -> Response:
    """Return a refusal in the form of OpenAI's interface."""
    headers = {}
    if error.retry_seconds is not None:
        headers = {"Retry-After": str(error.retry_seconds)}
    return JSONResponse({"error": error_body(error)}, error.status, headers)


def error_body(error: RefusedError) -> dict[str, Any]:
    """Return the body of an error reply."""
    kind = "invalid_request_error" if error.status < 429 else "server_error"
    return {"message": error.message, "type": kind, "param": error.param, "code": error.code}


def event(data: Any) -> str:
    """Return an object as a server-sent event."""
    return f"data: {json.dumps(data)}\n\n"


class Reply(ABC):
    """The answers to a request.

    Args:
        asked: the request.
    """

    prefix = ""
    whole_kind = ""
    chunk_kind = ""

    def __init__(self, request: Asked) -> None:
        self.asked = request
        self.id = self.prefix + secrets.token_hex(12)
        self.created = int(time.time())
        self._written: list[Written] = []

    def begin(self, beginning: Begun) -> Iterator[str]:
        """Yield the events with which a stream begins."""
        yield from ()

    @abstractmethod
    def add(self, piece: TextPiece) -> Iterator[str]:
        """Yield the events that a piece of an answer makes."""

    @abstractmethod
    def finish(self, finished: Finished) -> Iterator[str]:
        """Yield the events that the end of an answer makes."""

    @abstractmethod
    def choices(self) -> list[dict[str, Any]]:
        """Return all answers, whole."""

    def end(self) -> Iterator[str]:
        """Yield the events with which a stream ends."""
        if self.asked.wants_usage:
            yield event({**self._head(self.chunk_kind), "choices": [], "usage": self._usage()})
        yield LAST_EVENT

    def response(self, finished: Sequence[Finished]) -> Response:
        """Return all answers as one."""
        self._written = [one.written for one in finished]
        head = self._head(self.whole_kind)
        return JSONResponse({**head, "choices": self.choices(), "usage": self._usage()})

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.asked.model,
        }

    def _usage(self) -> dict[str, int]:
        prompt_tokens = sum(one.prompt_tokens for one in self._written)
        new = sum(one.new for one in self._written)
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": new,
            "total_tokens": prompt_tokens + new,
        }

    def _chunk(self, index: int, content: dict[str, Any], reason: str | None = None) -> str:
        """Return an event with a part of an answer."""
        choice = {"index": index, **content, "logprobs": None, "finish_reason": reason}
        usage = {}
        if self.asked.wants_usage:
            usage = {"usage": None}
        return event({**self._head(self.chunk_kind), "choices": [choice], **usage})


class CompletionReply(Reply):
    """The continuations of some prompts."""

    prefix = "cmpl-"
    whole_kind = chunk_kind = "text_completion"

    def add(self, piece: TextPiece) -> Iterator[str]:
        yield self._chunk(piece.index, {"text": piece.text})

    def finish(self, finished: Finished) -> Iterator[str]:
        self._written.append(finished.written)
        yield self._chunk(finished.index, {"text": ""}, _ending(finished.written))

    def choices(self) -> list[dict[str, Any]]:
        return [
            {
                "index": index,
                "text": one.text,
                "logprobs": None,
                "finish_reason": _ending(one),
            }
            for index, one in enumerate(self._written)
        ]


class ChatReply(Reply):
    """The next turn of a conversation."""

    prefix = "chatcmpl-"
    whole_kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    asked: ChatCompletion

    def __init__(self, request: ChatCompletion) -> None:
        super().__init__(request)
        self._reader = ToolCallReader(None, {})
        self._calls = 0

    def begin(self, beginning: Begun) -> Iterator[str]:
        most_calls = None if self.asked.parallel_tool_calls else 1
        self._reader = ToolCallReader(beginning.tool_format, self.asked.functions, most_calls)
        yield self._chunk(0, {"delta": {"role": "assistant", "content": ""}})

    def add(self, piece: TextPiece) -> Iterator[str]:
        return self._write_parts(self._reader.read_piece(piece.text))

    def finish(self, finished: Finished) -> Iterator[str]:
        self._written.append(finished.written)
        yield from self._write_parts(self._reader.finish())
        # clients concatenate the pieces of content, so each must be a text
        delta = {}
        if not self._reader.has_calls:
            delta = {"content": ""}
        yield self._chunk(0, {"delta": delta}, self._ending(finished.written))

    def _write_parts(self, parts: Sequence[str | ToolCall]) -> Iterator[str]:
        """Yield the events for an answer's text."""
        for part in parts:
            if isinstance(part, str):
                delta: dict[str, Any] = {"content": part}
            else:
                delta = {"tool_calls": [{"index": self._calls, **_call_body(part)}]}
                self._calls += 1
            yield self._chunk(0, {"delta": delta})

    def choices(self) -> list[dict[str, Any]]:
        (completion,) = self._written
        parts = [*self._reader.read_piece(completion.text), *self._reader.finish()]
        text = "".join(part for part in parts if isinstance(part, str))
        calls = [_call_body(part) for part in parts if isinstance(part, ToolCall)]
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if calls:
            message |= {"content": text or None, "tool_calls": calls}
        reason = self._ending(completion)
        return [{"index": 0, "message": message, "logprobs": None, "finish_reason": reason}]

    def _ending(self, completion: Written) -> str:
        is_call = self._reader.has_calls and completion.is_complete
        if is_call:
            return "tool_calls"
        return _ending(completion)


def _ending(completion: Written) -> str:
    if completion.is_complete:
        return "stop"
    return "length"


def _call_body(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}
