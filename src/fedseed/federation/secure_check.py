"""Which methods and rules go with secure sums."""

from fedseed.aggregation import AggregationRule, Mean
from fedseed.methods import Method
from fedseed.methods.base import with_remedy
from fedseed.privacy import settings_of
from fedseed.privacy.secure.settings import SecureSums


def secure_problem(
    settings: SecureSums, method: Method, rule: AggregationRule, per_round: int | None = None
) -> str | None:
    """Returns why secure sums can't be had; None: they can.

    Args:
        settings: the recipe's.
        method: the method.
        rule: how vectors of the clients become one.
        per_round: clients in a round; None: not known yet.
    """
    if not getattr(rule, "linear", isinstance(rule, Mean)):
        return (
            f'secure_sums: aggregation.name = "{rule.name}" looks at single answers, and nobody sees any; leave one of '
            "them out"
        )
    if (private := settings_of(method)) is not None and private.level == "client":
        return (
            'secure_sums: privacy.level = "client": the coordinator would have to bound each answer, and reads none; '
            'take privacy.level = "example", or leave one of them out'
        )
    if (why := method.needs_each) is not None:
        return f"secure_sums: {method.name}: {with_remedy(why)}"
    return None if per_round is None else settings.problem(per_round)
