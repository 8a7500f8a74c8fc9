"""What several test files share; `pythonpath` in pyproject.toml makes it importable."""
