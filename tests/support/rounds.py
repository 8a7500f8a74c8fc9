"""One round of a method by hand, without a federation."""

import torch

from fedseed import ParameterSpace
from fedseed.aggregation import Mean
from fedseed.methods.base import Answer, Answers, Round
from fedseed.weights.vector import Vector


def answers(number, made, rule=None):
    """The answers of round `number`, of (client, weight, update) each."""
    return Answers(number, tuple(Answer(*one) for one in made), rule or Mean())


def plan(method, state, number, client=0, clients=(0,)):
    """What the method asks of a client in round `number`."""
    return method.plan(state, Round(number, client, clients))


def spread(layout):
    """A space of one tensor, whose weights lie between -1 and 1, with the blocks of a layout."""
    made = ParameterSpace(torch.nn.ParameterDict({"w": torch.linspace(-1, 1, layout.size)}))
    made.layout, made.vector = layout, Vector(made.parameters, layout)
    return made
