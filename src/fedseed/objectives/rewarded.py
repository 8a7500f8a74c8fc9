"""Minus the reward of generated answers where other objectives have a loss.

Any number will do for a method that compares losses at perturbed weights (evolution strategies: Qiu et al., "Evolution
Strategies at Scale", arXiv 2509.24372): an answer is right, a text is short, a program passes its tests.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from fedseed.objectives.generation import responses_to
from fedseed.objectives.losses import Objective, TextObjective
from fedseed.objectives.tokens import Tokens
from fedseed.randomness import Basis
from fedseed.tasks.data import Example
from fedseed.tasks.rewards import Judge
from fedseed.weights.perturbed_rows import RowsError, moves_of
from fedseed.weights.row_losses import losses_by_direction
from fedseed.weights.space import ParameterSpace


@dataclass(frozen=True)
class Asked(Tokens):
    """An example whose answer is rewarded, as its language objective has it.

    Args:
        example: what the reward function gets.
    """

    example: Example = field(kw_only=True)


class Rewarded(Objective):
    """An objective for methods that need no gradients.

    The mean loss of a batch is minus the mean reward of the answers that the model, with the weights of the moment,
    writes greedily.

    Args:
        language: tokenises the examples.
        reward: judges the answers: a function of (prompt, answer, example), or a `Judge`.
        max_new_tokens: of an answer.
    """

    differentiable = False
    calls_often = True

    def __init__(self, language: TextObjective, reward: Any, max_new_tokens: int = 32) -> None:
        self.language = language
        self.tokenizer = language.tokenizer
        self.judge = reward if isinstance(reward, Judge) else Judge(reward)
        self.max_new_tokens = max_new_tokens

    def items(self, example: Example) -> list[Asked]:
        """Tokenises; an example is asked once, also a chat that has several answers to be learnt: for the last one."""
        return [Asked(**vars(tokens), example=example) for tokens in self.language.prepare([example])[-1:]]

    def answers(self, model: Any, items: Sequence[Asked], around: Any = None) -> list[str]:
        """Returns what the model says, greedily; `around` as in `responses_to`."""
        examples = [item.example for item in items]
        return responses_to(model, self.language, examples, items, self.max_new_tokens, around)

    @torch.no_grad()
    def losses(self, model: torch.nn.Module, items: Sequence[Asked]) -> torch.Tensor:
        """Returns minus each answer's reward: float32, no gradient; NaN where a reward is not finite.

        Raises:
            FedseedError: the reward function raised, returned no number, or took too long.
        """
        return self.judged(items, self.answers(model, items), next(model.parameters()).device)

    def row_losses(
        self,
        space: ParameterSpace,
        items: Sequence[Asked],
        basis: Basis,
        directions: Sequence[int],
        scales: float | Sequence[float],
    ) -> torch.Tensor:
        """Returns the losses of items each of which is answered at w + scales[i] * direction(directions[i]).

        With "lowrank" directions all answers are written in one go, a token of each at a time (`space.perturbed_rows`);
        where that can't be, those of one direction after the other. The answers are the same, unless two tokens are
        equally likely to float rounding.

        Args:
            space: the model's.
            items: B of them.
            basis: where the directions come from.
            directions: B indices; some may be the same.
            scales: how far to move along each; one number: all alike.

        Raises:
            ValueError: there are not as many items as directions, or a scale is not finite.
        """
        moves = moves_of(directions, scales)
        if len(items) != len(moves):
            raise ValueError(f"{len(items)} items for {len(moves)} directions")
        if space.rows.possible(basis) and not self.language.encodes:

            def around(rows: Sequence[int]) -> AbstractContextManager[Any]:
                return space.perturbed_rows(basis, [moves[i][0] for i in rows], [moves[i][1] for i in rows])

            try:
                said = self.answers(space.model, items, around)
            except RowsError:  # what can't be mapped, or weights that are used outside of the model's forward
                pass
            else:
                return self.judged(items, said, space.devices[0])
        return losses_by_direction(space, partial(self.losses, space.model), items, basis, moves, often=True)

    def judged(self, items: Sequence[Asked], answers: Sequence[str], device: torch.device) -> torch.Tensor:
        """Returns minus the answers' rewards, shape (items,)."""
        rewards = self.judge([item.example for item in items], answers)
        return -torch.tensor(rewards, dtype=torch.float32, device=device)
