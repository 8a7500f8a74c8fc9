"""Fingerprints of a party's tokenizer: digests of the tokens that it makes of fixed texts.

Different versions of transformers and tokenizers can make different tokens from the same files and
texts, and other tokens mean other training data. So fingerprints are compared when parties join.
This module does not import torch, because the coordinator uses it as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedseed.text import show_text

COMPARED = {
    "tokens": "the same texts have different tokens",
    "template": "the chat template writes the same chat differently",
}
REMEDY = "install the same versions at all parties, or repair the base's tokenizer files"
MOST_VERSION = 40  # the most characters of a version that are shown


@dataclass(frozen=True)
class Fingerprint:
    """A party's fingerprint."""

    tokens: str  # digest of the token ids of a fixed set of texts, in hex
    template: str  # digest of fixed chats written by the chat template; "": there is no template
    # of fedseed, transformers and tokenizers; parties may differ in these and still make the same
    # tokens
    versions: Mapping[str, str] = field(default_factory=dict, compare=False, hash=False)

    def to_json(self) -> dict[str, str]:
        """Return the fingerprint as a table of texts."""
        return {"tokens": self.tokens, "template": self.template, **self.versions}

    @classmethod
    def from_json(cls, texts: Mapping[str, str]) -> "Fingerprint":
        """Return the inverse of `to_json`; a missing digest becomes ""."""
        versions = {name: version for name, version in texts.items() if name not in COMPARED}
        return cls(texts.get("tokens", ""), texts.get("template", ""), versions)

    def difference_from(self, run: "Fingerprint") -> str | None:
        """Describe how this party's tokens differ from the run's; None if they do not."""
        names = [name for name in COMPARED if getattr(self, name) != getattr(run, name)]
        if not names:
            return None
        differences = " and ".join(COMPARED[name] for name in names)
        return (
            f"{differences}: {self.describe_versions()} at this party, {run.describe_versions()} "
            f"in the run; {REMEDY}"
        )

    def version_difference(self, run: "Fingerprint") -> str | None:
        """Describe how this party's versions differ from the run's; None if they do not."""
        names = [
            name
            for name in dict.fromkeys([*self.versions, *run.versions])
            if self.versions.get(name) != run.versions.get(name)
        ]
        if not names:
            return None
        return f"{self.describe_versions(names)}, but the run has {run.describe_versions(names)}"

    def describe_versions(self, names: list[str] | None = None) -> str:
        """Return the versions of all or of some libraries, as text."""
        libraries = list(self.versions) if names is None else names
        descriptions = [
            f"{show_text(name, MOST_VERSION)} "
            f"{show_text(self.versions.get(name, '?'), MOST_VERSION)}"
            for name in libraries
        ]
        return ", ".join(descriptions) or "unknown versions"
