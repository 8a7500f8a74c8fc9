"""The specification of a run, made from a recipe or by a call in Python. Free of torch."""

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
    """The specification of a run, besides its model and its clients' examples.

    Every process that takes part in the run has all of it.
    """

    method: Method  # the method and its settings
    rounds: int  # how many
    # decides client sampling, data order and directions
    seed: int = 0
    per_round: int | None = None  # clients that take part in a round; None: all
    # rounds between evaluations; there is one of the base and one at the end, too
    evaluate_every: int = 1
    # rounds between digests of the weights, besides those after evaluations
    digest_every: int = 1
    # whether evaluations measure anything; in a private run, only if the recipe discloses it
    measures: bool = True
    # stop after this number of evaluations in a row without a better "validation_loss"; None: never
    patience: int | None = None
    aggregation: AggregationRule | None = None  # how the clients' answers become one
    # how far from the others a client, or a step, may be
    bounds: Bounds | None = None
    # differential privacy of what clients send, if the method does not have it already
    privacy: PrivacySettings | None = None
    # the coordinator learns sums alone; None: it reads every answer
    secure_sums: SecureSums | None = None
    # what Byzantine clients do (`fedseed.attacks.updates`). "labels" only names them: their data
    # was changed by `fedseed.attacks.updates.flip_labels`
    attack: AttackKind | None = None
    attackers: Collection[int] = ()  # the numbers of the Byzantine clients
    attack_strength: float | None = None  # of attacks that have one; None: as usual
    # clients that look along common directions share forward passes: faster, and the same but for
    # the float noise of another batch size
    joint: bool = True
    base: str = ""  # the base's name, for the orbit's header
    # where the base is, if `base` is a path that means another place from elsewhere
    base_folder: str = ""
    # how the base is quantised as it is loaded (`model.quantization`)
    quantization: str = ""
    # the base's digest, if it is known; None: it is hashed
    base_digest: str | None = None
    # name patterns of the trainable parameters, for the orbit's header; None: all
    trainable: Sequence[str] | None = None
    # names of the classes that a classifier tells apart, for the orbit's header; none: no
    # classifier
    classes: Sequence[str] = ()
    # tune an adapter of this kind in place of the model; None: what the method is defined with, if
    # anything
    adapter: Adapter | None = None
    # how base and weights are hashed (`fedseed.weights.digest`)
    digest: DigestKind = "blake2b"
    # folder for the run's files; None: nothing is written
    out: Path | str | None = None
    # the complete recipe, written beside the results
    recipe_text: str | None = None
    # the Jinja template of its chats, if it is not the tokenizer's own, written beside it
    chat_template: str = ""
    # digests of the clients' data and of held-out sets, by which a run that goes on knows them
    data_record: DataRecord = field(default_factory=dict)
    # what the base's tokenizer makes of texts; None: it has none
    fingerprint: Fingerprint | None = None
    # about the data, such as what was left out; shown when the run starts, and kept in the summary
    notes: Sequence[str] = ()
    # what makes an example too long, to be said of those that are left out or cut
    limit: str = ""
    trackers: Sequence[Tracker] = ()  # where else the metrics go
    # that a process computes with while the run goes on; None: torch's own choice, shared out among
    # workers
    threads: int | None = None
    # what each client has answered is kept in the folder (`fedseed.runs.answers`)
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
            raise RecipeError(f"threads = {self.threads}: at least 1")
        problem = None
        if self.answers:
            problem = find_obstacle(self.method, self.secure_sums is not None)
        if problem is not None:
            raise RecipeError(f"federation.answers = true: {problem}")

    @classmethod
    def from_recipe(
        cls, recipe: Recipe, out: Path | str | None = None, **changes: Any
    ) -> "RunSpec":
        """Return a recipe's run.

        Args:
            recipe: the recipe.
            out: folder for the run's files; None: nothing is written.
            changes: values that the recipe does not have, or that replace the recipe's.
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
        """Return the folder for the run's files."""
        if self.out is None:
            return None
        return Path(self.out)

    @property
    def byzantine(self) -> frozenset[int]:
        """Return the numbers of the Byzantine clients, if they do anything."""
        if self.attack is None:
            return frozenset()
        return frozenset(self.attackers)

    @property
    def private(self) -> bool:
        """Return whether the method makes private everything published that depends on clients'
        data.
        """
        return self.secure_sums is not None or mechanism_of(self.method) is not None

    def evaluates(self, number: int) -> bool:
        """Return whether there is an evaluation after a round."""
        return number % self.evaluate_every == 0 or number == self.rounds

    def logs(self, number: int) -> bool:
        """Return whether a round gets a line of metrics of its own."""
        return self.evaluates(number) or not self.method.stepwise

    def digests(self, number: int) -> bool:
        """Return whether the weights are hashed after a round: always after an evaluation, as in
        the last round.
        """
        return self.evaluates(number) or (number % self.digest_every == 0 and self.logs(number))
