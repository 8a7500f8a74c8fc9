"""What the papers show: every figure and table, how it can be made here, what it needs
(catalogue.toml). No torch.
"""

import tomllib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedseed.errors import RecipeError

Scale = Literal["exact", "small", "published"]
SCALES: tuple[Scale, ...] = ("exact", "small", "published")
# the evaluation that a run's metrics are taken of: the last one, or that with the lowest validation
# loss, which a run with [stopping] measures
Evaluation = Literal["last", "best"]
NOTHING = "nothing to measure"
# in place of a scenario: the mean over all that have the line, as in a table's last column
EVERY_SCENARIO = "*"
TITLES = {"ferret": "Ferret", "fedkseed": "FedKSeed", "feedsign": "FeedSign", "fedmezo": "FedMeZO"}


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Form(_Table):
    """What decides a claim; one of `order`, `alike`, `ratio` and `of`.

    A line is named LABEL, or LABEL @ SCENARIO.

    Args:
        metric: of the runs; the item's if it is left out.
        scenario: of the sweep; the first one if it is left out; "*": the mean over all of them.
        order: lines from the best to the worst; the first is judged against the last.
        ties: the first may also be as good as the last.
        alike: lines that differ by no more than their deviation.
        ratio: two lines: the first one's number over the second's.
        of: one line, whose number itself is looked at.
        least: what a ratio, or a number, must be.
    """

    metric: str | None = None
    scenario: str | None = None
    order: list[str] = []
    ties: bool = False
    alike: list[str] = []
    ratio: list[str] = []
    of: str | None = None
    least: float | None = None

    @model_validator(mode="after")
    def _one_form(self) -> "Form":
        if [bool(self.order), bool(self.alike), bool(self.ratio), self.of is not None].count(
            True
        ) != 1:
            raise ValueError("a claim is one of order, alike, ratio and of")
        if (self.least is not None) != bool(self.ratio or self.of):
            raise ValueError("least goes with ratio or of")
        return self

    @property
    def labels(self) -> list[str]:
        """Return the lines that it is about."""
        return [*self.order, *self.alike, *self.ratio, *([] if self.of is None else [self.of])]


class Expected(Form):
    """A claim that runs decide.

    Besides the arguments of `Form`:

    Args:
        says: what the paper says.
        scales: where it can be judged.
        published: what decides it at the published scale, if that is another form.
    """

    says: str
    scales: list[Scale] = ["small", "published"]
    published: Form | None = None


class Item(_Table):
    """A figure, a table, or a statement; catalogue.toml's head says what the keys mean."""

    name: str
    shows: str
    scales: list[Scale]
    wants: str
    minutes: float | None = None
    small: str | None = None
    published: str | list[str] | None = None
    metric: str = "loss"
    published_metric: str | None = None
    published_evaluation: Evaluation = "last"
    gap: str | None = None
    claims: list[Expected] = []
    differs: list[str] = []

    @model_validator(mode="after")
    def _scales_have_makers(self) -> "Item":
        for scale in ("small", "published"):
            if (getattr(self, scale) is not None) != (scale in self.scales):
                raise ValueError(f"{self.name}: scale {scale} and the key {scale} go together")
        return self

    @property
    def paper(self) -> str:
        """Return the paper's name in the command line."""
        return self.name.partition("/")[0]

    @property
    def key(self) -> str:
        """Return the item's name within its paper."""
        return self.name.partition("/")[2]

    def sources(self, scale: Scale) -> tuple[str, ...]:
        """Return the sweeps, recipe or maker that a scale takes; none for "exact"."""
        source = {"small": self.small, "published": self.published}.get(scale)
        if source is None:
            return ()
        return (source,) if isinstance(source, str) else tuple(source)

    def metric_at(self, scale: Scale) -> str:
        """Return what curves, and claims that name no metric, are about."""
        if scale == "published":
            return self.published_metric or self.metric
        return self.metric

    def evaluation_at(self, scale: Scale) -> Evaluation:
        """Return which evaluation's metrics claims are about."""
        if scale == "published":
            return self.published_evaluation
        return "last"

    def claims_at(self, scale: Scale) -> list[tuple[str, Form]]:
        """Return what the paper says and what decides it, for each claim that can be judged at a
        scale.
        """
        return [
            (
                claim.says,
                claim.published if scale == "published" and claim.published is not None else claim,
            )
            for claim in self.claims
            if scale in claim.scales
        ]

    @property
    def title(self) -> str:
        """Return a title such as "Ferret, Figure 7"."""
        kind, _, number = self.key.partition("-")
        return f"{TITLES[self.paper]}, {kind.capitalize()} {number.upper()}"

    @property
    def state(self) -> str:
        """Return the best scale: "exact", "small", "published only", or "nothing to measure"."""
        if not self.scales:
            return NOTHING
        if self.scales[0] == "published":
            return "published only"
        return self.scales[0]


class _Catalogue(_Table):
    items: list[Item] = Field(alias="item")


@cache
def catalogue() -> tuple[Item, ...]:
    """Return all items, papers and items in order."""
    text = (files("fedseed_papers") / "catalogue.toml").read_text(encoding="utf-8")
    return tuple(_Catalogue.model_validate(tomllib.loads(text)).items)


def choose_items(selection: str) -> Sequence[Item]:
    """Return the items that a name means: "all", a paper, or PAPER/ITEM.

    Raises:
        RecipeError: there is no such item; names those that are near.
    """
    name_wanted = selection.strip().strip("/").lower()
    items = [item for item in catalogue() if name_wanted in ("all", item.paper, item.name)]
    if not items:
        paper = name_wanted.partition("/")[0]
        near = [item.name for item in catalogue() if item.paper == paper] or list(TITLES)
        raise RecipeError(
            f"reproduce {selection}: there is no such item; there are {', '.join(near)} (fedseed "
            "reproduce list)"
        )
    return items


def scale_of(item: Item, scale: Scale | None) -> Scale:
    """Return the scale to make an item at.

    Raises:
        RecipeError: it can't be made at that scale.
    """
    if not item.scales:
        raise RecipeError(f"{item.name}: {item.shows} There is nothing to measure")
    if scale is None:
        return item.scales[0]
    if scale not in item.scales:
        raise RecipeError(
            f"--scale {scale}: {item.name} can be made at scale {' or '.join(item.scales)}"
        )
    return scale
