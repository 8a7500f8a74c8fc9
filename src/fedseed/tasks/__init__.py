"""Tasks: the data that each client of a federation holds. This package does not need torch.

A new task needs a file, a line here and a test.
"""

from fedseed.registry import Registry, check_class, name_of
from fedseed.tasks.base import Task
from fedseed.tasks.instruction_data import AlpacaTask, CodeAlpacaTask, DollyTask, GSM8KTask
from fedseed.tasks.instructions import InstructionsTask
from fedseed.tasks.natural_instructions import NaturalInstructionsTask
from fedseed.tasks.own import FilesTask
from fedseed.tasks.pictures import CIFAR10Task, CIFAR100Task, DigitsTask
from fedseed.tasks.text_tasks import CLOZE, MEZO
from fedseed.tasks.words import WordsTask

TASKS: tuple[type[Task], ...] = (
    InstructionsTask,
    FilesTask,
    NaturalInstructionsTask,
    DollyTask,
    AlpacaTask,
    CodeAlpacaTask,
    GSM8KTask,
    *MEZO,
    *CLOZE,
    WordsTask,
    DigitsTask,
    CIFAR10Task,
    CIFAR100Task,
)

REGISTRY: Registry[type[Task]] = Registry(
    "task",
    "fedseed.tasks",
    ((str(name_of(task)), task) for task in TASKS),
    lambda thing: check_class(thing, Task),
)

__all__ = [
    "CLOZE",
    "MEZO",
    "REGISTRY",
    "TASKS",
    "CIFAR10Task",
    "CIFAR100Task",
    "DigitsTask",
    "InstructionsTask",
    "Task",
]
