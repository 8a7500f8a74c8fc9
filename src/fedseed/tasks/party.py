"""Where one party's own data lies."""

from pathlib import Path

from fedseed.errors import RecipeError
from fedseed.tasks.hub import is_saved
from fedseed.tasks.sources import clients_in


def own_place(path: str, name: str, alone: bool, besides: Path | None = None) -> str:
    """The file, folder or data set that is a party's own.

    Args:
        path: where it says its data lies, or where that of all lies.
        name: the party. In a folder a file or folder that is called like it is its only one.
        alone: whether all that lies there is the party's own; otherwise it is a folder that parties share.
        besides: a file with evaluation examples, which may lie there.

    Raises:
        RecipeError: nothing says where, or nothing there is this party's.
    """
    if not path:
        raise RecipeError(
            f"{name}: where is its data? `fedseed join --data FILE` says it; in one process task.path, a folder with a "
            "file for each client"
        )
    place = Path(path).expanduser()
    if not place.is_dir() or is_saved(place):
        if not alone:
            raise RecipeError(f'data of {name}: "{path}": a folder with a file for each client is expected')
        return path
    clients, _ = clients_in(place, None if besides is None else besides.expanduser())
    if name in clients:
        return str(place / name if (place / name).is_dir() else clients[name][0])
    if not alone:
        raise RecipeError(f'data of {name}: "{path}": the folder has no file or folder of this name')
    return path
