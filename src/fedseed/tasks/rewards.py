"""Rewards of generated answers: any function of (prompt, answer, example) that returns a number.

This module does not need torch.

For methods that need no gradients, the loss is minus the mean reward (`objectives.rewarded`).
"""

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from math import isfinite, nan
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt

from fedseed.errors import FedseedError, RecipeError
from fedseed.registry import load_module, one_line, resolve
from fedseed.tasks import metrics
from fedseed.tasks.data import Example
from fedseed.text import show_text

logger = logging.getLogger(__name__)

# (prompt, generated answer, example) -> reward; higher is better
Reward = Callable[[str, str, Example], float]
SHOWN = 60  # characters of a text that an error shows


class RewardSettings(BaseModel):
    """A reward of generated answers in place of a loss, for methods that need no gradients.

    Args:
        name: a metric of generated answers (`fedseed list metrics`), such as "exact_match",
            computed for each answer, from 0 to 1.
        function: your own function, as "rewards.py:score" (a relative path begins at the recipe's
            folder) or "my_package.rewards:score". It is called with a prompt, the answer generated
            after it, and the example, and returns a number; higher is better. Because it is code,
            whoever runs the recipe has to allow it (`--trust-plugins`).
        seconds: seconds that a function may take for one answer. If it takes longer, the run ends
            with an error that names the answer, instead of hanging. Not set: no limit.
        max_new_tokens: the most tokens of an answer. Answers are generated greedily: always the
            likeliest token.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    name: str | None = None
    function: str | None = None
    seconds: PositiveFloat | None = None
    max_new_tokens: PositiveInt = 32

    def problem(self) -> str | None:
        """Return the error in this table, with key and value; None if there is none."""
        if (self.name is None) == (self.function is None):
            return "reward: give either name or function"
        if self.name is not None and metrics.REGISTRY.find(self.name) is None:
            return (
                f'reward.name = "{self.name}": {metrics.REGISTRY.unknown(self.name)}, or set '
                "reward.function"
            )
        source, _, name = (self.function or "x:x").rpartition(":")
        if not source or not name.isidentifier():
            return (
                f'reward.function = "{self.function}": expected a file or module and a function, '
                'such as "rewards.py:score"'
            )
        return None

    def load(self) -> Reward:
        """Load and return the function.

        Raises RecipeError if its file can't be run or has no such function.
        """
        if self.name is not None:
            score = metrics.REGISTRY.get(self.name)
            return lambda prompt, answer, example: (
                score([answer], [example.answers or (example.response,)]) / 100
            )
        source, _, name = str(self.function).rpartition(":")
        function = getattr(load_module(source, "reward.function:"), name, None)
        if not callable(function):
            raise RecipeError(
                f'reward.function = "{self.function}": {source} has no function {name}'
            )
        return function


def resolve_function(function: str, folder: Path | None) -> str:
    """Return the function's setting with its file's absolute path.

    A relative path begins at `folder` (None: the current folder).
    """
    source, _, name = function.rpartition(":")
    return f"{resolve(source, folder)}:{name}"


class _TookTooLongError(Exception):
    """A reward function did not return in time."""


class Judge:
    """Calls a reward function and checks its results.

    Args:
        function: the reward function.
        about: the function's name in errors.
        seconds: seconds that it may take for one answer; None: no limit.
    """

    def __init__(self, function: Reward, name: str = "", seconds: float | None = None) -> None:
        self.function = function
        self.seconds = seconds
        self.about = name or str(getattr(function, "__qualname__", function))
        self._warned = False

    def __call__(self, examples: Sequence[Example], answers: Sequence[str]) -> list[float]:
        """Return the rewards of answers. A reward that is not finite becomes NaN, and the first one
        is logged.

        Raises FedseedError if a reward is not a number.
        """
        return [
            self._number(example, answer) for example, answer in zip(examples, answers, strict=True)
        ]

    def _number(self, example: Example, answer: str) -> float:
        try:
            value: Any = self._call(example, answer)
        except _TookTooLongError as error:
            raise self._error(
                f"took more than reward.seconds = {self.seconds:g}", example, answer
            ) from error
        except Exception as error:
            raise self._error(f"raised {one_line(error)}", example, answer) from error
        try:
            number = float("no") if isinstance(value, str | bytes) else float(value)
        except (TypeError, ValueError, OverflowError) as error:
            problem = (
                f"returned {show_text(repr(value), SHOWN)} ({type(value).__name__}), not a number"
            )
            raise self._error(problem, example, answer) from error
        if not isfinite(number) and not self._warned:
            self._warned = True
            logger.warning(
                "%s",
                self._error(
                    f"returned {number}: estimates with this reward are left out", example, answer
                ),
            )
        if isfinite(number):
            return number
        return nan

    def _call(self, example: Example, answer: str) -> Any:
        """Call the function. With a time limit it runs in a thread, which is abandoned if it is
        late.

        Raises:
            _TookTooLongError: it did not return in time.
            Exception: what the function raises.
        """
        if self.seconds is None:
            return self.function(example.prompt, answer, example)
        outcome: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()

        def judge() -> None:
            try:
                outcome.put((self.function(example.prompt, answer, example), None))
            except Exception as error:
                outcome.put((None, error))

        # Python can't stop a thread, so a late one runs until the process ends
        threading.Thread(target=judge, daemon=True).start()
        try:
            value, error = outcome.get(timeout=self.seconds)
        except queue.Empty:
            raise _TookTooLongError from None
        if error is not None:
            raise error
        return value

    def _error(self, problem: str, example: Example, answer: str) -> FedseedError:
        prompt, answer_text = (show_text(repr(text), SHOWN) for text in (example.prompt, answer))
        return FedseedError(f"reward {self.about} {problem}; prompt {prompt}, answer {answer_text}")
