"""An example of a package that adds to fedseed without touching it; pyproject.toml says what it adds."""
