"""The privacy accounts of a process's clients. A noisy answer is counted before it is sent."""

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
    """Return the `[privacy]` settings of a method whose clients keep accounts; None for other
    methods.
    """
    protection = protection_of(method)
    if protection is None or not protection.by_client:
        return None
    settings: PrivacySettings = protection.mechanism.settings
    return settings


def limits_of(settings: PrivacySettings, rounds: int, budget: float | None = None) -> Limits:
    """Return the limits of a client's account.

    Args:
        settings: the recipe's privacy settings.
        rounds: the recipe's number of rounds.
        budget: the highest epsilon that the site allows for all its runs together; None: the
            recipe's budget.
    """
    if budget is None:
        return Limits(rounds, settings.budget, settings.delta)
    return Limits(rounds, budget, settings.delta, "--budget")


def accounts_in_memory(
    method: Method, names: Sequence[str], rounds: int, keep_answers: bool = True
) -> dict[str, Account]:
    """Return accounts that exist only in memory; empty if the method needs none.

    Args:
        method: the run's method.
        names: the clients' names.
        rounds: the run's number of rounds.
        keep_answers: whether answers of earlier rounds are kept.
    """
    settings = settings_with_account(method)
    if settings is None:
        return {}
    limits = limits_of(settings, rounds)
    return {name: Account(name, limits, keep_answers) for name in names}


def run_of(hosted: Hosted) -> str:
    """Return a hash that identifies a run by its base, method, settings and seed."""
    return hash_of(hosted.start)


def kind_of(hosted: Hosted) -> Releases:
    """Return what a client releases in one turn, for a method whose clients keep accounts."""
    protection = hosted.worker.protection
    assert protection is not None
    kind: Releases = protection.mechanism.turn
    return kind


def turn_of(hosted: Hosted, plan: Message, name: str, number: int) -> Turn:
    """Return the turn that a plan asks for, without an answer yet.

    Args:
        hosted: the model, with the weights that the plan is about.
        plan: the plan's message, of any attempt.
        name: the client's name.
        number: the client's number in the run.
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
        accounts: the accounts, by client.
        turn: the turn that the plan asks for.
        plan: the plan's message.
        number: the client's number in the run.

    Returns:
        The answer; None: the client has not answered this question and may do so.

    Raises:
        PrivacyError: the client has not answered it, and its account does not allow an answer.
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
        accounts: the accounts, by client; a client without one is not counted.
        turn: the turn that the plan asks for.
        answer: the client's computed answer.
        plan: the plan's message.
        number: the client's number in the run.

    Returns:
        The answer that may be sent: this one, or an earlier answer from another process.

    Raises:
        PrivacyError: the account does not allow the answer.
        StorageError: the account can't be written.
    """
    account = accounts.get(turn.client)
    if account is None:
        return answer
    payload = None if answer.message is None else Message.decode(answer.message).payload
    counted = account.charge(turn.model_copy(update={"answer": payload}))
    return answer if counted.answer == payload else _answer_of(counted, plan, number)


def _answer_of(turn: Turn, plan: Message, number: int) -> Answer:
    """Return a turn's answer, addressed to the plan's attempt."""
    if turn.answer is None:
        return Answer(None, WITHHELD, ClientCost())
    message = Message(
        MessageKind.UPDATE, plan.method, plan.round, number, turn.answer, plan.attempt
    )
    return Answer(message.encode(), None, ClientCost())
