"""The task families of the generated many-task instruction corpus, which the data files here describe.

``base`` families are met as instructions in pre-training, ``train`` families go to
the federated clients, and ``heldout`` families are never met as instructions at all.
"""

from .core import GROUPS, Family, Instance, Split, by_name, families, instances, split, statements

__all__ = ["GROUPS", "Family", "Instance", "Split", "by_name", "families", "instances", "split", "statements"]
