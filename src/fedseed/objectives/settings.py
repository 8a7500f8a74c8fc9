"""When and how a run is evaluated (free of torch)."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, PositiveInt


class EvaluationSettings(BaseModel):
    """When and how to evaluate; round 0 (zero-shot) and the last round always are.

    Args:
        every: rounds between evaluations.
        digest_every: rounds between digests of the weights, which cost a pass over them. Orbit and
            metrics have them after these rounds and after evaluations; those of step-by-step
            methods after evaluations only.
        rouge: generate answers and score them; without it there are only losses.
        max_new_tokens: of a generated answer.
        max_length: tokens that an example may have; the model's positions are a limit, too.
        truncate: what becomes of longer examples, which are counted. "drop": they are left out.
            "left": they are cut at the beginning, but not into the last answer. "right": they are
            cut at the end. "split": texts without a prompt become several examples, others are left
            out.
        metrics: scores of generated answers besides the task's own, by name (`fedseed list
            metrics`).
        disclose: of a method that is private: evaluate nevertheless. What held-out examples give is
            told as it is, without noise, and no epsilon counts it: for held-out examples that need
            no protection.
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
