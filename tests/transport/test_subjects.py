import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedseed.errors import RecipeError
from fedseed.transport.base import check_run
from fedseed.transport.subjects import bucket_token, name_of, token


@given(st.text(min_size=1, max_size=30), st.text(min_size=1, max_size=30))
def test_different_names_have_different_tokens(a, b):
    if not any(0xD800 <= ord(c) < 0xE000 for c in a + b):
        assert (token(a) == token(b)) == (a == b)
        assert name_of(token(a)) == a
        assert not set(" .*>\t\r\n") & set(token(a))
        assert (bucket_token(a) == bucket_token(b)) == (a == b)
        assert "=" not in bucket_token(a)


@pytest.mark.parametrize("name", ["", "a.b", "a b", "a--b", "-a", "a-", "a*", ">", "ä"])
def test_run_names(name):
    with pytest.raises(RecipeError, match="run name"):
        check_run(name)


@pytest.mark.parametrize("part", ["a b", "=41", "=4", "=FF", "a=", "é", "a.b"])
def test_what_is_nobodys_token(part):
    assert name_of(part) is None
