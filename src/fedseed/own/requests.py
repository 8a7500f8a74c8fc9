"""Clients' requests in the form of OpenAI's interface, and the reasons for refusals."""

import asyncio
import json
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PositiveInt,
    ValidationError,
    model_validator,
)
from starlette.requests import Request

LARGEST = 1 << 20  # bytes of a request
MOST_PROMPTS = 64  # of a request
READ_SECONDS = 60  # seconds within which a request's body must arrive
# OpenAI itself takes up to 2; at 100 tokens are drawn almost uniformly
HIGHEST_TEMPERATURE = 100
# most characters of a request that an error quotes
SHOWN = 200
OTHER_ROLES = {"developer": "system", "function": "tool"}  # as in training
Text = Annotated[str, Field(min_length=1)]


class RefusedError(Exception):
    """A request is not answered.

    Args:
        status: the HTTP status.
        message: what is wrong, and what to do.
        param: the request's key that is wrong.
        code: OpenAI's code for it.
        retry_seconds: when to ask again; None: asking again does not help.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        retry_seconds: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_seconds = retry_seconds


class StreamOptions(BaseModel):
    """The parts of a stream besides the answer."""

    include_usage: bool = False
    include_obfuscation: bool = False


class TextFormat(BaseModel):
    """The one form that answers have."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["text"]


class Asked(BaseModel):
    """The keys of all requests, with OpenAI's names and defaults."""

    model_config = ConfigDict(extra="forbid")

    model: Annotated[str, Field(max_length=1000)]
    max_tokens: PositiveInt | None = None
    temperature: Annotated[float, Field(ge=0, le=HIGHEST_TEMPERATURE, allow_inf_nan=False)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] | None = None
    stop: Text | Annotated[list[Text], Field(max_length=16)] = Field(default_factory=list)
    n: Literal[1] = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str = ""

    @property
    def stops(self) -> list[str]:
        """Return the texts that end an answer."""
        if isinstance(self.stop, str):
            return [self.stop]
        return self.stop

    @property
    def wants_usage(self) -> bool:
        """Return whether a stream ends with the number of tokens."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def most_tokens(self) -> int | None:
        """Return the most new tokens of an answer; None: the server's limit."""
        return self.max_tokens

    @model_validator(mode="after")
    def _check_stream_options(self) -> "Asked":
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options: only for a stream (stream: true)")
        return self


class Completion(Asked):
    """A request for the continuations of one or several prompts."""

    prompt: str | Annotated[list[str], Field(min_length=1, max_length=MOST_PROMPTS)]
    max_tokens: PositiveInt | None = 16

    @property
    def prompts(self) -> list[str]:
        """Return the prompts."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        return self.prompt


class Part(BaseModel):
    """A part of a message."""

    type: Literal["text"]
    text: str


def _read_arguments(value: Any) -> dict[str, Any]:
    """Return a call's arguments as an object, which chat templates expect."""
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else {}
        except (ValueError, RecursionError) as error:
            raise ValueError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError("a JSON object is expected, or its text")
    return value


class CalledFunction(BaseModel):
    """A function that the assistant has called."""

    name: Text
    arguments: Annotated[Any, AfterValidator(_read_arguments)]


class Call(BaseModel):
    """A tool call of the assistant."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction

    def plain(self) -> dict[str, Any]:
        """Return it as chat templates take it."""
        function = {"name": self.function.name, "arguments": self.function.arguments}
        identity = {}
        if self.id is not None:
            identity = {"id": self.id}
        return {**identity, "type": self.type, "function": function}


class Turn(BaseModel):
    """A message of a conversation.

    Further keys, such as `name`, `tool_call_id` or `reasoning_content`, are passed to the chat
    template.
    """

    model_config = ConfigDict(extra="allow")

    role: Text
    content: str | list[Part] | None = None
    tool_calls: list[Call] | None = None
    function_call: CalledFunction | None = None  # OpenAI's older form of one call

    @model_validator(mode="after")
    def _check_content(self) -> "Turn":
        if self.content is None and self.role != "assistant":
            raise ValueError(f"content: a message of the {self.role} needs a text")
        return self

    def plain(self) -> dict[str, Any]:
        """Return it as chat templates take it, as training has written it."""
        text = self.content or ""
        if not isinstance(text, str):
            text = "".join(part.text for part in text)
        turn: dict[str, Any] = {"role": OTHER_ROLES.get(self.role, self.role), "content": text}
        calls = list(self.tool_calls or ())
        if self.function_call is not None and not calls:
            calls = [Call(function=self.function_call)]
        if calls:
            turn["tool_calls"] = [call.plain() for call in calls]
        extra = self.model_extra or {}
        return {**turn, **{key: value for key, value in extra.items() if value is not None}}


class DescribedFunction(BaseModel):
    """A function that the assistant may call."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(BaseModel):
    """A tool that the assistant may use."""

    type: Literal["function"]
    function: DescribedFunction


def _check_tool(value: dict[str, Any]) -> dict[str, Any]:
    """Return a tool unchanged: chat templates write its keys in their order."""
    try:
        Tool.model_validate(value)
    except ValidationError as error:
        raise ValueError(_first_problem(error)[1]) from error
    return value


class ChatCompletion(Asked):
    """A request for the next turn of a conversation."""

    messages: Annotated[list[Turn], Field(min_length=1)]
    max_completion_tokens: PositiveInt | None = None
    tools: list[Annotated[dict[str, Any], AfterValidator(_check_tool)]] = Field(
        default_factory=list, max_length=512
    )
    tool_choice: Literal["auto", "none"] = "auto"
    parallel_tool_calls: bool = True
    # variables of the chat template
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    enable_thinking: bool | None = None
    response_format: TextFormat | None = None

    @property
    def most_tokens(self) -> int | None:
        """Return the most new tokens of an answer; None: the server's limit."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def offered_tools(self) -> list[dict[str, Any]]:
        """Return the tools that the assistant may use."""
        if self.tool_choice == "none":
            return []
        return self.tools

    @property
    def functions(self) -> dict[str, dict[str, Any]]:
        """Return the JSON schemas of the arguments of the functions that may be called, by name."""
        described = [tool["function"] for tool in self.offered_tools]
        return {one["name"]: one.get("parameters") or {} for one in described}

    @property
    def template_options(self) -> dict[str, Any]:
        """Return the variables that the chat template is given."""
        if self.enable_thinking is None:
            return self.chat_template_kwargs
        return {**self.chat_template_kwargs, "enable_thinking": self.enable_thinking}


AskedKind = TypeVar("AskedKind", bound=Asked)


def _first_problem(error: ValidationError) -> tuple[str, str]:
    """Return the wrong key, and a text with the key and the fault."""
    first = error.errors()[0]
    param = ".".join(str(part)[:SHOWN] for part in first["loc"])
    reason = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        reason = "this server knows no such key"
    return param, f"{param}: {reason}" if param else reason


async def _read_body(request: Request) -> bytes:
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > LARGEST:
            raise RefusedError(413, f"the request has more than {LARGEST:,} bytes")
    return bytes(data)


async def read_request(request: Request, kind: type[AskedKind]) -> AskedKind:
    """Return the checked content of a request. Null stands for the default. Values that would
    change nothing (logprobs: false) are accepted.

    Args:
        request: the request.
        kind: what it may ask for.

    Raises:
        RefusedError: it is too large, too slow or not JSON, or has an unknown key or value.
    """
    try:
        data = await asyncio.wait_for(_read_body(request), READ_SECONDS)
    except TimeoutError as error:
        raise RefusedError(408, f"the request did not come in {READ_SECONDS} seconds") from error
    try:
        table = json.loads(data)
        # half a surrogate pair is valid JSON, but no text
        json.dumps(table, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise RefusedError(400, "a text has half a surrogate pair: send valid Unicode") from error
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, f"the request is not JSON: {error}") from error
    if not isinstance(table, dict):
        raise RefusedError(400, "the request is no JSON object")
    fields = {
        key: value
        for key, value in table.items()
        if value is not None and (value or key in kind.model_fields)
    }
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        param, message = _first_problem(error)
        raise RefusedError(400, message, param or None) from error
    except RecursionError as error:
        raise RefusedError(400, "the request is nested too deeply") from error
