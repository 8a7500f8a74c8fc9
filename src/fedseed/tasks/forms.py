"""The forms of rows in the user's own data: recognises them, makes examples, and reports bad and
repeated rows.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import chain
from math import isfinite
from typing import Any, Literal

from fedseed.errors import RecipeError
from fedseed.tasks.chats import (
    chat_of,
    read_chat,
    read_conversation,
    read_tools,
    system_of,
    with_arguments,
)
from fedseed.tasks.data import Chat, ChatStyle, Choice, Example, Preference, Score, Unusable
from fedseed.tasks.files import FileRow, dataset_rows, is_dataset
from fedseed.tasks.fillers import without_fillers
from fedseed.tasks.hints import (
    CHOSEN,
    FRACTION,
    REJECTED,
    are_preferences,
    ranked_fields,
    suggest_fields,
)
from fedseed.tasks.preferences import read_preference
from fedseed.tasks.prompts import alpaca_prompt, short_prompt
from fedseed.text import listed, show_text

Template = Literal["alpaca", "short", "chat"]
# how many bad lines and repeated examples a message names
SHOWN = 5
# the largest score: squares of larger numbers overflow single precision
LARGEST = 1e30
# the most characters of a text: tokenising longer ones takes gigabytes
LONGEST = 1 << 22
# a field of a row with earlier questions and answers
HISTORY = "history"
# fields that a chat uses, and a prompt without a chat template does not
CHAT_FIELDS = ("system", HISTORY, "tools", "functions", "tool_defs")
# more classes than this, with fewer than two texts each, look like scores or identifiers
MANY_CLASSES = 20
# what programs write where a value is missing, in lower case
MISSING = frozenset(("na", "n/a", "nan", "none", "null", "nil", "<na>", "#n/a", "-", "?"))
Made = Example | Choice | Preference | Score | Unusable
NO_ANSWER = Unusable("nothing to answer")
NO_LABEL = Unusable("no label")
NO_SCORE = Unusable("no score")
# "1,234" means different numbers in English and in German
THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(,\d{3})+")


@dataclass(frozen=True)
class Style:
    """Settings for turning rows into examples."""

    template: Template = "alpaca"  # for instructions; "chat" also applies to prompts
    chat: ChatStyle = field(default_factory=ChatStyle)
    labels: tuple[str, ...] = ()  # the allowed labels; empty: any
    # the field with the number to predict; None: no number is predicted
    score_field: str | None = None


@dataclass(frozen=True)
class Form:
    """A form that rows may have."""

    fields: str  # the form's name in messages
    # a row with all of these fields has this form; "a|b" means one of the two
    keys: tuple[str, ...]
    make_example: Callable[[FileRow, Style], Made]  # makes an example from a row

    # fields that may be empty, for example the label of a text without one
    may_be_null: tuple[str, ...] = ()

    def fits(self, row: FileRow, keys: int | None = None) -> bool:
        """Return whether a row has the form's fields; with `keys`, only the first so many are
        checked.
        """
        return all(self._has_any(row, key.split("|")) for key in self.keys[:keys])

    def _has_any(self, row: FileRow, names: Sequence[str]) -> bool:
        return any(self._has_field(row, name) for name in names)

    def _has_field(self, row: FileRow, name: str) -> bool:
        return row.values.get(name) is not None or (name in self.may_be_null and name in row.values)


def _completion(row: FileRow, style: Style) -> Made:
    answer = "completion"
    if "response" in row.values and "completion" not in row.values:
        answer = "response"
    if any(isinstance(row.values.get(name), list) for name in ("prompt", answer)):
        return read_conversation(row, answer, style.chat)
    prompt, response = row.field("prompt", str), row.field(answer, str)
    if style.template == "chat":
        return _as_chat(prompt, response, style, row)
    return Example(prompt, response)


def _instruction(row: FileRow, style: Style) -> Example:
    answer = "response" if "response" in row.values else "output"
    prompt, response = _question_of(row, style), row.field(answer, str)
    if style.template == "chat":
        return _as_chat(prompt, response, style, row)
    return Example(prompt, response)


def _question_of(row: FileRow, style: Style) -> str:
    """Return a row's instruction and input as a prompt."""
    input_field = "context" if "context" in row.values else "input"
    text = ""
    if row.values.get(input_field) is not None:
        text = row.field(input_field, str)
    instruction = row.field("instruction", str)
    if style.template == "chat":
        if text:
            return f"{instruction}\n\n{text}"
        return str(instruction)
    make = short_prompt
    if style.template == "alpaca":
        make = alpaca_prompt
    return make(instruction, text)


def _preference(row: FileRow, style: Style) -> Preference | Unusable:
    has_prompt = any(row.values.get(name) is not None for name in ("prompt", "conversations"))
    if not has_prompt and isinstance(row.values.get("instruction"), str):
        row = replace(row, values={**row.values, "prompt": _question_of(row, style)})
    return read_preference(row, style.chat, style.template == "chat")


def _as_chat(prompt: str, answer: str, style: Style, row: FileRow) -> Example:
    """Return one question and its answer, as a chat."""
    turns = [
        *system_of(row),
        *_history_of(row),
        {"role": "user", "content": prompt.strip()},
        {"role": "assistant", "content": answer.strip()},
    ]
    return chat_of(turns, read_tools(row), with_arguments(style.chat, row), row.place)


def _history_of(row: FileRow) -> list[dict[str, str]]:
    """Return the earlier questions and answers of a row (LLaMA-Factory's `history`).

    Raises:
        RecipeError: the field is not a list of pairs of texts.
    """
    turns = []
    for pair in row.values.get(HISTORY) or []:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not _are_texts(pair):
            raise RecipeError(
                f'{row.place}: "{HISTORY}": expected a list of pairs of a question and its answer'
            )
        turns.append({"role": "user", "content": pair[0]})
        turns.append({"role": "assistant", "content": pair[1]})
    return turns


def _are_texts(values: Iterable[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _options(row: FileRow, style: Style) -> Choice:
    options = row.field("options", list)
    try:
        return Choice(row.field("prompt", str), tuple(map(str, options)), row.field("gold", int))
    except ValueError as error:
        raise RecipeError(f"{row.place}: {error}") from error


def _label(row: FileRow, style: Style) -> Choice | Unusable:
    """Return a text to label.

    The label is the only option until all labels are known (`add_all_labels`).
    """
    label, text = _label_text(row, style), row.field("text", str)
    if not label:
        return NO_LABEL
    pair = _second_text(row)
    if style.labels and label not in style.labels:
        raise RecipeError(
            f'{row.place}: "label" = {label!r}: not in task.labels ({", ".join(style.labels)})'
        )
    prompt = text
    if pair:
        prompt = f"{text}\n{pair}"
    return Choice(f"{prompt}\nLabel:", (f" {label}",), 0, text=text, pair=pair)


def _second_text(row: FileRow) -> str:
    """Return a row's second text; "" if it has only one."""
    if row.values.get("text_pair") is None:
        return ""
    return str(row.field("text_pair", str))


def _score(row: FileRow, style: Style) -> Score | Unusable:
    """Return a text and the number that is to be predicted.

    Raises:
        RecipeError: the field is missing, or does not hold a number.
    """
    name = str(style.score_field)
    if name not in row.values:
        raise RecipeError(f'{row.place}: no "{name}", which task.score_field names')
    if "text" not in row.values:
        raise RecipeError(
            f'{row.place}: no "text" to predict "{name}" from; name the text\'s field in '
            "task.fields, such as { text = ... }"
        )
    text, pair, value = row.field("text", str), _second_text(row), row.values[name]
    if isinstance(value, str):
        value = _number_in(value.strip(), row, name)
    if isinstance(value, Decimal):
        value = float(value)
    if value is None or value != value:  # null or NaN
        return NO_SCORE
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > LARGEST:
        raise RecipeError(
            f'{row.place}: "{name}" = {value!r}: expected a number (task.score_field)'
        )
    return Score(text, float(value), pair)


def _number_in(text: str, row: FileRow, name: str) -> float | None:
    """Return the number that a table has as text, with a decimal point or comma; None: none.

    Raises:
        RecipeError: the text is not a number, or is ambiguous.
    """
    if not text:
        return None
    if THOUSANDS.fullmatch(text):
        raise RecipeError(
            f'{row.place}: "{name}" = {text}: is this a decimal comma, or does it separate '
            f"thousands? Write {text.replace(',', '.', 1)} or {text.replace(',', '')}"
        )
    is_decimal_comma = FRACTION.fullmatch(text) is not None
    try:
        return float(text.replace(",", ".") if is_decimal_comma else text)
    except ValueError as error:
        raise RecipeError(
            f'{row.place}: "{name}" = {show_text(text)}: expected a number (task.score_field)'
        ) from error


def _label_text(row: FileRow, style: Style) -> str:
    """Return a row's label as text; "" if it has none.

    In a table every value is text. Tables write class 1 as "1.0" if other rows have no label.

    Raises:
        RecipeError: the label is a number such as 0.25, which can't be a class.
    """
    label = row.values.get("label")
    if label is None or label != label:  # null or NaN
        return ""
    if isinstance(label, Decimal):
        label = f"{label:f}"
    if not isinstance(label, float | str):
        label = row.field("label", (str, int, bool))
    text = str(label).strip()
    if isinstance(label, bool) and text.lower() in style.labels:
        return text.lower()
    if text in style.labels or not (FRACTION.fullmatch(text) or isinstance(label, float)):
        return text
    number = float(text.replace(",", "."))
    if not isfinite(number) or not number.is_integer():
        raise RecipeError(
            f'{row.place}: "label" is a number with a fraction, so it looks like a score: to '
            'predict it, set task.score_field = "label"; if it is a class, list all classes in '
            "task.labels"
        )
    return str(int(number))


# a text without a prompt: the model learns all of its tokens
TEXT = Form("text", ("text",), lambda row, style: Example("", row.field("text", str)))
PREFERENCES = Form(
    "prompt, chosen, rejected",
    (CHOSEN, REJECTED),
    _preference,
    may_be_null=(CHOSEN, REJECTED),  # such a row fits, and reading it reports the error
)
SCORED = Form("text, score", ("text",), _score)
LABELLED = Form("text, label", ("text", "label"), _label, may_be_null=("label",))
FORMS = (
    Form("prompt, options, gold", ("options", "prompt", "gold"), _options),
    Form("prompt, completion", ("prompt", "completion|response"), _completion),
    Form("instruction, input, output", ("instruction", "output|response"), _instruction),
    Form("messages", ("messages",), lambda row, style: read_chat(row, style.chat)),
    Form("conversations", ("conversations",), lambda row, style: read_chat(row, style.chat)),
    LABELLED,
    TEXT,
)
# if task.fields names one of these, a row with a preferred answer is read as language instead
LANGUAGE_FIELDS = frozenset(("completion", "response", "output", "messages", "text"))


@dataclass(frozen=True)
class SourceLine:
    """An example from a file, with its row's fields for a partition."""

    example: Any
    row: FileRow


class FormReader:
    """Reads files whose rows are all of one form, and remembers what is wrong with them.

    Args:
        style: how rows become examples.
        fields: the rows' names of a form's fields, if they differ.
    """

    def __init__(self, style: Style, fields: Mapping[str, str]) -> None:
        self.style = style
        self.fields = fields
        self.form: Form | None = None  # the form of the first row
        self.first = ""
        # how many rows are left out, by reason
        self.unusable: Counter[str] = Counter()
        self.bad: list[str] = []  # one error message for each malformed row
        # learnt completions whose label is false
        self.unwanted = 0
        # texts that are learnt as language although they have a score
        self.scored_texts = 0
        # pairs in which both answers begin with their prompt
        self.repeated_prompts = 0
        # rows of prompts without a chat template, by the field of a chat that they have
        self.unused: Counter[str] = Counter()
        # whether null fields of objects were left out that the `datasets` library adds
        self.had_fillers = False

    def read_rows(self, rows: Iterable[FileRow | RecipeError]) -> list[SourceLine]:
        """Return the examples of a file's rows.

        Raises RecipeError if the file as a whole is unreadable.
        """
        lines = []
        rows, had_fillers = without_fillers(list(rows))
        self.had_fillers |= had_fillers
        for row in rows:
            try:
                if isinstance(row, RecipeError):
                    raise row
                row = self._renamed(row)
                for name, value in row.values.items():
                    size = 0
                    if isinstance(value, str | list):
                        size = len(str(value))
                    if size > LONGEST:
                        raise RecipeError(
                            f'{row.place}: "{name}" has {size:,} characters, but the most is '
                            f"{LONGEST:,}; split it"
                        )
                form = self._form_of(row)
                example = form.make_example(row, self.style)
                self._count_remarkable(form, example, row)
                if isinstance(example, Example) and not example.response.strip():
                    example = NO_ANSWER
                if isinstance(example, Unusable):
                    self.unusable[example.reason] += 1
                else:
                    lines.append(SourceLine(example, row))
            except RecipeError as error:
                self.bad.append(str(error))
        return lines

    def _count_remarkable(self, form: Form, example: Made, row: FileRow) -> None:
        """Count a row's oddities, which are not errors but may be mistakes."""
        first = example.chosen if isinstance(example, Preference) else example
        if isinstance(first, Example) and not isinstance(first, Chat) and form is not TEXT:
            self.unused.update(name for name in CHAT_FIELDS if row.values.get(name))
        if isinstance(example, Example):
            self.unwanted += row.values.get("label") is False
            self.scored_texts += form is TEXT and isinstance(row.values.get("score"), float)
        elif isinstance(example, Preference) and (prompt := example.chosen.prompt.strip()):
            answers = (example.chosen.response, example.rejected.response)
            self.repeated_prompts += all(one.lstrip().startswith(prompt) for one in answers)

    def check(self, hint: str = "") -> None:
        """Raise RecipeError if rows are malformed. One message reports them all, with the hint if
        there are several.
        """
        if not self.bad:
            return
        places: dict[str, list[str]] = {}  # by problem, because most rows have the same one
        for bad in self.bad:
            place, _, problem = bad.partition(": ")
            places.setdefault(problem, []).append(place)
        problems = [
            f"{listed(lines, SHOWN)}: {problem}" for problem, lines in list(places.items())[:SHOWN]
        ]
        rest = len(self.bad) - sum(map(len, list(places.values())[:SHOWN]))
        problems += [f"and {rest:,} more"] if rest else []
        many = ""
        if len(self.bad) > 1:
            many = f"{len(self.bad):,} bad lines{hint}: "
        raise RecipeError(many + "; ".join(problems))

    def notes(self) -> list[str]:
        """Return notes about what was left out."""
        notes = []
        if self.bad:
            notes = [f"{len(self.bad):,} bad lines skipped, the first: {self.bad[0]}"]
        left_out = [
            f"{count:,} examples left out ({reason})" for reason, count in self.unusable.items()
        ]
        if self.unwanted:
            notes.append(
                f'{self.unwanted:,} examples have "label" = false: if this marks unwanted '
                "answers, remove them, because they are learnt"
            )
        if self.scored_texts:
            notes.append(
                f'{self.scored_texts:,} texts have a "score", which is not used (task.score_field '
                '= "score" predicts it instead of learning the text)'
            )
        notes += [
            f'{count:,} rows have "{name}", which is not used, because their prompts are no chats '
            '(task.template = "chat" uses it)'
            for name, count in self.unused.items()
        ]
        if self.had_fillers:
            notes.append(
                "objects have null fields that other rows need, as the datasets library adds them "
                "(to_json, list): they are left out"
            )
        if self.repeated_prompts:
            notes.append(
                f'{self.repeated_prompts:,} pairs repeat their prompt in "{CHOSEN}" and '
                f'"{REJECTED}", so the model sees it twice: remove it there or from the prompt'
            )
        return [*notes, *left_out]

    def _renamed(self, row: FileRow) -> FileRow:
        """Return a row that has its fields also under the form's names."""
        for name, column in self.fields.items():
            if column not in row.values:
                raise RecipeError(
                    f'{row.place}: no "{column}", which task.fields names for "{name}"'
                )
        values = {name: row.values[column] for name, column in self.fields.items()}
        classes = {
            name: row.class_names[column]
            for name, column in self.fields.items()
            if column in row.class_names
        }
        return replace(
            row,
            values={**row.values, **values},
            class_names={**row.class_names, **classes},
        )

    def _forms_for(self, row: FileRow) -> tuple[Form, ...]:
        """Return the forms that are possible for a row's fields."""
        if are_preferences(row.values) and not LANGUAGE_FIELDS.intersection(self.fields):
            return (PREFERENCES,)
        if "text_pair" in row.values:  # then the row's text is not a text by itself
            return tuple(form for form in FORMS if form is not TEXT and form.fits(row))
        return FORMS

    def _form_of(self, row: FileRow) -> Form:
        """Return the first form whose fields the row has; if there is none, the first whose first
        field it has.
        """
        if self.style.score_field is not None:
            self.form = SCORED
            return SCORED
        forms = self._forms_for(row)
        whole = next((form for form in forms if form.fits(row)), None)
        if self.form is None:
            partly = next((form for form in forms if form.fits(row, 1)), None)
            if ranked_fields(row.values):  # a prompt without a completion, but with two answers
                partly = None
            self.form, self.first = whole or partly, row.place
        if self.form is None:
            known_forms = "; ".join(form.fields for form in (*FORMS, PREFERENCES))
            row_fields = show_text(", ".join(row.values)) or "no field"
            raise RecipeError(
                (
                    f"{row.place}: its fields ({row_fields}) are not one of the known forms: "
                    f"{known_forms}"
                )
                + suggest_fields(row.values)
            )
        if whole not in (None, self.form):
            raise RecipeError(
                f"{row.place}: it has {whole.fields}, but {self.first} has {self.form.fields}; "
                "all lines must have the same form"
            )
        # also for a row that lacks a field, because reading it will name the field
        return self.form


def examples_in(
    sets: Mapping[str, Iterable[Any]],
    labels: Sequence[str] = (),
    score_field: str | None = None,
) -> tuple[dict[str, list[Any]], list[str]]:
    """Return the examples of rows in memory, by the names of their sets, and notes about what was
    left out.

    Args:
        sets: rows by the name of their set. A row is a dict in one of the `FORMS`, or a text, which
            is learnt in full. Rows that are examples already are kept as they are.
        labels: the labels that a text may have, in order; empty: those found in the rows.
        score_field: the field with the number to predict; None: no number is predicted.

    Raises:
        RecipeError: a row is malformed, or has another form than the others.
    """
    reader = FormReader(Style(labels=tuple(labels), score_field=score_field), {})
    examples, lines = dict[str, list[Any]](), dict[str, list[SourceLine]]()
    for name, rows in sets.items():
        if is_dataset(rows):
            lines[name] = reader.read_rows(dataset_rows(name, rows))
            continue
        examples[name] = list(rows)
        if examples[name] and isinstance(examples[name][0], str | Mapping):
            fields = enumerate(
                {"text": row} if isinstance(row, str) else plain_values(row)
                for row in examples[name]
            )
            lines[name] = reader.read_rows(FileRow(f"{name}, row {i}", row) for i, row in fields)
    reader.check()
    parts, notes = list(lines.values()), reader.notes()
    if reader.form is LABELLED:
        parts = add_all_labels(parts, labels)
        if not labels:
            notes += odd_labels(list(chain.from_iterable(parts)))
    for name, part in zip(lines, parts, strict=True):
        examples[name] = [line.example for line in part]
    return examples, notes


def plain_values(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with plain numbers in place of numpy's and of tensors with one element."""
    return {
        name: value.item() if getattr(value, "shape", None) == () else value
        for name, value in row.items()
    }


def find_repeats(
    training: Sequence[SourceLine], held_out: Sequence[SourceLine], description: str
) -> list[str]:
    """Return a note about held-out examples that the training data also has.

    Differences in whitespace are ignored.
    """
    training_lines: Mapping[tuple[str, ...], str] = {
        _content(line.example): line.row.place for line in reversed(training)
    }
    repeats = [
        (line.row.place, training_lines[key])
        for line in held_out
        if (key := _content(line.example)) in training_lines
    ]
    if not repeats:
        return []
    places = "; ".join(
        f"{held_out_line} is {training_line}" for held_out_line, training_line in repeats[:SHOWN]
    )
    rest = ""
    if len(repeats) > SHOWN:
        rest = f"; and {len(repeats) - SHOWN:,} more"
    return [
        f"{len(repeats):,} of {len(held_out):,} {description} examples are also in the training "
        f"data: {places}{rest}"
    ]


def _content(example: Example | Choice | Preference | Score) -> tuple[str, ...]:
    parts: tuple[str, ...]
    if isinstance(example, Preference):
        parts = example.chosen.prompt, example.chosen.response, example.rejected.response
    elif isinstance(example, Score):
        parts = example.text, example.pair
    elif isinstance(example, Choice):
        parts = example.prompt, *example.options
    else:
        parts = example.prompt, example.response
    return tuple(" ".join(part.split()) for part in parts)


def add_all_labels(
    parts: Sequence[Sequence[SourceLine]], labels_given: Sequence[str]
) -> list[list[SourceLine]]:
    """Return the lines with all labels as options.

    Args:
        parts: lines in several parts, each line with its own label as the only option.
        labels_given: the recipe's labels; empty: those that the data set declares, in its order, or
            the labels found in the lines, sorted.

    Raises:
        RecipeError: fewer than two different labels.
    """
    lines = list(chain.from_iterable(parts))
    labels = tuple(f" {label}" for label in labels_given or declared_labels(lines)) or tuple(
        sorted({line.example.options[0] for line in lines})
    )
    if len(labels) < 2 and lines:
        problem = f"all labels are {labels[0].strip()!r}; at least two different labels are needed"
        raise RecipeError(f"{lines[0].row.place}: {problem}")

    def add_options(line: SourceLine) -> SourceLine:
        return replace(
            line,
            example=replace(
                line.example, options=labels, gold=labels.index(line.example.options[0])
            ),
        )

    return [list(map(add_options, part)) for part in parts]


def odd_labels(lines: Sequence[SourceLine]) -> list[str]:
    """Return notes about labels that may be a mistake.

    Args:
        lines: lines whose examples have all labels as options.
    """
    if not lines:
        return []
    labels = [option.strip() for option in lines[0].example.options]
    notes = []
    alike: dict[str, list[str]] = {}
    for label in labels:
        alike.setdefault(label.casefold().lstrip("+0") or "0", []).append(label)
    twins = [" and ".join(map(show_text, group)) for group in alike.values() if len(group) > 1]
    if twins:
        notes.append(
            f"{listed(twins, SHOWN)} are different labels; if they mean the same class, write them "
            "in the same way"
        )
    missing = [label for label in labels if label.casefold() in MISSING]
    if missing:
        notes.append(
            f"taken for classes: {listed(missing, SHOWN)}; if a text has no label, leave its field "
            "empty"
        )
    if len(labels) > max(MANY_CLASSES, len(lines) / 2):
        notes.append(
            f"there are {len(labels):,} classes for {len(lines):,} texts: is the label a score? "
            'Then set task.score_field = "label"'
        )
    return notes


def declared_labels(lines: Iterable[SourceLine]) -> tuple[str, ...]:
    """Return the class names that a data set declares for its labels; empty if its parts differ."""
    declared = {line.row.class_names.get("label", ()) for line in lines}
    if len(declared) == 1:
        return declared.pop()
    return ()
