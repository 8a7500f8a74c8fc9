"""Turns chats into tokens with a tokenizer's chat template, and finds the exact tokens of each
answer.

The loss is on the text that the model has to write itself: from the point where the template asks
for an answer to the token that ends it. To find that point, the chat is written up to each answer,
with the request for it. This text must be the beginning of the text with the answer, which is
checked, and of the whole chat. Some templates rewrite earlier answers when the chat continues, for
example to remove reasoning. Then a chat becomes several examples, each as the model sees it when it
gives one answer. If a template marks its answers itself ({% generation %}), its marks are used.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

from jinja2 import Environment, TemplateError, nodes

from fedseed.objectives.tokens import GUARDS, Span, TextTokens, Tokens
from fedseed.tasks.data import Chat

Message = Mapping[str, Any]
# Some templates write today's date. The tokens must be the same every day and on every machine, so
# templates get this date.
TODAY = """{%- macro strftime_now(format) -%}
{{- format | replace('%Y', '2024') | replace('%m', '07') | replace('%d', '26')
    | replace('%b', 'Jul') -}}
{%- endmacro -%}
"""
GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
# an empty block of reasoning, as chat templates write it
EMPTY_THINKING = re.compile(
    r"\s*(?:<(think|thinking|thought|reasoning)>\s*</\1>|\[THINK\]\s*\[/THINK\])\s*"
)
PROBE = "probe of the system"
# the largest number by which a template may multiply
MOST_TIMES = 1000
# a chat as text, and the positions of its answers in characters
Written = tuple[str, Sequence[Span]]


class ChatTemplate:
    """Writes chats for a tokenizer, as text and as tokens.

    Args:
        tokenizer: a fast `transformers` tokenizer, because only these map tokens to characters.
        given: a Jinja template to use instead of the tokenizer's own.
        arguments: further variables of the template, such as `enable_thinking`.

    Raises:
        ValueError: the tokenizer does not map its tokens to characters.
    """

    def __init__(
        self, tokenizer: Any, template: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        if not tokenizer.is_fast:
            raise ValueError(
                "its tokenizer does not map tokens to characters (it is not a fast one), so the "
                "tokens of an answer in a chat template can't be found; set task.chat_template = "
                '"plain"'
            )
        self.tokenizer = tokenizer
        self._text_tokens = TextTokens(tokenizer)
        self._template_text = template
        self._arguments = dict(arguments or {})

    def write(
        self, messages: Sequence[Message], tools: Sequence[Message] = (), asking: bool = False
    ) -> str:
        """Return a chat as the template writes it.

        `asking`: end with the template's request for the assistant's answer.
        """
        return self._render(messages, tools, add_generation_prompt=asking)[0]

    def _merge_system(self, messages: Sequence[Message]) -> tuple[list[Message], bool]:
        """Return a chat and whether its system message was moved. If the template writes no system
        messages, its text is put before the first user message.
        """
        chat = list(messages)
        if not chat or chat[0]["role"] != "system" or self._takes_system:
            return chat, False
        system, *rest = chat
        if not rest or rest[0]["role"] != "user":
            raise ValueError(
                "the chat template has no system messages, and the chat has no user message "
                "that could hold its text"
            )
        return [
            {**rest[0], "content": f"{system['content']}\n\n{rest[0]['content']}"},
            *rest[1:],
        ], True

    @cached_property
    def _takes_system(self) -> bool:
        """Return whether the template writes system messages."""
        system = {"role": "system", "content": PROBE}
        try:
            return PROBE in self.write([system, {"role": "user", "content": "a"}], asking=True)
        except ValueError:
            return False

    def _template(self, tools: Sequence[Message]) -> str:
        text = self.tokenizer.get_chat_template(self._template_text or None, list(tools) or None)
        # the Jinja compiler itself would compute 'a' * 4000000000
        if "*" in text:
            _check_products(text)
        if "strftime_now" in text:
            return f"{TODAY}{text}"
        return str(text)

    def _render(
        self, messages: Sequence[Message], tools: Sequence[Message], **options: bool
    ) -> tuple[str, Sequence[Span]]:
        from transformers.utils.chat_template_utils import render_jinja_template

        try:
            texts, spans = render_jinja_template(
                conversations=[[dict(message) for message in messages]],
                tools=[dict(tool) for tool in tools] or None,
                chat_template=self._template(tools),
                **options,
                **{**self.tokenizer.special_tokens_map, **self._arguments},
            )
        except TemplateError as error:
            raise ValueError(f"the chat template rejects this chat: {error}") from error
        # the template needs something that the chat does not have
        except (TypeError, KeyError) as error:
            raise ValueError(f"the chat template fails: {error}") from error
        return texts[0], spans[0] if spans else ()

    def _write(
        self, messages: Sequence[Message], tools: Sequence[Message], answer_numbers: Sequence[int]
    ) -> list[Written]:
        """Return a chat as text, with the positions of its answers.

        Returns several texts if the template rewrites earlier answers.

        Args:
            messages: the chat.
            tools: functions that the assistant may call.
            answer_numbers: the numbers of the answers to be learnt.
        """
        if GENERATION.search(self._template(tools)):
            text, marked = self._render(messages, tools, return_assistant_tokens_mask=True)
            if not marked:
                raise ValueError(
                    "the chat template marks no answer in this chat with {% generation %}"
                )
            places = _marked_places(marked, messages, answer_numbers)
            if places is not None:
                return [(text, places)]
        whole = self.write(messages, tools)
        texts: list[Written] = []
        for i in filter(None, answer_numbers):
            question = self.write(messages[:i], tools, asking=True)
            text = whole if i == len(messages) - 1 else self.write(messages[: i + 1], tools)
            texts.append((text, [(len(question), len(text))]))
            if not text.startswith(question):
                raise ValueError(
                    f"the chat template asks for message {i + 1} with a text ({question[-40:]!r}) "
                    "that it does not write before that message; set another template with "
                    "task.chat_template"
                )
        if all(whole.startswith(text) for text, _ in texts):
            return [(whole, [places[0] for _, places in texts])]
        return texts

    def prepare(self, chat: Chat) -> list[Tokens]:
        """Return a chat's tokens, without a limit on their number.

        Returns several examples if the template rewrites earlier answers.

        Raises:
            ValueError: the template rejects the chat; the message names the chat and the reason.
        """
        try:
            messages, merged = self._merge_system(chat.messages)
            # 1 if the system message was merged into another
            shift = len(chat.messages) - len(messages)
            answer_numbers = [number - shift for number in chat.learnt_answers]
            if chat.style.loss_on == "last":
                answer_numbers = answer_numbers[-1:]
            elif messages[0]["role"] == "assistant" and not chat.unlearnt:
                answer_numbers = [0, *answer_numbers]  # some templates mark it as an answer
            texts = self._write(messages, chat.tools, answer_numbers)
            names = (str(tool.get("function", tool).get("name", "")) for tool in chat.tools)
            unseen = any(name not in texts[0][0] for name in names)
            remarked = {
                "system": merged,
                "apart": len(texts) > 1,
                "tools": unseen,
                "arguments": not self._uses_arguments(chat.tools),
            }
            remarks = (*chat.remarks, *(remark for remark, true in remarked.items() if true))
            return [self._tokens(text, answers, remarks) for text, answers in texts]
        except ValueError as error:
            raise ValueError(f"{chat.place or repr(chat.prompt[:60])}: {error}") from error

    def _uses_arguments(self, tools: Sequence[Message]) -> bool:
        """Return whether the template uses all arguments that it gets besides the chat."""
        template = self._template(tools) if self._arguments else ""
        return all(re.search(rf"\b{re.escape(name)}\b", template) for name in self._arguments)

    def _tokens(self, text: str, answers: Sequence[Span], remarks: tuple[str, ...] = ()) -> Tokens:
        answers = [(_past_empty_thinking(text, begin, end), end) for begin, end in answers]
        ids, places = self._encode(text, [begin for begin, _ in answers])
        spans = [self._answer(ids, places, begin, end) for begin, end in answers]
        begin, end = spans[-1]
        if end == len(ids) and ids[-1] not in self._enders:  # the answer has no end token
            ids = [*ids, self.tokenizer.eos_token_id]
            spans[-1] = begin, end + 1
        return Tokens(tuple(ids), begin, tuple(spans), remarks=remarks)

    def _encode(self, text: str, begins: Sequence[int]) -> tuple[list[int], list[Span]]:
        """Return a text's tokens and the characters of each. No token crosses the beginning of an
        answer.
        """
        # an answer must begin with a new token, as it does in generation
        ids, places = self._encode_whole(text)
        cuts = [cut for cut in begins if _is_inside(cut, places)]
        if not cuts:
            return ids, places
        ids, places = [], []
        for begin, end in pairwise([0, *cuts, len(text)]):
            new_ids, new_places = self._encode_after(text[:begin], text[begin:end])
            ids += new_ids
            places += [(begin + a, begin + b) for a, b in new_places]
        return ids, places

    def _encode_after(self, prefix: str, text: str) -> tuple[list[int], list[Span]]:
        """Return the tokens and their positions of a text that continues another one."""
        if prefix and self._text_tokens.adds_blank:
            for guard in (prefix[-1], *GUARDS):
                guard_ids = self._text_tokens.ids(guard)
                ids, places = self._encode_whole(guard + text)
                if ids[: len(guard_ids)] == guard_ids:
                    length = len(guard)
                    # the first token's span may begin within the guard, if it includes the blank
                    rest = [
                        (max(0, begin - length), end - length)
                        for begin, end in places[len(guard_ids) :]
                    ]
                    return ids[len(guard_ids) :], rest
        return self._encode_whole(text)

    def _encode_whole(self, text: str) -> tuple[list[int], list[Span]]:
        """Return a text's tokens and their positions.

        If the tokenizer reports an empty span for a token, the token gets the characters since the
        last one.
        """
        encoding = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        places, last_end = [], 0
        for begin, end in encoding["offset_mapping"]:
            places.append((begin if begin < end else last_end, end))
            last_end = end
        return list(encoding["input_ids"]), places

    def _answer(self, ids: Sequence[int], places: Sequence[Span], begin: int, end: int) -> Span:
        """Return the span of tokens that begin within an answer's characters, without blanks after
        its end token.
        """
        inside = [i for i, (start, _) in enumerate(places) if begin <= start < end]
        if not inside:
            raise ValueError("the chat template writes no text for an answer")
        first, last = inside[0], inside[-1]
        while (
            last > first
            and ids[last] not in self._enders
            and not self.tokenizer.decode([ids[last]]).strip()
        ):
            last -= 1
        return first, (last if ids[last] in self._enders else inside[-1]) + 1

    @cached_property
    def _enders(self) -> frozenset[int]:
        """Return the tokens that may end an answer: special tokens, and tokens added to the
        vocabulary.
        """
        added = {i: str(token) for i, token in self.tokenizer.added_tokens_decoder.items()}
        return frozenset(
            {i for i, text in added.items() if text.strip()} | set(self.tokenizer.all_special_ids)
        )

    @cached_property
    def end_of_turn(self) -> int | None:
        """Return the token that ends an answer.

        None if no token does, or if the template rejects a test chat.
        """
        probe = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        try:
            tokens = self._tokens(*self._write(probe, [], [1])[-1])
        except ValueError:
            return None
        end = tokens.ids[tokens.learnt[-1][1] - 1]
        if end in self._enders:
            return end
        return None


def _is_inside(position: int, places: Sequence[Span]) -> bool:
    """Return whether a position is strictly inside one of the spans."""
    return any(begin < position < end for begin, end in places)


def _marked_places(
    marked: Sequence[Span], messages: Sequence[Message], answer_numbers: Sequence[int]
) -> Sequence[Span] | None:
    """Select the spans of the wanted answers from those that a template marks.

    None if they can't be matched, because the template marks more or fewer spans than there are
    answers.
    """
    assistant_numbers = [
        number for number, message in enumerate(messages) if message["role"] == "assistant"
    ]
    if len(marked) == len(assistant_numbers):
        return [
            place
            for number, place in zip(assistant_numbers, marked, strict=True)
            if number in answer_numbers
        ]
    answers = [number for number in assistant_numbers if number]
    if list(answer_numbers) == answers:
        return marked
    if list(answer_numbers) == answers[-1:]:
        return marked[-1:]
    return None


def _past_empty_thinking(text: str, begin: int, end: int) -> int:
    """Return the position where an answer begins, after an empty block of reasoning if there is
    one.

    Some templates write such a block if the data has no reasoning. Learning it would teach the
    model not to reason.
    """
    match = EMPTY_THINKING.match(text, begin, end)
    if match is None or match.end() >= end:
        return begin
    return match.end()


def _check_products(template: str) -> None:
    """Raise ValueError if a template multiplies by a large number, which could exhaust the
    machine's memory.
    """
    # a tag of transformers, which is not Jinja's
    plain = re.sub(r"\{%-?\s*(?:end)?generation\s*-?%\}", "", template)
    try:
        products = list(
            Environment(extensions=["jinja2.ext.loopcontrols"])
            .parse(plain)
            .find_all((nodes.Mul, nodes.Pow))
        )
    except TemplateError:
        # rendering the template will report the error
        return
    for product in products:
        numbers = [
            one.value for one in product.find_all(nodes.Const) if isinstance(one.value, int | float)
        ]
        if isinstance(product, nodes.Pow) or max(numbers, default=0) > MOST_TIMES:
            if isinstance(product, nodes.Pow):
                problem = "raises to a power"
            else:
                problem = f"multiplies by {max(numbers):,}"
            raise ValueError(
                f"the chat template {problem}, which chats do not need; set another template with "
                "task.chat_template"
            )
