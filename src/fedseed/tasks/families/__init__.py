"""The task families of the generated many-task instruction corpus.

``base`` families are met as instructions in pre-training, ``train`` families go to
the federated clients, and ``heldout`` families are never met as instructions at all.
"""

from __future__ import annotations

# Importing a module registers its families, in this order.
from . import comparison, dates, extraction, grammar, judgement, lists, lookup, numbers, rewriting  # noqa: F401
from .core import GROUPS, Family, Instance, Split, by_name, families, instances, split
from .statements import statements

__all__ = [
    "GROUPS",
    "Family",
    "Instance",
    "Split",
    "by_name",
    "families",
    "instances",
    "split",
    "statements",
]
