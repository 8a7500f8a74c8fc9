"""The newest round on record in a run's folder, which its orbit or weights must agree with.

An orbit whose last records were cut off between two of them is a whole file of fewer steps. Nothing
in it shows what is missing, but the run's other files do. Free of torch.
"""

from pathlib import Path
from typing import NamedTuple

from fedseed.errors import FedseedError, OrbitError
from fedseed.orbit import Header
from fedseed.privacy import mechanism_of
from fedseed.reports.results import read_lines, read_summary


class Ending(NamedTuple):
    """The newest round that one of a run's files has on record."""

    file: Path  # the file with the record
    round: int  # the newest round
    # of the weights after it; None: the file does not say
    digest: str | None
    is_final: bool  # whether the run has ended there

    def check(self, path: Path, header: Header, last: int, digest: str | None) -> None:
        """Raise OrbitError if an orbit, or weights, are not those that the run ended with.

        Args:
            path: the file that is looked at.
            header: what the run is.
            last: the last round that the file has.
            digest: of the weights after it; None: it is not known.
        """
        file_says = (
            f"{self.file} says that the run {'ended after' if self.is_final else 'has reached'}"
        )
        if last < self.round:
            problem = (
                f"its last round is {last}, and {file_says} round {self.round}: steps are missing"
            )
        elif self.is_final and last > self.round:
            problem = (
                f"its last round is {last}, and {file_says} round {self.round}: another run's file"
            )
        elif self.is_final and None not in (digest, self.digest) and digest != self.digest:
            problem = (
                f"the weights after round {last} have the digest {digest}, and {file_says} round "
                f"{self.round} with {self.digest}: another run's file"
            )
        else:
            return
        remedies = []
        if last < self.round and can_be_made_again(path, header):
            remedies.append("make the missing rounds again with `fedseed run RECIPE --resume`")
        remedies.append(f"say --upto {last} (upto={last} in Python) to take round {last} as it is")
        if path.suffix == ".orbit":
            remedies.append(
                f"write it to an orbit of its own with `fedseed orbit rollback {path} --to {last} "
                "--out NEW.orbit`"
            )
        ways_out = ", or ".join(["Put the right file there", *remedies])
        raise OrbitError(f"{path}: {problem}. {ways_out}")


def can_be_made_again(path: Path, header: Header) -> bool:
    """Return whether a run may make again the steps that its orbit has lost.

    In a private run they would be drawn anew, which spends what no account knows of.
    """
    return path.suffix == ".orbit" and mechanism_of(header.method) is None


def read_ending(folder: Path | None) -> Ending | None:
    """Return the newest round on record in a run's folder; None if there is none.

    Read it before the orbit: a run that goes on adds to the orbit first.

    Raises:
        FedseedError: summary.json or metrics.jsonl is damaged.
    """
    if folder is None:
        return None
    file = folder / "summary.json"
    if file.is_file():
        try:
            summary = read_summary(folder)
            return Ending(file, int(summary["rounds"]), summary.get("weights_digest"), True)
        except (ValueError, LookupError, TypeError) as error:
            raise FedseedError(f"{file}: not a run's summary, or damaged: {error}") from error
    file = folder / "metrics.jsonl"
    if file.is_file():
        newest = max((line.round for line in read_lines(folder)), default=0)
        return Ending(file, newest, None, False)
    return None
