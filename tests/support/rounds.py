"""One round of a method by hand, without a federation."""

from fedseed.aggregation import Mean
from fedseed.methods.base import Answer, Answers, Round


def answers(number, made, rule=None):
    """The answers of round `number`, of (client, weight, update) each."""
    return Answers(number, tuple(Answer(*one) for one in made), rule or Mean())


def plan(method, state, number, client=0, clients=(0,)):
    """What the method asks of a client in round `number`."""
    return method.plan(state, Round(number, client, clients))


def apply(method, state, step, space):
    """Let a step change the weights of a space."""
    space.apply(method.change(state, step))
