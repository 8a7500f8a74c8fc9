"""Settings of evaluation. This module does not need torch."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, PositiveInt


class EvaluationSettings(BaseModel):
    """When and how to evaluate. Round 0 (zero-shot) and the last round are always evaluated.

    Args:
        every: rounds between evaluations.
        digest_every: rounds between digests of the weights in orbit and metrics. A digest takes a
            pass over the weights. There is always one after an evaluation; step-by-step methods
            have only these.
        rouge: generate answers and score them; if false, only losses are measured.
        max_new_tokens: the most tokens of a generated answer.
        max_length: the most tokens of an example; the model's positions are a limit as well.
        truncate: what to do with longer examples. "drop": leave them out. "left": cut them at the
            beginning, but never in the last answer. "right": cut them at the end. "split": divide
            texts without a prompt into several examples, and leave out others. Notes report how
            many were affected.
        metrics: further metrics of generated answers besides the task's own, by name (`fedseed list
            metrics`).
        disclose: evaluate although the run is private. Metrics of the held-out examples are then
            published without noise, and epsilon does not include them. Use it only if the held-out
            examples need no protection.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    every: PositiveInt = 5
    digest_every: PositiveInt = 1
    rouge: bool = True
    max_new_tokens: PositiveInt = 32
    max_length: PositiveInt = 1024
    truncate: Literal["drop", "left", "right", "split"] = "drop"
    metrics: list[str] = []
    disclose: bool = False
