"""One rank sends to two others at once: what it measures, and what that tells of a network."""

import math

from mpi4py import MPI

from allreduce.point_to_point import fan_out
from mpisgd.predict.links import Measured, habits

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()


def the_sender_alone_measures_each_receiver() -> None:
    for root, peers in ((0, [2, 1]), (2, [0])):
        if RANK not in (root, *peers):
            continue
        for nbytes in (1, 1 << 20):  # eager and rendezvous
            seconds = fan_out(COMM, root, peers, nbytes, repetitions=4, deadline=30)
            if root == RANK:
                assert [len(ends) for ends in seconds] == [len(peers)] * 4
                assert min(map(min, seconds)) > 0
            else:
                assert seconds == []


def a_port_is_shared_if_even_the_first_message_comes_late() -> None:
    """Later than alone, by the bandwidth that rank 0 has found; here it is told one."""
    for bandwidth, habit in ((1e18, "fair"), (1e-3, "fifo")):
        found = {"bandwidth_Bps": Measured(bandwidth, bandwidth, bandwidth, 1)} if not RANK else {}
        words = habits(COMM, ["a", "b", "c"], found, 3, 30)
        assert words == ({"sharing": habit} if RANK == 0 else {})


def with_less_than_two_other_hosts_nothing_is_said() -> None:
    for hosts in (["a", "a", "a"], ["a", "b", "b"]):
        found = {"bandwidth_Bps": Measured(math.nan, math.nan, math.nan, 1)}
        assert habits(COMM, hosts, found, 3, 30) == {}


if __name__ == "__main__":
    the_sender_alone_measures_each_receiver()
    a_port_is_shared_if_even_the_first_message_comes_late()
    with_less_than_two_other_hosts_nothing_is_said()
    if RANK == 0:
        print("all checks passed")
