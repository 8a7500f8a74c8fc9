"""What becomes of a gradient, as data (free of torch); `fedseed.optimizers.moments` carries it out."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Rule:
    """A rule: how a gradient g becomes a step.

    momentum   m <- beta1 m + g;                    change = -rate m       (torch.optim.SGD's; FedAvgM's)
    nesterov   m <- beta1 m + g;                    change = -rate (g + beta1 m)    (torch.optim.SGD's)
    adam       m <- beta1 m + (1 - beta1) g,
               v <- beta2 v + (1 - beta2) g^2;      change = -rate m^ / (sqrt(v^) + eps)
    hiso       g <- g / (sqrt(h) + eps);            change = -rate g
               h <- beta2 h + (1 - beta2) g^2,      from h = 1 on

    m^ = m / (1 - beta1^t) and v^ = v / (1 - beta2^t) if `corrected` (torch.optim.Adam), else m and v themselves
    (FedAdam: Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2).

    "hiso" is HiSo's diagonal, learnt from the steps alone (Li et al., arXiv 2506.02370; its nu is 1 - beta2): g is a
    sum over directions z, and losses are taken along z / (sqrt(h) + eps), too (`ParameterSpace.perturbed`).

    Args:
        kind: "momentum", "nesterov", "adam" or "hiso".
        rate: eta.
        beta1: decay of the average of g.
        beta2: decay of the average of g^2.
        eps: keeps denominators away from zero.
        corrected: whether Adam's averages are corrected for their zero start.
    """

    kind: Literal["momentum", "nesterov", "adam", "hiso"]
    rate: float
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    corrected: bool = True

    @property
    def averages(self) -> int:
        """Returns how many float32 numbers it keeps for every parameter."""
        return 2 if self.kind == "adam" else 1
