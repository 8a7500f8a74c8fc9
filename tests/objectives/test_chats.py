"""Which tokens of a chat carry loss: exactly what the model has to write itself, by templates of
three families.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedseed.errors import RecipeError
from fedseed.objectives.losses import CausalLM
from fedseed.objectives.tokens import IGNORE
from fedseed.tasks.chats import chat_of
from fedseed.tasks.data import ChatStyle
from fedseed.tasks.own import FilesTask
from support.chat_bases import END_OF_TURN, QWEN, TEMPLATES, chat_tokenizer
from support.instruction_files import write_lines

ANSWERS = ["Paris, of course.", "It is Rome:\n\n größer."]
TURNS = [
    ("system", "Be short."),
    ("user", "What is the capital of France?"),
    ("assistant", ANSWERS[0]),
    ("user", "And of Italy?"),
    ("assistant", ANSWERS[1]),
]
MESSAGES = [{"role": role, "content": content} for role, content in TURNS]
TOKENIZER = chat_tokenizer("qwen2")
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def tokenizers():
    return {family: chat_tokenizer(family) for family in TEMPLATES}


def prepared(tokenizer, messages, tools=(), **style):
    return CausalLM(tokenizer).prepare(
        [chat_of(messages, list(tools), ChatStyle(**style), "chats.jsonl line 7")]
    )


def learnt(tokenizer, item):
    return [tokenizer.decode(item.ids[begin:end]) for begin, end in item.learnt]


@pytest.mark.parametrize("family", TEMPLATES)
def test_the_answers_and_what_ends_them_carry_loss(tokenizers, family):
    tokenizer = tokenizers[family]
    (item,) = prepared(tokenizer, MESSAGES)
    assert learnt(tokenizer, item) == [answer + END_OF_TURN[family] for answer in ANSWERS]
    taken = MESSAGES
    if family == "gemma":  # its template refuses a system message
        taken = [
            {"role": "user", "content": f"Be short.\n\n{MESSAGES[1]['content']}"},
            *MESSAGES[2:],
        ]
        assert item.remarks == ("system",)
    assert list(item.ids) == tokenizer.apply_chat_template(taken, return_dict=False)
    # before an answer stands what generation is given
    for i, (begin, _) in zip((-3, -1), item.learnt, strict=True):
        asked = tokenizer.apply_chat_template(
            taken[:i], add_generation_prompt=True, return_dict=False
        )
        assert list(item.ids[:begin]) == asked
    inside = [any(begin <= at < end for begin, end in item.learnt) for at in range(len(item.ids))]
    assert item.labels == [
        token if learnt else IGNORE for token, learnt in zip(item.ids, inside, strict=True)
    ]
    assert CausalLM(tokenizer).weight(item) == sum(inside)


@pytest.mark.long
@settings(max_examples=25)
@given(
    st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="<>"), min_size=1),
        min_size=1,
        max_size=3,
    )
)
def test_whatever_is_said(answers):
    """Any text in it: an answer's tokens are those of the answer, and none of another's."""
    turns = [
        m
        for text in answers
        for m in ({"role": "user", "content": text}, {"role": "assistant", "content": text})
    ]
    (item,) = prepared(TOKENIZER, turns)
    assert list(item.ids) == TOKENIZER.apply_chat_template(turns, return_dict=False)
    assert learnt(TOKENIZER, item) == [f"{text}<|im_end|>" for text in answers]


def test_tools_are_seen_and_calls_are_learnt(tokenizers):
    call = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Bonn"}}}
    turns = [
        {"role": "user", "content": "And in Bonn?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "sun"},
        {"role": "assistant", "content": "It is sunny."},
    ]
    tokenizer = tokenizers["qwen2"]
    (item,) = prepared(tokenizer, turns, [WEATHER])
    said = ['<tool_call>weather {"city": "Bonn"}</tool_call>', "It is sunny."]
    assert learnt(tokenizer, item) == [f"{text}<|im_end|>" for text in said]
    assert '{"type": "function", "function": {"name": "weather"' in tokenizer.decode(item.ids)
    assert item.remarks == ()
    (item,) = prepared(tokenizers["llama"], turns[:1] + turns[3:], [WEATHER])
    assert item.remarks == ("tools",)  # its template leaves them out


def test_what_a_template_refuses_is_said_with_its_place_and_its_words(tokenizers):
    twice = [MESSAGES[1], *MESSAGES[1:3]]
    with pytest.raises(
        RecipeError,
        match=r"^chats.jsonl line 7: the chat template rejects this chat: Conversation roles",
    ):
        prepared(tokenizers["gemma"], twice)
    chats = [chat_of(twice, [], ChatStyle(), f"line {i}") for i in range(3)]
    with pytest.raises(RecipeError, match=r"^line 0: .*\(and 2 more chats\)$"):
        CausalLM(tokenizers["gemma"]).prepare(chats)
    with pytest.raises(RecipeError, match="no system messages, and the chat has no user message"):
        prepared(tokenizers["gemma"], [MESSAGES[0], MESSAGES[2]])


# only the last answer keeps its reasoning, as in templates of reasoning models
FORGETFUL = QWEN.replace(
    "+ message.content }}",
    "+ (message.content if loop.last or message.role != 'assistant' else "
    "message.content.split('</think>')[-1]) }}",
)


def test_a_template_that_rewrites_earlier_answers_gives_an_example_for_each():
    tokenizer = chat_tokenizer("qwen2", FORGETFUL)
    thought = [f"<think>So.</think>{answer}" for answer in ANSWERS]
    turns = [
        MESSAGES[1],
        {**MESSAGES[2], "content": thought[0]},
        MESSAGES[3],
        {**MESSAGES[4], "content": thought[1]},
    ]
    items = prepared(tokenizer, turns)
    assert [learnt(tokenizer, item) for item in items] == [
        [f"{text}<|im_end|>"] for text in thought
    ]
    # as when the answer is given
    assert [tokenizer.decode(item.ids).count("<think>") for item in items] == [1, 1]
    assert {item.remarks for item in items} == {("apart",)}
    (last,) = prepared(tokenizer, turns, loss_on="last")
    assert (last.ids, last.learnt, last.remarks) == (items[1].ids, items[1].learnt, ())


def test_a_template_that_asks_for_something_else_than_it_writes_is_refused():
    other = QWEN.replace(
        "{{- '<|im_start|>assistant\n' }}", "{{- '<|im_start|>assistant\n<think>\n' }}"
    )
    assert other != QWEN
    with pytest.raises(
        RecipeError,
        match=r"asks for message 3 with a text .*<think>.* that it does not write before",
    ):
        prepared(chat_tokenizer("qwen2", other), MESSAGES)


MARKED = """{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- 'A:' }}{% generation %}{{ ' ' + message.content + '<|im_end|>' }}
        {%- endgeneration %}{{- '\n' }}
    {%- else %}{{- message.role + ':' + message.content + '\n' }}{% endif %}
{%- endfor %}"""


def test_a_template_that_marks_its_answers_is_believed():
    tokenizer = chat_tokenizer("qwen2", MARKED)
    (item,) = prepared(tokenizer, MESSAGES)
    assert learnt(tokenizer, item) == [f" {answer}<|im_end|>" for answer in ANSWERS]
    (item,) = prepared(tokenizer, MESSAGES, loss_on="last")
    assert learnt(tokenizer, item) == [f" {ANSWERS[1]}<|im_end|>"]


def test_where_no_token_ends_the_last_answer_the_end_of_sequence_does():
    bare = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
    asking = "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    tokenizer = chat_tokenizer("llama", bare + asking)
    (item,) = prepared(tokenizer, MESSAGES)
    assert learnt(tokenizer, item) == [f"{ANSWERS[0]}\n", f"{ANSWERS[1]}\n<|end_of_text|>"]


def test_the_date_is_always_the_same():
    tokenizer = chat_tokenizer("qwen2", "{{ strftime_now('%d %b %Y') }}" + QWEN)
    (item,) = prepared(tokenizer, MESSAGES)
    assert tokenizer.decode(item.ids).startswith("26 Jul 2024<|im_start|>system\nBe short.")


def test_without_a_template_chats_are_plain_text_and_that_is_said(small):
    tokenizer = small[1]
    (item,) = prepared(tokenizer, MESSAGES)
    assert item.remarks == ("plain",)
    assert tokenizer.decode(item.ids[1 : item.response_start]).endswith("Assistant:")
    assert item.ids[-1] == tokenizer.eos_token_id
    (asked,) = prepared(tokenizer, MESSAGES, writing="plain")
    assert (asked.ids, asked.remarks) == (item.ids, ())
    first, last = prepared(tokenizer, MESSAGES, writing="plain", loss_on="all")
    assert last == asked and first.ids[-1] == tokenizer.eos_token_id
    assert first.ids[: first.response_start] == last.ids[: first.response_start]
    with pytest.raises(
        RecipeError, match=r'chat_template = "own": the base.s tokenizer has no chat template; give'
    ):
        prepared(tokenizer, MESSAGES, writing="own")
    template = "{% for m in messages %}{{ m.role + ':' + m.content + '</s>' }}{% endfor %}"
    (item,) = prepared(tokenizer, MESSAGES[1:3], writing="given", template=template)
    answer = tokenizer(f"assistant:{ANSWERS[0]}</s>", add_special_tokens=False).input_ids
    assert learnt(tokenizer, item) == [tokenizer.decode(answer)]


# in Qwen3's manner: an answer has a block of reasoning, an empty one where there is none
THINKING = """{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' }}
    {%- if message.role == 'assistant' and (loop.last or message.reasoning_content) %}
        {{- '<think>\n' + (message.reasoning_content or '') + '\n</think>\n\n' }}
    {%- endif %}
    {{- message.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}"""


@pytest.mark.parametrize("arguments", [{}, {"enable_thinking": False}, {"enable_thinking": True}])
def test_an_empty_block_of_reasoning_is_not_learnt(arguments):
    tokenizer = chat_tokenizer("qwen2", THINKING)
    turns = [MESSAGES[1], MESSAGES[2]]
    (item,) = prepared(tokenizer, turns, template_arguments=arguments)
    assert learnt(tokenizer, item) == [f"{ANSWERS[0]}<|im_end|>"]
    before = tokenizer.decode(item.ids[: item.response_start])
    assert before.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    asked = tokenizer.apply_chat_template(
        turns[:1], add_generation_prompt=True, enable_thinking=False, return_dict=False
    )
    assert list(item.ids[: item.response_start]) == asked


def test_reasoning_is_learnt():
    tokenizer = chat_tokenizer("qwen2", THINKING)
    answer = {**MESSAGES[2], "reasoning_content": "France: Paris."}
    (item,) = prepared(tokenizer, [MESSAGES[1], answer])
    (text,) = learnt(tokenizer, item)
    assert text == f"<think>\nFrance: Paris.\n</think>\n\n{ANSWERS[0]}<|im_end|>"


def test_several_answers_with_empty_blocks():
    tokenizer = chat_tokenizer("qwen2", THINKING)
    items = prepared(tokenizer, MESSAGES[1:])
    texts = [text for item in items for text in learnt(tokenizer, item)]
    assert texts == [f"{answer}<|im_end|>" for answer in ANSWERS]
    assert items[0].remarks == ("apart",)


def test_template_arguments_of_recipe_and_row(tmp_path):
    template = (
        "{% for m in messages %}{{ m.role + ':' + m.content + eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    tokenizer = chat_tokenizer("qwen2", "{{ style }}-{{ size }} " + template)
    row = {"messages": MESSAGES[1:3]}
    own = {**row, "chat_template_kwargs": {"size": "big"}}
    path = write_lines(tmp_path / "chats.jsonl", [row, own])
    task = FilesTask(
        path=str(path), evaluation=0.0, chat_template_kwargs={"style": "plain", "size": "small"}
    )
    examples = task.load_party("north").clients[0].examples
    texts = [tokenizer.decode(item.ids) for item in CausalLM(tokenizer).prepare(examples)]
    assert [text.partition(" ")[0] for text in texts] == ["plain-small", "plain-big"]
    for name in ("qwen2", "llama"):  # what no template uses is said
        (item, _) = CausalLM(chat_tokenizer(name)).prepare(examples)
        assert item.remarks == ("arguments",)
    with pytest.raises(RecipeError, match=r"task\.chat_template_kwargs: tools can't be set"):
        FilesTask(path=str(path), chat_template_kwargs={"tools": []}).load_party("north")
    wrong = write_lines(tmp_path / "wrong.jsonl", [{**row, "chat_template_kwargs": "x"}])
    with pytest.raises(RecipeError, match='line 1: "chat_template_kwargs" is not valid JSON'):
        FilesTask(path=str(wrong)).load_party("north")
