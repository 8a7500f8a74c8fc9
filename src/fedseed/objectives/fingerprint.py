"""Computes a party's fingerprint: what its tokenizer and chat template make of fixed texts."""

import json
from collections.abc import Sequence
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fedseed.objectives.chats import ChatTemplate
from fedseed.objectives.tokens import TextTokens

DIGEST_BYTES = 16
LIBRARIES = ("fedseed", "transformers", "tokenizers")
# texts on which versions of tokenizers have differed: blanks, ends of lines, digits, letters that
# normalisers change, other scripts, non-text; beside these the tokenizer's special tokens
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
CHATS: Sequence[tuple[Sequence[dict[str, Any]], Sequence[dict[str, Any]]]] = (
    ((USER, ANSWER), ()),
    (({"role": "system", "content": "Be short."}, USER, ANSWER, USER), ()),
    ((USER, {**ANSWER, "tool_calls": [CALL]}, {"role": "tool", "content": "2"}), (TOOL,)),
)


def tokens_digest(tokenizer: Any) -> str:
    """Return a digest of the token ids that fixed texts get.

    The texts are tokenised with special tokens and without, alone and after one another, as
    examples are.

    Args:
        tokenizer: a `transformers` tokenizer.
    """
    tokens = TextTokens(tokenizer)
    # sorted, because the order in which a version lists its added tokens changes no token
    added = sorted(map(str, getattr(tokenizer, "added_tokens_decoder", {}).values()))
    texts = [*TEXTS, *(f"a{token} b" for token in added)]
    token_ids = [[list(tokenizer(text)["input_ids"]), tokens.ids(text)] for text in texts]
    token_ids += [[tokens.from_start(tokens.ids(a)), tokens.ids_after(a, b)] for a, b in PAIRS]
    return _digest([*token_ids, [tokenizer.eos_token_id, tokenizer.pad_token_id]])


def template_digest(tokenizer: Any) -> str:
    """Return a digest of fixed chats as the tokenizer's chat template writes them.

    A chat that the template refuses counts as refused, whatever the words.

    Returns:
        "" if there is no template, or the tokenizer is too slow a one for chats.
    """
    if not getattr(tokenizer, "chat_template", None):
        return ""
    try:
        template = ChatTemplate(tokenizer)
    except ValueError:
        return ""
    texts: list[str | None] = []
    for messages, tools in CHATS:
        for asking in (False, True):
            try:
                texts.append(template.write(messages, tools, asking))
            except ValueError:
                texts.append(None)
    return _digest(texts)


def versions_here() -> dict[str, str]:
    """Return the versions of the libraries that make tokens."""
    versions = {}
    for name in LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:  # run from its sources
            continue
    return versions


def _digest(value: Any) -> str:
    return blake2b(json.dumps(value).encode(), digest_size=DIGEST_BYTES).hexdigest()
