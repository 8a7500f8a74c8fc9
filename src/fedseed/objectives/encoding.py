"""From examples of language to tokens: a prompt with its response, a text, a chat."""

from collections.abc import Sequence
from typing import Any

from fedseed.errors import RecipeError
from fedseed.objectives.chats import ChatTemplate
from fedseed.objectives.tokens import Tokens
from fedseed.tasks.chats import answers_of, plain_form
from fedseed.tasks.data import Chat, ChatStyle, Example


class Encoder:
    """Makes tokens of whatever length.

    Args:
        tokenizer: a `transformers` tokenizer with an EOS token.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._templates: dict[str, ChatTemplate] = {}

    def prompt_ids(self, prompt: str) -> list[int]:
        """Ids of what stands before the response."""
        start = [self.tokenizer.bos_token_id] if self.tokenizer.bos_token_id is not None else []
        ids: list[int] = self.tokenizer(prompt, add_special_tokens=False)["input_ids"]
        return start + ids

    def encode(self, examples: Sequence[Example]) -> list[list[Tokens]]:
        """Each example's items.

        Raises:
            RecipeError: a chat template refuses a chat, or the tokenizer can't be used with one.
        """
        made, refused = [], []
        for example in examples:
            try:
                made.append(self._items(example))
            except ValueError as error:
                refused.append(str(error))
        if refused:
            rest = f" (and {len(refused) - 1:,} more chats)" if len(refused) > 1 else ""
            raise RecipeError(refused[0] + rest)
        return made

    def template_of(self, style: ChatStyle) -> ChatTemplate | None:
        """What writes chats of a style; None: they are written plainly.

        Raises:
            RecipeError: the tokenizer has no template, or can't be used with one.
        """
        if style.writing == "plain" or (style.writing == "auto" and not self.tokenizer.chat_template):
            return None
        if style.writing == "own" and not self.tokenizer.chat_template:
            raise RecipeError(
                'task.chat_template = "own": the base\'s tokenizer has no chat template; give a file with one'
            )
        if style.template not in self._templates:
            try:
                self._templates[style.template] = ChatTemplate(self.tokenizer, style.template)
            except ValueError as error:
                raise RecipeError(f"model.base: {error}") from error
        return self._templates[style.template]

    def ends_of(self, example: Example) -> tuple[int, ...]:
        """The tokens that end a response to an example, besides the end-of-sequence token."""
        template = self.template_of(example.style) if isinstance(example, Chat) else None
        end = None if template is None else template.end_of_turn
        return () if end is None or end == self.tokenizer.eos_token_id else (end,)

    def _items(self, example: Example) -> list[Tokens]:
        if not isinstance(example, Chat):
            return [self._pair(example.prompt, example.response, example.stop)]
        template = self.template_of(example.style)
        return self._plainly(example) if template is None else template.prepare(example)

    def _pair(self, prompt: str, response: str, stop: str = "", remarks: tuple[str, ...] = ()) -> Tokens:
        before = self.prompt_ids(prompt)
        after = self.tokenizer(response + stop, add_special_tokens=False)["input_ids"]
        ids = (*before, *after) if stop else (*before, *after, self.tokenizer.eos_token_id)
        return Tokens(ids, max(1, len(before)), remarks=remarks)  # nothing says what a first token should be

    def _plainly(self, chat: Chat) -> list[Tokens]:
        """A chat in its plain form: an item for each answer that is learnt."""
        remarks = () if chat.style.writing == "plain" else ("plain",)
        wanted = answers_of(chat.messages) if chat.style.loss_on == "all" else [len(chat.messages) - 1]
        return [self._pair(*plain_form(chat.messages, chat.tools, i), remarks=remarks) for i in wanted]
