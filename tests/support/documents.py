"""The code blocks of README.md and docs/*.md, and the words of their command lines."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LANGUAGES = {"sh", "console", "toml", "python", "yaml", "json", "jinja", "text", "diff"}
FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
NOT_RUN = re.compile(r"<!-- not run: ((?:(?!-->).){5,}) -->\n$", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    page: str  # the file's name
    line: int  # where it begins
    language: str  # the word after the fence
    text: str
    reason: str | None  # why it is not run here, as the comment before it says; None: it is

    def __str__(self):
        return f"{self.page}:{self.line}"

    @property
    def is_patched(self):
        """Whether the block needs what a patch adds; tests/test_patches.py tries those."""
        return self.reason is not None and "tests/test_patches.py" in self.reason

    @property
    def commands(self):
        """Command lines without their comments.

        Of a console block the first, before what it prints.
        """
        joined = re.sub(r"\\\n\s*", " ", self.text)
        lines = [line for line in joined.splitlines() if line.strip()]
        lines = lines[:1] if self.language == "console" else lines
        found = []
        for line in lines:
            words = shlex.shlex(line, posix=True, punctuation_chars="|&")
            words.whitespace_split, words.commenters = True, "#"
            found.append(list(words))
        return [words for words in found if words]


def documents():
    """README.md and the pages of docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(path):
    """A page's blocks, in order."""
    text = path.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        said = NOT_RUN.search(text[: match.start()])
        line = text[: match.start()].count("\n") + 1
        found.append(Block(path.name, line, match["language"], match["text"], said and said[1]))
    return found


def patched_files():
    """The files that the patches change or add, which the documents may name."""
    patches = (ROOT / "tests" / "patches").glob("*.patch")
    texts = [path.read_text(encoding="utf-8") for path in patches]
    return {name for text in texts for name in re.findall(r"^\+\+\+ b/(\S+)$", text, re.MULTILINE)}


def all_blocks():
    """Of all pages."""
    return [block for path in documents() for block in blocks(path)]


def parts(words):
    """The commands of a line: `a && b | c` has three.

    For each, whether the one before is its input.
    """
    made, piped = [[]], [False]
    for word in words:
        if word in ("|", "&&"):
            made.append([])
            piped.append(word == "|")
        else:
            made[-1].append(word)
    return list(zip(made, piped, strict=True))


def fedseed_words(words):
    """What follows `fedseed` in a command, settings of the environment before it left out.

    None: another command.
    """
    rest = list(words)
    while rest and re.fullmatch(r"[A-Z_]+=.*", rest[0]):
        rest.pop(0)
    return rest[1:] if rest and Path(rest[0]).name == "fedseed" else None
