"""Where one party's own data lies."""

from pathlib import Path

from fedseed.errors import RecipeError


def party_files(path: str, name: str, alone: bool, evaluation_file: str | None = None) -> list[Path]:
    """The files that hold a party's examples, in the order of their names.

    Args:
        path: a file, or a folder.
        name: the party; in a folder a file that is called like it is its only one.
        alone: whether all that lies there is the party's own. Otherwise it is a folder that parties share.
        evaluation_file: a file that is not one to train on, if it lies there.

    Raises:
        RecipeError: there is none.
    """
    if not path:
        raise RecipeError(
            f"{name}: where is its data? `fedseed join --data FILE` says it; in one process task.path, a folder with "
            "NAME.jsonl for each client"
        )
    place, wanted = Path(path).expanduser(), f'data of {name}: "{path}"'
    if not place.is_dir():
        if not place.is_file():
            raise RecipeError(f"{wanted}: there is no such file or folder")
        if not alone:
            raise RecipeError(f"{wanted}: one file for several clients; give a folder with a file NAME.jsonl for each")
        return [place]
    evaluation = Path(evaluation_file).expanduser().resolve() if evaluation_file else None
    files = [file for file in sorted(place.glob("*.jsonl")) if file.resolve() != evaluation]
    own = [file for file in files if file.stem == name]
    if own or not alone:
        files = own
    if not files:
        which = "" if alone else f" of this name ({name}.jsonl)"
        raise RecipeError(f"{wanted}: the folder has no .jsonl file{which}")
    return files
