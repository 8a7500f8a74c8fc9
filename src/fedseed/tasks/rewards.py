"""Rewards of generated answers: any function of (prompt, answer, example) that returns a number.

Free of torch.

Methods that need no gradients are given minus the mean reward where others have a loss
(`objectives.rewarded`).
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

# (prompt, generated answer, the example) -> the more, the better
Reward = Callable[[str, str, Example], float]
SHOWN = 60  # characters of a text in an error


class RewardSettings(BaseModel):
    """What answers are rewarded for, in place of a loss; for methods that need no gradients.

    Args:
        name: a metric of generated answers (`fedseed list metrics`), such as "exact_match", of one
            answer, from 0 to 1.
        function: one of your own, as "rewards.py:score" (beside the recipe, if the path is
            relative) or "my_package.rewards:score": called with a prompt, the answer generated
            after it, and the example, it returns a number, the more the better. It is code, so
            whoever runs the recipe has to agree (`--trust-plugins`).
        seconds: how long a function may take for one answer; one that takes longer ends the run
            with an error that names the answer, in place of a run that stands still. Not set: as
            long as it likes.
        max_new_tokens: of an answer. Answers are greedy: the likeliest token each time.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    name: str | None = None
    function: str | None = None
    seconds: PositiveFloat | None = None
    max_new_tokens: PositiveInt = 32

    def problem(self) -> str | None:
        """Return the error in the table, with key and value; None if it has none."""
        if (self.name is None) == (self.function is None):
            return "reward: give name or function, one of them"
        if self.name is not None and metrics.REGISTRY.find(self.name) is None:
            return (
                f'reward.name = "{self.name}": {metrics.REGISTRY.unknown(self.name)}, or set '
                "reward.function"
            )
        source, _, name = (self.function or "x:x").rpartition(":")
        if not source or not name.isidentifier():
            return (
                f'reward.function = "{self.function}": write a file or module and a function, '
                'as "rewards.py:score"'
            )
        return None

    def load(self) -> Reward:
        """Return the function.

        Raises RecipeError if its file can't be run, or has no such function.
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
    """Return the function with its file's absolute path.

    A relative path begins at `folder` (None: the current folder).
    """
    source, _, name = function.rpartition(":")
    return f"{resolve(source, folder)}:{name}"


class _TookTooLongError(Exception):
    """A reward function has not come back in time."""


class Judge:
    """A reward function, with checks of its results.

    Args:
        function: the reward.
        about: what errors call it.
        seconds: how long it may take for one answer; None: as long as it likes.
    """

    def __init__(self, function: Reward, name: str = "", seconds: float | None = None) -> None:
        self.function = function
        self.seconds = seconds
        self.about = name or str(getattr(function, "__qualname__", function))
        self._warned = False

    def __call__(self, examples: Sequence[Example], answers: Sequence[str]) -> list[float]:
        """Return rewards; NaN (logged once) where one is not finite.

        Raises FedseedError if one is no number.
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
                self._error(f"returned {number}: such an estimate is left out", example, answer),
            )
        if isfinite(number):
            return number
        return nan

    def _call(self, example: Example, answer: str) -> Any:
        """Call the function; with a time limit in a thread, which is left alone if it is late.

        Raises:
            _TookTooLongError: it has not come back in time.
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

        # no other thread can end one; it ends with the process
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
