"""What clients' work costs."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Cost:
    """What clients report about their work: seconds by phase, passes, their losses' sum and number, skipped steps."""

    seconds: dict[str, float] = field(default_factory=dict)
    forward_passes: int = 0
    backward_passes: int = 0
    skipped_steps: int = 0
    losses: float = 0.0
    counted: int = 0

    def add(self, other: "Cost") -> None:
        """Add another's work."""
        for phase, seconds in other.seconds.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds
        self.forward_passes += other.forward_passes
        self.backward_passes += other.backward_passes
        self.skipped_steps += other.skipped_steps
        self.losses += other.losses
        self.counted += other.counted

    def fit(self, seconds: float) -> None:
        """Work that several processes did at once took this long by the clock: phases keep their proportions."""
        spent = sum(self.seconds.values())
        if spent > seconds:
            self.seconds = {phase: part * seconds / spent for phase, part in self.seconds.items()}

    def about(self) -> dict[str, Any]:
        """The fields of a line of metrics."""
        return {
            "train_loss": self.losses / self.counted if self.counted else None,
            "forward_passes": self.forward_passes,
            "backward_passes": self.backward_passes,
            "skipped_steps": self.skipped_steps,
        }
