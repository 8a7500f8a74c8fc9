"""Data: what each client of a federation holds. Free of torch. A new task is a file, a line here and a test."""

from fedseed.tasks.base import Task
from fedseed.tasks.instructions import InstructionsTask
from fedseed.tasks.natural_instructions import NaturalInstructionsTask
from fedseed.tasks.sst2 import SST2Task

TASKS: tuple[type[Task], ...] = (InstructionsTask, NaturalInstructionsTask, SST2Task)

__all__ = ["TASKS", "InstructionsTask", "NaturalInstructionsTask", "SST2Task", "Task"]
