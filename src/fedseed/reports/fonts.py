"""Text in pictures that Matplotlib's own font has no letters for: Chinese, Japanese, Korean names, say.

Of the fonts of this machine those are taken that have what is missing. Where none has it, "?" stands for the letter
and a name gets its number, with a line that says so: a row of empty boxes says nothing.
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
NOTE = "a name with ? is known by its number: no font of this machine has its letters (fonts-noto-cjk has many)"


def readable(texts: Sequence[str]) -> tuple[list[str], str | None]:
    """Chooses fonts for some texts, for all pictures of this process from here on.

    Args:
        texts: what a picture will show.

    Returns:
        The texts as they can be shown, and a line about those that can't; None: all can.
    """
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
    shown = [
        "".join("?" if c in missing else c if c.isprintable() else " " for c in text)
        + (f" [{number}]" if missing & set(text) else "")
        for number, text in enumerate(texts, start=1)
    ]
    return shown, NOTE if missing else None


@cache
def letters_of(file: str) -> frozenset[int]:
    """Returns the code points that a font has."""
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
