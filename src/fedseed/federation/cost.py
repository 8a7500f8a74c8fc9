"""The cost of clients' work."""

from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, ConfigDict, Field

from fedseed.reports.results import RoundLine

MOST_COUNT = 10**15  # the most passes, steps, weights or losses in one report
MOST_SECONDS = 1e9  # the most seconds of a phase: thirty years
MOST_PHASES = 32
MOST_NAME = 100  # the most characters in the name of a phase or metric, which plug-ins choose
# phases that the coordinator measures itself
OWN_PHASES = frozenset(("aggregation", "evaluation", "total"))


def check_name(name: str) -> str:
    """Return the name of a phase or metric. Raises ValueError if it is not allowed."""
    if not 0 < len(name) <= MOST_NAME or not name.isprintable():
        raise ValueError(f"not a name of at most {MOST_NAME} characters")
    return name


def _phase(name: str) -> str:
    if name in OWN_PHASES:
        raise ValueError("not a phase of a client's work")
    return check_name(name)


Count = Annotated[int, Field(ge=0, le=MOST_COUNT)]
# two readings of a clock may be slightly inconsistent
Seconds = Annotated[float, Field(ge=-1.0, le=MOST_SECONDS)]
Phase = Annotated[str, AfterValidator(_phase)]


@dataclass(slots=True)  # slots, because a coordinator keeps one for each client
class Cost:
    """The cost of clients' work, as they report it.

    It has seconds by phase, numbers of passes, the sum and number of losses, and the number of
    skipped steps. In the first round with 16-bit weights that can lose small steps, it also has the
    number of weights, and how many of them moved. The field types limit what a client may report.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    seconds: Annotated[dict[Phase, Seconds], Field(max_length=MOST_PHASES)] = field(
        default_factory=dict
    )
    forward_passes: Count = 0
    backward_passes: Count = 0
    skipped_steps: Count = 0
    losses: float = 0.0
    counted: Count = 0
    moved_weights: Count = 0
    movable_weights: Count = 0

    def add(self, addend: "Cost") -> None:
        """Add another client's work."""
        for phase, seconds in addend.seconds.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds
        for item in fields(self)[1:]:
            setattr(self, item.name, getattr(self, item.name) + getattr(addend, item.name))

    def to_json(self) -> dict[str, Any]:
        """Return the cost as JSON values: `Cost(**cost.to_json())` is equal to it."""
        return {name: value for name, value in asdict(self).items() if value}

    def fit(self, seconds: float) -> None:
        """Scale the phases so that they add up to `seconds` of real time, if processes worked at
        the same time.

        Phases keep their proportions.
        """
        spent = sum(self.seconds.values())
        if spent > seconds:
            self.seconds = {phase: part * seconds / spent for phase, part in self.seconds.items()}

    def tell(self, line: RoundLine) -> None:
        """Write the cost into a line of metrics, replacing old values.

        Seconds are not written.
        """
        line.train_loss = self.losses / self.counted if self.counted else None
        line.forward_passes, line.backward_passes = self.forward_passes, self.backward_passes
        line.skipped_steps = self.skipped_steps
        if self.movable_weights:
            line.metrics["weights_moved"] = self.moved_weights / self.movable_weights


def rounding_warning(moved_share: float) -> str:
    """Return the warning that 16-bit weights lose small steps.

    Args:
        moved_share: the share of weights that moved in a client's training, from 0 to 1.
    """
    return (
        f"{moved_share:.2%} of the 16-bit weights moved in a client's local training: smaller "
        "steps than half a unit in the last place are rounded away (method.training.small_steps = "
        '"nearest"); "master" keeps them in a float32 copy, and "stochastic" keeps them on '
        "average without a copy"
    )
