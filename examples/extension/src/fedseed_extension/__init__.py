"""An example of a package that adds to fedseed without touching it.

Pyproject.toml says what it adds.
"""
