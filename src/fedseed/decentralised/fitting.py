"""Find settings that can't work without a coordinator, and the reasons.

A round is combined at every node, and again whenever one of its updates arrives late. So the round
must be a function of its updates, in any order of arrival, and undoing it must restore everything
that it has changed.
"""

from fedseed.aggregation import AggregationRule
from fedseed.methods import Method
from fedseed.methods.base import find_misfit
from fedseed.privacy import mechanism_of


def find_obstacle(method: Method, rule: AggregationRule) -> str | None:
    """Return the reason why no mesh can run a method with a rule; None if one can.

    Args:
        method: the method and its settings.
        rule: combines the vectors of a round.
    """
    name = method.name
    if method.catch_up.replaces:
        return (
            f'method.name = "{name}": its steps are whole weights or as long as they are, and each '
            "replaces those before it: of two sides of a partition one would be lost; take "
            "zo-fedsgd, feedsign, or another method of seeds and scalars"
        )
    if mechanism_of(method) is not None:
        has_epsilon = getattr(method, "epsilon", None) is not None
        setting = "method.epsilon" if has_epsilon else "[privacy]"
        return (
            f"{setting}: a private run draws its noise or its votes once a round; here every node "
            "combines a round, and again when a step arrives late: nodes would draw different "
            "noise, and each draw would have to be accounted for; leave it out"
        )
    if method.remembers:
        return (
            f'method.name = "{name}" keeps at a client what it has yet to send, which can\'t be '
            "undone when a round changes: leave error feedback out, or take another method"
        )
    if method.weighting != "equal":
        return (
            f'method.weighting = "{method.weighting}": nodes do not tell each other how many '
            'examples they have; set it to "equal"'
        )
    return find_misfit(method, rule)
