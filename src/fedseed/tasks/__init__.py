"""Data: what each client of a federation holds. Free of torch. A new task is a file, a line here and a test."""

from fedseed.registry import Registry, check_class, name_of
from fedseed.tasks.base import Task
from fedseed.tasks.cifar import CIFAR10Task, CIFAR100Task
from fedseed.tasks.cloze import MNLITask, RTEMaskTask, SNLITask, SST2MaskTask, SST5Task, TRECTask
from fedseed.tasks.digits import DigitsTask
from fedseed.tasks.instruction_data import AlpacaTask, CodeAlpacaTask, DollyTask, GSM8KTask
from fedseed.tasks.instructions import InstructionsTask
from fedseed.tasks.mezo import (
    BoolQTask,
    CBTask,
    COPATask,
    DROPTask,
    MultiRCTask,
    ReCoRDTask,
    RTETask,
    SQuADTask,
    SST2Task,
    WICTask,
    WSCTask,
)
from fedseed.tasks.natural_instructions import NaturalInstructionsTask
from fedseed.tasks.own import FilesTask
from fedseed.tasks.words import WordsTask

MEZO: tuple[type[Task], ...] = (
    SST2Task,
    RTETask,
    CBTask,
    BoolQTask,
    WSCTask,
    WICTask,
    MultiRCTask,
    COPATask,
    ReCoRDTask,
    SQuADTask,
    DROPTask,
)
CLOZE: tuple[type[Task], ...] = (SST2MaskTask, SST5Task, SNLITask, MNLITask, RTEMaskTask, TRECTask)
INSTRUCTIONS: tuple[type[Task], ...] = (DollyTask, AlpacaTask, CodeAlpacaTask, GSM8KTask)
TASKS: tuple[type[Task], ...] = (
    InstructionsTask,
    FilesTask,
    NaturalInstructionsTask,
    *INSTRUCTIONS,
    *MEZO,
    *CLOZE,
    WordsTask,
    DigitsTask,
    CIFAR10Task,
    CIFAR100Task,
)

REGISTRY: Registry[type[Task]] = Registry(
    "task", "fedseed.tasks", ((str(name_of(task)), task) for task in TASKS), lambda thing: check_class(thing, Task)
)

__all__ = [
    "REGISTRY",
    "TASKS",
    "CIFAR10Task",
    "CIFAR100Task",
    "DigitsTask",
    "InstructionsTask",
    "NaturalInstructionsTask",
    "SST2Task",
    "Task",
    "WordsTask",
]
