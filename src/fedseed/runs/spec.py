"""The specification of a run, made from a recipe or in Python. This module does not need torch."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedseed.aggregation import AggregationRule
from fedseed.attacks.updates import AttackKind
from fedseed.errors import RecipeError
from fedseed.federation.coordinator.bounds import Bounds
from fedseed.federation.fingerprint import Fingerprint
from fedseed.methods import Method
from fedseed.models.adapters import Adapter
from fedseed.optimizers.schedule import lasting
from fedseed.privacy import PrivacySettings, mechanism_of, protect
from fedseed.privacy.secure.settings import SecureSums
from fedseed.randomness.stream import check_seed
from fedseed.recipe.settings import Recipe
from fedseed.runs.answers import find_obstacle
from fedseed.tasks.record import DataRecord
from fedseed.tracking import Tracker
from fedseed.weights.layout import DigestKind


@dataclass(frozen=True)
class RunSpec:
    """The specification of a run, without its model and its clients' examples.

    Every process of the run has a complete copy.
    """

    method: Method  # the method and its settings
    rounds: int  # number of rounds
    # decides client sampling, data order and directions
    seed: int = 0
    per_round: int | None = None  # clients that take part in a round; None: all
    # rounds between evaluations; the base and the last round are always evaluated
    evaluate_every: int = 1
    # rounds between digests of the weights, in addition to those after evaluations
    digest_every: int = 1
    # whether evaluations measure anything; a private run measures only if the recipe discloses
    # results
    measures: bool = True
    # stop after this number of evaluations in a row without a better "validation_loss"; None: never
    patience: int | None = None
    aggregation: AggregationRule | None = None  # how the clients' answers are combined
    # how far a client's update, or a step, may be from the others
    bounds: Bounds | None = None
    # differential privacy of what clients send; None: none beyond what the method itself has
    privacy: PrivacySettings | None = None
    # the coordinator learns only sums; None: it reads every answer
    secure_sums: SecureSums | None = None
    # what Byzantine clients do (`fedseed.attacks.updates`). "labels" is only recorded here:
    # `fedseed.attacks.updates.flip_labels` has already changed those clients' data
    attack: AttackKind | None = None
    attackers: Collection[int] = ()  # the numbers of the Byzantine clients
    # for attacks that have a strength; None: the attack's default
    attack_strength: float | None = None
    # clients that measure along the same directions share forward passes. This is faster; results
    # differ only by the float noise of another batch size
    joint: bool = True
    base: str = ""  # the base's name, for the orbit's header
    # the base's absolute path, if `base` is a relative path
    base_folder: str = ""
    # how the base is quantised when it is loaded (`model.quantization`)
    quantization: str = ""
    # the base's digest; None: it is computed
    base_digest: str | None = None
    # name patterns of the trainable parameters, for the orbit's header; None: all
    trainable: Sequence[str] | None = None
    # names of a classifier's classes, for the orbit's header; empty: the model is not a classifier
    classes: Sequence[str] = ()
    # tune an adapter of this kind instead of the model; None: the method's own adapter, if it has
    # one
    adapter: Adapter | None = None
    # how base and weights are hashed (`fedseed.weights.digest`)
    digest: DigestKind = "blake2b"
    # folder for the run's files; None: nothing is written
    out: Path | str | None = None
    # the complete recipe, written beside the results
    recipe_text: str | None = None
    # the chats' Jinja template, written beside the results; "": the tokenizer's own is used
    chat_template: str = ""
    # digests of the clients' data and of held-out sets; a resumed run compares them
    data_record: DataRecord = field(default_factory=dict)
    # fingerprint of the base's tokenizer; None: the base has none
    fingerprint: Fingerprint | None = None
    # notes about the data, such as what was left out; shown at the start, and written to the
    # summary
    notes: Sequence[str] = ()
    # the limit on an example's length, as a text for messages about examples left out or cut
    limit: str = ""
    trackers: Sequence[Tracker] = ()  # further destinations of the metrics
    # threads of each process; None: torch's own number, divided among the workers
    threads: int | None = None
    # whether to keep each client's answers in the folder (`fedseed.runs.answers`)
    answers: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", check_seed(self.seed))
        try:
            method = self.method
            if self.privacy is not None:
                method = protect(self.method, self.privacy)
            object.__setattr__(self, "method", lasting(method, self.rounds))
        except ValueError as error:
            raise RecipeError(str(error)) from error
        if self.threads is not None and self.threads < 1:
            raise RecipeError(f"threads = {self.threads}: must be at least 1")
        problem = None
        if self.answers:
            problem = find_obstacle(self.method, self.secure_sums is not None)
        if problem is not None:
            raise RecipeError(f"federation.answers = true: {problem}")

    @classmethod
    def from_recipe(
        cls, recipe: Recipe, out: Path | str | None = None, **changes: Any
    ) -> "RunSpec":
        """Return the specification of a recipe's run.

        Args:
            recipe: the recipe.
            out: folder for the run's files; None: nothing is written.
            changes: fields that the recipe does not set, or that replace the recipe's.
        """
        attack, stopping = recipe.attack, recipe.stopping
        spec = cls(
            recipe.method,
            recipe.rounds,
            recipe.seed,
            evaluate_every=recipe.evaluation.every,
            digest_every=recipe.evaluation.digest_every,
            measures=recipe.evaluates,
            patience=None if stopping is None else stopping.patience,
            aggregation=recipe.aggregation,
            bounds=recipe.bounds,
            secure_sums=recipe.secure_sums,
            attack=None if attack is None else attack.kind,
            attack_strength=None if attack is None else attack.strength,
            joint=recipe.federation.joint,
            base=recipe.model.base,
            quantization=recipe.model.quantization or "",
            adapter=recipe.model.adapter,
            digest=recipe.model.digest,
            out=out,
            recipe_text=recipe.to_toml(),
            trackers=recipe.tracking,
            answers=recipe.federation.answers,
        )
        return replace(spec, **changes)

    @property
    def folder(self) -> Path | None:
        """Return the folder for the run's files; None: the run writes none."""
        if self.out is None:
            return None
        return Path(self.out)

    @property
    def byzantine(self) -> frozenset[int]:
        """Return the numbers of the Byzantine clients; empty without an attack."""
        if self.attack is None:
            return frozenset()
        return frozenset(self.attackers)

    @property
    def private(self) -> bool:
        """Return whether everything published that depends on clients' data is protected, by secure
        sums or by the method's differential privacy.
        """
        return self.secure_sums is not None or mechanism_of(self.method) is not None

    def evaluates(self, number: int) -> bool:
        """Return whether the model is evaluated after a round."""
        return number % self.evaluate_every == 0 or number == self.rounds

    def logs(self, number: int) -> bool:
        """Return whether a line of metrics is written after a round."""
        return self.evaluates(number) or not self.method.stepwise

    def digests(self, number: int) -> bool:
        """Return whether the weights are hashed after a round. They are after every evaluation,
        which includes the last round.
        """
        return self.evaluates(number) or (number % self.digest_every == 0 and self.logs(number))
