"""Natural Instructions v2.8 from its original folder, with a client for each train task.

    splits/default/train_tasks.txt, test_tasks.txt    one task name in each line
    tasks/<name>.json                                 {"Definition": [text],
                                                       "Instances": [{"input", "output": [text]}]}

The defaults are those of FedKSeed (Qin et al., ICML 2024, Appendix G.1, and its code): the first
definition, the first output, Alpaca's template, 20% of each train task's instances, and max(20, 2%)
of each test task's. The papers count 738 clients and 119 test tasks in the whole of v2.8.
"""

from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Annotated, ClassVar, Literal
from zlib import crc32

from pydantic import Field, PositiveInt

from fedseed.errors import RecipeError, plural
from fedseed.randomness import Domain, sample
from fedseed.randomness.stream import Seed
from fedseed.tasks.base import Task
from fedseed.tasks.data import ClientData, Example, TaskData
from fedseed.tasks.dealt import Share, share_of
from fedseed.tasks.files import FileRow, data_folder, read_json, read_text
from fedseed.tasks.prompts import alpaca_prompt

HINT = (
    "give the folder of Natural Instructions v2.8 (github.com/allenai/natural-instructions, tag "
    "v2.8), which holds splits/default and tasks"
)
# the least number of short enough instances of a train task; tasks with fewer are left out
FEWEST = 20
# the share of a test task to evaluate on, and the least number of its instances
TEST_FRACTION, TEST_INSTANCES = 0.02, 20
# separate draws for clients and for instances
WHICH_TASKS = (1 << 32) - 1


class NaturalInstructionsTask(Task):
    """Settings of the "natural-instructions" task.

    Args:
        path: the folder with the original files.
        clients: number of train tasks that become clients, drawn at random; None: all (738 in the
            papers).
        max_input_chars: instances whose input has at least this number of characters are left out,
            as in the published code.
        fraction: share of a train task's instances that its client gets (at least one instance).
        validation: share of each client's examples that are set aside for choosing settings (at
            least one, unless the share is 0, as in the papers).
        evaluate_on: "test", or "validation" while choosing settings.
        seed: seed for drawing instances and clients. It is separate from the run's seed, so that
            runs with different seeds have the same data.
    """

    name: Literal["natural-instructions"] = "natural-instructions"
    about: ClassVar[str] = (
        "Natural Instructions v2.8 from its original folder, one client for each train task"
    )

    path: str
    clients: PositiveInt | None = None
    max_input_chars: PositiveInt = 1024
    fraction: Annotated[float, Field(gt=0, le=1)] = 0.2
    validation: Share = 0.0
    evaluate_on: Literal["test", "validation"] = "test"
    seed: Seed = 0

    def load(self) -> TaskData:
        folder = data_folder(self.path, HINT)
        train, about_train = self._split(folder, "train", FEWEST, self.fraction, 1)
        test, about_test = self._split(folder, "test", 1, TEST_FRACTION, TEST_INSTANCES)
        if not train or not test:
            raise RecipeError(
                f'task.path = "{self.path}": no usable data is left ({about_train}; {about_test})'
            )
        notes = [about_train, about_test]
        if self.clients is not None:
            if self.clients > len(train):
                raise RecipeError(
                    f"task.clients = {self.clients}: there is only data for "
                    f"{plural(len(train), 'train task')}"
                )
            notes.append(f"{plural(self.clients, 'client')} of {plural(len(train), 'train task')}")
            train = [
                train[i]
                for i in sample(self.seed, Domain.PARTITION, len(train), self.clients, WHICH_TASKS)
            ]
        if self.evaluate_on == "validation" and not self.validation:
            raise RecipeError(
                'task.evaluate_on = "validation": task.validation = 0 leaves no examples for it'
            )
        clients, validation = [], []
        for name, examples in train:
            count = share_of(self.validation, len(examples))
            if count >= len(examples):
                raise RecipeError(
                    f"task.validation = {self.validation}: this leaves a client without examples"
                )
            validation += examples[:count]
            clients.append(ClientData(name, examples[count:], [name] * (len(examples) - count)))
        example_text = validation
        if self.evaluate_on != "validation":
            example_text = list(chain.from_iterable(examples for _, examples in test))
        return TaskData(clients, {"": example_text}, validation, tuple(notes))

    def _split(
        self, folder: Path, split: str, fewest: int, fraction: float, at_least: int
    ) -> tuple[list[tuple[str, list[Example]]], str]:
        """Draw instances of each task that has at least `fewest` short ones, and return them with a
        note about what was left out.
        """
        path = folder / "splits" / "default" / f"{split}_tasks.txt"
        names = Counter(read_text(path, HINT).split())
        if not names:
            raise RecipeError(f"{path}: it does not list any task")
        name, times = names.most_common(1)[0]
        if times > 1:
            raise RecipeError(f"{path}: it lists {name} {times} times")
        tasks, total, long = [], 0, 0
        for name in names:
            task = read_json(folder / "tasks" / f"{name}.json", "splits/default lists this task")
            instances = [
                (one.field("input", str), _first(one, "output"))
                for one in task.records("Instances")
            ]
            definition = _first(task, "Definition")
            short = [instance for instance in instances if len(instance[0]) < self.max_input_chars]
            total, long = total + len(instances), long + len(instances) - len(short)
            if len(short) < fewest:
                continue
            count = min(len(short), max(at_least, int(fraction * len(short))))
            # seeded by the task's name, so that the draw does not depend on which other tasks are
            # listed
            sampled = sample(self.seed, Domain.PARTITION, len(short), count, crc32(name.encode()))
            tasks.append(
                (
                    name,
                    [Example(alpaca_prompt(definition, short[i][0]), short[i][1]) for i in sampled],
                )
            )
        return tasks, (
            f"{split}: {len(names) - len(tasks)} of {len(names)} tasks left out (fewer than "
            f"{fewest} usable instances), {long:,} of {total:,} instances left out (input of "
            f"{self.max_input_chars:,} characters or more); {plural(len(tasks), 'task')} "
            f"give{'s' if len(tasks) == 1 else ''} "
            f"{plural(sum(len(sampled) for _, sampled in tasks), 'example')}"
        )


def _first(record: FileRow, name: str) -> str:
    """Return the first of a field's texts."""
    texts = record.field(name, list)
    if not texts or not isinstance(texts[0], str):
        raise RecipeError(f'{record.place}: "{name}" must be a list that begins with a text')
    return texts[0]
