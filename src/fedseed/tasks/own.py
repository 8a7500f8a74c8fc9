"""The user's own data: a folder with a file or a folder for each client, or one file and a
partition.

`forms` recognises rows and `files` reads them; this module finds the files, holds out rows and
deals them.
"""

import unicodedata
import zlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import Field, PositiveFloat, PositiveInt

from fedseed.errors import RecipeError, closest
from fedseed.randomness import Domain, permutation
from fedseed.randomness.stream import Seed
from fedseed.tasks.base import Task
from fedseed.tasks.chats import check_arguments
from fedseed.tasks.data import (
    BETA,
    ChatStyle,
    Choice,
    ClientData,
    OwnData,
    TaskData,
    who_holds,
)
from fedseed.tasks.dealt import Labelled, Share, deal_clients, names_dealt, pick, share_of
from fedseed.tasks.files import (
    ENDINGS,
    FileRow,
    each_row,
    hub_rows,
    is_hub_name,
    is_saved,
    read_text,
)
from fedseed.tasks.forms import (
    LABELLED,
    PREFERENCES,
    SCORED,
    TEXT,
    Form,
    FormReader,
    SourceLine,
    Style,
    Template,
    add_all_labels,
    find_repeats,
    odd_labels,
)
from fedseed.tasks.partition import IID, AnyPartition, ByField
from fedseed.text import listed

DEFAULT_CLIENTS = 5
SHOWN_NAMES = 8  # how many clients' names a message lists
# another draw than the partition's, for held-out examples
HELD_OUT = 1
# not .json, which is often a settings file
CLIENT_ENDINGS = tuple(ending for ending in ENDINGS if ending != ".json")
# endings of files that may be data, but that are not read
UNREAD_ENDINGS = (
    *(".json", ".ndjson", ".jl", ".xlsx", ".xls", ".ods", ".arrow", ".feather", ".pq"),
    *(".gz", ".zst", ".xz", ".bz2", ".zip", ".7z", ".tar"),
)
HINT = (
    "give a folder with a file (.jsonl, .csv, .tsv or .parquet) or a folder for each client, one "
    'such file, a saved data set, or its name on the hub, such as "owner/name" (see docs/data.md)'
)


class Party(NamedTuple):
    """A data holder and its files."""

    name: str
    places: Sequence[Path]  # its files or data sets, in order
    number: int  # seeds the draw of its held-out examples


class FilesTask(Task):
    """Settings of the "files" task.

    Args:
        path: a folder with a file (.jsonl, .csv, .tsv, .parquet) or a folder for each client, named
            like the client; or one such file, a data set saved by `datasets`, or the name of one on
            the hub, which is dealt to clients. Omit it if each client sets its own path, over a
            network.
        split: the part to read, if a data set has several.
        config: the configuration to read, if a data set on the hub has several.
        clients: number of clients, if `path` is one file; None: 5, or one for each value of
            `partition.field`.
        partition: how to deal examples, if `path` is one file; default: at random.
        label_field: the field that "dirichlet" uses, if `path` is one file; None: "label", if the
            rows have one.
        labels: all labels, in the order of the classes, if the rows are texts with labels; None:
            those found in the data, sorted.
        score_field: the field with the number to predict from each text (regression); None: no
            number is predicted.
        beta: DPO's beta, for preferences: how strongly the loss keeps the model near its base;
            None: 0.1.
        fields: the data's names for a form's fields, such as { prompt = "question", completion =
            "answer" }.
        template: form of prompts: "alpaca"; "short", which the small base was trained with; or
            "chat", which makes prompts and instructions a user's message, written by chat_template.
        chat_template: how chats are written. None: by the tokenizer's chat template, or as plain
            text if it has none. "own": by the tokenizer's. "plain": as plain text, "User: ...",
            "Assistant: ...". Any other value: a file with a Jinja template.
        chat_template_kwargs: further arguments for the chat template, such as { enable_thinking =
            false }. A row's own arguments take precedence.
        loss_on: which answers of a chat are learnt: "all" or the "last". None: all, but only the
            last in plain text.
        evaluation: share of the examples that are held out to evaluate on, from each client's data
            or from the one file.
        evaluation_file: a file of the same form to evaluate on, in place of `evaluation`.
        evaluation_split: a part of the same data set to evaluate on, in place of `evaluation`.
        validation: share of the examples that no client gets, for choosing settings.
        evaluate_on: "test", or "validation" while choosing settings.
        on_bad_line: "stop" with an error that lists the bad lines, or "skip" them and report how
            many.
        seed: seed for drawing and dealing examples. It is separate from the run's seed, so that
            runs with different seeds have the same data.
    """

    name: Literal["files"] = "files"
    about: ClassVar[str] = (
        "your own data: a folder with a file or folder for each client, or one file to deal "
        "to clients"
    )
    own_data: ClassVar[bool] = True

    path: str = ""
    split: str = "train"
    config: str | None = None
    clients: PositiveInt | None = None
    partition: AnyPartition | None = None
    label_field: str | None = None
    labels: list[str] | None = None
    score_field: str | None = None
    beta: PositiveFloat | None = None
    fields: dict[str, str] = Field(default_factory=dict)
    template: Template = "alpaca"
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    loss_on: Literal["all", "last"] | None = None
    evaluation: Share = 0.1
    evaluation_file: str | None = None
    evaluation_split: str | None = None
    validation: Share = 0.0
    evaluate_on: Literal["test", "validation"] = "test"
    on_bad_line: Literal["stop", "skip"] = "stop"
    seed: Seed = 0

    def load(self) -> TaskData:
        parties, aside = self._parties()
        data = self._held_out(self._load(parties))
        note = f"not used, because it is no client's data: {', '.join(aside)}"
        if aside:
            return replace(data, notes=(note, *data.notes))
        return data

    def client_names(self) -> list[str] | None:
        """Return the names of the files or folders in a folder.

        For one file, return numbered names; None if the names are a field's values.
        """
        names = [party.name for party in self._parties()[0]]
        if names[0]:
            return names
        return names_dealt(self.partition or IID(), self.clients, DEFAULT_CLIENTS)

    def load_part(self, names: Collection[str], evaluate: bool) -> TaskData:
        parties = self._parties()[0]
        named_parties = [party for party in parties if party.name in names]
        if len(named_parties) == len(parties) or not parties[0].name:  # one file, or all of them
            return super().load_part(names, evaluate)
        if not evaluate:
            return self._load(
                named_parties, with_evaluation_file=False, partly=True
            ).select_clients(names)
        needed = not self.evaluation_file or self.validation
        data = self._held_out(self._load(named_parties if needed else [], partly=True))
        alone = (
            f"evaluated only on the held-out examples of {', '.join(sorted(names))}, not on the "
            "other clients'"
        )
        return replace(data, clients=(), notes=() if self.evaluation_file else (alone,))

    def load_party(self, name: str, number: int = 0) -> TaskData:
        """Return everything at `path` as the data of one client, including the examples that it
        holds out.

        Args:
            name: the client's name.
            number: the client's number, which seeds the draw of its held-out examples.

        Raises:
            RecipeError: the data is missing or malformed (the message lists the bad lines), or
                `labels` is required but not set.
        """
        evaluation_path = None
        if self.evaluation_file:
            evaluation_path = Path(self.evaluation_file).expanduser().resolve()
        places = [path for path in _sources(self._place()) if path.resolve() != evaluation_path]
        if not places:
            raise RecipeError(f'task.path = "{self.path}": the folder has no data file; {HINT}')
        return self._load([Party(name, places, number)], partly=True)

    @property
    def each_its_own(self) -> bool:
        return not self.path

    def names_here(self) -> list[str] | None:
        """Return the names of the files or folders in the folder on this machine; empty if `path`
        is not here.

        None for one file, which is the same on every machine.
        """
        place = Path(self.path).expanduser()
        if self.path and place.is_dir() and not is_saved(place):
            return self.client_names()
        if self.path and (place.suffix or place.exists() or is_hub_name(self.path)):
            return None
        return []

    @property
    def shares_evaluation(self) -> bool:
        return self.evaluation_file is not None

    def load_shared(self, file: Path | None = None) -> TaskData:
        settings = self.model_copy(update={"evaluation_file": str(file or self.evaluation_file)})
        return replace(settings._load([], partly=True), clients=(), notes=())

    def load_own(self, name: str, own_data: OwnData, alone: bool = True) -> TaskData:
        file, changed = own_data.evaluation_file or self.evaluation_file, self.model_dump()
        changed["path"] = _own_place(str(own_data.path or self.path), name, alone, file)
        # the evaluation file is opened only by the client that is asked to evaluate
        if self.shares_evaluation:
            changed |= {"evaluation_file": None, "evaluation": 0.0}
        elif file is not None:
            changed["evaluation_file"] = str(file)
        elif own_data.evaluation is not None:
            changed["evaluation"] = own_data.evaluation
        # the client's held-out examples depend on its name, not on which other clients take part
        data = FilesTask.model_validate(changed).load_party(name, zlib.crc32(name.encode()) >> 1)
        notes = [
            *data.notes,
            *(
                []
                if self.shares_evaluation
                else [f"{len(data.evaluation['']):,} held-out examples"]
            ),
        ]
        return replace(data, notes=tuple(f"{name}: {note}" for note in notes))

    def place_of_own(self, name: str, own_data: OwnData, alone: bool = True) -> str:
        besides = own_data.evaluation_file or self.evaluation_file
        place = _own_place(str(own_data.path or self.path), name, alone, besides)
        if Path(place).expanduser().exists():
            return str(Path(place).expanduser().resolve())
        return place

    def _place(self) -> Path:
        """Return the path of the data. Raises RecipeError if the settings do not fit it."""
        setting, place = f'task.path = "{self.path}"', Path(self.path).expanduser()
        problem = ""
        if self.evaluate_on == "validation" and not self.validation:
            problem = (
                'task.evaluate_on = "validation": task.validation = 0 leaves no examples for it'
            )
        elif self.evaluation_file and self.evaluation_split:
            problem = "task.evaluation_file and task.evaluation_split: give only one of them"
        elif not self.path.strip():
            problem = (
                f"{setting}: it is empty; {HINT}; or, over a network, use join --data, and to "
                "evaluate such a run --set task.path=FOLDER"
            )
        elif not place.exists() and not is_hub_name(self.path):
            problem = f"{setting}: there is no such file or folder; {HINT}"
        elif self.evaluation_split and place.exists() and not is_saved(place):
            problem = (
                f'task.evaluation_split = "{self.evaluation_split}": {setting} is not a data set '
                "with parts; use task.evaluation_file instead"
            )
        if problem:
            raise RecipeError(problem)
        return place

    def _parties(self) -> tuple[list[Party], list[str]]:
        """Return the paths of each party's data (one party without a name, if the data is to be
        dealt), and the folder's entries that belong to no party.
        """
        place = self._place()
        if not place.is_dir() or is_saved(place):
            return [Party("", [place], 0)], []
        setting = f'task.path = "{self.path}"'
        for name in ("clients", "partition", "label_field"):
            if getattr(self, name) is not None:
                raise RecipeError(
                    f"task.{name}: {setting} is a folder in which each file is a client; remove "
                    "this key"
                )
        clients, aside = _clients_in(place, self.evaluation_file)
        if not clients:
            contents = ", ".join(sorted(file.name for file in place.iterdir())[:6]) or "nothing"
            raise RecipeError(
                f"{setting}: the folder has no client's file (it has {contents}); {HINT}"
            )
        return [Party(name, places, i) for i, (name, places) in enumerate(clients.items())], aside

    def _read_places(self, reader: FormReader, places: Sequence[Path]) -> list[SourceLine]:
        return list(
            chain.from_iterable(reader.read_rows(self._rows(place, self.split)) for place in places)
        )

    def _read_test(self, reader: FormReader) -> list[SourceLine]:
        """Return the lines of the evaluation file or split; empty if the task has neither."""
        if self.evaluation_file:
            return reader.read_rows(each_row(Path(self.evaluation_file).expanduser(), self.split))
        if self.evaluation_split:
            return reader.read_rows(self._rows(Path(self.path).expanduser(), self.evaluation_split))
        return []

    def _check_form(self, form: Form | None, partly: bool) -> None:
        """Raise RecipeError if the task's settings do not fit the form of its rows."""
        if self.beta is not None and form is not None and form != PREFERENCES:
            raise RecipeError(
                f"task.beta = {self.beta:g}: beta is for preferences, but the data has "
                f"{form.fields}; remove this key"
            )
        if form is LABELLED and partly and self.labels is None:
            raise RecipeError(
                "task.labels: not set; list all labels, because a client does not open other "
                "clients' files to find them"
            )

    def _split_lines(
        self, party: Party, lines: Sequence[SourceLine]
    ) -> tuple[list[SourceLine], list[SourceLine], list[SourceLine]]:
        """Return a party's lines for training, for held-out tests and for validation.

        Each share has at least one line, provided that one is left for training.

        Raises RecipeError if the party has no usable line.
        """
        spare = len(lines) - 1
        if spare < 0:
            raise RecipeError(
                f"{', '.join(map(str, party.places))}: none of its examples has an answer"
            )
        share = self.evaluation
        if self.evaluation_file or self.evaluation_split:
            share = 0.0
        order = permutation(
            self.seed, Domain.PARTITION, len(lines), HELD_OUT + party.number
        ).tolist()
        held_out_count = min(spare, share_of(share, len(lines)))
        end = held_out_count + min(spare - held_out_count, share_of(self.validation, len(lines)))
        return (
            pick(lines, order[end:]),
            pick(lines, order[:held_out_count]),
            pick(lines, order[held_out_count:end]),
        )

    def _load(
        self, parties: Sequence[Party], with_evaluation_file: bool = True, partly: bool = False
    ) -> TaskData:
        """Read the parties' files. A party without a name is dealt to clients.

        `partly`: only some clients' files are read.
        """
        style = self._style()
        reader = FormReader(style, self.fields)
        lines = [self._read_places(reader, party.places) for party in parties]
        test: list[SourceLine] = []
        if with_evaluation_file:
            test = self._read_test(reader)
        if self.on_bad_line == "stop":
            reader.check(' (task.on_bad_line = "skip" ignores them)')
        self._check_form(reader.form, partly)
        label_notes: list[str] = []
        if reader.form is LABELLED:
            *lines, test = add_all_labels([*lines, test], self.labels or ())
            if not self.labels:
                label_notes = odd_labels([*chain.from_iterable(lines), *test])
        validation: list[SourceLine] = []
        rest: list[SourceLine] = []
        clients: list[ClientData] = []
        for party, part in zip(parties, lines, strict=True):
            mine, held_out_lines, validation_lines = self._split_lines(party, part)
            rest += mine
            test += held_out_lines
            validation += validation_lines
            if party.name:
                clients.append(ClientData(party.name, [line.example for line in mine]))
            else:
                clients += self._deal(mine)
        validation_examples = [line.example for line in validation]
        test_examples = [line.example for line in test]
        sizes = [len(client.examples) for client in clients]
        held_out = f", {len(validation_examples):,} validation and {len(test_examples):,} held-out"
        form = ""
        if reader.form:
            form = reader.form.fields
        notes = [
            *reader.notes(),
            *label_notes,
            *self._objective_notes(reader),
            f"{sum(sizes):,} training{'' if partly else held_out} examples ({form})",
            *([] if len(sizes) == 1 else [who_holds(sizes)]),
            *_twins(parties, lines),
            *find_repeats(rest, validation, "validation"),
            *find_repeats(rest, test, "held-out"),
        ]
        return TaskData(
            clients,
            {"": validation_examples if self.evaluate_on == "validation" else test_examples},
            validation_examples,
            tuple(notes),
            # texts and preferences have no answers to score, and a predicted number is not
            # generated text
            scores=() if reader.form in (TEXT, PREFERENCES, SCORED) else TaskData.scores,
            chat_template=style.chat.template,
            beta=BETA if self.beta is None else self.beta,
        )

    def _objective_notes(self, reader: FormReader) -> list[str]:
        """Return a note on what is learnt, if it is neither language nor a label."""
        if reader.form is PREFERENCES:
            beta = BETA
            if self.beta is not None:
                beta = self.beta
            return [
                f"the model learns to prefer chosen to rejected answers: DPO, task.beta = {beta:g}"
            ]
        if reader.form is SCORED:
            return [f'the model learns to predict the number in "{self.score_field}" (regression)']
        return []

    def _style(self) -> Style:
        """Return how rows become text."""
        setting, template = self.chat_template, ""
        writing: Any = {None: "auto", "own": "own", "plain": "plain"}.get(setting, "given")
        if setting is not None and writing == "given":
            hint = (
                f'task.chat_template = "{setting}": expected "own", "plain" or a file with a '
                "Jinja template"
            )
            template = read_text(Path(setting).expanduser(), hint)
        arguments = self.chat_template_kwargs
        check_arguments(arguments, "task.chat_template_kwargs")
        chat = ChatStyle(writing, template, self.loss_on, arguments)
        if self.score_field is not None and self.labels is not None:
            raise RecipeError(
                "task.score_field and task.labels: a model predicts either a number or a "
                "label: give only one of them"
            )
        return Style(self.template, chat, tuple(self.labels or ()), self.score_field)

    def _rows(self, place: Path, split: str) -> Iterable[FileRow | RecipeError]:
        is_on_hub = not place.exists() and is_hub_name(str(place))
        if is_on_hub:
            return hub_rows(str(place), split, self.config, HINT)
        return each_row(place, split)

    def _held_out(self, data: TaskData) -> TaskData:
        """Return the data unchanged if it has something to evaluate on.

        Raises RecipeError if it does not.
        """
        if not data.evaluation[""]:
            key = "validation" if self.evaluate_on == "validation" else "evaluation"
            raise RecipeError(
                f'task.path = "{self.path}": there are no held-out examples to evaluate on; raise '
                f"task.{key}, or give task.evaluation_file"
            )
        return data

    def _deal(self, lines: Sequence[SourceLine]) -> list[ClientData]:
        partition = self.partition or IID()
        field = partition.field if isinstance(partition, ByField) else self.label_field
        if field is not None:
            labels = [str(line.row.field(field, (str, int, bool))) for line in lines]
        elif isinstance(lines[0].example, Choice):
            labels = [line.example.options[line.example.gold].strip() for line in lines]
        elif partition.kind == "dirichlet":
            raise RecipeError(
                'task.partition.kind = "dirichlet": this partition uses a label; name its field '
                "in task.label_field"
            )
        else:
            labels = [""] * len(lines)
        rows = [Labelled(line.example, label) for line, label in zip(lines, labels, strict=True)]
        return deal_clients(rows, partition, self.clients, DEFAULT_CLIENTS, self.seed)


def _sources(place: Path) -> list[Path]:
    """Return the files and saved data sets in one client's folder, in order.

    If `place` is not such a folder, return `place` itself.
    """
    if not place.is_dir() or is_saved(place):
        return [place]
    return [file for file in sorted(place.iterdir()) if _is_client_file(file) or is_saved(file)]


def _is_client_file(file: Path) -> bool:
    return file.suffix.lower() in CLIENT_ENDINGS


def _clients_in(
    folder: Path, besides: str | Path | None
) -> tuple[dict[str, list[Path]], list[str]]:
    """Return the files of each client in a folder, and the names of entries that look like data but
    belong to no client. All clients have a file, or all have a folder.
    """
    excluded = None
    if besides:
        excluded = Path(besides).expanduser().resolve()
    visible = (entry for entry in sorted(folder.iterdir()) if not entry.name.startswith("."))
    entries = [entry for entry in visible if entry.resolve() != excluded]
    files = [entry for entry in entries if entry.is_file() and _is_client_file(entry)]
    folders = [entry for entry in entries if entry.is_dir() and _sources(entry)]
    places = files or folders
    clients: dict[str, list[Path]] = {}
    for entry in places:
        name = entry.stem if files else entry.name
        if name in clients:
            raise RecipeError(
                f'{folder}: two files are named like the client "{name}": '
                f"{clients[name][0].name}, {entry.name}"
            )
        clients[name] = _sources(entry)
    aside = [
        entry.name
        for entry in entries
        if entry not in places and (entry.suffix.lower() in UNREAD_ENDINGS or entry in folders)
    ]
    return clients, aside


def _own_place(path: str, name: str, alone: bool, besides: str | Path | None) -> str:
    """Return the path of a party's own data. In a shared folder it is the file or folder with the
    party's name.

    Args:
        path: a file, a data set or a folder.
        name: the party's name.
        alone: whether the process has only this party. Then a single file is its data, whatever its
            name.
        besides: a file in the folder that belongs to no party.

    Raises:
        RecipeError: no file or folder has the party's name.
    """
    if not path:
        raise RecipeError(
            f"{name}: the path of its data is missing: give `fedseed join --data FILE`, or, in "
            "one process, set task.path to a folder with a file for each client"
        )
    place = Path(path).expanduser()
    is_folder = place.is_dir() and not is_saved(place)
    if not is_folder:
        if alone:
            return path
        raise RecipeError(
            f'data of {name}: "{path}": expected a folder with a file for each client'
        )
    files = _sources(place)
    if alone and place.resolve().name == name and files:
        same = [file for file in files if file.stem == name]
        if same and len(same) < len(files):
            raise RecipeError(
                f'data of {name}: "{path}": the folder has the client\'s name, and so has '
                f"{same[0].name} in it, beside {len(files) - len(same):,} other files: are these "
                f"other clients' data? Give the client's own file ({same[0]}); if all files are "
                "its own, rename this one"
            )
        return path
    clients = _clients_in(place, besides)[0]
    if name in clients:
        return str(place / name if (place / name).is_dir() else clients[name][0])
    if alone and not clients:
        return path  # reading it will report what is missing
    raise RecipeError(
        f'data of {name}: "{path}": the folder has no file or folder of this '
        f"name{_near_names(name, list(clients))}. fedseed does not use another client's file: "
        f'give the client\'s own file, or a folder named "{name}" with its files'
    )


def _near_names(name: str, names: Sequence[str]) -> str:
    """Return the end of a message about a missing name: a similar name, or the names that exist."""
    for name_there in names:
        if unicodedata.normalize("NFC", name_there) == unicodedata.normalize("NFC", name):
            return (
                f", but one that looks the same ({name_there}) and differs in its Unicode "
                f"characters ({_unicode_form(name_there)} there, {_unicode_form(name)} here): "
                "rename it"
            )
    near_name = closest(name, names)
    if near_name is not None:
        return (
            f", but it has {near_name}: is this the right one? The folder has "
            f"{listed(sorted(names), SHOWN_NAMES)}"
        )
    if names:
        return f"; it has {listed(sorted(names), SHOWN_NAMES)}"
    return ""


def _unicode_form(name: str) -> str:
    """Return the Unicode normal form of a name."""
    if unicodedata.is_normalized("NFC", name):
        return "NFC"
    if unicodedata.is_normalized("NFD", name):
        return "NFD"
    return "neither form"


def _twins(parties: Sequence[Party], lines: Sequence[Sequence[SourceLine]]) -> list[str]:
    """Return a note for each client with the same examples as an earlier client, most likely
    because a file was copied.
    """
    examples = [[line.example for line in client_lines] for client_lines in lines]
    firsts = [parties[examples.index(client_lines)] for client_lines in examples]
    return [
        f"{first.name} and {party.name} have the same examples: was a file copied?"
        for first, party in zip(firsts, parties, strict=True)
        if first is not party
    ]
