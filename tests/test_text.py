"""Somebody else's text is shown, and obeyed by no terminal, markup or YAML."""

import ast
import io
import json
from dataclasses import replace

import pytest
import yaml
from huggingface_hub import ModelCard
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.table import Table

from fedseed import FeedSign
from fedseed.orbit import Header, OrbitWriter
from fedseed.orbit.card import Facts, card
from fedseed.reports.progress import Screen
from fedseed.text import clean, show_text
from fedseed.weights.layout import Layout, TensorEntry
from support.command import fedseed

EVIL = (
    "[red]a[/red]\x1b]0;title\x07\x1b[2J\x9b31m\r\n---\nlicense: [mit\u202e`x|y`](http://z) "
    "<b> # : {"
)
HEADER = Header(
    "small",
    "00" * 16,
    "float32",
    Layout((TensorEntry("w", (4,), "float32"),), (0, 4)),
    FeedSign(),
    1,
)


@given(st.text(st.characters(), max_size=300), st.integers(4, 50))
@settings(deadline=None, max_examples=60)
def test_what_is_shown_is_one_short_line_without_controls(text, limit):
    line = show_text(text, limit)
    assert len(line) <= limit and "\n" not in line
    assert not any(
        ord(c) < 32 or 127 <= ord(c) < 160 or c in "\u2028\u2029\u202e\u2066" for c in line
    )
    line.encode()  # no half of a pair


def test_letters_of_all_scripts_stay():
    assert clean("größer 东 שלום\tnow\n😀\u200d") == "größer 东 שלום\tnow\n😀\u200d"
    assert (
        show_text("a \x1b[31m  b") == r"a \x1b[31m b"
        and show_text("x" * 500, 10) == "x" * 7 + "..."
    )


def test_a_screen_sends_no_codes_but_its_own():
    out = io.StringIO()
    screen = Screen(file=out, force_terminal=True, width=400, color_system="standard", _environ={})
    table = Table(title=EVIL)
    table.add_column(EVIL)
    table.add_row(EVIL)
    screen.print(table)
    screen.print(EVIL, "plain", style="yellow")
    said = out.getvalue()
    assert "[red]a[/red]" in said and "\\x1b[2J" in said and "plain" in said
    for code in ("\x1b]", "\x1b[2J", "\x07", "\x9b", "\u202e", "\r"):
        assert code not in said


def hostile(tmp_path, **changes):
    path = tmp_path / "model.orbit"
    OrbitWriter(path, replace(HEADER, **changes)).close()
    return path


def test_an_orbits_info_is_plain(tmp_path):
    path = hostile(tmp_path, base=EVIL, base_digest=EVIL)
    said = fedseed("orbit", "info", path)
    assert said.returncode == 0 and "[red]a[/red]" in said.stdout
    assert not set(said.stdout + said.stderr) & {"\x1b", "\x07", "\x9b", "\u202e", "\r"}
    assert json.loads(fedseed("orbit", "info", path, "--json").stdout)["base"] == EVIL
    (tmp_path / "long").mkdir()
    assert (
        len(fedseed("orbit", "info", hostile(tmp_path / "long", base="x y" * 10_000)).stdout)
        < 10_000
    )


BASES = ["owner/name", "o/n\nlicense: x", "null", '"); import os; ("', EVIL]


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("form", ["whole", "adapter"])
def test_a_cards_front_says_what_fedseed_says(base, form):
    header = replace(HEADER, base=base, base_digest=EVIL, dtype=EVIL, trainable=(EVIL,))
    name = "it's\n```\n# model.orbit"
    text = card(header, Facts(1, EVIL, 2, name, 5, final={EVIL: 1.0}), form)
    _, front, body = text.split("---\n", 2)
    found = yaml.safe_load(front)
    assert found.pop("base_model", None) == (base if base == "owner/name" else None)
    assert set(found) == {"library_name", "tags"} and found["tags"] == ["fedseed"]
    assert ModelCard(text).data.to_dict().keys() <= {"base_model", "library_name", "tags"}
    assert clean(text) == text and "\r" not in text
    tokens = MarkdownIt("commonmark").enable("table").parse(body)
    kinds = {token.type for outer in tokens for token in (outer, *(outer.children or ()))}
    assert not {
        kind for kind in kinds if "html" in kind or "link" in kind or kind in ("image", "hr")
    }
    titles = [
        tokens[i + 1].content for i, token in enumerate(tokens) if token.type == "heading_open"
    ]
    assert titles[1:] == ["Metrics", "How to load it", "Settings of the method"]
    cells = [tokens[i + 1].content for i, token in enumerate(tokens) if token.type == "td_open"]
    assert cells[0] == "base" and cells[2] == "method" and "license: [mit" in "".join(cells)
    (block,) = [token for token in tokens if token.type == "fence"]
    assert {type(node).__name__ for node in ast.parse(block.content).body} == {
        "ImportFrom",
        "Assign",
    }
