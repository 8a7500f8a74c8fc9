"""Progress that remembers what it was told."""

from fedseed.reports.progress import Silent


class Heard(Silent):
    """The warnings, in order."""

    def __init__(self):
        self.warnings = []

    def warn(self, text):
        self.warnings.append(text)
