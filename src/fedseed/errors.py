"""The errors a user of fedseed can meet, each with what to do about it in its text."""


class FedseedError(Exception):
    """Base of all errors raised on purpose by fedseed."""


class RecipeError(FedseedError):
    """A recipe or a command line is wrong: the process ends with exit code 2."""


class MessageError(FedseedError):
    """A message (plan, update or step) was refused; the text says why."""


class OrbitError(FedseedError):
    """An orbit can't be read, does not fit the base, or is damaged; the text says where."""


class StorageError(FedseedError):
    """A file can't be written: the disk is full, the folder read-only; nothing is left half-written."""


class NonFiniteError(FedseedError):
    """A loss or a value on a client became NaN or infinite: that client sends nothing."""


class NetworkError(FedseedError):
    """The NATS server can't be reached or refuses, or the other side does; the text says which and why."""
