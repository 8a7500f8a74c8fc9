"""Progress that remembers what it was told."""

from fedseed.reports.progress import Progress


class Heard(Progress):
    """The warnings, in order, and all that was said."""

    def __init__(self):
        self.warnings, self.said = [], []

    def note(self, text):
        self.said.append(text)

    def warn(self, text):
        self.warnings.append(text)
        self.said.append(text)


class Ending(Heard):
    """The same, that ends a coordinator after a round, as Ctrl-C does."""

    def __init__(self, number):
        super().__init__()
        self.number = number

    def round(self, line):
        if line.round == self.number:
            raise KeyboardInterrupt
