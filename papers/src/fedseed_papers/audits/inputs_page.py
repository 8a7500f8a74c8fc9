"""What an attack on the inputs of linear layers found, for people and programs."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from statistics import fmean
from typing import Any

from scipy.stats import binom, t

from fedseed.errors import plural
from fedseed.reports.tables import Sheet
from fedseed_papers.audits.inputs import Attempt, Found
from fedseed_papers.audits.page import Answer, Audit

NAMES = {
    "fedsgd": "FedSGD",
    "ferret": "Ferret, 4 bytes a number",
    "ferret-bits": "Ferret in bits",
    "subspace": "subspace, 4 bytes a number",
    "subspace-bits": "subspace in bits",
}
LIMITS = (
    "Two attacks were tried, made from what linear algebra says of a layer's gradient. Of two "
    "published ones in this direction, ProjRes (arXiv 2604.21197) and FedSpy-LLM (arXiv "
    "2604.06297), a summary alone was at hand: these are no copies of them, and theirs may do "
    "better.",
    "It is the attack's best case: one local step of plain SGD, in the first round, at weights "
    "that everybody knows; the attacker knows the text's template, and how many further tokens "
    "there are.",
    "The order of the tokens was not looked for, nor their number of occurrences. The gradient of "
    "the embedding, where it is sent, says more by itself: nothing of it was used.",
    "More local steps, momentum and Adam were not attacked, which does not make them safe.",
    "A sum is what who has the orbit sees, and with secure sums the coordinator, too. The sum here "
    "is not masked and opened again: secure sums give the same numbers, up to their rounding.",
)


# p below which messages are said to give inputs away
SURE = 0.025


def interval(values: Sequence[float]) -> float:
    """Return half the width of a mean's 95% interval over seeds; 0 of fewer than two."""
    if len(values) < 2:
        return 0.0
    mean = fmean(values)
    deviation = (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5
    return float(t.ppf(0.975, len(values) - 1)) * deviation / len(values) ** 0.5


def p_by_chance(attempts: Sequence[Attempt], attack: str) -> float:
    """Return the probability that random picks find as many inputs or more, over all seeds.

    Picks are without replacement, which varies a little less than the binomial distribution that is
    taken for it.

    Args:
        attempts: on one kind of message.
        attack: "span" or "pursuit".
    """
    hits = sum(round(getattr(attempt, attack) * attempt.wanted) for attempt in attempts)
    targets = sum(attempt.wanted for attempt in attempts)
    chance = sum(attempt.chance * attempt.wanted for attempt in attempts) / max(1, targets)
    return float(binom.sf(hits - 1, targets, chance))


def best_of(attempts: Sequence[Attempt]) -> tuple[str, float]:
    """Return the attack that has found most, and its p against chance, doubled for the choice."""
    best = max(("span", "pursuit"), key=lambda name: fmean(getattr(a, name) for a in attempts))
    return best, min(1.0, 2 * p_by_chance(attempts, best))


def numbers(result: Found) -> dict[str, Any]:
    """Return what audit.json holds of this."""
    return {
        "parameters": result.size,
        "vocabulary": result.vocabulary,
        "layers": list(result.layers),
        "attempts": [asdict(attempt) for attempt in result.attempts],
    }


def attempts_csv(result: Found) -> str:
    """Return every attempt, a line each."""
    text_buffer = io.StringIO()
    names = [field.name for field in fields(Attempt)]
    writer = csv.DictWriter(text_buffer, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(attempt) for attempt in result.attempts)
    return text_buffer.getvalue()


def audit(result: Found, name: str, facts: Mapping[str, str]) -> Audit:
    """Return the page's content.

    Args:
        result: the attempts on all messages.
        name: of the recipe.
        facts: where the numbers come from.
    """
    inputs = "pictures" if result.of_pictures else "tokens"
    seeds = len({attempt.seed for attempt in result.attempts})
    return Audit(
        "inputs",
        f"Inputs from messages: {name}",
        f"Clients answer the first plan; the attack reads what their messages say of the gradient "
        f"of {', '.join(result.layers)}, and asks which of {result.vocabulary:,} {inputs} were the "
        f"inputs. {result.size:,} parameters train; {plural(seeds, 'seed')}.",
        [_answer(result, group) for group in _groups(result)],
        sheets=[_table(result)],
        limits=LIMITS,
        facts={"parameters that train": f"{result.size:,}", **facts},
    )


def _groups(result: Found) -> list[list[Attempt]]:
    """Return the attempts of each kind, setting and number of clients."""
    keys = dict.fromkeys((a.kind, a.setting, a.clients) for a in result.attempts)
    return [result.attempts_of(*key) for key in keys]


def _describe(first: Attempt) -> str:
    """Return in words whose message it is."""
    described = f"{NAMES[first.kind]}, {plural(first.numbers, 'number')}"
    if first.clients == 1:
        return f"{described}, one client's own message"
    return f"{described}, a sum of {first.clients} clients"


def _answer(result: Found, attempts: Sequence[Attempt]) -> Answer:
    """Return what one kind of message gives away."""
    span = [attempt.span for attempt in attempts]
    pursuit = [attempt.pursuit for attempt in attempts]
    best, p = best_of(attempts)
    share = fmean(getattr(attempt, best) for attempt in attempts)
    chance = fmean(attempt.chance for attempt in attempts)
    inputs = "pictures" if result.of_pictures else "tokens"
    text = (
        f"{100 * fmean(span):.0f}% of the {inputs} by the span, {100 * fmean(pursuit):.0f}% by "
        f"pursuit; at chance {100 * chance:.1f}% (p = {p:.2g})."
    )
    is_above = p < SURE and _exceeds_others(attempts, best)
    short = "not by these attacks"
    if is_above:
        short = f"{100 * share:.0f}% of the {inputs}"
    return Answer(_describe(attempts[0]), text, short, "warn" if is_above else "good")


def _exceeds_others(attempts: Sequence[Attempt], attack: str) -> bool:
    """Return whether picks hit a client of the sum more often than one that has no part.

    Common tokens are in many texts: picks of them hit anybody more often than random ones do.
    """
    if fmean(attempt.other for attempt in attempts) <= fmean(a.chance for a in attempts):
        return True
    gaps = [getattr(attempt, attack) - attempt.other for attempt in attempts]
    return fmean(gaps) - interval(gaps) > 0


def _table(result: Found) -> Sheet:
    head = [
        "message",
        "setting",
        "numbers",
        "bytes",
        "clients in the sum",
        "found by the span",
        "found by pursuit",
        "at chance",
        "p",
        "of another client",
        "member told apart",
    ]
    if result.of_pictures:
        head.append("picture's error")
    rows = []
    for attempts in _groups(result):
        first = attempts[0]
        row = [
            NAMES[first.kind],
            str(first.setting or "-"),
            f"{first.numbers:,}",
            f"{first.payload_bytes:,}",
            str(first.clients),
            _share([attempt.span for attempt in attempts]),
            _share([attempt.pursuit for attempt in attempts]),
            f"{100 * fmean(attempt.chance for attempt in attempts):.1f}%",
            f"{best_of(attempts)[1]:.2g}",
            _share([attempt.other for attempt in attempts]),
            _figure([attempt.member for attempt in attempts]),
        ]
        if result.of_pictures:
            row.append(_figure([attempt.error or 0.0 for attempt in attempts]))
        rows.append(row)
    return Sheet(
        "Inputs that were found",
        head,
        rows,
        "Means over the seeds with 95% intervals; p of the better attack: that as many random "
        "candidates find as much, twice that for the choice between two. Of another client: the "
        "share of inputs of a client that has no part, found by the same picks. Member told "
        "apart: the probability that a client of the sum has a message more like it than another "
        "client; 0.5 is chance.",
    )


def _share(values: Sequence[float]) -> str:
    return f"{100 * fmean(values):.1f} ± {100 * interval(values):.1f}%"


def _figure(values: Sequence[float]) -> str:
    return f"{fmean(values):.2f} ± {interval(values):.2f}"
