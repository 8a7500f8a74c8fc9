"""Checks that a run's orbit or weights end with the newest round that the run's other files record.

An orbit whose last records were cut off is still a valid file, with fewer steps. The orbit does not
show that steps are missing, but the run's other files do. This module does not need torch.
"""

from pathlib import Path
from typing import NamedTuple

from fedseed.errors import FedseedError, OrbitError
from fedseed.orbit import Header
from fedseed.privacy import mechanism_of
from fedseed.reports.results import read_lines, read_summary


class Ending(NamedTuple):
    """The newest round that one of a run's files records."""

    file: Path  # the file with the record
    round: int  # the newest round
    # digest of the weights after this round; None: the file has none
    digest: str | None
    is_final: bool  # whether the run ended with this round

    def check(self, path: Path, header: Header, last: int, digest: str | None) -> None:
        """Raise OrbitError if an orbit or a file of weights is not the one that the run ended with.

        Args:
            path: the orbit or the file of weights.
            header: the header of that file.
            last: the last round that the file has.
            digest: of the weights after that round; None: not known.
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
        remedies.append(
            f"use --upto {last} (upto={last} in Python) to accept round {last} as the end"
        )
        if path.suffix == ".orbit":
            remedies.append(
                f"write the shorter orbit to a new file with `fedseed orbit rollback {path} --to "
                f"{last} --out NEW.orbit`"
            )
        ways_out = ", or ".join(["Put the right file in its place", *remedies])
        raise OrbitError(f"{path}: {problem}. {ways_out}")


def can_be_made_again(path: Path, header: Header) -> bool:
    """Return whether a run may make again the steps that its orbit has lost.

    Not in a private run: new noise would spend privacy that no account has counted.
    """
    return path.suffix == ".orbit" and mechanism_of(header.method) is None


def read_ending(folder: Path | None) -> Ending | None:
    """Return the newest round on record in a run's folder; None if there is none.

    Read it before the orbit, because a running run adds to the orbit first.

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
