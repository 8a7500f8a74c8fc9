"""What clients' work costs."""

from dataclasses import asdict, dataclass, field
from typing import Any

from fedseed.reports.results import RoundLine


@dataclass
class Cost:
    """What clients report about their work: seconds by phase, passes, their losses' sum and number, skipped steps.

    And, of their first round where 16-bit weights lose small steps, how many weights have moved, of how many.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    forward_passes: int = 0
    backward_passes: int = 0
    skipped_steps: int = 0
    losses: float = 0.0
    counted: int = 0
    moved_weights: int = 0
    movable_weights: int = 0

    def add(self, other: "Cost") -> None:
        """Add another's work."""
        for phase, seconds in other.seconds.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds
        self.forward_passes += other.forward_passes
        self.backward_passes += other.backward_passes
        self.skipped_steps += other.skipped_steps
        self.losses += other.losses
        self.counted += other.counted
        self.moved_weights += other.moved_weights
        self.movable_weights += other.movable_weights

    def to_json(self) -> dict[str, Any]:
        """A form that JSON can hold: `Cost(**cost.to_json())` is equal."""
        return {name: value for name, value in asdict(self).items() if value}

    def fit(self, seconds: float) -> None:
        """Work that several processes did at once took this long by the clock: phases keep their proportions."""
        spent = sum(self.seconds.values())
        if spent > seconds:
            self.seconds = {phase: part * seconds / spent for phase, part in self.seconds.items()}

    def tell(self, line: RoundLine) -> None:
        """Write the work into a line of metrics, in place of what stands there; seconds are not touched."""
        line.train_loss = self.losses / self.counted if self.counted else None
        line.forward_passes, line.backward_passes = self.forward_passes, self.backward_passes
        line.skipped_steps = self.skipped_steps
        if self.movable_weights:
            line.metrics["weights_moved"] = self.moved_weights / self.movable_weights


def rounding_warning(moved: float) -> str:
    """What is said where 16-bit weights lose small steps; `moved`: the share that moved in a client's training."""
    return (
        f"{moved:.2%} of the 16-bit weights moved in a client's local training: steps below half a unit in their last "
        'place are rounded away (method.training.small_steps = "nearest"); "master" keeps all in a float32 copy, '
        '"stochastic" on average without one'
    )
