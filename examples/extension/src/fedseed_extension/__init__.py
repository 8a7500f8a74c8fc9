"""An example of a package that adds to fedseed without changing it.

Its pyproject.toml lists what it adds.
"""
