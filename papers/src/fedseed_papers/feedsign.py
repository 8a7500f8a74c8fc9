"""FeedSign's tables and statements that need no training: bits, orbits' bytes, sign reversal, Prop.

D.5, Appendix J.

Cai et al., 2025: Section 3.1, Appendices D.1, D.4, E and J.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from fedseed.aggregation import Mean
from fedseed.errors import RecipeError
from fedseed.experiments.sweeps import find_sweep, read_sweep
from fedseed.methods import FeedSign
from fedseed.methods.base import Answer, Answers
from fedseed.methods.feedsign import Votes
from fedseed.orbit.record import Record, pack_records
from fedseed.reports.charts import Axis, Panel, Series
from fedseed.reports.tables import Sheet
from fedseed.weights.layout import Layout, TensorEntry
from fedseed_papers import payloads
from fedseed_papers.findings import Claim, Finding, judged

if TYPE_CHECKING:
    from fedseed.recipe.settings import Recipe

Draws = NDArray[np.float64]
Noise = Callable[[np.random.Generator, int], Draws]


# -- Table 1, and what an orbit takes (Figure 5, Appendix D.1)
# ---------------------------------------------------------


def table_1() -> Finding:
    """Bits of a client's step."""
    sign, float32 = payloads.feedsign(), payloads.zofedsgd()
    rows = [
        ["ZO-FedSGD", f"{float32.bits_up}", f"{float32.update.bytes}", "64"],
        ["FeedSign", f"{sign.bits_up}", f"{sign.update.bytes}", "1"],
    ]
    return Finding(
        [
            Claim(
                "ZO-FedSGD: 64 bit a step.",
                f"{float32.bits_up} bit: a seed and a float of 32 each.",
                judged(float32.bits_up == 64),
            ),
            Claim(
                "FeedSign: 1 bit a step.",
                f"{sign.bits_up} bit of content; a payload is whole bytes, so "
                f"{sign.update.bytes} byte with one vote a round, and v / 8 with votes_per_round = "
                "v.",
                judged(sign.bits_up == 1),
            ),
        ],
        "Counted from encoded updates. FO and MeZO in the table are not federated.",
        [],
        [Sheet("A client's update", ("method", "bits", "bytes of payload", "paper, bits"), rows)],
    )


def figure_5(steps: int = 10_000) -> Finding:
    """Bytes of an orbit of FeedSign's steps."""
    method, votes = FeedSign(), np.where(payloads.sample_numbers(steps) > 0, 1, -1).astype(np.int8)
    records = [Record(t + 1, Votes(votes[t : t + 1]).encode()) for t in range(steps)]
    parts = list(pack_records(method, records))
    payload = sum(len(part.payload) for part in parts)
    whole = sum(len(part.encode()) for part in parts)
    return Finding(
        [
            Claim(
                "The orbit of 10,000 steps occupies less than 200 bytes.",
                f"{payload:,} bytes: {steps:,} votes of a bit. With the records' frames {whole:,}, "
                "and a header.",
                judged(payload < 200),
            ),
            Claim(
                "It is far smaller than the 24 GB of a tuned OPT-13B.",
                f"{24e9 / whole:.1e} times.",
                judged(whole < 24e9 / 10**6),
            ),
        ],
        "A vote is one bit and has no pattern that could be packed further: 10,000 of them are "
        "1,250 bytes.",
        [],
        [],
        (),
        ["The votes are random, as those of a run look."],
    )


# -- Appendix E: the sign of a batch's projection
# ----------------------------------------------------------------------

NOISES: dict[str, Noise] = {
    "normal": lambda random, n: random.normal(size=n),
    "Laplace": lambda random, n: random.laplace(scale=0.5**0.5, size=n),
    "uniform": lambda random, n: random.uniform(-(3**0.5), 3**0.5, n),
    "two peaks": lambda random, n: random.choice([-1.0, 1.0], n) + random.normal(scale=0.1, size=n),
    "skewed": lambda random, n: random.exponential(size=n) - 1,
}


def appendix_e(
    draws: int = 200_000, projections: Sequence[float] = (0.01, 0.03, 0.1, 0.3, 1.0, 2.0)
) -> Finding:
    """How often noise of a batch reverses a projection's sign, by the noise's shape.

    All have variance 1.
    """
    random = np.random.default_rng(1)
    lines, reversal = [], {}
    for number, (name, noise) in enumerate(NOISES.items()):
        shares = {p: float((p + noise(random, draws) < 0).mean()) for p in projections}
        reversal[name] = shares
        lines.append(Series(name, list(shares.items()), number=number))
    error = 0.5 / draws**0.5
    symmetric = [max(shares.values()) for name, shares in reversal.items() if name != "skewed"]
    near = [
        shares[projections[0]]
        for name, shares in reversal.items()
        if name not in ("skewed", "two peaks")
    ]
    skewed = max(reversal["skewed"].values())
    return Finding(
        [
            Claim(
                "With noise that is symmetric the sign is reversed in at most half of the batches "
                "(Prop. E.2).",
                f"At most {max(symmetric):.4f} ± {error:.4f} over {len(symmetric)} shapes.",
                judged(max(symmetric) <= 0.5 + 4 * error),
            ),
            Claim(
                "It is one half only where the projection is 0.",
                "Towards 0 it tends to one half: "
                + ", ".join(f"{p:.3f}" for p in near)
                + f" at {projections[0]:g} deviations.",
                judged(all(0.45 < p < 0.5 + 4 * error for p in near)),
            ),
            Claim(
                "The noise needs to be symmetric (Assumption E.1).",
                f"Skewed noise of mean 0 reverses up to {skewed:.3f} of the signs.",
                judged(skewed > 0.5),
            ),
        ],
        "The paper measures that its batches' projections look symmetric (Figures 8 and 9).",
        [
            Panel(
                "Sign reversal",
                lines,
                Axis("projection, in deviations of the noise", log=True),
                Axis("probability"),
            )
        ],
        [],
        (1,),
        [f"{draws:,} draws for each point."],
    )


# -- Proposition D.5: Byzantine voters
# ---------------------------------------------------------------------------------


def printed(honest: float, byzantine: float) -> float:
    """Return p_t by Eq. 24."""
    return honest + byzantine - honest * byzantine


def of_the_proof(honest: float, byzantine: float) -> float:
    """Return E[V] / K by Eq. 47: the share of clients whose sign is wrong."""
    return 0.5 + (0.5 - honest) * (2 * byzantine - 1)


def majority_errs(honest: float, clients: int, byzantine: int) -> float:
    """Return how often the majority errs, exactly: honest clients with probability p_e, Byzantine
    ones 1 - p_e.

    A tie is a coin toss.
    """
    total = 0.0
    for wrong, reversed_ in product(range(clients - byzantine + 1), range(byzantine + 1)):
        p = float(
            binom.pmf(wrong, clients - byzantine, honest)
            * binom.pmf(reversed_, byzantine, 1 - honest)
        )
        total += p * (
            1.0
            if 2 * (wrong + reversed_) > clients
            else 0.5
            if 2 * (wrong + reversed_) == clients
            else 0.0
        )
    return total


def simulated(
    honest: float, clients: int, byzantine: int, votes: int, random: np.random.Generator
) -> tuple[float, float]:
    """Shares of wrong signs among clients and among majorities, by the method's own vote on `votes`
    directions.
    """
    method = FeedSign(votes_per_round=votes)
    right = random.random((clients, votes)) >= honest
    right[clients - byzantine :] ^= True  # always the reversed sign
    signs = np.where(right, 1, -1).astype(np.int8)
    answers = [Answer(c, 1 / clients, Votes(row)) for c, row in enumerate(signs)]
    state = method.start(Layout((TensorEntry("w", (1,), "float32"),), (0, 1)), 3)
    step = method.aggregate(state, Answers(1, answers, Mean()))
    return float((signs < 0).mean()), float((step.signs < 0).mean())


def proposition_d5(
    votes: int = 60_000,
    honest: Sequence[float] = (0.1, 0.2, 0.3, 0.4, 0.45),
    federations: Sequence[tuple[int, int]] = ((5, 1), (25, 5)),
) -> Finding:
    """Wrong signs with Byzantine clients that always reverse theirs: formulas, the exact vote, and
    a simulation.
    """
    random = np.random.default_rng(1)
    rows, worst_mean, worst_vote, is_below = [], 0.0, 0.0, True
    curves: dict[str, list[tuple[float, float]]] = {}
    for clients, byzantine in federations:
        share = byzantine / clients
        for p in honest:
            single, vote = simulated(p, clients, byzantine, min(votes, 1 << 16), random)
            exact = majority_errs(p, clients, byzantine)
            worst_mean = max(worst_mean, abs(single - of_the_proof(p, share)))
            worst_vote = max(worst_vote, abs(vote - exact))
            is_below &= exact < of_the_proof(p, share) < printed(p, share)
            rows.append(
                [
                    f"{byzantine} of {clients}",
                    f"{p:g}",
                    f"{printed(p, share):.3f}",
                    f"{of_the_proof(p, share):.3f}",
                    f"{single:.3f}",
                    f"{exact:.3f}",
                    f"{vote:.3f}",
                ]
            )
            for name, value in (
                ("Eq. 24", printed(p, share)),
                ("Eq. 47", of_the_proof(p, share)),
                (f"vote of {clients}, exact", exact),
            ):
                curves.setdefault(name, []).append((p, value))
    error = 4 * 0.5 / votes**0.5
    lines = [
        Series(name, sorted(set(points)), number=i)
        for i, (name, points) in enumerate(curves.items())
    ]
    example = (printed(0.4, 0.2), of_the_proof(0.4, 0.2), majority_errs(0.4, 5, 1))
    head = (
        "Byzantine",
        "p_e",
        "Eq. 24",
        "Eq. 47",
        "wrong signs",
        "majority, exact",
        "majority, simulated",
    )
    return Finding(
        [
            Claim(
                "The sign is reversed with probability p_e + p_b - p_e p_b (Eq. 24).",
                f"p_e = 0.4, p_b = 0.2: {example[0]:.2f} by Eq. 24; a client's sign is wrong in "
                f"{example[1]:.2f}, the majority of five in {example[2]:.3f}.",
                judged(all(abs(float(row[2]) - float(row[4])) < error for row in rows)),
            ),
            Claim(
                "E[V] / K = 1/2 + (1/2 - p_e)(2 p_b - 1) of the signs are wrong (Eq. 47, the "
                "proof).",
                f"Simulated: within {worst_mean:.4f} everywhere.",
                judged(worst_mean < error),
            ),
            Claim(
                "The adjusted error rate of the vote is E[V] / K.",
                "It is that of one sign; the majority errs less: exact and simulated differ by "
                f"{worst_vote:.4f} at most, and are below Eq. 47 "
                f"{'everywhere' if is_below else 'not everywhere'}.",
                judged(not is_below),
            ),
        ],
        "Eq. 24 is the probability of 'wrong or Byzantine', as if a reversed wrong sign stayed "
        "wrong. Eq. 47 counts single signs. What FeedSign applies is the majority, whose error is "
        "a binomial tail: voting helps, which neither formula shows.",
        [Panel("Proposition D.5", lines, Axis("p_e"), Axis("probability of a wrong sign"))],
        [
            Sheet(
                "Wrong signs",
                head,
                rows,
                f"{votes:,} votes each, by the method's own majority; within {error:.4f} by "
                "chance.",
            )
        ],
        (1,),
        ["p_b is the share of Byzantine clients, a fifth in both federations."],
    )


# -- Appendix J: when FeedSign is unbiased
# -----------------------------------------------------------------------------


def appendix_j(
    draws: int = 200_000, projections: Sequence[float] = (0.1, 0.3, 0.5, 0.7, 0.9)
) -> Finding:
    """Compare the mean of a sign with noise with the projection."""
    random = np.random.default_rng(1)
    noises: dict[str, Noise] = {
        "uniform on [-1, 1]": lambda r, n: r.uniform(-1, 1, n),
        "normal, deviation 0.58": lambda r, n: r.normal(scale=3**-0.5, size=n),
    }
    means = {}
    for name, noise in noises.items():
        means[name] = [(p, float(np.sign(p + noise(random, draws)).mean())) for p in projections]
    error = 4 / draws**0.5
    worst = []
    for points in means.values():
        worst.append(max(abs(y - p) for p, y in points))
    outside = float(np.sign(1.5 + random.uniform(-1, 1, draws)).mean())
    lines = [Series(name, points, number=i) for i, (name, points) in enumerate(means.items())]
    return Finding(
        [
            Claim(
                "FeedSign is unbiased where the noise is uniform on [-1, 1] and the projection "
                "within it (Eq. 52).",
                f"Mean sign minus projection: {worst[0]:.4f} at most ({error:.4f} by chance).",
                judged(worst[0] < error),
            ),
            Claim(
                "Only there.",
                f"Normal noise of the same variance: off by up to {worst[1]:.3f}; a projection of "
                f"1.5 gives {outside:.2f}.",
                judged(worst[1] > 2 * error and outside < 1.5),
            ),
        ],
        "E = F(p) - F(-p), which is p for that one distribution.",
        [
            Panel(
                "Mean sign",
                [*lines, Series("projection", [(p, p) for p in projections], number=len(lines))],
                Axis("projection"),
                Axis("mean sign"),
            )
        ],
        [],
        (1,),
    )


# -- Tables 11 and 12: settings
# ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """A row of Table 11 for one method.

    Args:
        experiment: the paper's table or figure.
        source: the sweep that makes it.
        label: the line's name there.
        scenario: the sweep's; None: its first.
        published: B, T, eta, K, mu and beta; beta is None where the data is dealt evenly.
    """

    experiment: str
    source: str
    label: str
    scenario: str | None
    published: tuple[float, float, float, int, float, float | None]


SWEEP = "published-feedsign-"
TABLE_11: tuple[Setting, ...] = (
    *(
        Setting(experiment, SWEEP + sweep, method, None, (batch, steps, rate, 5, 1e-3, beta))
        for experiment, sweep, batch, steps, rates, beta in (
            ("Table 7", "table-7", 64, 1e5, (1e-6, 5e-5), None),
            ("Table 2", "table-2", 16, 2e4, (1e-7, 5e-6), None),
            ("Table 4", "table-4", 16, 6e4, (1e-7, 5e-6), 1.0),
            ("Table 5", "table-5", 16, 6e4, (1e-7, 5e-6), None),
        )
        for method, rate in zip(("ZO-FedSGD", "FeedSign"), rates, strict=True)
    ),
    *(
        Setting(
            "Table 8",
            SWEEP + "table-8",
            f"{method}, K = {clients}",
            None,
            (16, steps, rate, clients, 1e-3, None),
        )
        for clients, steps in ((5, 6e4), (25, 1.2e4))  # Table 12
        for method, rate in (("ZO-FedSGD", 1e-7), ("FeedSign", 5e-6))
    ),
    *(
        Setting("Table 3", SWEEP + "vision", data, None, (16, steps, 1e-3, 5, 1e-5, None))
        for data, steps in (("CIFAR-10", 2e4), ("CIFAR-100", 6e4))
    ),
    *(
        Setting(
            "Table 9, Figure 4",
            SWEEP + "byzantine",
            method,
            data,
            (64, steps, 1e-3, 5, 1e-5, None),
        )
        for data, steps in (("CIFAR-10", 2e4), ("CIFAR-100", 6e4))
        for method in ("ZO-FedSGD", "FeedSign")
    ),
    *(
        Setting(
            "Figure 2",
            SWEEP + "heterogeneity",
            method,
            "Dirichlet 1.0, multiplier",
            (64, 1.2e5, 1e-4, 25, 1e-5, 1.0),
        )
        for method in ("ZO-FedSGD", "FeedSign")
    ),
)


def recipe_of(source: str, label: str, scenario: str | None = None) -> "Recipe":
    """Return the recipe of a sweep's line in a scenario, the first if none is named."""
    from fedseed.recipe.reading import read_recipe

    path = find_sweep(source)
    if path is None:
        raise RecipeError(f"{source}: there is no such sweep (fedseed list sweeps)")
    sweep = read_sweep(path)
    for scenario_settings, run in sweep.lines():
        if run.label == label and scenario in (None, scenario_settings.name):
            settings = [
                *sweep.set,
                *scenario_settings.set,
                *run.set,
                *scenario_settings.also.get(run.label, ()),
            ]
            return read_recipe(run.recipe, settings)
    raise RecipeError(f"{source}: there is no line {label} @ {scenario or 'the first scenario'}")


def table_11() -> Finding:
    """The settings of the published sweeps beside the paper's.

    T is steps, or perturbations of all clients, as Table 12 has it; Tables 2 and 7 need that.
    """
    claims, rows = [], []
    for setting in TABLE_11:
        recipe = recipe_of(setting.source, setting.label, setting.scenario)
        method: Any = recipe.method  # zeroth-order, all of them
        batch, budget, rate, clients, scale, beta = setting.published
        split = getattr(recipe.task, "partition", None)
        ours = (
            method.batch,
            method.learning_rate,
            recipe.federation.per_round or 0,
            method.scale,
            getattr(split, "alpha", None),
        )
        steps = recipe.rounds
        counted = {steps: "steps", steps * clients: "perturbations"}.get(int(budget))
        name = " ".join(filter(None, (setting.experiment, setting.scenario, setting.label)))
        ours_as_text = ["-" if v is None else f"{v:g}" for v in ours]
        rows.append([name, setting.source, f"{steps:,}", f"{steps * clients:,}", *ours_as_text])
        claims.append(
            Claim(
                f"{name}: T = {budget:g}; B, eta, K, mu, beta = "
                f"{', '.join(_show(v) for v in (batch, rate, clients, scale, beta))}.",
                f"{setting.source}: {steps:,} steps, T as {counted or 'neither'}; "
                f"{', '.join(ours_as_text)}.",
                judged(ours == (batch, rate, clients, scale, beta) and counted is not None),
            )
        )
    return Finding(
        claims,
        "The sweeps that come along have the paper's numbers. T is the number of perturbations in "
        "Table 12 and of steps in Table 6; by Section 4 and Appendix H Tables 2 and 7 keep MeZO's "
        "perturbations. Table 11 has no row for Figure 3 and Table 13.",
        [],
        [
            Sheet(
                "Settings",
                ("line", "sweep", "steps", "K x steps", "B", "eta", "K", "mu", "beta"),
                rows,
            )
        ],
    )


def _show(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def table_12() -> Finding:
    """Steps and perturbations of the lines of Table 8's sweep."""
    # the paper's K, steps and perturbations by our line
    published = {
        "MeZO": (1, 60_000, 60_000),
        "FeedSign, K = 5": (5, 60_000, 300_000),
        "ZO-FedSGD, K = 5": (5, 60_000, 300_000),
        "FeedSign, K = 25": (25, 12_000, 300_000),
        "ZO-FedSGD, K = 25": (25, 12_000, 300_000),
    }
    rows, differing = [], []
    for label, (_, steps, perturbations) in published.items():
        recipe = recipe_of(SWEEP + "table-8", label)
        clients = recipe.federation.per_round or 0
        looked = clients * recipe.rounds
        rows.append(
            [label, f"{clients}", f"{recipe.rounds:,}", f"{looked:,}", f"{perturbations:,}"]
        )
        if (recipe.rounds, looked) != (steps, perturbations):
            differing.append(label)
    return Finding(
        [
            Claim(
                "MeZO 6e4 steps and perturbations; K = 5: 6e4 and 3e5; K = 25: 1.2e4 and 3e5.",
                "The sweep of Table 8 has the same, K times the steps."
                if not differing
                else f"Others in {', '.join(differing)}.",
                judged(not differing),
            )
        ],
        "Each client looks along one direction a step.",
        [],
        [Sheet("Budgets", ("line", "K", "steps", "K times steps", "paper, perturbations"), rows)],
    )


EXACT: dict[str, Callable[..., Finding]] = {
    "table-1": table_1,
    "figure-5": figure_5,
    "figure-7": appendix_e,
    "table-11": table_11,
    "table-12": table_12,
    "appendix-e": appendix_e,
    "proposition-d5": proposition_d5,
    "appendix-j": appendix_j,
}
