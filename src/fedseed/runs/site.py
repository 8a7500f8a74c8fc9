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

from pydantic import AfterValidator, Field, ValidationError, ValidationInfo

from fedseed.errors import RecipeError
from fedseed.runs.keys import explain
from fedseed.runs.recipe import Table, read_toml
from fedseed.tasks.data import OwnData


def _beside(path: Path, info: ValidationInfo) -> Path:
    """Returns a path as seen from here."""
    return (info.context or Path()) / path.expanduser()


Place = Annotated[Path, Field(strict=False), AfterValidator(_beside)]


class SiteData(Table):
    """Where its data lies.

    Args:
        path: a file or a folder, in any form that the task takes.
        evaluation_file: what it evaluates on, in place of what it holds out.
        evaluation: the share of its examples that it holds out, in place of the recipe's.
    """

    path: Place | None = None
    evaluation_file: Place | None = None
    evaluation: Annotated[float, Field(ge=0, lt=1)] | None = None


class Reach(Table):
    """How it reaches the server: as in a recipe's [federation]."""

    nats: str | None = None
    key: Place | None = None
    ca: Place | None = None
    run: str | None = None


class Site(Table):
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
    out: Place | None = None
    device: str | None = None
    data: SiteData = SiteData()
    federation: Reach = Reach()
    identity: Place | None = None

    @property
    def names(self) -> list[str]:
        """Returns whom its process works for."""
        return [*filter(None, [self.client]), *self.clients]

    @property
    def own(self) -> OwnData | None:
        """Returns where its data lies; None: nothing is said."""
        own = OwnData(self.data.path, self.data.evaluation_file, self.data.evaluation)
        return None if own == OwnData() else own


def read_site(file: Path | None) -> Site:
    """Reads a site's file; None: one that says nothing.

    Raises:
        RecipeError: missing, not TOML, or wrong; one line that names the key.
    """
    if file is None:
        return Site()
    data = read_toml(file, "--local ")
    try:
        return Site.model_validate(data, context=file.parent)
    except ValidationError as error:
        raise RecipeError(f"--local {file}: {explain(error, data, Site)}") from error
