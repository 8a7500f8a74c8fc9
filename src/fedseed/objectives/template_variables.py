"""Finds the variables that a chat template reads."""

import re
from functools import lru_cache

from jinja2 import Environment, TemplateError, meta

# a tag that transformers adds to Jinja
GENERATION_TAG = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")


@lru_cache(maxsize=64)
def template_variables(template: str) -> frozenset[str]:
    """Return the variables that a chat template reads and does not set itself.

    Args:
        template: a Jinja template, with the extensions of transformers.

    Returns:
        Their names; empty if the template is invalid, which rendering it will report.
    """
    environment = Environment(extensions=["jinja2.ext.loopcontrols"])
    try:
        tree = environment.parse(GENERATION_TAG.sub("", template))
    except TemplateError:
        return frozenset()
    functions = {"raise_exception", "strftime_now"}
    return frozenset(meta.find_undeclared_variables(tree) - functions - set(environment.globals))
