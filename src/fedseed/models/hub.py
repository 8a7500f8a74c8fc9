"""Whether a base can be had from the hub, found out at once: its client would try for most of a minute, and say so."""

import os
from functools import lru_cache
from pathlib import Path

from fedseed.errors import RecipeError

PATIENCE_SECONDS = 10.0  # for the hub's one answer


def reach(place: str) -> str:
    """A place from which `transformers` can load without waiting for what will not come.

    Args:
        place: a folder, or a name on the hub.

    Returns:
        A folder as it is; a name that the hub knows as it is; without the hub, the folder in its cache.

    Raises:
        RecipeError: there is no such folder, and the hub can't be reached or has no such model.
    """
    return place if Path(place).is_dir() else _ask(place)


@lru_cache
def _ask(place: str) -> str:
    """What the hub says; it is asked once for a name."""
    # what the hub's client is built on has changed before: its errors are told apart by what all of them are
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError

    try:
        HfApi(endpoint=os.environ.get("HF_ENDPOINT")).model_info(place, timeout=PATIENCE_SECONDS)
        return place
    except HFValidationError as error:
        raise _not_there(place, "and this is no name of the hub") from error
    except RepositoryNotFoundError as error:
        raise _not_there(place, "and the hub has no model of this name that is open to you") from error
    except HfHubHTTPError:
        return place  # it answers: what is wrong, loading will say
    except Exception as error:
        config = try_to_load_from_cache(place, "config.json")
        if isinstance(config, str):
            return str(Path(config).parent)
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise _not_there(place, f"and the hub can't be reached ({reason})") from error


def _not_there(place: str, why: str) -> RecipeError:
    return RecipeError(
        f'model.base = "{place}": there is no such folder, {why}; give "small", "words", "digits", an existing folder '
        "or a hub name"
    )
