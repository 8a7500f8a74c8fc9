"""The privacy accounts of a process' clients: a noisy answer is counted before it is sent."""

from collections.abc import Mapping, Sequence

from fedseed.federation.client.state import Hosted
from fedseed.federation.client.worker import Answer
from fedseed.federation.messages import Message, MessageKind
from fedseed.methods import Method
from fedseed.privacy import protection_of
from fedseed.privacy.account import Account, Limits, Turn, hash_of
from fedseed.privacy.scalars import Releases
from fedseed.privacy.settings import WITHHELD, PrivacySettings
from fedseed.training.client import ClientCost


def settings_with_account(method: Method) -> PrivacySettings | None:
    """Return the `[privacy]` of a method whose clients keep accounts; None for other methods."""
    protection = protection_of(method)
    if protection is None or not protection.by_client:
        return None
    settings: PrivacySettings = protection.mechanism.settings
    return settings


def limits_of(settings: PrivacySettings, rounds: int, budget: float | None = None) -> Limits:
    """Return the limits of a client's account.

    Args:
        settings: the recipe's.
        rounds: the recipe's.
        budget: the site's most epsilon for all of its runs; None: the recipe's.
    """
    if budget is None:
        return Limits(rounds, settings.budget, settings.delta)
    return Limits(rounds, budget, settings.delta, "--budget")


def accounts_in_memory(
    method: Method, names: Sequence[str], rounds: int, keep_answers: bool = True
) -> dict[str, Account]:
    """Return accounts that are lost with the process; none if the method needs none.

    Args:
        method: the run's.
        names: the clients'.
        rounds: the run's number of rounds.
        keep_answers: whether answers of earlier rounds are kept.
    """
    settings = settings_with_account(method)
    if settings is None:
        return {}
    limits = limits_of(settings, rounds)
    return {name: Account(name, limits, keep_answers) for name in names}


def run_of(hosted: Hosted) -> str:
    """Return a hash that identifies a run: of its base, method, settings and seed."""
    return hash_of(hosted.start)


def kind_of(hosted: Hosted) -> Releases:
    """Return the releases of a client's turn, for a method whose clients keep accounts."""
    protection = hosted.worker.protection
    assert protection is not None
    kind: Releases = protection.mechanism.turn
    return kind


def turn_of(hosted: Hosted, plan: Message, name: str, number: int) -> Turn:
    """Return the turn that a plan asks of a client, without an answer.

    Args:
        hosted: the model, at the weights of the question.
        plan: the plan's message, of any attempt.
        name: the client's.
        number: the client's in the run.
    """
    kind = kind_of(hosted)
    place = b"%d %d" % (plan.round, number)
    history = bytes.fromhex(hosted.worker.history)
    return Turn(
        client=name,
        run=run_of(hosted),
        round=plan.round,
        question=hash_of(hosted.start, history, place, plan.payload),
        noise=kind.multiplier,
        rate=kind.rate,
        releases=kind.count,
    )


def earlier_answer(
    accounts: Mapping[str, Account], turn: Turn, plan: Message, number: int
) -> Answer | None:
    """Return a client's earlier answer to the same question.

    Args:
        accounts: by client.
        turn: the turn that the plan asks for.
        plan: the plan's message.
        number: the client's in the run.

    Returns:
        The answer; None: the client has not answered it, and may.

    Raises:
        PrivacyError: it has not, and its account does not allow it.
    """
    account = accounts.get(turn.client)
    if account is None:
        return None
    earlier = account.find(turn.question)
    if earlier is not None:
        return _answer_of(earlier, plan, number)
    account.check(turn)
    return None


def charge(
    accounts: Mapping[str, Account], turn: Turn, answer: Answer, plan: Message, number: int
) -> Answer:
    """Count a client's answer, on disk before this returns.

    Args:
        accounts: by client; a client without one is not counted.
        turn: the turn that the plan asks for.
        answer: the client's computed answer.
        plan: the plan's message.
        number: the client's in the run.

    Returns:
        The answer that may be sent: this one, or what another process has answered before.

    Raises:
        PrivacyError: the account does not allow it.
        StorageError: it can't be written.
    """
    account = accounts.get(turn.client)
    if account is None:
        return answer
    payload = None if answer.message is None else Message.decode(answer.message).payload
    counted = account.charge(turn.model_copy(update={"answer": payload}))
    return answer if counted.answer == payload else _answer_of(counted, plan, number)


def _answer_of(turn: Turn, plan: Message, number: int) -> Answer:
    """Return the answer that a turn has, to a plan of any attempt."""
    if turn.answer is None:
        return Answer(None, WITHHELD, ClientCost())
    message = Message(
        MessageKind.UPDATE, plan.method, plan.round, number, turn.answer, plan.attempt
    )
    return Answer(message.encode(), None, ClientCost())
