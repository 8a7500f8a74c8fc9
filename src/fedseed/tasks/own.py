r"""The user's own data: a folder with one jsonl file per client, or one file and a partitioner.

A line is an object in one of these forms; all lines of a task are of the same:

    {"prompt": "...", "completion": "..."}                       as they are
    {"instruction": "...", "input": "...", "output": "..."}      Alpaca's template; "context" and "response" will do too
    {"messages": [{"role": "user", "content": "..."}, ...]}      a chat; the last answer carries the loss
    {"text": "...", "label": "..."}                              the label is chosen among all labels

A chat becomes "System: ...", "User: ..." and "Assistant: ..." with empty lines between, up to the last message of the
assistant, which is the response (what a tokenizer's chat template would make of it is another text). A text to label
becomes "{text}\nLabel:", and " {label}" is chosen by its log-probability.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import NonNegativeInt, PositiveInt

from fedseed.errors import RecipeError
from fedseed.randomness import Domain, permutation
from fedseed.tasks.base import Task
from fedseed.tasks.data import Choice, ClientData, Example, TaskData
from fedseed.tasks.files import Record, read_records
from fedseed.tasks.instruction_data import HELD_OUT, Labelled, Share, deal_clients, names_dealt, share_of
from fedseed.tasks.partition import IID, AnyPartition, ByField
from fedseed.tasks.prompts import alpaca_prompt, short_prompt

HINT = "give a folder with a .jsonl file for each client, or one .jsonl or .json file (see docs/data.md)"
DEFAULT_CLIENTS = 5
Template = Literal["alpaca", "short"]


@dataclass(frozen=True)
class ToLabel:
    """A text and its label, until all labels are known."""

    where: str
    text: str
    label: str


@dataclass(frozen=True)
class Form:
    """A form that lines may have.

    Args:
        fields: how messages call it.
        key: a line that has this field has this form.
        read: makes an example of a line.
    """

    fields: str
    key: str
    read: Callable[[Record, Template], Example | ToLabel]


def _completion(row: Record, template: Template) -> Example:
    return Example(row.field("prompt", str), row.field("completion", str))


def _instruction(row: Record, template: Template) -> Example:
    given = "context" if "context" in row.values else "input"
    answer = "response" if "response" in row.values else "output"
    make = alpaca_prompt if template == "alpaca" else short_prompt
    text = row.field(given, str) if row.values.get(given) is not None else ""
    return Example(make(row.field("instruction", str), text), row.field(answer, str))


ROLES = {"system": "System", "user": "User", "assistant": "Assistant"}


def _chat(row: Record, template: Template) -> Example:
    turns = [(turn.field("role", str), turn.field("content", str), turn.where) for turn in row.records("messages")]
    for role, _, where in turns:
        if role not in ROLES:
            raise RecipeError(f'{where}: "role" = {role!r}: one of {", ".join(ROLES)} is expected')
    last = max((i for i, turn in enumerate(turns) if turn[0] == "assistant"), default=0)
    if last == 0:
        raise RecipeError(f'{row.where}: "messages" has no message of the assistant that answers another')
    before = "".join(f"{ROLES[role]}: {content}\n\n" for role, content, _ in turns[:last])
    return Example(f"{before}Assistant:", f" {turns[last][1]}")


def _label(row: Record, template: Template) -> ToLabel:
    return ToLabel(row.where, row.field("text", str), str(row.field("label", (str, int, bool))))


FORMS = (
    Form("prompt, completion", "prompt", _completion),
    Form("instruction, input, output", "instruction", _instruction),
    Form("messages", "messages", _chat),
    Form("text, label", "text", _label),
)


@dataclass(frozen=True)
class SourceLine:
    """An example of a file, with its fields for a partitioner."""

    made: Example | ToLabel
    row: Record


class FilesTask(Task):
    """Settings of the "files" task.

    Args:
        path: a folder, each .jsonl file in it a client with the file's name; or one .jsonl or .json file.
        clients: of one file: data holders; None: 5, or as many as `partition.field` has values.
        partition: of one file: how it is dealt; default: at random.
        label_field: of one file: the field that "dirichlet" deals by; None: "label" of texts to label.
        labels: of texts to label: all labels, in the order of the options; None: those that are seen, sorted.
        template: what instructions are put into: "alpaca", or "short", which the small base was trained with.
        evaluation: share of the examples that the run reports on: of each client's, or of the one file's.
        evaluation_file: a file of the same form in place of `evaluation`.
        validation: share of the examples that no client gets, to choose settings on.
        evaluate_on: "test", or "validation" while choosing settings.
        seed: draws and deals examples; apart from the run's seed, so that runs share their data.
    """

    name: Literal["files"] = "files"
    about: ClassVar[str] = "your own data: a folder with a .jsonl file per client, or one file to deal out"

    path: str
    clients: PositiveInt | None = None
    partition: AnyPartition | None = None
    label_field: str | None = None
    labels: list[str] | None = None
    template: Template = "alpaca"
    evaluation: Share = 0.1
    evaluation_file: str | None = None
    validation: Share = 0.0
    evaluate_on: Literal["test", "validation"] = "test"
    seed: NonNegativeInt = 0

    def load(self) -> TaskData:
        """The clients' examples and the evaluation set.

        Raises:
            RecipeError: a file is missing or malformed, or does not fit the settings.
        """
        self._check()
        place = Path(self.path).expanduser()
        files = self._files(place)
        return self._load(place, files, range(len(files)), self.evaluation_file)

    def client_names(self) -> list[str] | None:
        """The files' names in a folder; of one file by their numbers, or the values of a field."""
        place = Path(self.path).expanduser()
        if place.is_dir():
            return [file.stem for file in self._files(place)]
        return names_dealt(self.partition or IID(), self.clients, DEFAULT_CLIENTS)

    def load_clients(self, names: Collection[str]) -> TaskData:
        """Some clients' examples; of a folder only their files are opened."""
        self._check()
        found = self._theirs(names)
        if found is None:
            return super().load_clients(names)
        return self._load(*found, evaluation_file=None, partly=True).only(names)

    def load_evaluation(self, names: Collection[str]) -> TaskData:
        """The evaluation set; where the clients hold it out of their files, only these clients' files are opened."""
        self._check()
        found = self._theirs(names)
        if found is None:
            return super().load_evaluation(names)
        place, files, numbers = found
        needed = not self.evaluation_file or self.validation
        data = self._load(place, files, numbers if needed else [], self.evaluation_file, partly=True)
        self._check_held_out(data)
        alone = f"evaluated on what {', '.join(sorted(names))} holds out, not the other clients"
        notes = (alone,) if not self.evaluation_file else ()
        return replace(data, clients=(), notes=notes)

    def _check(self) -> None:
        if self.evaluate_on == "validation" and not self.validation:
            raise RecipeError('task.evaluate_on = "validation": task.validation = 0 keeps no example for it')

    def _theirs(self, names: Collection[str]) -> tuple[Path, list[Path], list[int]] | None:
        """A folder, its files and the numbers of these clients' files; None: of one file, or of all clients."""
        place = Path(self.path).expanduser()
        if not place.is_dir():
            return None
        files = self._files(place)
        numbers = [number for number, file in enumerate(files) if file.stem in names]
        return None if len(numbers) == len(files) else (place, files, numbers)

    def _load(
        self,
        place: Path,
        files: Sequence[Path],
        numbers: Sequence[int],
        evaluation_file: str | None,
        partly: bool = False,
    ) -> TaskData:
        """Read some of the files, and the evaluation file if there is one.

        Args:
            place: the folder or file.
            files: all clients' files.
            numbers: those to read.
            evaluation_file: the same for evaluation.
            partly: other clients' files are not known: what depends on them must be in the settings.
        """
        reader = _Reader(self.template)
        lines = [reader.read(files[number]) for number in numbers]
        test = reader.read(Path(evaluation_file).expanduser()) if evaluation_file else []
        every = [*(line for part in lines for line in part), *test]
        if partly and self.labels is None and any(isinstance(line.made, ToLabel) for line in every):
            raise RecipeError(
                "task.labels: not set; name all labels, because no client opens the others' files to find them"
            )
        finish = _finisher(every, self.labels or ())
        share = 0.0 if self.evaluation_file else self.evaluation
        validation: list[SourceLine] = []
        training: list[list[SourceLine]] = []
        for number, part in zip(numbers, lines, strict=True):
            rest, held, chosen = self._hold_out(part, share, number, files[number])
            training.append(rest)
            test += held
            validation += chosen
        if place.is_dir():
            clients = [
                ClientData(files[number].stem, [finish(line.made) for line in part])
                for number, part in zip(numbers, training, strict=True)
            ]
        else:
            clients = self._deal(training[0], finish)
        kept = [finish(line.made) for line in validation]
        evaluation = kept if self.evaluate_on == "validation" else [finish(line.made) for line in test]
        data = TaskData(clients, {"": evaluation}, kept)
        if not partly:
            self._check_held_out(data)
        sizes = [len(client.examples) for client in clients]
        held_out = "" if partly else f", {len(validation):,} validation and {len(test):,} held-out examples"
        form = reader.form.fields if reader.form else ""
        notes = [
            f"{sum(sizes):,} training{held_out or ' examples'} ({form})",
            f"{len(clients)} clients hold {min(sizes, default=0):,} to {max(sizes, default=0):,} examples",
        ]
        if reader.empty:
            notes.insert(0, f"{reader.empty:,} examples left out (nothing to answer)")
        return replace(data, notes=tuple(notes))

    def _check_held_out(self, data: TaskData) -> None:
        """Whether there is something to evaluate on. Raises RecipeError."""
        if not data.evaluation[""]:
            key = "validation" if self.evaluate_on == "validation" else "evaluation"
            raise RecipeError(
                f'task.path = "{self.path}": nothing is held out to evaluate on; raise task.{key}, '
                "or give task.evaluation_file"
            )

    def _files(self, place: Path) -> list[Path]:
        wanted = f'task.path = "{self.path}"'
        if place.is_file():
            return [place]
        if not place.is_dir():
            raise RecipeError(f"{wanted}: there is no such file or folder; {HINT}")
        for name in ("clients", "partition", "label_field"):
            if getattr(self, name) is not None:
                raise RecipeError(f"task.{name}: {wanted} is a folder, and each file in it is a client; leave it out")
        evaluation = Path(self.evaluation_file).expanduser().resolve() if self.evaluation_file else None
        files = [file for file in sorted(place.glob("*.jsonl")) if file.resolve() != evaluation]
        if not files:
            found = ", ".join(sorted(file.name for file in place.iterdir())[:6]) or "nothing"
            raise RecipeError(f"{wanted}: the folder has no .jsonl file for a client (it has {found}); {HINT}")
        return files

    def _hold_out(
        self, lines: list[SourceLine], share: float, number: int, file: Path
    ) -> tuple[list[SourceLine], list[SourceLine], list[SourceLine]]:
        """Lines for training, evaluation and validation; one at least of each share, as far as the lines go round."""
        order = permutation(self.seed, Domain.PARTITION, len(lines), HELD_OUT + number).tolist()
        spare = len(lines) - 1
        if spare < 0:
            raise RecipeError(f"{file}: none of its examples has anything to answer")
        held = min(spare, share_of(share, len(lines)))
        chosen = min(spare - held, share_of(self.validation, len(lines)))
        parts = order[held + chosen :], order[:held], order[held : held + chosen]
        training, evaluation, validation = ([lines[i] for i in sorted(part)] for part in parts)
        return training, evaluation, validation

    def _deal(self, lines: Sequence[SourceLine], finish: Callable[[Any], Any]) -> list[ClientData]:
        partition = self.partition or IID()
        field = partition.field if isinstance(partition, ByField) else self.label_field
        if field is None and partition.kind == "dirichlet" and not isinstance(lines[0].made, ToLabel):
            raise RecipeError(
                'task.partition.kind = "dirichlet": it deals by a label; name its field with task.label_field'
            )
        if field is None:
            labels = [line.made.label if isinstance(line.made, ToLabel) else "" for line in lines]
        else:
            labels = [str(line.row.field(field, (str, int, bool))) for line in lines]
        rows = [Labelled(finish(line.made), label) for line, label in zip(lines, labels, strict=True)]
        return deal_clients(rows, partition, self.clients, DEFAULT_CLIENTS, self.seed)


class _Reader:
    """Reads files whose lines are all of one form.

    Args:
        form: that of the first line.
        empty: lines left out because there is nothing to answer.
    """

    def __init__(self, template: Template) -> None:
        self.template = template
        self.form: Form | None = None
        self.first = ""
        self.empty = 0

    def read(self, path: Path) -> list[SourceLine]:
        """A file's examples.

        Raises:
            RecipeError: missing, empty, malformed, of no known form or of another than the files before.
        """
        lines = []
        for row in read_records(path) if path.suffix in (".jsonl", ".json") else _other(path):
            made = self._form_of(row).read(row, self.template)
            if isinstance(made, Example) and not made.response.strip():
                self.empty += 1
            else:
                lines.append(SourceLine(made, row))
        return lines

    def _form_of(self, row: Record) -> Form:
        found = next((form for form in FORMS if form.key in row.values), None)
        if self.form is not None and found is not None and found is not self.form:
            raise RecipeError(
                f"{row.where}: it has {found.fields}, but {self.first} has {self.form.fields}; "
                "all lines must have the same form"
            )
        if self.form is None and found is None:
            known = "; ".join(form.fields for form in FORMS)
            has = ", ".join(row.values) or "no field"
            raise RecipeError(f"{row.where}: it has {has}, which is none of the known forms: {known}")
        if self.form is None:
            self.form, self.first = found, row.where
        assert self.form is not None
        return self.form  # for a line without the key too: reading it says which field is missing


def _other(path: Path) -> list[Record]:
    if not path.is_file():
        raise RecipeError(f"{path}: there is no such file")
    raise RecipeError(f"{path}: a .jsonl or .json file is expected")


def _finisher(lines: Sequence[SourceLine], wanted: Sequence[str]) -> Callable[[Any], Any]:
    """What makes choices of texts to label, now that all labels are known; other examples stay as they are."""
    texts = [line.made for line in lines if isinstance(line.made, ToLabel)]
    labels = list(wanted) or sorted({text.label for text in texts})
    number: Mapping[str, int] = {label: i for i, label in enumerate(labels)}
    for text in texts:
        if text.label not in number:
            raise RecipeError(f'{text.where}: "label" = {text.label!r}: task.labels has {", ".join(labels)}')
    if texts and len(labels) < 2:
        raise RecipeError(f"{texts[0].where}: all labels are {labels[0]!r}; there must be two at least to choose among")
    options = tuple(f" {label}" for label in labels)

    def finish(made: Example | ToLabel) -> Example | Choice:
        return (
            made
            if isinstance(made, Example)
            else Choice(f"{made.text}\nLabel:", options, number[made.label], text=made.text)
        )

    return finish
