"""Orbits leave out settings that are as by default: so a default stays what it was when there were orbits of it."""

import json
import runpy
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from fedseed import FedKSeed, Ferret, MeZO
from fedseed.models.adapters import LoRA
from fedseed.orbit.header import chosen
from fedseed.training.settings import LocalTraining

MADE = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "make_reference.py"))


def test_defaults_that_orbits_leave_out_are_what_they_were():
    changed = MADE["changed_defaults"]()
    assert not changed, "\n".join(changed)
    assert json.loads(MADE["DEFAULTS"].read_text()) == MADE["defaults"](), "new settings: run scripts/make_reference.py"


def test_a_changed_default_is_said_with_what_to_do(monkeypatch):
    monkeypatch.setattr(LocalTraining.model_fields["learning_rate"], "default", 0.5)
    monkeypatch.delitem(FedKSeed.model_fields, "decay")
    lines = MADE["changed_defaults"]()
    assert [line.partition(". ")[0] for line in lines] == [
        "FedKSeed.decay was 0.0 by default and is 'gone'",
        "LocalTraining.learning_rate was 0.0001 by default and is 0.5",
    ]  # fmt: skip
    assert "raise FORMAT in orbit/header.py" in lines[0]


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


class Near(BaseModel):
    kind: Literal["near"] = "near"


class Far(BaseModel):
    kind: Literal["far"] = "far"


class Chooser(BaseModel):
    name: Literal["chooser"] = "chooser"
    other: int = 0
    rule: Annotated[Near | Far, Field(discriminator="kind")] = Near()


def test_tables_that_say_by_a_default_what_they_are_stand_there_as_a_whole():
    assert chosen(Chooser()) == {"name": "chooser"}
    whole = {"name": "chooser", "other": 0, "rule": {"kind": "far"}}
    assert chosen(Chooser(rule=Far())) == whole and Chooser.model_validate(whole).rule == Far()
