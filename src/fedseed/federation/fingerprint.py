"""What a party makes of texts, in a few digests: who makes other tokens of the same texts trains on
other data.

Versions of transformers and tokenizers read the same files differently. Parties compare these
fingerprints when they join. Nothing here imports torch: the coordinator compares, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedseed.text import shown

COMPARED = {
    "tokens": "the same texts become other tokens",
    "template": "the chat template writes the same chat differently",
}
REMEDY = "install the same versions at all parties, or mend the base's tokenizer files"
MOST_VERSION = 40  # characters of a version that is shown


@dataclass(frozen=True)
class Fingerprint:
    """A party's fingerprint."""

    tokens: str  # digest of the token ids of a fixed set of texts, in hex
    template: str  # digest of fixed chats as its template writes them; "": it has no template
    # of fedseed, transformers and tokenizers; who differs in these alone makes the same tokens
    versions: Mapping[str, str] = field(default_factory=dict, compare=False, hash=False)

    def to_json(self) -> dict[str, str]:
        """Return the fingerprint as texts by name."""
        return {"tokens": self.tokens, "template": self.template, **self.versions}

    @classmethod
    def from_json(cls, said: Mapping[str, str]) -> "Fingerprint":
        """Return the inverse of `to_json`; what is missing is ""."""
        versions = {name: text for name, text in said.items() if name not in COMPARED}
        return cls(said.get("tokens", ""), said.get("template", ""), versions)

    def difference_from(self, run: "Fingerprint") -> str | None:
        """Return what this party makes differently from the run's others; None: nothing."""
        names = [name for name in COMPARED if getattr(self, name) != getattr(run, name)]
        if not names:
            return None
        what = " and ".join(COMPARED[name] for name in names)
        return (
            f"{what}: {self.describe_versions()} at this party, {run.describe_versions()} in the "
            f"run; {REMEDY}"
        )

    def version_difference(self, run: "Fingerprint") -> str | None:
        """Return which versions differ from the run's; None: none does."""
        names = [
            name
            for name in dict.fromkeys([*self.versions, *run.versions])
            if self.versions.get(name) != run.versions.get(name)
        ]
        if not names:
            return None
        return f"{self.describe_versions(names)}, where the run has {run.describe_versions(names)}"

    def describe_versions(self, names: list[str] | None = None) -> str:
        """Return versions for a person: all, or those of some libraries."""
        chosen = list(self.versions) if names is None else names
        said = [
            f"{shown(name, MOST_VERSION)} {shown(self.versions.get(name, '?'), MOST_VERSION)}"
            for name in chosen
        ]
        return ", ".join(said) or "unknown versions"
