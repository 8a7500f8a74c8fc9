"""An objective whose loss is minus the reward of generated answers.

A method that compares losses at perturbed weights can use any number as a reward: whether an answer
is right, how short a text is, whether a program passes its tests (evolution strategies: Qiu et al.,
"Evolution Strategies at Scale", arXiv 2509.24372).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fedseed.objectives.generation import responses_to
from fedseed.objectives.losses import Objective, TextObjective
from fedseed.objectives.tokens import Tokens
from fedseed.tasks.data import Example
from fedseed.tasks.rewards import Judge
from fedseed.weights.row_losses import EnterRows


@dataclass(frozen=True)
class RewardedTokens(Tokens):
    """The tokens of an example for a reward, made by the language objective.

    The reward function gets the example.
    """

    example: Example = field(kw_only=True)


class Rewarded(Objective):
    """An objective for methods that need no gradients.

    The mean loss of a batch is minus the mean reward of the answers that the model generates
    greedily with its current weights.

    Args:
        language: tokenises the examples.
        reward: rewards the answers: a function of (prompt, answer, example), or a `Judge`.
        max_new_tokens: the most tokens of an answer.
    """

    differentiable = False
    calls_often = True

    def __init__(self, language: TextObjective, reward: Any, max_new_tokens: int = 32) -> None:
        self.language = language
        self.tokenizer = language.tokenizer
        self.judge = reward if isinstance(reward, Judge) else Judge(reward)
        self.max_new_tokens = max_new_tokens

    def items(self, example: Example) -> list[RewardedTokens]:
        """Tokenise an example.

        Each example becomes one item. For a chat with several answers to learn, it asks for the
        last one.
        """
        return [
            RewardedTokens(**vars(tokens), example=example)
            for tokens in self.language.prepare([example])[-1:]
        ]

    def answers(
        self, model: Any, items: Sequence[RewardedTokens], around: EnterRows | None = None
    ) -> list[str]:
        """Return the model's greedy answers. `around` is that of `responses_to`."""
        examples = [item.example for item in items]
        return responses_to(model, self.language, examples, items, self.max_new_tokens, around)

    @torch.no_grad()
    def losses(
        self, model: Any, items: Sequence[RewardedTokens], around: EnterRows | None = None
    ) -> torch.Tensor:
        """Return minus each answer's reward, in float32 and without gradient. Raises the errors of
        `Judge`.
        """
        rewards = self.judge([item.example for item in items], self.answers(model, items, around))
        return -torch.tensor(rewards, dtype=torch.float32, device=next(model.parameters()).device)

    def together(
        self, model: Any, items: Sequence[RewardedTokens], around: EnterRows
    ) -> torch.Tensor | None:
        """Return the losses of items that are each answered with different weights (`row_losses`);
        None if the model can't do this.

        All answers are generated together, one token of each at a time. They equal answers
        generated one after another, unless two tokens are equally likely within float rounding.
        """
        if self.language.encodes:
            return None
        return self.losses(model, items, around)


def language_of(objective: Any) -> Any:
    """Return the objective that tokenises texts. For a rewarded objective, it is its language
    objective.
    """
    if isinstance(objective, Rewarded):
        return objective.language
    return objective
