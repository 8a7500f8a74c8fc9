"""`fedseed serve-model` and tools: OpenAI's client has a conversation with calls, streamed or not,
and is told token by token what the exported folder writes in plain transformers.
"""

import json
import re

import pytest

from support import tool_bases
from support.chat_bases import LLAMA, chat_base
from support.tool_bases import ANSWER, ARGUMENTS, GREETING, QUESTION, RESULT, WEATHER

openai = pytest.importorskip("openai", reason="the package `openai` (extra dev) asks")
pytest.importorskip("uvicorn", reason="the extra `serve` answers")
from support.serving import Plain, serving, tuned  # noqa: E402

SETTINGS = {"model": "run", "max_tokens": 60, "temperature": 0}


@pytest.fixture(scope="module", params=tool_bases.TEMPLATES)
def family(request, tmp_path_factory):
    """A family's name, a run on its base, and the run's export."""
    folder = tmp_path_factory.mktemp(request.param)
    base = str(tool_bases.tool_base(folder / "base", request.param))
    run = tuned(base, folder / "run", 1, ["Hello, how are you?"], rate=1e-4)
    return request.param, run, Plain(base, run, folder / "exported")


def streamed(client, **asked):
    """What OpenAI's own helper makes of a stream."""
    with client.chat.completions.stream(**SETTINGS, **asked) as stream:
        return stream.get_final_completion()


@pytest.mark.long
def test_a_conversation_with_a_tool_call(family):
    name, run, plain = family
    with serving(run) as client:
        create = client.chat.completions.create
        whole = create(**SETTINGS, messages=QUESTION, tools=[WEATHER])
        told = streamed(client, messages=QUESTION, tools=[WEATHER])
        for answer in (whole, told):
            (choice,) = answer.choices
            assert choice.finish_reason == "tool_calls"
            assert not choice.message.content
            (call,) = choice.message.tool_calls
            assert call.type == "function" and call.function.name == "weather"
            assert json.loads(call.function.arguments) == ARGUMENTS

        # the client gives the message back as it came, and what its function has returned
        said = told.choices[0].message.model_dump(exclude_unset=True)
        identity = told.choices[0].message.tool_calls[0].id
        turns = [*QUESTION, said, {"role": "tool", "tool_call_id": identity, "content": RESULT}]
        whole = create(**SETTINGS, messages=turns, tools=[WEATHER])
        told = streamed(
            client, messages=turns, tools=[WEATHER], stream_options={"include_usage": True}
        )
        expected, new = plain.chat(
            [*QUESTION, tool_bases.call(), tool_bases.result()], 60, tools=[WEATHER]
        )
        assert expected == ANSWER
        for answer in (whole, told):
            (choice,) = answer.choices
            assert (choice.message.content, choice.finish_reason) == (ANSWER, "stop")
            assert not choice.message.tool_calls
            assert answer.usage.completion_tokens == new
        assert told.usage == whole.usage
        # "content": null beside a call, as OpenAI writes it, and a call in OpenAI's older form
        function = {"name": "weather", "arguments": json.dumps(ARGUMENTS)}
        null = {**said, "content": None}
        assert create(**SETTINGS, messages=[*QUESTION, null, turns[-1]], tools=[WEATHER]).usage == (
            whole.usage
        )
        if name != "mistral":  # whose calls have ids
            older = {"role": "assistant", "content": None, "function_call": function}
            result = {"role": "function", "name": "weather", "content": RESULT}
            again = create(**SETTINGS, messages=[*QUESTION, older, result], tools=[WEATHER])
            assert again.choices[0].message.content == ANSWER
        # the model is not offered tools, or may not call them: what it writes is text
        text, _ = plain.chat(QUESTION, 60)
        for asked in ({"tools": [WEATHER], "tool_choice": "none"}, {"tools": []}, {}):
            answer = create(**SETTINGS, messages=QUESTION, **asked).choices[0]
            assert (answer.message.content, answer.message.tool_calls) == (text, None)


@pytest.mark.long
def test_a_stream_comes_token_by_token_and_is_the_whole_answer(family):
    name, run, plain = family
    with serving(run) as client:
        asked = {**SETTINGS, "messages": GREETING}
        text, new = plain.chat(GREETING, 60)
        chunks = list(client.chat.completions.create(**asked, stream=True))
        deltas = [chunk.choices[0].delta for chunk in chunks]
        assert deltas[0].role == "assistant"
        assert "".join(delta.content for delta in deltas) == text
        # the first, the last, and one for each token but that which ends the answer
        assert len(chunks) == new - 1 + 2
        assert [chunk.choices[0].finish_reason for chunk in chunks] == [
            *[None] * (len(chunks) - 1),
            "stop",
        ]
        assert len({chunk.id for chunk in chunks}) == 1
        assert chunks[0].object == "chat.completion.chunk" and chunks[0].usage is None

        for stop in ("are", " how a", "you?", "zz"):
            cut = list(client.chat.completions.create(**asked, stream=True, stop=stop))
            said = "".join(chunk.choices[0].delta.content for chunk in cut)
            assert said == text.split(stop)[0]
            assert cut[-1].choices[0].finish_reason == "stop"
        short = list(client.chat.completions.create(**{**asked, "max_tokens": 3}, stream=True))
        assert short[-1].choices[0].finish_reason == "length"
        assert "".join(c.choices[0].delta.content for c in short) == plain.chat(GREETING, 3)[0]

        prompts = ["Hello", "What is"]
        asked = {**SETTINGS, "prompt": prompts, "max_tokens": 20}
        options = {"stream": True, "stream_options": {"include_usage": True}}
        *chunks, last = client.completions.create(**asked, **options)
        for index, prompt in enumerate(prompts):
            own = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == index]
            assert "".join(one.text for one in own) == plain.after(prompt, 20)[0]
            assert own[-1].finish_reason in ("stop", "length")
        assert last.choices == [] and last.usage == client.completions.create(**asked).usage

        if name == "qwen":  # which may be asked not to think
            quiet, _ = plain.chat(GREETING, 60, enable_thinking=False)
            assert quiet == tool_bases.GREETED != text
            for extra in (
                {"chat_template_kwargs": {"enable_thinking": False}},
                {"enable_thinking": False},
            ):
                answer = client.chat.completions.create(
                    **SETTINGS, messages=GREETING, extra_body=extra
                )
                assert answer.choices[0].message.content == quiet


def refusals(name):
    """What a request has that is refused, and what the refusal says."""
    called = tool_bases.call(arguments="{")
    yield {"tool_choice": "required", "tools": [WEATHER]}, "tool_choice: .*'auto' or 'none'"
    yield {"tools": [{"type": "function"}]}, "tools.0: function: Field required"
    yield {"tools": [{"type": "code", "function": {"name": "a"}}]}, "tools.0: type: "
    yield {"tools": "weather"}, "tools: "
    yield {"messages": [*QUESTION, called]}, "messages.1.tool_calls.0.function.arguments: not JSON"
    yield {"messages": [{"role": "user", "content": None}]}, "messages.0: content: a message of the"
    yield {"messages": [{"role": "user"}]}, "messages.0: content: a message of the user needs"
    yield {"chat_template_kwargs": {"pace": 1}}, "the chat template has no option 'pace'"
    for reserved in ("chat_template", "tokenize", "messages", "tools", "bos_token", "conversation"):
        yield {"chat_template_kwargs": {reserved: "a"}}, f"no option '{reserved}'"
    yield {"response_format": {"type": "json_object"}}, "response_format.type: "
    yield {"stream_options": {"include_usage": True}}, "stream_options: only for a stream"
    if name != "qwen":
        yield {"enable_thinking": True}, "no option 'enable_thinking'"
    if name == "mistral":
        call = tool_bases.call("short")
        yield {"messages": [*QUESTION, call, tool_bases.result()]}, "nine characters"


@pytest.mark.long
def test_what_a_chat_template_does_not_write_is_refused(family, tmp_path):
    from starlette.testclient import TestClient

    from fedseed.own.server import Service, name_sources

    name, run, _ = family
    asked = {**SETTINGS, "messages": QUESTION}
    client = TestClient(Service(name_sources([str(run)])).app())
    for wrong, words in refusals(name):
        for stream in (False, True):
            if stream and "stream_options" in wrong:
                continue
            answer = client.post("/v1/chat/completions", json={**asked, **wrong, "stream": stream})
            assert answer.status_code == 400, (wrong, answer.text)
            message = answer.json()["error"]["message"]
            assert re.search(words, message), (wrong, message)


@pytest.mark.long
def test_tools_that_a_chat_template_leaves_out_are_refused(tmp_path):
    from starlette.testclient import TestClient

    from fedseed.own.server import Service, name_sources

    base = str(chat_base(tmp_path / "base", "llama", LLAMA))
    run = tuned(base, tmp_path / "run", 1, ["What is it?"])
    client = TestClient(Service(name_sources([str(run)])).app())
    for wrong, words in (
        ({"messages": QUESTION, "tools": [WEATHER]}, "does not write tools.* 'weather'"),
        (
            {"messages": [*QUESTION, tool_bases.call(), tool_bases.result()]},
            "does not write tool calls.* 'weather'",
        ),
    ):
        answer = client.post("/v1/chat/completions", json={**SETTINGS, **wrong})
        assert answer.status_code == 400
        assert re.search(words, answer.json()["error"]["message"])
