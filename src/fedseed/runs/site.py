"""What one site of a federation has of its own: a file beside the recipe that all share. Free of torch.

    client = "north"
    out = "model"

    [data]
    path = "north.jsonl"
    evaluation = 0.2

    [federation]
    nats = "tls://nats.example.org:4222"
    key = "north.nk"
    ca = "ca.pem"

Paths are relative to the file's folder. What the command line says goes before it.
"""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedseed.errors import RecipeError
from fedseed.runs.keys import explain
from fedseed.runs.reading import read_toml
from fedseed.tasks.data import OwnData


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class SiteData(_Table):
    """Where its data lies.

    Args:
        path: a file or a folder, in any form that the task takes.
        evaluation_file: what it evaluates on, in place of what it holds out.
        evaluation: the share of its examples that it holds out, in place of the recipe's.
    """

    path: str | None = None
    evaluation_file: str | None = None
    evaluation: Annotated[float, Field(ge=0, lt=1)] | None = None


class Reach(_Table):
    """How it reaches the server: as in a recipe's [federation]."""

    nats: str | None = None
    key: str | None = None
    ca: str | None = None
    run: str | None = None


class Site(_Table):
    """One site.

    Args:
        client: whom its process works for.
        clients: the same, for several.
        out: folder for the tuned model.
        device: where the model lies, as `model.device`.
        data: where its data lies.
        federation: how it reaches the server.
        identity: file of the key that signs for it in secure sums; "{name}" stands for the client.
    """

    client: str | None = None
    clients: list[str] = Field(default_factory=list)
    out: str | None = None
    device: str | None = None
    data: SiteData = SiteData()
    federation: Reach = Reach()
    identity: str | None = None

    @property
    def names(self) -> list[str]:
        """Whom its process works for."""
        return [*([] if self.client is None else [self.client]), *self.clients]

    @property
    def own(self) -> OwnData | None:
        """Where its data lies; None: nothing is said."""
        data = self.data
        if data == SiteData():
            return None
        path, file = (None if text is None else Path(text) for text in (data.path, data.evaluation_file))
        return OwnData(path, file, data.evaluation)


def read_site(file: Path | None) -> Site:
    """A site's file; None: one that says nothing.

    Raises:
        RecipeError: missing, not TOML, or wrong; one line that names the key.
    """
    if file is None:
        return Site()
    data = read_toml(file, "--local ")
    try:
        site = Site.model_validate(data)
    except ValidationError as error:
        raise RecipeError(f"--local {file}: {explain(error, data, Site)}") from error
    places = {"path": site.data.path, "evaluation_file": site.data.evaluation_file}
    ways = {"key": site.federation.key, "ca": site.federation.ca}
    return site.model_copy(
        update={
            "out": _beside(file, site.out),
            "identity": _beside(file, site.identity),
            "data": site.data.model_copy(update={key: _beside(file, text) for key, text in places.items()}),
            "federation": site.federation.model_copy(update={key: _beside(file, text) for key, text in ways.items()}),
        }
    )


def _beside(file: Path, text: str | None) -> str | None:
    """A path as seen from here."""
    return None if text is None else str(file.parent / Path(text).expanduser())
