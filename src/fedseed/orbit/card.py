"""Write the model card of a tuned model: its parts, its results, and how to load it or rebuild it.

An orbit's header, and all names in it, may come from strangers. So each text is quoted, and is
never read as YAML, Markdown, Python or a shell command.
"""

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedseed.models import PACKAGED
from fedseed.orbit.header import Header
from fedseed.text import clean

# the class of transformers that loads a model, by the end of the name of the model's class
AUTO = {
    "ForMaskedLM": "AutoModelForMaskedLM",
    "ForImageClassification": "AutoModelForImageClassification",
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "ForConditionalGeneration": "AutoModelForSeq2SeqLM",
}
# the content of a folder: the whole model, an adapter for the base, or the base with an adapter
# added to its weights
Form = Literal["whole", "adapter", "merged"]
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)
# all characters of Markdown's markup, except | and _ inside a word
_MARKUP = re.compile(r"[\\`*\[\]<>#&~]|(?<![^\W_])_|_(?![^\W_])")
_EXACT = "The weights are those of the federated run, bit for bit, as the digest shows."
ABOUT: dict[Form, str] = {
    "whole": _EXACT,
    "adapter": _EXACT,
    "merged": "The base's weights plus the changes by the federated run's adapter, rounded once.",
}


@dataclass(frozen=True)
class Facts:
    """The facts about a run that a model card states."""

    # number of rounds applied to the weights (optimiser steps for a step-by-step method)
    steps: int
    digest: str  # hex digest of the trained weights
    # number of steps of the run; None: the same as `steps`
    total_steps: int | None = None
    # the orbit's file name; "" if the run has no orbit
    orbit_name: str = ""
    # the orbit's size; None if the run has no orbit
    orbit_bytes: int | None = None
    # number of data holders; None if it is not known
    clients: int | None = None
    # the base's metrics, by name; empty if they are not known
    baseline: Mapping[str, float] = field(default_factory=dict)
    final: Mapping[str, float] = field(default_factory=dict)  # the tuned model's metrics, by name
    complete: bool = True  # whether the orbit is marked as the whole run


def card(header: Header, facts: Facts, form: Form = "whole", kind: str = "") -> str:
    """Return the text of a tuned model's README.md.

    `kind` is the name of the model's class, which decides how it is loaded.
    """
    base = header.base
    # the base is a local folder, and a card must not show a machine's paths
    if base.startswith((".", "/", "~")) or base.count("/") > 1:
        base = base.rstrip("/").rsplit("/", 1)[-1]
    total = facts.steps if facts.total_steps is None else facts.total_steps
    names = [name for name in facts.final if name in facts.baseline or not facts.baseline]
    auto = next(
        (name for ending, name in AUTO.items() if kind.endswith(ending)), "AutoModelForCausalLM"
    )
    packaged = form == "adapter" and base in PACKAGED  # transformers can't load these bases by name
    upto = "" if total == facts.steps else f" --upto {facts.steps}"
    # quoted for a shell, on one line
    word = shlex.quote(clean(facts.orbit_name).replace("\n", " "))
    environment = Environment(
        loader=PackageLoader("fedseed.orbit"), trim_blocks=True, undefined=StrictUndefined
    )
    environment.filters.update(
        code=_code,
        plain=_plain,
        cell=lambda text: text.replace("|", "\\|"),
        counted="{:,}".format,
        text=lambda text: json.dumps(clean(text), ensure_ascii=False),
    )
    text = environment.get_template("card.md").render(
        base=base,
        # only names that are plain YAML are written; others are left out
        hub_name=_HUB_NAME.fullmatch(base),
        library="peft" if form == "adapter" else "transformers",
        name=f"{base or 'model'} + {facts.orbit_name or header.method.name}",
        about=ABOUT[form],
        form=form,
        facts=facts,
        total=total,
        header=header,
        auto=auto,
        packaged=packaged,
        processor="AutoImageProcessor"
        if auto == "AutoModelForImageClassification"
        else "AutoTokenizer",
        metrics=[_metric_row(name, facts) for name in names],
        again=f"fedseed export {word}{upto} --out FOLDER",
        settings=[
            (key, _code(json.dumps(value))) for key, value in header.method.model_dump().items()
        ],
    )
    return text.rstrip() + "\n"


def _metric_row(name: str, facts: Facts) -> tuple[str, ...]:
    """Return a metric's name with its values of the base, where known, and of the tuned model."""
    tables = [values for values in (facts.baseline, facts.final) if values]
    return (_plain(name), *(f"{values[name]:.4g}" for values in tables))


def _code(text: str) -> str:
    """Return a text as a code span that shows it unchanged, between enough backticks."""
    line = clean(" ".join(text.split()))
    fence = max(re.findall("`+", line), key=len, default="") + "`"
    space = " " if line[:1] == "`" or line[-1:] == "`" else ""
    return f"{fence}{space}{line}{space}{fence}"


def _plain(text: str) -> str:
    """Return a text with its markup escaped, to be shown unchanged outside of a code span."""
    return _MARKUP.sub(r"\\\g<0>", clean(" ".join(text.split())))
