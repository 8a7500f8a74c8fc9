"""FedKSeed's tables and figures that need no training: Table 3's bytes, Figure 5, Table 1's growth,
the prompts.

Qin et al., ICML 2024: Sections 4.2 and 5.3, Appendices G.2 and I.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise, product
from math import pi, sqrt

import numpy as np

from fedseed.randomness import Basis
from fedseed.reports.charts import Axis, Panel, Series
from fedseed.reports.tables import Sheet
from fedseed.tasks.prompts import alpaca_prompt
from fedseed_papers import payloads
from fedseed_papers.findings import Claim, Finding, judged
from fedseed_papers.reconstruction import over_seeds

GIB = 2**30
POOLS = tuple(2**p for p in range(15))


def table_3() -> Finding:
    """Bytes of a client's round, both ways."""
    pool, small, large = (
        payloads.fedkseed(4096),
        payloads.fedkseed(1024, True),
        payloads.fedkseed(2048, True),
    )
    half, small_half, large_half = (
        payloads.fedkseed(4096, scalars="float16"),
        payloads.fedkseed(1024, True, scalars="float16"),
        payloads.fedkseed(2048, True, scalars="float16"),
    )
    whole = {d: payloads.fedavg(d).update.bytes for d in (1000, 2000)}
    bytes_each = whole[2000] // 2000  # bytes of a parameter, one way
    one_way = [bytes_each * d / GIB for d in (payloads.DATAJUICER, payloads.LLAMA_3B)]
    rows = [
        [
            "FedAvg, one way",
            f"{one_way[0]:.2f} GiB",
            f"{one_way[1]:.2f} GiB",
            "5.01 GB",
            "12.76 GB",
        ],
        ["FedAvg, both ways", f"{2 * one_way[0]:.2f} GiB", f"{2 * one_way[1]:.2f} GiB", "-", "-"],
        ["FedKSeed", f"{pool.bytes:,} B", f"{pool.bytes:,} B", "17,988 B", "17,988 B"],
        ["FedKSeed-Pro", f"{small.bytes:,} B", f"{large.bytes:,} B", "9,796 B", "17,988 B"],
        ["FedKSeed, scalars in 2 bytes", f"{half.bytes:,} B", f"{half.bytes:,} B", "half", "half"],
        [
            "FedKSeed-Pro, the same",
            f"{small_half.bytes:,} B",
            f"{large_half.bytes:,} B",
            "half",
            "half",
        ],
    ]
    # one seed of the pool, K accumulated scalars down; pairs of a seed and a scalar up
    all_halved = 4 + 2 * 4096 + 200 * (4 + 2)
    sizes = (pool.bytes, small.bytes, large.bytes)
    return Finding(
        [
            Claim(
                "FedKSeed: 17,988 B (K = 4096); FedKSeed-Pro: 9,796 B (K = 1024) and 17,988 B (K = "
                "2048).",
                ", ".join(f"{n:,} B" for n in sizes) + ", as encoded.",
                judged(sizes == (17_988, 9_796, 17_988)),
            ),
            Claim(
                "FedAvg: 5.01 GB (DataJuicer-1.3B) and 12.76 GB (LLaMA-3B).",
                f"One way in float32: {one_way[0]:.2f} and {one_way[1]:.2f} GiB.",
                judged(abs(one_way[0] - 5.01) < 0.005 and abs(one_way[1] - 12.76) < 0.006),
            ),
            Claim(
                "All methods' bytes are 32-bit and both ways (Appendix I).",
                f"FedAvg's are one way, or 16-bit: both ways it is {2 * one_way[0]:.2f} and "
                f"{2 * one_way[1]:.2f} GiB. The adapters' figures are both ways.",
                judged(abs(2 * one_way[0] - 5.01) < 0.01),
            ),
            Claim(
                "Half precision reduces all methods' bytes by half (Appendix I).",
                f'With scalars = "float16" FedKSeed\'s are {half.bytes / pool.bytes:.2f} of those '
                f"above, Pro's {small_half.bytes / small.bytes:.2f}: a client's scalars travel in "
                f"2 bytes, the accumulator, a sum over all rounds, in 4. With all in 2 it would be "
                f"{all_halved / pool.bytes:.2f}, as seeds keep 32 bits; of the methods that send "
                "weights it is half.",
                judged(abs(half.bytes / pool.bytes - 0.5) < 0.01),
            ),
        ],
        "Payloads of one client in one round, encoded by the methods' own codec; frames of 28 "
        "bytes are not in it, nor in the paper. FedAvg's bytes of a parameter are measured, and "
        "the models' parameters counted from their shapes.",
        [],
        [
            Sheet(
                "A client's round",
                ("method", "DataJuicer-1.3B", "LLaMA-3B", "paper, 1.3B", "paper, 3B"),
                rows,
                f"Parameters: {payloads.DATAJUICER:,} and {payloads.LLAMA_3B:,}. The paper's GB is "
                "2^30 bytes.",
            )
        ],
    )


def tail_mean(count: int, draws: int, width: float) -> float:
    """Return the largest mean of |mean of draws| that FedKSeed's Lemma 1 (Eq. 10) allows: its tail,
    at most 1, added up over epsilon.

    Args:
        count: K.
        draws: Gamma.
        width: max(Z') - min(Z') of the pool.
    """
    epsilon = np.geomspace(1e-4, 1e3, 4000)
    tail = 4 / (count * epsilon**2) + 2 * np.exp(-draws * epsilon**2 / (2 * max(width, 1e-9) ** 2))
    beyond = 4 / (count * epsilon[-1])
    return float(epsilon[0] + np.trapezoid(np.minimum(tail, 1.0), epsilon) + beyond)


def figure_5(
    length: int = 10_000,
    pools: Sequence[int] = POOLS,
    draws: Sequence[int] = (100, 1000, 10_000),
    repeats: int = 100,
) -> Finding:
    """The mean of Gamma perturbations drawn from a pool of K: its entries' absolute values, on
    average.

    A repeat generates one pool of the largest size; a smaller pool is its beginning.
    """
    unlimited = "Gamma = 10,000, any seed"
    tables: dict[int, list[dict[float, float]]] = {}
    for g in draws:
        tables[g] = [{} for _ in range(repeats)]
    free: list[float] = []
    for repeat in range(repeats):
        random = np.random.default_rng(repeat)
        plans = list(product(draws, pools))
        weights = np.zeros((len(plans), pools[-1]), dtype=np.float32)
        for row, (g, k) in enumerate(plans):
            weights[row, :k] = random.multinomial(g, [1 / k] * k) / g
        means = np.zeros((len(plans), length), dtype=np.float32)
        basis = Basis("normal", repeat)
        # some directions at a time: the pool is never held whole
        for first in range(0, pools[-1], 512):
            upto = min(first + 512, pools[-1])
            chunk = np.stack([basis.direction(k, 0, length) for k in range(first, upto)])
            means += weights[:, first:upto] @ chunk
        for (g, k), mean in zip(plans, means, strict=True):
            tables[g][repeat][float(k)] = float(np.abs(mean).mean())
        # of unlimited seeds each perturbation is new: their mean is N(0, 1 / Gamma) entry by entry
        free.append(float(np.abs(random.normal(scale=draws[-1] ** -0.5, size=length)).mean()))
    lines = [over_seeds(f"Gamma = {g:,}", tables[g], i) for i, g in enumerate(draws)]
    level = float(np.mean(free))
    dotted = Series(unlimited, [(float(k), level) for k in pools], number=len(draws))
    last, pools_kept = dict(lines[-1].points), [k for k in pools if k >= pools[-1] // 16]

    def expected(g: int, k: int) -> float:
        """Of |N(0, 1/K + 1/Gamma - 1/(K Gamma))|."""
        return sqrt(2 / pi * (1 / k + 1 / g - 1 / (k * g)))

    errors = []
    for g, line in zip(draws, lines, strict=True):
        errors += [abs(y / expected(g, int(k)) - 1) for k, y in line.points]
    worst = max(errors)
    random = np.random.default_rng(0)
    lemma = []
    for k in pools:
        widths = np.ptp(random.normal(size=(200, k)), axis=1)
        lemma.append((float(k), tail_mean(k, draws[-1], float(widths.mean()))))
    lemma_over = min(b / y for (_, b), (_, y) in zip(lemma, lines[-1].points, strict=True))
    lemma_line = Series(f"Lemma 1, Gamma = {draws[-1]:,}", lemma, number=len(draws) + 1)
    smallest, end = pools_kept[0], pools[-1]
    tail = [line.points[-1][1] for line in lines]
    return Finding(
        [
            Claim(
                "The mean tends to zero as K grows.",
                f"Gamma = {draws[-1]:,}: {last[float(pools[0])]:.4f} at K = {pools[0]}, "
                f"{last[float(end)]:.4f} at K = {end:,}.",
                judged(last[float(end)] < 0.1 * last[float(pools[0])]),
            ),
            Claim(
                f"Over K = {smallest:,} it is very similar to that without a restriction (the "
                "paper says 1,024).",
                f"Without one {level:.4f}; K = {smallest:,}: {last[float(smallest)]:.4f}. That is "
                f"near on an axis up to {last[float(pools[0])]:.1f}, and "
                f"{last[float(smallest)] / level:.1f} times as much; K = {end:,}: "
                f"{last[float(end)] / level:.2f} times.",
                judged(last[float(smallest)] - level < 0.05 * last[float(pools[0])], kind=True),
            ),
            Claim(
                "At a given K a larger Gamma makes it smaller.",
                ", ".join(f"{y:.4f}" for y in tail) + f" at K = {end:,}.",
                judged(all(a > b for a, b in pairwise(tail))),
            ),
            Claim(
                "Lemma 1 bounds it: Pr[|mean| >= epsilon] <= 4 / (K epsilon^2) + 2 exp(-Gamma "
                "epsilon^2 / (2 [max - min]^2)) (Eq. 10).",
                f"Added up over epsilon, the bound on the mean is {lemma_over:.1f} times what was "
                f"measured, or more, at each K (Gamma = {draws[-1]:,}).",
                judged(lemma_over >= 1),
            ),
        ],
        "An entry of the mean is N(0, 1/K + 1/Gamma - 1/(K Gamma)), and what was measured is that "
        f"within {worst:.1%}: with Gamma = 10,000 the pool's own mean dominates until K is far "
        "above 10,000, though on the figure's axis the difference can hardly be seen.",
        [
            Panel("Figure 5", [*lines, dotted], Axis("K", log=True), Axis("mean absolute value")),
            Panel(
                "The same, logarithmic",
                [*lines, dotted, lemma_line],
                Axis("K", log=True),
                Axis("mean absolute value", log=True),
            ),
        ],
        [],
        f"0 to {repeats - 1}",
        [
            f"{repeats} repeats; the pools of a repeat share their beginnings.",
            "The paper does not say over what the mean goes: over the perturbations, then its "
            "absolute value over entries.",
        ],
    )


def table_1(length: int = 10**6, count: int = 1024) -> Finding:
    """What a client's costs grow with."""
    base, wider = (
        payloads.fedkseed(count, length=length),
        payloads.fedkseed(count, length=2 * length),
    )
    dense = payloads.fedavg(2 * length).bytes / payloads.fedavg(length).bytes
    return Finding(
        [
            Claim(
                "FedKSeed's communication is O(1) in d, that of full-parameter methods O(d).",
                f"Twice the parameters: {wider.bytes / base.bytes:.2f} and {dense:.2f} times the "
                "bytes.",
                judged(wider.bytes == base.bytes and abs(dense - 2) < 0.01),
            ),
        ],
        "Bytes are encoded payloads of a round, both ways. The other columns are timed and "
        "measured elsewhere: obtaining the newest model in fedkseed/figure-2, memory in "
        "fedkseed/table-3 at a small scale.",
    )


def prompts_finding(summary: str, rows: Sequence[tuple[str, str, str]], deviation: str) -> Finding:
    """Templates of a paper beside ours.

    Args:
        summary: what the table has.
        rows: case, the paper's text, ours.
        deviation: what differs by intent.
    """
    claims = [
        Claim(
            f"{case}: {' / '.join(paper.splitlines())}",
            "The same words." if _are_alike(paper, ours) else ours,
            judged(_are_alike(paper, ours)),
        )
        for case, paper, ours in rows
    ]
    return Finding(claims, f"{summary} Compared word by word, white space apart: {deviation}")


def _are_alike(paper: str, ours: str) -> bool:
    return paper.split() == ours.split()


OPENING = (
    "Below is an instruction that describes a task, paired with an input that provides further "
    "context. Write a response that appropriately completes the request."
)
WITH_INPUT = f"{OPENING}\n### Instruction: {{instruction}}\n### Input: {{input}}\n### Response:"
WITHOUT = f"{OPENING}\n### Instruction: {{instruction}}\n### Response:"
LINES = (
    "the tables show a heading and its text on one line, Alpaca's template, which they cite, "
    "on two."
)


def table_5() -> Finding:
    """The prompt of Natural Instructions."""
    rows = [("Definition and input", WITH_INPUT, alpaca_prompt("{instruction}", "{input}"))]
    return prompts_finding("The prompt template for Natural Instructions.", rows, LINES)


def table_6() -> Finding:
    """The prompts of Dolly-15k."""
    rows = [
        ("with context", WITH_INPUT, alpaca_prompt("{instruction}", "{input}", True)),
        ("without context", WITHOUT, alpaca_prompt("{instruction}", context_said=True)),
    ]
    return prompts_finding(
        'The prompt templates for Dolly-15k (task.prompt = "paper").', rows, LINES
    )


EXACT: dict[str, Callable[..., Finding]] = {
    "figure-5": figure_5,
    "table-1": table_1,
    "table-3": table_3,
    "table-5": table_5,
    "table-6": table_6,
}
