"""Minus the reward of generated answers where other objectives have a loss.

Any number will do for a method that compares losses at perturbed weights (evolution strategies: Qiu
et al., "Evolution Strategies at Scale", arXiv 2509.24372): an answer is right, a text is short, a
program passes its tests.
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
    """The tokens of an example whose answer is rewarded, made by the language objective.

    The reward function receives the example.
    """

    example: Example = field(kw_only=True)


class Rewarded(Objective):
    """An objective for methods that need no gradients.

    The mean loss of a batch is minus the mean reward of the answers that the model, with the
    weights of the moment, writes greedily.

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

    def items(self, example: Example) -> list[RewardedTokens]:
        """Tokenises.

        An example is asked once, also a chat that has several answers to be learnt: for the last
        one.
        """
        return [
            RewardedTokens(**vars(tokens), example=example)
            for tokens in self.language.prepare([example])[-1:]
        ]

    def answers(
        self, model: Any, items: Sequence[RewardedTokens], around: EnterRows | None = None
    ) -> list[str]:
        """Return the model's greedy answers; `around` as in `responses_to`."""
        examples = [item.example for item in items]
        return responses_to(model, self.language, examples, items, self.max_new_tokens, around)

    @torch.no_grad()
    def losses(
        self, model: Any, items: Sequence[RewardedTokens], around: EnterRows | None = None
    ) -> torch.Tensor:
        """Return minus each answer's reward (of a `Judge`, which says what is raised): float32, no
        gradient.
        """
        rewards = self.judge([item.example for item in items], self.answers(model, items, around))
        return -torch.tensor(rewards, dtype=torch.float32, device=next(model.parameters()).device)

    def together(
        self, model: Any, items: Sequence[RewardedTokens], around: EnterRows
    ) -> torch.Tensor | None:
        """Return the losses of items each of which is answered at weights of its own
        (`row_losses`); None: they can't.

        All answers are written in one go, a token of each at a time. They are those of one after
        the other, unless two tokens are equally likely to float rounding.
        """
        if self.language.encodes:
            return None
        return self.losses(model, items, around)


def language_of(objective: Any) -> Any:
    """Return the objective that tokenises and writes texts: of rewards, the one under them."""
    if isinstance(objective, Rewarded):
        return objective.language
    return objective
