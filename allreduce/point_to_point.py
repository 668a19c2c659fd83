"""What one message costs: the measurements that a network model is calibrated with."""

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from allreduce.errors import Stalled
from allreduce.plan import LOOKS_PER_CLOCK, SPINS

EAGER_SIZES = tuple(1 << k for k in range(10, 23))  # bytes tried for the eager limit
SILENCE = 0.02  # s a receiver makes no call to MPI, to see whether a send leaves without it
TRIES = 3  # at each size: an odd number
WARM_UP = 5
TAG = 31000


class Trips(NamedTuple):
    """Seconds of each repetition: half a round trip, and this rank's call that starts a send."""

    half_s: list[float]
    call_s: list[float]


def ping_pong(
    comm: Any, peer: int, first: bool, nbytes: int, repetitions: int, deadline: float = 60.0
) -> Trips:
    """`nbytes` to `peer` and back, on both of the two ranks; the `first` sends first.

    Stalled if the peer does not answer within `deadline` seconds.
    """
    buffer = np.zeros(nbytes, np.uint8)
    send, receive = comm.Send_init(buffer, peer, TAG), comm.Recv_init(buffer, peer, TAG)
    trips = Trips([], [])
    for repetition in range(-WARM_UP, repetitions):
        began = time.perf_counter()
        for request in (send, receive) if first else (receive, send):
            starting = time.perf_counter()
            request.Start()
            if request is send:
                call_s = time.perf_counter() - starting
            _until(request.Test, peer, deadline)
        if repetition >= 0:
            trips.half_s.append((time.perf_counter() - began) / 2)
            trips.call_s.append(call_s)
    send.Free()
    receive.Free()
    return trips


def fan_out(
    comm: Any,
    root: int,
    peers: Sequence[int],
    nbytes: int,
    repetitions: int,
    deadline: float = 60.0,
) -> list[list[float]]:
    """Seconds until each of `peers` has said that `nbytes` have come, which the root sends to all
    of them at once, in their order; a list of each repetition. Called on all; empty but there."""
    buffer, word = np.zeros(nbytes, np.uint8), np.zeros(1, np.uint8)
    seconds = []
    for repetition in range(-WARM_UP, repetitions):
        if comm.Get_rank() != root:
            _until(comm.Irecv(buffer, root, TAG).Test, root, deadline)
            _until(comm.Isend(word, root, TAG + 1).Test, root, deadline)
            continue
        words = [np.zeros(1, np.uint8) for _ in peers]
        waits = [comm.Irecv(word, peer, TAG + 1) for word, peer in zip(words, peers, strict=True)]
        began = time.perf_counter()
        sends = [comm.Isend(buffer, peer, TAG) for peer in peers]
        ends: dict[int, float] = {}
        _until(partial(_note, waits, ends, began), peers[0], deadline)
        for send in sends:
            _until(send.Test, peers[0], deadline)
        if repetition >= 0:
            seconds.append([ends[number] for number in range(len(peers))])
    return seconds


def eager_limit(comm: Any, peer: int, first: bool, deadline: float = 60.0) -> int:
    """The bytes up to which a send of the `first` rank completes while `peer` makes no call, in
    most of TRIES: a rank that other work keeps off its core misses one.

    0 if none of EAGER_SIZES does. Called on both ranks; only the `first` learns it.
    """
    limit = 0
    for nbytes in EAGER_SIZES:
        left = [_leaves(comm, peer, first, nbytes, deadline) for _ in range(TRIES)]
        if sum(left) > TRIES // 2 and limit in (0, nbytes // 2):
            limit = nbytes
    return limit


def _leaves(comm: Any, peer: int, first: bool, nbytes: int, deadline: float) -> bool:
    """Whether the `first` rank's send was seen to complete while the other slept."""
    buffer, answer, left = np.zeros(nbytes, np.uint8), np.zeros(1, np.uint8), False
    if first:
        request = comm.Isend(buffer, peer, TAG + 1)
        silent = time.perf_counter() + SILENCE / 2
        while not left and time.perf_counter() < silent:
            left = bool(request.Test())
        if not left:
            _until(request.Test, peer, deadline)
        _until(comm.Irecv(answer, peer, TAG + 2).Test, peer, deadline)
    else:
        time.sleep(SILENCE)
        _until(comm.Irecv(buffer, peer, TAG + 1).Test, peer, deadline)
        _until(comm.Isend(answer, peer, TAG + 2).Test, peer, deadline)
    return left


def look_seconds(comm: Any, repetitions: int) -> list[float]:
    """Seconds of one test of a message that never comes, `repetitions` times."""
    request = comm.Recv_init(np.zeros(1, np.uint8), comm.Get_rank(), TAG + 3)
    request.Start()
    seconds = []
    for _ in range(repetitions):
        began = time.perf_counter()
        request.Test()
        seconds.append(time.perf_counter() - began)
    request.Cancel()
    request.Wait()
    request.Free()
    return seconds


def _note(waits: Sequence[Any], ends: dict[int, float], began: float) -> bool:
    """Note when each of `waits` is seen to be done; whether all are."""
    for number, wait in enumerate(waits):
        if number not in ends and wait.Test():
            ends[number] = time.perf_counter() - began
    return len(ends) == len(waits)


def _until(ready: Callable[[], bool], peer: int, deadline: float) -> None:
    """Look until `ready()`, without a sleep: it would show in the seconds."""
    looks, began = 0, time.monotonic()
    while not ready():
        looks += 1
        if looks > SPINS:
            os.sched_yield()
            if not looks % LOOKS_PER_CLOCK and time.monotonic() - began > deadline:
                raise Stalled(f"rank {peer} has not answered a single message for {deadline} s")
