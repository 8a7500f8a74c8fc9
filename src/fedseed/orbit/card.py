"""The model card of a tuned model: what it is made of, what came of it, how to load it, how to make it again."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fedseed.orbit.header import Header

# how classes of transformers end, and what loads them
AUTO = {
    "ForMaskedLM": "AutoModelForMaskedLM",
    "ForImageClassification": "AutoModelForImageClassification",
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "ForConditionalGeneration": "AutoModelForSeq2SeqLM",
}
Form = Literal["whole", "adapter", "merged"]  # the model; an adapter for the base; the base with an adapter added in


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
    """

    steps: int
    digest: str
    of: int | None = None
    orbit_name: str = ""
    orbit_bytes: int | None = None
    clients: int | None = None
    baseline: Mapping[str, float] = field(default_factory=dict)
    final: Mapping[str, float] = field(default_factory=dict)


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
    front = [f"base_model: {base}"] if "/" in base else []
    front += ["library_name: peft" if form == "adapter" else "library_name: transformers", "tags:", "- fedseed"]
    name = f"{base or 'model'} + {facts.orbit_name or method.name}"
    total = facts.steps if facts.of is None else facts.of
    known = "" if header.digest_kind == "blake2b" else f" ({header.digest_kind}, as are all digests here)"
    rows = [
        ("base", f"`{base}`, {header.dtype}, digest `{header.base_digest}`{known}"),
        ("method", f"`{method.name}` ({method.about})"),
        ("trained", f"{layout.size:,} parameters in {len(layout.tensors)} tensors{_patterns(header.trainable)}"),
        *([] if header.adapter is None else [("adapter", _settings(header.adapter.settings.model_dump()))]),
        ("rounds", f"{facts.steps:,} of {total:,}"),
        *([] if facts.clients is None else [("clients", f"{facts.clients:,}")]),
        ("seed of the run", str(header.seed)),
        ("digest of the trained weights", f"`{facts.digest}`"),
    ]
    if facts.orbit_bytes is not None:
        rows.append(("orbit", f"{facts.orbit_bytes:,} bytes; the trained weights have {layout.dense_bytes:,}"))
    made = _made(header, facts)
    parts = [
        "\n".join(["---", *front, "---"]),
        f"# {name}",
        "The weights are those of the federated run, bit for bit; the digest says so.",
        _table(("", ""), rows),
        *_metrics(facts),
        "## How to load it",
        f"```python\n{_loading(base, form, kind)}\n```",
        "## Settings of the method",
        _table(("setting", "value"), [(key, f"`{json.dumps(value)}`") for key, value in method.model_dump().items()]),
        made,
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _metrics(facts: Facts) -> list[str]:
    names = [name for name in facts.final if name in facts.baseline] if facts.baseline else list(facts.final)
    if not names:
        return []
    rows = [
        (name, *([f"{facts.baseline[name]:.4g}"] if facts.baseline else []), f"{facts.final[name]:.4g}")
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
            f'base, processor = load_model("{base}")\nmodel = PeftModel.from_pretrained(base, "this folder")'
        )
    if form == "adapter":
        return (
            f"from peft import PeftModel\nfrom transformers import {auto}, {processor}\n\n"
            f'base = {auto}.from_pretrained("{base}")  # or the folder where the base is\n'
            f'model = PeftModel.from_pretrained(base, "this folder")\n'
            f'processor = {processor}.from_pretrained("this folder")'
        )
    return (
        f"from transformers import {auto}, {processor}\n\n"
        f'model = {auto}.from_pretrained("this folder")\nprocessor = {processor}.from_pretrained("this folder")'
    )


def _made(header: Header, facts: Facts) -> str:
    if not facts.orbit_name:
        return "Made with fedseed."
    upto = "" if facts.of is None or facts.steps == facts.of else f" --upto {facts.steps}"
    return f"Made again with `fedseed export {facts.orbit_name}{upto} --out FOLDER`."


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
    return "" if trainable is None else f" (those named {', '.join(f'`{p}`' for p in trainable)})"
