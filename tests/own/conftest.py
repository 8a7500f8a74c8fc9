import pytest

from support import text_bases


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    """The folder of a tiny random LLaMA of texts."""
    return str(text_bases.write(tmp_path_factory.mktemp("base") / "base", "llama"))
