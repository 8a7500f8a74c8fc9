"""The model card of a tuned model: what it is made of, what came of it, how to load it, how to make it again.

An orbit's header, and with it all that it names, may be somebody else's: none of it is YAML, Markdown, Python or a
shell's command here.
"""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fedseed.orbit.header import Header
from fedseed.text import clean

# how classes of transformers end, and what loads them
AUTO = {
    "ForMaskedLM": "AutoModelForMaskedLM",
    "ForImageClassification": "AutoModelForImageClassification",
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "ForConditionalGeneration": "AutoModelForSeq2SeqLM",
}
# the model; an adapter for the base; the base with an adapter added in; the orbit alone
Form = Literal["whole", "adapter", "merged", "orbit"]
LIBRARY: dict[Form, str] = {"whole": "transformers", "adapter": "peft", "merged": "transformers", "orbit": "fedseed"}
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)
_MARKUP = re.compile(r"[\\`*\[\]<>#&~]|(?<![^\W_])_|_(?![^\W_])")  # but for | (a table's), and _ inside a word
_EXACT = "The weights are those of the federated run, bit for bit; the digest says so."
ABOUT: dict[Form, str] = {
    "whole": _EXACT,
    "adapter": _EXACT,
    "merged": "The base's weights with those of the federated run's adapter added, rounded once.",
    "orbit": "An orbit: what turns the base into the tuned model, bit for bit, on every machine.",
}


@dataclass(frozen=True)
class Facts:
    """What came of a run, for a model card.

    Args:
        steps: rounds (of a step-by-step method: optimiser steps) that the weights have seen.
        digest: hex digest of the trained weights.
        of: how many steps the run has; None: those.
        orbit_name: the orbit's file name; "": the run has none.
        orbit_bytes: the orbit's size; None: the run has none.
        clients: data holders; None: not known here.
        baseline: the base's metrics, by name; none: not known here.
        final: the tuned model's.
        repo: the hub's repository that the orbit is in; "": none.
    """

    steps: int
    digest: str
    of: int | None = None
    orbit_name: str = ""
    orbit_bytes: int | None = None
    clients: int | None = None
    baseline: Mapping[str, float] = field(default_factory=dict)
    final: Mapping[str, float] = field(default_factory=dict)
    repo: str = ""


def card(header: Header, facts: Facts, form: Form = "whole", kind: str = "") -> str:
    """README.md of a tuned model.

    Args:
        header: what the run is.
        facts: what came of it.
        form: what the folder holds.
        kind: the name of the model's class, which says how it is loaded.
    """
    layout, method = header.layout, header.method
    base = _short(header.base)
    front = [f"base_model: {base}"] if _HUB_NAME.fullmatch(base) else []  # plain YAML; other names say nothing there
    front += [f"library_name: {LIBRARY[form]}", "tags:", "- fedseed"]
    name = f"{base or 'model'} + {facts.orbit_name or method.name}"
    total = facts.steps if facts.of is None else facts.of
    unusual = header.unusual_digests()
    known = f" ({unusual}, as are all digests here)" if unusual else ""
    rows = [
        ("base", f"{_code(base)}, {_plain(header.dtype)}, digest {_code(header.base_digest)}{known}"),
        ("method", f"{_code(method.name)} ({method.about})"),
        ("trained", f"{layout.size:,} parameters in {len(layout.tensors)} tensors{_patterns(header.trainable)}"),
        *([] if header.adapter is None else [("adapter", _plain(_settings(header.adapter.settings.model_dump())))]),
        ("rounds", f"{facts.steps:,} of {total:,}"),
        *([] if facts.clients is None else [("clients", f"{facts.clients:,}")]),
        ("seed of the run", str(header.seed)),
        ("digest of the trained weights", _code(facts.digest)),
    ]
    if facts.orbit_bytes is not None:
        rows.append(("orbit", f"{facts.orbit_bytes:,} bytes; the trained weights have {layout.dense_bytes:,}"))
    made = _made(header, facts)
    parts = [
        "\n".join(["---", *front, "---"]),
        f"# {_plain(name)}",
        ABOUT[form],
        _table(("", ""), rows),
        *_metrics(facts),
        "## How to load it",
        f"```\n{_pulling(facts)}\n```" if form == "orbit" else f"```python\n{_loading(base, form, kind)}\n```",
        "## Settings of the method",
        _table(("setting", "value"), [(key, _code(json.dumps(value))) for key, value in method.model_dump().items()]),
        "" if form == "orbit" else made,
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _metrics(facts: Facts) -> list[str]:
    names = [name for name in facts.final if name in facts.baseline] if facts.baseline else list(facts.final)
    if not names:
        return []
    rows = [
        (_plain(name), *([f"{facts.baseline[name]:.4g}"] if facts.baseline else []), f"{facts.final[name]:.4g}")
        for name in names
    ]
    head = ("metric", "base", "tuned") if facts.baseline else ("metric", "tuned")
    return ["## Metrics", "On the held-out examples of the run.", _table(head, rows)]


def _loading(base: str, form: Form, kind: str) -> str:
    auto = next((name for ending, name in AUTO.items() if kind.endswith(ending)), "AutoModelForCausalLM")
    processor = "AutoImageProcessor" if auto == "AutoModelForImageClassification" else "AutoTokenizer"
    from fedseed.models.loading import PACKAGED  # brings torch, which whoever has a tuned model has

    if form == "adapter" and base in PACKAGED:  # which transformers does not know
        return (
            "from fedseed.models.loading import load_model\nfrom peft import PeftModel\n\n"
            f"base, processor = load_model({_text(base)})\n"
            'model = PeftModel.from_pretrained(base, "this folder")'
        )
    if form == "adapter":
        return (
            f"from peft import PeftModel\nfrom transformers import {auto}, {processor}\n\n"
            f"base = {auto}.from_pretrained({_text(base)})  # or the folder where the base is\n"
            f'model = PeftModel.from_pretrained(base, "this folder")\n'
            f'processor = {processor}.from_pretrained("this folder")'
        )
    return (
        f"from transformers import {auto}, {processor}\n\n"
        f'model = {auto}.from_pretrained("this folder")\nprocessor = {processor}.from_pretrained("this folder")'
    )


def _pulling(facts: Facts) -> str:
    name = _word(facts.orbit_name)
    file = f" --file {name}" if name != "model.orbit" else ""
    return (
        f"fedseed orbit pull {_word(facts.repo or 'REPOSITORY')}{file} --out {name}\n"
        f"fedseed export {name} --out FOLDER    # a folder that transformers loads"
    )


def _made(header: Header, facts: Facts) -> str:
    if not facts.orbit_name:
        return "Made with fedseed."
    upto = "" if facts.of is None or facts.steps == facts.of else f" --upto {facts.steps}"
    words = f"fedseed export {_word(facts.orbit_name)}{upto} --out FOLDER"
    return f"Made again with {_code(words)}."


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _settings(table: Mapping[str, object]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in table.items())


def _short(base: str) -> str:
    """A base's name: of a folder the last part, so that a card names no machine's paths."""
    return base.rstrip("/").rsplit("/", 1)[-1] if _is_path(base) else base


def _is_path(base: str) -> bool:
    return base.startswith((".", "/", "~")) or base.count("/") > 1


def _patterns(trainable: tuple[str, ...] | None) -> str:
    return "" if trainable is None else f" (those named {', '.join(map(_code, trainable))})"


def _text(text: str) -> str:
    """A text as Python has it."""
    return json.dumps(clean(text), ensure_ascii=False)


def _word(text: str) -> str:
    """A word of a shell's command, on one line."""
    return shlex.quote(clean(text).replace("\n", " "))


def _code(text: str) -> str:
    """A text as it is, between as many backticks as it takes."""
    line = clean(" ".join(text.split()))
    fence = "`"
    while fence in line:
        fence += "`"
    space = " " if line[:1] == "`" or line[-1:] == "`" else ""
    return f"{fence}{space}{line}{space}{fence}"


def _plain(text: str) -> str:
    """A text as it is, outside of a code span: nothing of it is markup."""
    return _MARKUP.sub(r"\\\g<0>", clean(" ".join(text.split())))
