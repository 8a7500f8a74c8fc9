"""Reading rows into examples: all of one form, with one report of all that is wrong, and what is there twice."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fedseed.errors import RecipeError
from fedseed.tasks.data import Choice, Example
from fedseed.tasks.files import Record
from fedseed.tasks.forms import FORMS, Form, Made, Style, ToLabel, form_of
from fedseed.text import shown

SHOWN = 5  # bad lines and repeated examples that are named


@dataclass(frozen=True)
class SourceLine:
    """An example of a file, with its fields for a partitioner."""

    made: Made
    row: Record


class Reader:
    """Reads files whose rows are all of one form, and remembers what is wrong with them.

    Args:
        style: what rows are put into.
        fields: the names that a form's fields have in the rows, where they are others.

    Attributes:
        form: that of the first row.
        empty: rows left out because there is nothing to answer.
        bad: what is wrong, a line for each malformed row.
    """

    def __init__(self, style: Style, fields: Mapping[str, str] | None = None) -> None:
        self.style = style
        self.fields = fields or {}
        self.form: Form | None = None
        self.first = ""
        self.empty = 0
        self.bad: list[str] = []

    def read(self, rows: Iterable[Record | RecipeError]) -> list[SourceLine]:
        """The examples of a file's rows. Raises RecipeError if it is unreadable as a whole."""
        lines = []
        for row in rows:
            try:
                if isinstance(row, RecipeError):
                    raise row
                row = self._renamed(row)
                made = self._form_of(row).read(row, self.style)
            except RecipeError as error:
                self.bad.append(str(error))
                continue
            if _nothing_in(made):
                self.empty += 1
            else:
                lines.append(SourceLine(made, row))
        return lines

    def check(self, on_bad_line: str) -> None:
        """Raise RecipeError if rows are malformed and are not to be skipped: all of them in one report."""
        if not self.bad or on_bad_line == "skip":
            return
        if len(self.bad) == 1:
            raise RecipeError(self.bad[0])
        rest = len(self.bad) - SHOWN
        raise RecipeError(
            f'{len(self.bad):,} bad lines (task.on_bad_line = "skip" leaves them out): '
            + "; ".join(self.bad[:SHOWN])
            + (f"; and {rest:,} more" if rest > 0 else "")
        )

    def notes(self) -> list[str]:
        """Lines about what was left out."""
        notes = [f"{len(self.bad):,} bad lines skipped, the first: {self.bad[0]}"] if self.bad else []
        return notes + ([f"{self.empty:,} examples left out (nothing to answer)"] if self.empty else [])

    def _renamed(self, row: Record) -> Record:
        """A row with its fields by the form's names, too."""
        for name, theirs in self.fields.items():
            if theirs not in row.values:
                raise RecipeError(f'{row.where}: no "{theirs}", which task.fields takes for "{name}"')
        return replace(row, values={**row.values, **{name: row.values[at] for name, at in self.fields.items()}})

    def _form_of(self, row: Record) -> Form:
        found = form_of(row)
        if self.form is not None and found is not None and found is not self.form and found.fits(row):
            raise RecipeError(
                f"{row.where}: it has {found.fields}, but {self.first} has {self.form.fields}; "
                "all lines must have the same form"
            )
        if self.form is None and found is None:
            known = "; ".join(form.fields for form in FORMS)
            has = shown(", ".join(row.values)) or "no field"
            raise RecipeError(f"{row.where}: it has {has}, which is none of the known forms: {known}")
        if self.form is None:
            self.form, self.first = found, row.where
        assert self.form is not None
        return self.form  # for a row that lacks a field, too: reading it says which one


def _nothing_in(made: Made) -> bool:
    return isinstance(made, Example) and not made.response.strip()


def repeated(training: Sequence[SourceLine], held_out: Sequence[SourceLine], what: str) -> list[str]:
    """A line about the held-out examples that are in the training data, too; whitespace makes no difference."""
    seen: Mapping[tuple[str, ...], str] = {_content(line.made): line.row.where for line in reversed(training)}
    found = [(line.row.where, seen[key]) for line in held_out if (key := _content(line.made)) in seen]
    if not found:
        return []
    named = "; ".join(f"{here} is {there}" for here, there in found[:SHOWN])
    rest = f"; and {len(found) - SHOWN:,} more" if len(found) > SHOWN else ""
    return [f"{len(found):,} of {len(held_out):,} {what} examples are in the training data, too: {named}{rest}"]


def _content(made: Made) -> tuple[str, ...]:
    if isinstance(made, ToLabel):
        parts: tuple[str, ...] = (made.text,)
    elif isinstance(made, Choice):
        parts = (made.prompt, *made.options)
    else:
        parts = (made.prompt, made.response)
    return tuple(" ".join(part.split()) for part in parts)
