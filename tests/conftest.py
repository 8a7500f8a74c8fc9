import pytest


@pytest.fixture(scope="session")
def small():
    """The project's small base and its tokenizer; do not train this one."""
    from fedseed.models import load_model

    return load_model("small")
