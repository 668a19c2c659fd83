"""The all-reduce algorithms: pure functions from a number of ranks to a Schedule.

Costs are per rank for p ranks and n bytes, p a power of two: *steps* is the number of rounds,
*bytes* what the busiest rank sends.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from allreduce.errors import ScheduleError
from allreduce.schedule import (
    Schedule,
    beside,
    embed,
    mirror,
    nothing,
    pack,
    pipeline,
    refine,
    transfers,
)

RANKS_PER_NODE = 8  # what `hierarchical` assumes when not told: the servers of the DaSGD paper
PIECES = 8  # pieces in which each of the two trees sends its half


def tree(size: int) -> Schedule:
    """Binomial tree: reduce to rank 0, broadcast back. Any number of ranks.

    Steps 2 ceil(log2 p), bytes n log2 p at the root. Thakur, Rabenseifner, Gropp 2005, and the
    tree of the DaSGD paper's Fig. 1 (there the root updates the model before it broadcasts;
    summing gradients here and updating everywhere is arithmetically the same).
    """
    reduction = _binomial_reduction(size)
    return reduction + mirror(reduction)


def broadcast(size: int) -> Schedule:
    """Rank 0's values to all, down a binomial tree. No all-reduce: `verify` refuses it."""
    return mirror(_binomial_reduction(size)).named("broadcast")


@lru_cache(maxsize=64)
def allgather(size: int) -> Schedule:
    """Segment k of rank k to all: Bruck's, for any number of ranks. No all-reduce of itself.

    Steps ceil(log2 p), bytes n (p - 1) for segments of n bytes. Bruck et al. 1997.
    """
    rounds, distance, rank = [], 1, np.arange(size)
    while distance < size:
        end = rank + min(distance, size - distance)
        to, wraps = (rank - distance) % size, end > size
        parts = [transfers(rank, to, rank, np.minimum(end, size), False)]
        if wraps.any():
            parts.append(transfers(rank[wraps], to[wraps], 0, end[wraps] - size, False))
        rounds.append(np.concatenate(parts))
        distance *= 2
    return Schedule(size, size, tuple(rounds), "gather")


def double_tree(size: int, pieces: int = PIECES) -> Schedule:
    """Two binary trees, each reducing and broadcasting half of the data in a pipeline.

    A rank inside one tree is a leaf of the other, so that all ports carry load. Steps about
    4 log2 p + 4 pieces, bytes 2n at most. Sanders, Speck, Träff 2009; NCCL since 2.4.
    """
    if size == 1:
        return nothing(1)
    first = _binary_reduction(size)
    ranks = range(size - 1, -1, -1) if size % 2 == 0 else np.roll(np.arange(size), -1).tolist()
    second = embed(first, list(ranks), size)
    return pipeline([tree + mirror(tree) for tree in (first, second)], pieces)


def butterfly(size: int) -> Schedule:
    """Recursive doubling: in round k every rank exchanges all of its data with rank XOR 2^k.

    Steps log2 p, bytes n log2 p; other numbers of ranks fold, two more rounds of n bytes.
    Thakur, Rabenseifner, Gropp 2005; the butterfly of the DaSGD paper.
    """
    return _fold(size, _recursive_doubling)


def halving_doubling(size: int) -> Schedule:
    """Reduce-scatter by recursive halving, all-gather by its mirror: the bandwidth-optimal
    butterfly.

    Steps 2 log2 p, bytes 2n(p-1)/p; other numbers of ranks fold. Rabenseifner 2004.
    """
    return _fold(size, _recursive_halving)


def ring(size: int) -> Schedule:
    """Reduce-scatter around a ring, all-gather by its mirror. Any number of ranks.

    Steps 2(p-1), bytes 2n(p-1)/p. Patarasuk, Yuan 2009.
    """
    rank = np.arange(size)
    reduction = tuple(
        transfers(rank, (rank + 1) % size, (rank - k) % size, (rank - k) % size + 1)
        for k in range(size - 1)
    )
    scatter = Schedule(size, size, reduction)
    return scatter + mirror(scatter)


def hierarchical(
    size: int, nodes: Sequence[int] | None = None, inner: str = "butterfly"
) -> Schedule:
    """Reduce to each node's first rank, all-reduce among these by `inner`, broadcast back.

    `nodes[rank]` is the node of a rank; by default nodes hold RANKS_PER_NODE consecutive ranks.
    Steps 2 log2(ranks per node) + those of `inner`.
    """
    where = np.arange(size) // RANKS_PER_NODE if nodes is None else np.asarray(nodes)
    if where.shape != (size,):
        raise ScheduleError(f"nodes must name one node for each of {size} ranks, got {nodes}")
    _, first, members = np.unique(where, return_index=True, return_inverse=True)
    order = np.argsort(first)  # leaders in order of rank
    groups = [np.flatnonzero(members == node).tolist() for node in order]
    within = beside(*(embed(_binomial_reduction(len(group)), group, size) for group in groups))
    among = embed(build(inner, len(groups)), [group[0] for group in groups], size)
    within = refine(within, among.segments)
    return within + among + mirror(within)


def sorted_linear(size: int, order: Sequence[int] | None = None) -> Schedule:
    """For ranks that come one after the other: each adds its own to what it gets and hands it to
    the next, the last sends the sum down a binomial tree.

    `order`: the ranks, who comes first first [by number]. Steps p - 1 + log2 p, of which what is
    before the last arrival costs nothing: then 1 + log2 p, bytes n log2 p. After the sorted linear
    tree of Proficz 2018.
    """
    ranks = _order(size, order)
    chain = tuple(transfers([k], [k + 1]) for k in range(size - 1))
    reduction = embed(Schedule(size, 1, chain), ranks, size)
    return reduction + embed(mirror(_binomial_reduction(size)), ranks[::-1], size)


def pre_reduced_ring(size: int, order: Sequence[int] | None = None) -> Schedule:
    """For ranks of which some come late: the early half, less one, gives its data to those that
    come next; these and the last all-reduce around a ring and tell the early ones.

    `order` as of `sorted_linear`. Steps p + 2, bytes about 3n; without the first round, which is
    over before the last comes, p + 1 and 2n. After the pre-reduced ring of Proficz 2018.
    """
    ranks = _order(size, order)
    half = (size - 1) // 2
    early, late = ranks[:half], ranks[half:]
    inner = embed(ring(len(late)), late, size)
    if not early:
        return inner
    give = transfers(early, late[:half], 0, inner.segments)
    before = Schedule(size, inner.segments, (give,))
    return before + inner + mirror(before)


ORDERED = {"sorted-linear": sorted_linear, "pre-reduced-ring": pre_reduced_ring}
ALGORITHMS: dict[str, Callable[..., Schedule]] = {
    "tree": tree,
    "double-tree": double_tree,
    "butterfly": butterfly,
    "halving-doubling": halving_doubling,
    "ring": ring,
    "hierarchical": hierarchical,
    **ORDERED,
}


def build(
    name: str,
    size: int,
    nodes: Sequence[int] | None = None,
    order: Sequence[int] | None = None,
) -> Schedule:
    """The schedule of algorithm `name` for `size` ranks; `order`: in which they come, for ORDERED.

    `name` is a key of ALGORITHMS, or `hierarchical:INNER`. ScheduleError if it is neither, or
    if there is not at least one rank.
    """
    if size < 1:
        raise ScheduleError(f"an all-reduce needs at least 1 rank, got {size}")
    outer, colon, inner = name.partition(":")
    allowed = f"choose from {', '.join(ALGORITHMS)}, hierarchical:INNER"
    if outer not in ALGORITHMS or (colon and (outer != "hierarchical" or inner not in ALGORITHMS)):
        raise ScheduleError(f"no all-reduce named {name!r}: {allowed}")
    if outer == "hierarchical":
        return hierarchical(size, nodes, inner or "butterfly").named(name)
    if outer in ORDERED:
        return ORDERED[outer](size, order).named(name)
    return ALGORITHMS[outer](size).named(name)


def _order(size: int, order: Sequence[int] | None) -> list[int]:
    ranks = list(range(size)) if order is None else [int(rank) for rank in order]
    if sorted(ranks) != list(range(size)):
        raise ScheduleError(f"order must name each of {size} ranks once, got {order}")
    return ranks


def _binomial_reduction(size: int) -> Schedule:
    """To rank 0 in ceil(log2 p) rounds."""
    rounds = []
    distance = 1
    while distance < size:
        senders = np.arange(distance, size, 2 * distance)
        rounds.append(transfers(senders, senders - distance))
        distance *= 2
    return Schedule(size, 1, tuple(rounds))


def _binary_reduction(size: int) -> Schedule:
    """Up the in-order binary tree on `size` ranks: even ranks are leaves, the root is inside."""

    def subtree(low: int, high: int) -> tuple[int, list[tuple[int, int]]]:
        """Root and (child, parent) edges, children first, of numbers low..high, from 1."""
        root = max(range(low, high + 1), key=lambda number: number & -number)
        edges: list[tuple[int, int]] = []
        for below, above in ((low, root - 1), (root + 1, high)):
            if below <= above:
                child, inside = subtree(below, above)
                edges += [*inside, (child, root)]
        return root, edges

    _, edges = subtree(1, size)
    rounds = tuple(transfers(child - 1, parent - 1) for child, parent in edges)
    return pack(Schedule(size, 1, rounds))


def _recursive_doubling(size: int) -> Schedule:
    rank = np.arange(size)
    rounds = tuple(transfers(rank, rank ^ (1 << k)) for k in range(size.bit_length() - 1))
    return Schedule(size, 1, rounds)


def _recursive_halving(size: int) -> Schedule:
    """Reduce-scatter: the nearest partner gets the largest half. `size` segments."""
    rank = np.arange(size)
    low, high = np.zeros(size, int), np.full(size, size)
    rounds = []
    for k in range(size.bit_length() - 1):
        middle = (low + high) // 2
        upper = (rank >> k & 1).astype(bool)  # keeps the upper half, gives the lower one away
        rounds.append(
            transfers(
                rank, rank ^ (1 << k), np.where(upper, low, middle), np.where(upper, middle, high)
            )
        )
        low, high = np.where(upper, middle, low), np.where(upper, high, middle)
    scatter = Schedule(size, size, tuple(rounds))
    return scatter + mirror(scatter)


def _fold(size: int, algorithm: Callable[[int], Schedule]) -> Schedule:
    """`algorithm` on the largest power of two of ranks, the others folded onto these.

    Of the first ranks, each odd one gives its data to the even one before it, sits out, and is
    told the result.
    """
    core = 1 << (size.bit_length() - 1)
    extra = size - core
    inner = embed(algorithm(core), [*range(0, 2 * extra, 2), *range(2 * extra, size)], size)
    if not extra:
        return inner
    odd = np.arange(1, 2 * extra, 2)
    give = Schedule(size, inner.segments, (transfers(odd, odd - 1, 0, inner.segments),))
    return give + inner + mirror(give)
