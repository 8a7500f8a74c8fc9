"""What a run is, besides its clients. Free of torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedseed.attacks.omniscient import SIMULATED
from fedseed.errors import RecipeError
from fedseed.methods import Method
from fedseed.tracking import Tracker

if TYPE_CHECKING:
    from fedseed.runs.recipe import Recipe


@dataclass
class RunSettings:
    """What a run is, besides its clients.

    Args:
        method: the method and its settings.
        rounds: how many.
        seed: decides client sampling, data order and directions.
        evaluate_every: rounds between evaluations.
        out: folder for the run's files; None: nothing is written.
        recipe_text: the complete recipe, written beside the results.
        notes: about the data, such as what was left out; shown when the run starts, and kept in the summary.
        patience: evaluations without a better validation loss after which the run ends; None: it does not.
        attack: what Byzantine clients do.
        attackers: their numbers.
        trackers: where else the metrics go.
        digest_every: rounds between digests of the weights, besides those after evaluations.
        measures: whether evaluations measure anything; of a private run only if the recipe discloses it.
        secure: whether the coordinator learns sums of answers alone.
    """

    method: Method
    rounds: int
    seed: int
    evaluate_every: int = 1
    out: Path | None = None
    recipe_text: str | None = None
    notes: tuple[str, ...] = ()
    patience: int | None = None
    attack: str | None = None
    attackers: frozenset[int] = frozenset()
    trackers: Sequence[Tracker] = ()
    digest_every: int = 1
    measures: bool = True
    secure: bool = False

    @classmethod
    def of(cls, recipe: "Recipe", out: Path | None) -> "RunSettings":
        """A recipe's, where it alone says what the run is.

        Args:
            recipe: the recipe.
            out: folder for the run's files; None: nothing is written.

        Raises:
            RecipeError: it has Byzantine clients that there can be in a simulation only.
        """
        if recipe.attack is not None and recipe.attack.kind in SIMULATED:
            raise RecipeError(
                f'attack.kind = "{recipe.attack.kind}": such clients know what others send, and what the coordinator '
                "accepts; that can be simulated (fedseed run), not tried over a network"
            )
        return cls(
            recipe.method, recipe.rounds, recipe.seed, recipe.evaluation.every, out, recipe.to_toml(),
            patience=None if recipe.stopping is None else recipe.stopping.patience,
            attack=None if recipe.attack is None else recipe.attack.kind,
            trackers=recipe.tracking,
            digest_every=recipe.evaluation.digest_every,
            measures=recipe.evaluates,
            secure=recipe.secure_sums is not None,
        )  # fmt: skip

    @property
    def private(self) -> bool:
        """Whether nothing is told that depends on clients' data, but what the method makes private."""
        return self.secure or self.method.privacy is not None

    def evaluates(self, number: int) -> bool:
        """Whether there is an evaluation after a round."""
        return number % self.evaluate_every == 0 or number == self.rounds

    def logs(self, number: int) -> bool:
        """Whether a round gets a line of metrics of its own."""
        return self.evaluates(number) or not self.method.stepwise

    def digests(self, number: int) -> bool:
        """Whether the weights are hashed after a round: always where it is evaluated, as the last one is."""
        return self.evaluates(number) or (number % self.digest_every == 0 and self.logs(number))
