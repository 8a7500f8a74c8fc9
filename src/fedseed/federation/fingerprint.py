"""Fingerprints of the tokens that a party makes of texts.

Versions of transformers and tokenizers read the same files differently, and a party that makes
other tokens of the same texts trains on other data. Parties compare their fingerprints when they
join. Nothing here imports torch: the coordinator compares, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedseed.text import show_text

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
    template: str  # digest of fixed chats as the template writes them; "": there is no template
    # of fedseed, transformers and tokenizers; parties that differ in these alone make the same
    # tokens
    versions: Mapping[str, str] = field(default_factory=dict, compare=False, hash=False)

    def to_json(self) -> dict[str, str]:
        """Return the fingerprint as texts by name."""
        return {"tokens": self.tokens, "template": self.template, **self.versions}

    @classmethod
    def from_json(cls, texts: Mapping[str, str]) -> "Fingerprint":
        """Return the inverse of `to_json`; a missing digest becomes ""."""
        versions = {name: version for name, version in texts.items() if name not in COMPARED}
        return cls(texts.get("tokens", ""), texts.get("template", ""), versions)

    def difference_from(self, run: "Fingerprint") -> str | None:
        """Describe how this party's tokens differ from the run's; None: they do not."""
        names = [name for name in COMPARED if getattr(self, name) != getattr(run, name)]
        if not names:
            return None
        differences = " and ".join(COMPARED[name] for name in names)
        return (
            f"{differences}: {self.describe_versions()} at this party, {run.describe_versions()} "
            f"in the run; {REMEDY}"
        )

    def version_difference(self, run: "Fingerprint") -> str | None:
        """Describe how this party's versions differ from the run's; None: they do not."""
        names = [
            name
            for name in dict.fromkeys([*self.versions, *run.versions])
            if self.versions.get(name) != run.versions.get(name)
        ]
        if not names:
            return None
        return f"{self.describe_versions(names)}, where the run has {run.describe_versions(names)}"

    def describe_versions(self, names: list[str] | None = None) -> str:
        """Return versions as a text: of all libraries, or of some."""
        libraries = list(self.versions) if names is None else names
        descriptions = [
            f"{show_text(name, MOST_VERSION)} "
            f"{show_text(self.versions.get(name, '?'), MOST_VERSION)}"
            for name in libraries
        ]
        return ", ".join(descriptions) or "unknown versions"
