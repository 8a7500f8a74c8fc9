"""The user's own data: a folder with a file or a folder per client, or one file and a partitioner.

`forms` has what a row may look like, `files` how it is read; here rows are found, held out and
dealt.
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
)
from fedseed.tasks.partition import IID, AnyPartition, ByField
from fedseed.text import listed

DEFAULT_CLIENTS = 5
SHOWN_NAMES = 8  # of clients, in a message
# separates the draw of held-out examples from that of a partition
HELD_OUT = 1
# .json is often something else's settings
CLIENT_ENDINGS = tuple(ending for ending in ENDINGS if ending != ".json")
HINT = (
    "give a folder with a file (.jsonl, .csv, .tsv or .parquet) or a folder for each client, one "
    'such file, a saved data set, or its name on the hub, such as "owner/name" (see docs/data.md)'
)


class Party(NamedTuple):
    """A data holder."""

    name: str
    places: Sequence[Path]  # its files or data sets, in order
    number: int  # draws what it holds out


class FilesTask(Task):
    """Settings of the "files" task.

    Args:
        path: a folder with a file (.jsonl, .csv, .tsv, .parquet) or a folder for each client, which
            has its name; or one such file, a data set saved by `datasets`, or one's name on the
            hub, dealt out. Left out where each client names its own data over a network.
        split: of a data set with several parts: the one to take.
        config: of a data set on the hub with several configurations: the one to take.
        clients: of one file: data holders; None: 5, or as many as `partition.field` has values.
        partition: of one file: how it is dealt; default: at random.
        label_field: of one file: the field that "dirichlet" deals by; None: "label" of texts to
            label.
        labels: of texts to label: all labels, in the order of the options; None: those that are
            seen, sorted.
        score_field: the field with the number that is to be predicted of each text (regression);
            None: no number is predicted.
        beta: of preferences: how strongly the model is held to its base; None: 0.1.
        fields: what a form's fields are called in the data, such as { prompt = "question",
            completion = "answer" }.
        template: what instructions are put into: "alpaca", or "short", which the small base was
            trained with; or "chat": prompts and instructions are asked by a user, and chat_template
            says how that is written.
        chat_template: how chats are written. None: by the tokenizer's own chat template, or plainly
            where it has none. "own": by the tokenizer's. "plain": "User: ...", "Assistant: ...".
            Else a file with a Jinja template.
        chat_template_kwargs: what else a chat template is given, such as
            { enable_thinking = false }; a row's own go before it.
        loss_on: which answers of a chat are learnt: "all" or the "last". None: all, but of the
            plain form the last.
        evaluation: share of the examples that the run reports on: of each client's, or of the one
            file's.
        evaluation_file: a file of the same form in place of `evaluation`.
        evaluation_split: a part of the same data set in place of `evaluation`.
        validation: share of the examples that no client gets, to choose settings on.
        evaluate_on: "test", or "validation" while choosing settings.
        on_bad_line: "stop" with all of them named, or "skip" them and say how many.
        seed: draws and deals examples; apart from the run's seed, so that runs share their data.
    """

    name: Literal["files"] = "files"
    about: ClassVar[str] = (
        "your own data: a folder with a file or folder per client, or one file to deal out"
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
        note = f"left aside, for it is no client's: {', '.join(aside)}"
        if aside:
            return replace(data, notes=(note, *data.notes))
        return data

    def client_names(self) -> list[str] | None:
        """Return the files' (or folders') names in a folder.

        Of one file their numbers, or a field's values.
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
        alone = f"evaluated on what {', '.join(sorted(names))} holds out, not the other clients"
        return replace(data, clients=(), notes=() if self.evaluation_file else (alone,))

    def load_party(self, name: str, number: int = 0) -> TaskData:
        """Return all that `path` has as the data of one client, with what it holds out.

        Args:
            name: what the client is called.
            number: its number among the clients, which draws what it holds out.

        Raises:
            RecipeError: missing or malformed, with all bad lines named; or `labels` is not set and
                must be.
        """
        evaluation_path = None
        if self.evaluation_file:
            evaluation_path = Path(self.evaluation_file).expanduser().resolve()
        places = [path for path in _sources(self._place()) if path.resolve() != evaluation_path]
        if not places:
            raise RecipeError(
                f'task.path = "{self.path}": the folder has no file with data; {HINT}'
            )
        return self._load([Party(name, places, number)], partly=True)

    @property
    def each_its_own(self) -> bool:
        return not self.path

    def names_here(self) -> list[str] | None:
        """Return the files' (or folders') names in a folder, if it lies here.

        One file is the same everywhere.
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
        # the client that is asked to evaluate opens the file
        if self.shares_evaluation:
            changed |= {"evaluation_file": None, "evaluation": 0.0}
        elif file is not None:
            changed["evaluation_file"] = str(file)
        elif own_data.evaluation is not None:
            changed["evaluation"] = own_data.evaluation
        # what it holds out depends on its name, not on who else takes part
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
        """Return the place of the data."""
        setting, place = f'task.path = "{self.path}"', Path(self.path).expanduser()
        problem = ""
        if self.evaluate_on == "validation" and not self.validation:
            problem = 'task.evaluate_on = "validation": task.validation = 0 keeps no example for it'
        elif self.evaluation_file and self.evaluation_split:
            problem = "task.evaluation_file and task.evaluation_split: give one of them"
        elif not self.path.strip():
            problem = f"{setting}: it is empty; {HINT}, or, over a network, join --data"
        elif not place.exists() and not is_hub_name(self.path):
            problem = f"{setting}: there is no such file or folder; {HINT}"
        elif self.evaluation_split and place.exists() and not is_saved(place):
            problem = (
                f'task.evaluation_split = "{self.evaluation_split}": {setting} is no data set with '
                "parts; give task.evaluation_file"
            )
        if problem:
            raise RecipeError(problem)
        return place

    def _parties(self) -> tuple[list[Party], list[str]]:
        """Return the place of each party's data (one without a name is dealt), and the entries of
        the folder that belong to nobody.
        """
        place = self._place()
        if not place.is_dir() or is_saved(place):
            return [Party("", [place], 0)], []
        setting = f'task.path = "{self.path}"'
        for name in ("clients", "partition", "label_field"):
            if getattr(self, name) is not None:
                raise RecipeError(
                    f"task.{name}: {setting} is a folder, and each file in it is a client; leave "
                    "it out"
                )
        clients, aside = _clients_in(place, self.evaluation_file)
        if not clients:
            contents = ", ".join(sorted(file.name for file in place.iterdir())[:6]) or "nothing"
            raise RecipeError(
                f"{setting}: the folder has no file for a client (it has {contents}); {HINT}"
            )
        return [Party(name, places, i) for i, (name, places) in enumerate(clients.items())], aside

    def _read_places(self, reader: FormReader, places: Sequence[Path]) -> list[SourceLine]:
        return list(
            chain.from_iterable(reader.read_rows(self._rows(place, self.split)) for place in places)
        )

    def _read_test(self, reader: FormReader) -> list[SourceLine]:
        """Return the lines of the evaluation file, or split; none if the task has neither."""
        if self.evaluation_file:
            return reader.read_rows(each_row(Path(self.evaluation_file).expanduser(), self.split))
        if self.evaluation_split:
            return reader.read_rows(self._rows(Path(self.path).expanduser(), self.evaluation_split))
        return []

    def _check_form(self, form: Form | None, partly: bool) -> None:
        """Raise RecipeError if the task's settings do not fit the form of its rows."""
        if self.beta is not None and form is not None and form != PREFERENCES:
            raise RecipeError(
                f"task.beta = {self.beta:g}: it is for preferences, and the data has "
                f"{form.fields}; leave it out"
            )
        if form is LABELLED and partly and self.labels is None:
            raise RecipeError(
                "task.labels: not set; name all labels, because no client opens the others' files "
                "to find them"
            )

    def _split_lines(
        self, party: Party, lines: Sequence[SourceLine]
    ) -> tuple[list[SourceLine], list[SourceLine], list[SourceLine]]:
        """Return a party's lines for training, held-out tests and validation.

        Each share has at least one line, as long as one is left for training.

        Raises RecipeError: the party has no usable line.
        """
        spare = len(lines) - 1
        if spare < 0:
            raise RecipeError(
                f"{', '.join(map(str, party.places))}: none of its examples has anything to answer"
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
        """Read parties' files; what has no name is dealt out.

        `partly`: without the files of all other clients.
        """
        style = self._style()
        reader = FormReader(style, self.fields)
        lines = [self._read_places(reader, party.places) for party in parties]
        test: list[SourceLine] = []
        if with_evaluation_file:
            test = self._read_test(reader)
        if self.on_bad_line == "stop":
            reader.check(' (task.on_bad_line = "skip" leaves them out)')
        self._check_form(reader.form, partly)
        if reader.form is LABELLED:
            *lines, test = add_all_labels([*lines, test], self.labels or ())
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
            # nothing is asked that could be answered, or an answer is not what is learnt
            scores=() if reader.form in (TEXT, PREFERENCES, SCORED) else TaskData.scores,
            chat_template=style.chat.template,
            beta=BETA if self.beta is None else self.beta,
        )

    def _objective_notes(self, reader: FormReader) -> list[str]:
        """Return a line about what is learnt, where that is neither language nor a label."""
        if reader.form is PREFERENCES:
            beta = BETA
            if self.beta is not None:
                beta = self.beta
            return [f"chosen answers are preferred to rejected ones: DPO, task.beta = {beta:g}"]
        if reader.form is SCORED:
            return [f'the number in "{self.score_field}" is predicted (regression)']
        return []

    def _style(self) -> Style:
        """Return the style in which rows become text."""
        setting, template = self.chat_template, ""
        writing: Any = {None: "auto", "own": "own", "plain": "plain"}.get(setting, "given")
        if setting is not None and writing == "given":
            hint = (
                f'task.chat_template = "{setting}": give "own", "plain" or a file with a Jinja '
                "template"
            )
            template = read_text(Path(setting).expanduser(), hint)
        arguments = self.chat_template_kwargs
        check_arguments(arguments, "task.chat_template_kwargs")
        chat = ChatStyle(writing, template, self.loss_on, arguments)
        if self.score_field is not None and self.labels is not None:
            raise RecipeError(
                "task.score_field and task.labels: a number is predicted, or a label: give one"
            )
        return Style(self.template, chat, tuple(self.labels or ()), self.score_field)

    def _rows(self, place: Path, split: str) -> Iterable[FileRow | RecipeError]:
        is_on_hub = not place.exists() and is_hub_name(str(place))
        if is_on_hub:
            return hub_rows(str(place), split, self.config, HINT)
        return each_row(place, split)

    def _held_out(self, data: TaskData) -> TaskData:
        """Return the same data if there is something to evaluate on.

        Raises RecipeError otherwise.
        """
        if not data.evaluation[""]:
            key = "validation" if self.evaluate_on == "validation" else "evaluation"
            raise RecipeError(
                f'task.path = "{self.path}": nothing is held out to evaluate on; raise task.{key}, '
                "or give task.evaluation_file"
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
                'task.partition.kind = "dirichlet": it deals by a label; name its field with '
                "task.label_field"
            )
        else:
            labels = [""] * len(lines)
        rows = [Labelled(line.example, label) for line, label in zip(lines, labels, strict=True)]
        return deal_clients(rows, partition, self.clients, DEFAULT_CLIENTS, self.seed)


def _sources(place: Path) -> list[Path]:
    """Return the files and saved data sets of a folder that is one client's, in order.

    Else the place itself.
    """
    if not place.is_dir() or is_saved(place):
        return [place]
    return [
        file for file in sorted(place.iterdir()) if file.suffix in CLIENT_ENDINGS or is_saved(file)
    ]


def _clients_in(
    folder: Path, besides: str | Path | None
) -> tuple[dict[str, list[Path]], list[str]]:
    """Return the files of a folder's clients, each a file or else each a folder, and what may be
    data of nobody.
    """
    excluded = None
    if besides:
        excluded = Path(besides).expanduser().resolve()
    visible = (entry for entry in sorted(folder.iterdir()) if not entry.name.startswith("."))
    entries = [entry for entry in visible if entry.resolve() != excluded]
    files = [entry for entry in entries if entry.is_file() and entry.suffix in CLIENT_ENDINGS]
    folders = [entry for entry in entries if entry.is_dir() and _sources(entry)]
    places = files or folders
    clients: dict[str, list[Path]] = {}
    for entry in places:
        name = entry.stem if files else entry.name
        if name in clients:
            raise RecipeError(
                f'{folder}: two files are for the client "{name}": {clients[name][0].name}, '
                f"{entry.name}"
            )
        clients[name] = _sources(entry)
    aside = [
        entry.name
        for entry in entries
        if entry not in places and (entry.suffix == ".json" or entry in folders)
    ]
    return clients, aside


def _own_place(path: str, name: str, alone: bool, besides: str | Path | None) -> str:
    """Return the place of a party's own data: the file or folder with its name in a shared folder.

    Args:
        path: a file, a data set or a folder.
        name: the party.
        alone: whether it is the only one of this process, so that one file may be its data
            whatever the file is called.
        besides: a file of the folder that is nobody's.

    Raises:
        RecipeError: nothing there is called like the party.
    """
    if not path:
        raise RecipeError(
            f"{name}: where is its data? Give `fedseed join --data FILE`; in one process "
            "task.path, a folder with a file for each client"
        )
    place = Path(path).expanduser()
    is_folder = place.is_dir() and not is_saved(place)
    if not is_folder:
        if alone:
            return path
        raise RecipeError(
            f'data of {name}: "{path}": a folder with a file for each client is expected'
        )
    if alone and place.resolve().name == name and _sources(place):
        return path
    clients = _clients_in(place, besides)[0]
    if name in clients:
        return str(place / name if (place / name).is_dir() else clients[name][0])
    if alone and not clients:
        return path  # reading it reports what is missing
    raise RecipeError(
        f'data of {name}: "{path}": the folder has no file or folder of this name'
        f"{_near_names(name, list(clients))}. Nobody else's file is taken: name the client's own "
        f'file, or a folder called "{name}" with its files'
    )


def _near_names(name: str, names: Sequence[str]) -> str:
    """Return a message's list of the names that are there in place of a missing one."""
    for name_there in names:
        if unicodedata.normalize("NFC", name_there) == unicodedata.normalize("NFC", name):
            return (
                f", but one that looks the same ({name_there}) and is written with other Unicode "
                f"characters ({_unicode_form(name_there)} there, {_unicode_form(name)} "
                "here): rename it"
            )
    near_name = closest(name, names)
    if near_name is not None:
        return f", but {near_name}: is that the one? It has {listed(sorted(names), SHOWN_NAMES)}"
    if names:
        return f"; it has {listed(sorted(names), SHOWN_NAMES)}"
    return ""


def _unicode_form(name: str) -> str:
    """Return the Unicode normal form that a name has."""
    if unicodedata.is_normalized("NFC", name):
        return "NFC"
    if unicodedata.is_normalized("NFD", name):
        return "NFD"
    return "neither form"


def _twins(parties: Sequence[Party], lines: Sequence[Sequence[SourceLine]]) -> list[str]:
    """Return a note for each client that holds what one before it holds: a file that was copied,
    most likely.
    """
    examples = [[line.example for line in client_lines] for client_lines in lines]
    firsts = [parties[examples.index(client_lines)] for client_lines in examples]
    return [
        f"{first.name} and {party.name} hold the same examples: is a file there twice?"
        for first, party in zip(firsts, parties, strict=True)
        if first is not party
    ]
