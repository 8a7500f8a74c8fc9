"""What can be done to clients' vectors before a rule combines them; each as a matrix M, so that the rule sees M X.

nearest neighbours   x_i <- the mean of the n - f vectors nearest to x_i, itself among them
                     Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan: "Fixing by Mixing", AISTATS 2023, Alg. 2
bucketing            shuffle, then the mean of s in a row; the last bucket may be smaller
                     Karimireddy, He, Jaggi: "Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing",
                     ICLR 2022, Algorithm 1
ARC                  the k = floor(2 (f / n) (n - f)) longest vectors are clipped to the length of the next one
                     Allouah, Guerraoui, Gupta, Jellouli, Rizk, Stephan: "Adaptive Gradient Clipping for Robust
                     Federated Learning", ICLR 2025, Algorithm 2
"""

import numpy as np

from fedseed.aggregation.geometry import Matrix, lengths, squared_distances
from fedseed.randomness import Domain, permutation


def nearest_neighbours(gram: Matrix, liars: int) -> Matrix:
    """Nearest-neighbour mixing, (n, n). Of vectors that are as near the first ones count.

    Args:
        gram: the products of two vectors, (n, n).
        liars: f.
    """
    n = len(gram)
    kept = n - liars
    squares = squared_distances(gram)
    np.fill_diagonal(squares, -1.0)  # itself comes first
    nearest = np.argsort(squares, axis=1, kind="stable")[:, :kept]
    made = np.zeros((n, n))
    np.put_along_axis(made, nearest, 1.0 / kept, axis=1)
    return made


def buckets(n: int, size: int, seed: int, round: int) -> Matrix:
    """Bucketing, (n / s rounded up, n).

    Args:
        n: how many vectors.
        size: s.
        seed: the run's, which with the round decides who is with whom.
        round: the round's number.
    """
    order = permutation(seed, Domain.BUCKETS, n, round)
    made = np.zeros((-(-n // size), n))
    for bucket, row in enumerate(made):
        members = order[bucket * size : (bucket + 1) * size]
        row[members] = 1.0 / len(members)
    return made


def adaptive_clipping(gram: Matrix, liars: int) -> Matrix:
    """ARC, (n, n).

    Args:
        gram: the products of two vectors, (n, n).
        liars: f.
    """
    n, found = len(gram), lengths(gram)
    clipped = int(2 * liars / n * (n - liars))
    bound = np.sort(found)[n - clipped - 1]
    return np.diag(np.minimum(1.0, bound / np.maximum(found, np.finfo(float).tiny)))
