"""Text in pictures that Matplotlib's own font has no letters for: Chinese, Japanese, Korean names, say.

Of the fonts of this machine those are taken that have what is missing. Where none has it, a name is shown by its
number, with a line that says so: a row of empty boxes says nothing.
"""

import logging
from collections.abc import Sequence
from functools import cache

from matplotlib import font_manager, rcParams
from matplotlib.ft2font import FT2Font

logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # it tells of weights that a font has not
OWN = "DejaVu Sans"  # comes with Matplotlib
# asked first: fonts that people read these scripts in, rather than whatever has a letter
LIKED = ("Noto Sans CJK", "Noto Sans", "Source Han Sans", "WenQuanYi", "Droid Sans Fallback", "Microsoft YaHei",
         "PingFang", "Hiragino", "Yu Gothic", "Malgun Gothic", "Arial Unicode")  # fmt: skip


def prepare(texts: Sequence[str]) -> tuple[list[str], str | None]:
    """Choose fonts for some texts, for all pictures of this process from here on.

    Args:
        texts: what a picture will show.

    Returns:
        The texts as they can be shown, and a line about those that can't; None: all can.
    """
    missing = _choose(texts)
    shown = [
        f"[{n}]" if missing & set(text) else "".join(c if c.isprintable() else " " for c in text)
        for n, text in enumerate(texts, start=1)
    ]
    numbered = [text for text, was in zip(shown, texts, strict=True) if missing & set(was)]
    if not numbered:
        return shown, None
    return shown, (
        f"{numbered[0]}{' and the like' if len(numbered) > 1 else ''}: names by their places; no font of this machine "
        "has their letters (fonts-noto-cjk has many)"
    )


def plain(text: str) -> str:
    """A line of text as it can be shown: "?" for letters that no font of this machine has."""
    missing = _choose([text])
    return "".join("?" if c in missing else c if c.isprintable() else " " for c in text)


def _choose(texts: Sequence[str]) -> set[str]:
    """Take the fonts that some texts need; returns the letters that none has."""
    missing = {c for text in texts for c in text if c.isprintable() and ord(c) not in letters_of(_own_file())}
    families = []
    for family, file in _others() if missing else ():
        has = {c for c in missing if ord(c) in letters_of(file)}
        if has:
            families.append(family)
            missing -= has
        if not missing:
            break
    known = [family for family in rcParams["font.family"] if family not in ("sans-serif", OWN)]
    rcParams["font.family"] = [OWN, *dict.fromkeys([*known, *families])]
    return missing


@cache
def letters_of(file: str) -> frozenset[int]:
    """The code points that a font has."""
    return frozenset(FT2Font(file).get_charmap())


@cache
def _own_file() -> str:
    return font_manager.findfont(OWN)


@cache
def _others() -> tuple[tuple[str, str], ...]:
    """Families of this machine with a file each, those that people like first."""
    found = {entry.name: entry.fname for entry in font_manager.fontManager.ttflist}
    # Matplotlib's "Last Resort" has a box for every letter there is
    found = {family: file for family, file in found.items() if family != OWN and "LastResort" not in file}

    def order(family: str) -> tuple[int, str]:
        return next((n for n, liked in enumerate(LIKED) if family.startswith(liked)), len(LIKED)), family

    return tuple((family, found[family]) for family in sorted(found, key=order))
