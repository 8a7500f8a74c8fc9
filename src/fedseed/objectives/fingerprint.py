"""Computes a party's fingerprint: digests of the tokens that its tokenizer and chat template make
of fixed texts.
"""

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fedseed.objectives.chats import ChatTemplate
from fedseed.objectives.tokens import TextTokens

DIGEST_BYTES = 16
LIBRARIES = ("fedseed", "transformers", "tokenizers")
# texts on which versions of tokenizers have differed: blanks, line ends, digits, letters that
# normalisers change, other scripts, non-text. The tokenizer's special tokens are tested as well
TEXTS = (
    "a",
    " a",
    "  two blanks,\ttab\n\nand ends of lines \n",
    "Count: 2 times 1,234.5 = 2469?",
    "It's O'Neill's; e-mail: x_y@example.org!",
    "Straße, ÄÖÜ, façade, ﬁne, e\u0301 and é, İı",
    "Ελληνικά, русский, עברית, 日本語 ไทย",
    "\u00a0\u200b🙂👩‍👩‍👧 \ufeff½²",
    "<b>{'json': [1, null]}</b> \\n //",
)
PAIRS = (("Say 1:", " 1"), ("x=", "2"), ("Response:\n", "Done"))
USER = {"role": "user", "content": "What is 1 + 1? "}
ANSWER = {"role": "assistant", "content": "It is 2.\n"}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": "é"}}}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
SYSTEM = {"role": "system", "content": "Be short."}
RESULT = {"role": "tool", "content": "2"}
THOUGHT = {**ANSWER, "reasoning_content": "One and one."}
# (messages, tools, arguments of the template): templates branch on the number of turns, on several
# calls or results in a row, on reasoning, and on whether to think
CHATS: Sequence[tuple[Sequence[dict[str, Any]], Sequence[dict[str, Any]], Mapping[str, Any]]] = (
    ((USER, ANSWER), (), {}),
    ((SYSTEM, USER, ANSWER, USER), (), {}),
    ((USER, {**ANSWER, "tool_calls": [CALL]}, RESULT), (TOOL,), {}),
    ((USER, {**ANSWER, "tool_calls": [CALL, CALL]}, RESULT, RESULT, ANSWER), (TOOL, TOOL), {}),
    ((USER, THOUGHT, USER, THOUGHT), (), {}),
    ((USER, ANSWER) * 4, (), {}),
    ((SYSTEM, USER, ANSWER, SYSTEM, USER), (), {}),
    ((USER,), (), {"enable_thinking": True}),
    ((USER,), (), {"enable_thinking": False}),
)


def tokens_digest(tokenizer: Any) -> str:
    """Return a digest of the token ids of fixed texts.

    The texts are tokenised with and without special tokens, alone and one after another, as in
    examples. The whole vocabulary is hashed as well.

    Args:
        tokenizer: a `transformers` tokenizer.
    """
    tokens = TextTokens(tokenizer)
    # sorted, because versions differ in the order of added tokens, which does not change any token
    added = sorted(map(str, getattr(tokenizer, "added_tokens_decoder", {}).values()))
    texts = [*TEXTS, *(f"a{token} b" for token in added)]
    token_ids = [[list(tokenizer(text)["input_ids"]), tokens.ids(text)] for text in texts]
    token_ids += [[tokens.from_start(tokens.ids(a)), tokens.ids_after(a, b)] for a, b in PAIRS]
    # a site may have put words of its own in place of tokens that no fixed text has
    vocabulary = sorted(tokenizer.get_vocab().items())
    return _digest([*token_ids, [tokenizer.eos_token_id, tokenizer.pad_token_id], vocabulary])


def template_digest(tokenizer: Any) -> str:
    """Return a digest of fixed chats, as written by the tokenizer's chat template.

    For a chat that the template rejects, only the rejection counts, not its error message.

    Returns:
        The digest; "" if there is no template, or if the tokenizer is not a fast one.
    """
    if not getattr(tokenizer, "chat_template", None):
        return ""
    try:
        ChatTemplate(tokenizer)
    except ValueError:
        return ""
    texts: list[str | None] = []
    for messages, tools, arguments in CHATS:
        template = ChatTemplate(tokenizer, arguments=arguments)
        for asking in (False, True):
            try:
                texts.append(template.write(messages, tools, asking))
            except ValueError:
                texts.append(None)
    return _digest(texts)


def versions_here() -> dict[str, str]:
    """Return the versions of the libraries that determine tokens."""
    versions = {}
    for name in LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:  # fedseed runs from its sources
            continue
    return versions


def _digest(value: Any) -> str:
    return blake2b(json.dumps(value).encode(), digest_size=DIGEST_BYTES).hexdigest()
