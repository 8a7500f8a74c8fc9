"""Progress that remembers what it was told."""

from fedseed.reports.progress import Silent


class Heard(Silent):
    """The warnings, in order, and all that was said."""

    def __init__(self):
        self.warnings, self.said = [], []

    def note(self, text):
        self.said.append(text)

    def warn(self, text):
        self.warnings.append(text)
        self.said.append(text)
