"""Natural Instructions v2.8, from its original folder: every train task is a client.

    splits/default/train_tasks.txt, test_tasks.txt    a task's name per line
    tasks/<name>.json                                 {"Definition": [text], "Instances": [{"input", "output": [text]}]}

The defaults are those of FedKSeed (Qin et al., ICML 2024, Appendix G.1, and its code): first definition, first output,
Alpaca's template, 20% of a train task's instances, of a test task's max(20, 2%). On the whole of v2.8 the papers count
738 clients and 119 test tasks.
"""

from collections import Counter
from pathlib import Path
from typing import Annotated, ClassVar, Literal
from zlib import crc32

from pydantic import Field, PositiveInt

from fedseed.errors import RecipeError, plural
from fedseed.randomness import Domain, sample
from fedseed.randomness.seed import Seed
from fedseed.tasks.base import Task
from fedseed.tasks.data import ClientData, Example, TaskData
from fedseed.tasks.files import Record, data_folder, read_json, read_text
from fedseed.tasks.prompts import alpaca_prompt

HINT = (
    "give the folder of Natural Instructions v2.8 (github.com/allenai/natural-instructions, tag v2.8), "
    "which holds splits/default and tasks"
)
Fraction = Annotated[float, Field(gt=0, le=1)]


class NaturalInstructionsTask(Task):
    """Settings of the "natural-instructions" task.

    Args:
        path: the folder with the original files.
        max_input_chars: instances with a longer input are left out.
        min_instances: train tasks with fewer instances, of those short enough, are left out.
        fraction: of a train task's instances, how much its client gets (at least one).
        test_fraction: of a test task's instances, how much is evaluated on.
        test_instances: instances of a test task that are evaluated on at least, as far as it has them.
        seed: draws instances; apart from the run's seed, so that runs share their data.
    """

    name: Literal["natural-instructions"] = "natural-instructions"
    about: ClassVar[str] = "Natural Instructions v2.8 from its original folder, each train task a client"

    path: str
    max_input_chars: PositiveInt = 1024
    min_instances: PositiveInt = 20
    fraction: Fraction = 0.2
    test_fraction: Fraction = 0.02
    test_instances: PositiveInt = 20
    seed: Seed = 0

    def load(self) -> TaskData:
        """The clients, one per train task, and the test tasks as one evaluation set.

        Raises:
            RecipeError: a file is missing or malformed, or nothing is left.
        """
        folder = data_folder(self.path, HINT)
        train, about_train = self._split(folder, "train", self.min_instances, self.fraction, 1)
        test, about_test = self._split(folder, "test", 1, self.test_fraction, self.test_instances)
        if not train or not test:
            raise RecipeError(f'task.path = "{self.path}": nothing is left of the data ({about_train}; {about_test})')
        clients = [ClientData(name, examples, [name] * len(examples)) for name, examples in train]
        evaluation = [example for _, examples in test for example in examples]
        return TaskData(clients, {"": evaluation}, notes=(about_train, about_test))

    def _split(
        self, folder: Path, split: str, fewest: int, fraction: float, at_least: int
    ) -> tuple[list[tuple[str, list[Example]]], str]:
        """Tasks of one split with what is drawn of each, and a line about what was left out.

        Args:
            folder: the original folder.
            split: "train" or "test".
            fewest: tasks with fewer instances that are short enough are left out.
            fraction: how much of a task is drawn, rounded down.
            at_least: how many instances are drawn in any case, as far as there are so many.
        """
        names = _task_names(folder, split)
        tasks, total, long = [], 0, 0
        for name in names:
            definition, instances = _read_task(folder / "tasks" / f"{name}.json")
            short = [instance for instance in instances if len(instance[0]) <= self.max_input_chars]
            total, long = total + len(instances), long + len(instances) - len(short)
            if len(short) < fewest:
                continue
            count = min(len(short), max(at_least, int(fraction * len(short))))
            # by the task's name: what is drawn of a task does not depend on which others are listed
            drawn = sample(self.seed, Domain.PARTITION, len(short), count, crc32(name.encode()))
            tasks.append((name, [Example(alpaca_prompt(definition, short[i][0]), short[i][1]) for i in drawn]))
        return tasks, (
            f"{split}: {len(names) - len(tasks)} of {len(names)} tasks left out "
            f"(fewer than {fewest} usable instances), "
            f"{long:,} of {total:,} instances left out (input over {self.max_input_chars:,} characters); "
            f"{plural(len(tasks), 'task')} give{'s' if len(tasks) == 1 else ''} "
            f"{plural(sum(len(examples) for _, examples in tasks), 'example')}"
        )


def _task_names(folder: Path, split: str) -> list[str]:
    path = folder / "splits" / "default" / f"{split}_tasks.txt"
    counted = Counter(read_text(path, HINT).split())
    if not counted:
        raise RecipeError(f"{path}: it lists no task")
    name, times = counted.most_common(1)[0]
    if times > 1:
        raise RecipeError(f"{path}: {name} is listed {times} times")
    return list(counted)


def _read_task(path: Path) -> tuple[str, list[tuple[str, str]]]:
    """A task file's definition, and (input, output) of its instances in their order."""
    content = read_json(path, "splits/default lists this task")
    if not isinstance(content, dict):
        raise RecipeError(f"{path}: a JSON object is expected")
    task = Record(str(path), content)
    rows = []
    for index, values in enumerate(task.field("Instances", list)):
        where = f"{path}: Instances[{index}]"
        if not isinstance(values, dict):
            raise RecipeError(f"{where}: a JSON object is expected")
        instance = Record(where, values)
        rows.append((instance.field("input", str), _first(instance, "output")))
    return _first(task, "Definition"), rows


def _first(record: Record, name: str) -> str:
    """The first of a field's texts."""
    texts = record.field(name, list)
    if not texts or not isinstance(texts[0], str):
        raise RecipeError(f'{record.where}: "{name}" must begin with a text')
    return texts[0]
