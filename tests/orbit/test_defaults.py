"""Orbits leave out settings that are as by default: so a default stays what it was when there were orbits of it."""

import json
import runpy
from pathlib import Path

import pytest

from fedseed import Ferret, MeZO
from fedseed.models.adapters import LoRA
from fedseed.orbit.header import chosen

MADE = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "make_reference.py"))


def test_defaults_that_orbits_leave_out_are_what_they_were():
    changed = MADE["changed_defaults"]()
    assert not changed, "\n".join(changed)
    assert json.loads(MADE["DEFAULTS"].read_text()) == MADE["defaults"](), "new settings: run scripts/make_reference.py"


@pytest.mark.parametrize(
    ("settings", "written"),
    [
        (Ferret(), {"name": "ferret"}),
        (MeZO(learning_rate=0.5, population=1), {"name": "mezo", "learning_rate": 0.5}),
        (Ferret(training={"steps": 3, "schedule": "cosine"}),
         {"name": "ferret", "training": {"steps": 3, "schedule": {"kind": "cosine"}}}),
        (LoRA(), {"kind": "lora"}),
    ],
)  # fmt: skip
def test_what_is_as_by_default_is_not_written(settings, written):
    assert chosen(settings) == written
    assert type(settings).model_validate(written) == settings
