"""The MPI library's all-reduces behind a Plan's methods, in one process: MPI is stood in for."""

import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from allreduce import native, plan
from allreduce.errors import AllreduceError, BufferRefused, Stalled
from allreduce.native import NATIVE, Native
from allreduce.testing import device as device_double

IN_PLACE = object()
OTHER = np.array([10.0, 20.0, 30.0])


class Request:
    """A collective that is over once it may be."""

    def __init__(self, comm, given, output):
        self.comm, self.given, self.output = comm, given, output
        self.freed = False

    def Start(self):  # noqa: N802
        self.comm.begun += 1

    def Test(self):  # noqa: N802
        if self.comm.arrived:
            self.comm.sum(self.given, self.output)
        return self.comm.arrived

    def Free(self):  # noqa: N802
        self.freed = True


class Comm:
    """Rank 0 of 2; rank 1 holds OTHER, and takes part once it has `arrived`."""

    def __init__(self):
        self.arrived, self.begun = True, 0
        self.requests: list[Request] = []
        self.codes: list[int] = []
        self.aborted = threading.Event()

    def Get_rank(self):  # noqa: N802
        return 0

    def Get_size(self):  # noqa: N802
        return 2

    def sum(self, given, output):
        np.add(output if given is IN_PLACE else given, OTHER, out=output)

    def Allreduce(self, given, output):  # noqa: N802
        if not self.arrived:
            assert self.aborted.wait(150), "the watchdog slept"
        self.sum(given, output)

    def Allreduce_init(self, given, output):  # noqa: N802
        self.requests.append(Request(self, given, output))
        return self.requests[-1]

    def Iallreduce(self, given, output):  # noqa: N802
        request = self.Allreduce_init(given, output)
        request.Start()
        return request

    def Abort(self, code):  # noqa: N802
        self.codes.append(code)
        self.aborted.set()


@pytest.fixture(autouse=True)
def mpi(monkeypatch):
    """The module mpi4py.MPI of some library."""
    double = SimpleNamespace(
        IN_PLACE=IN_PLACE, __file__="/nowhere/MPI.so",
        Get_library_version=lambda: "Open MPI v5.0,  package\nbuilt by nobody\0",
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=double))
    return double


every_name = pytest.mark.parametrize("name", NATIVE)


@every_name
@pytest.mark.parametrize("in_place", [True, False])
def test_the_sum_or_the_mean_of_all_ranks_any_number_of_times(name, in_place):
    source = np.array([1.0, 2.0, 3.0])
    result = source if in_place else np.empty(3)
    with Native(Comm(), name, source, None if in_place else result, mean=True) as reduction:
        for _ in range(2):
            expected = (source + OTHER) / 2
            reduction.start()
            assert reduction.wait() is result
            assert result.tolist() == expected.tolist()
    assert in_place or source.tolist() == [1.0, 2.0, 3.0]


@every_name
@pytest.mark.parametrize("in_place", [True, False])
def test_the_mean_of_halves_is_where_their_sum_is_not(name, in_place, monkeypatch):
    monkeypatch.setitem(globals(), "OTHER", np.full(3, 61_440.0))
    source = np.full(3, 40_960, np.float16)
    result = source if in_place else np.empty(3, np.float16)
    with Native(Comm(), name, source, None if in_place else result, mean=True) as reduction:
        reduction.start()
        assert reduction.wait() is result
    assert result.tolist() == [51_200] * 3


@every_name
def test_the_input_may_be_changed_once_it_is_taken(name):
    """By the thread that owns it, while another is about to call MPI."""
    comm, source = Comm(), np.array([1.0, 2.0, 3.0])
    comm.arrived = name == "mpi"  # which waits in `post`
    reduction = Native(comm, name, source, np.empty(3))
    reduction.take()
    source[:] = 0
    reduction.post()
    assert reduction.test() is comm.arrived
    comm.arrived = True
    assert reduction.wait().tolist() == [11.0, 22.0, 33.0]
    reduction.close()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"name": "mpi-magic"}, "no all-reduce of MPI named 'mpi-magic': mpi, "),
        ({"chunks": 2}, "chunks 2: mpi takes 1 only"),
        ({"tag": -1}, "tag -1"),
        ({"deadline": 0}, "deadline 0"),
        ({"deadline": float("nan")}, "deadline nan"),
    ],
)
def test_what_the_library_cannot_do_is_refused(options, told):
    with pytest.raises(AllreduceError, match=told):
        Native(Comm(), **{"name": "mpi", "source": np.zeros(3), **options})


def test_one_at_a_time_and_none_after_the_end():
    comm = Comm()
    reduction = Native(comm, "mpi-persistent", np.zeros(3))
    comm.arrived = False
    reduction.start()
    with pytest.raises(AllreduceError, match="mpi-persistent cannot start: it is still in flight"):
        reduction.start()
    comm.arrived = True
    reduction.close()  # waits: MPI cannot cancel it
    reduction.close()
    assert comm.requests[0].freed
    assert reduction.result.tolist() == OTHER.tolist()
    with pytest.raises(AllreduceError, match="it is closed"):
        reduction.start()


def test_who_waits_longer_than_the_deadline_is_told():
    comm = Comm()
    comm.arrived = False
    stalled = (
        r"rank 0 has waited .* s for some of the 2 ranks in all-reduce mpi-nonblocking of 3 fl"
    )
    reduction = Native(comm, "mpi-nonblocking", np.zeros(3), deadline=1e-4)
    reduction.start()
    with pytest.raises(Stalled, match=stalled):
        reduction.wait()
    plan._in_flight.discard(reduction)


def test_a_call_that_blocks_longer_than_the_deadline_ends_all_ranks(capfd):
    comm = Comm()
    comm.arrived = False
    with Native(comm, "mpi", np.zeros(3), deadline=0.01) as reduction:
        reduction.start()  # blocks until the watchdog has aborted
    assert comm.codes[0] == 1
    told = capfd.readouterr().err
    assert "all-reduce mpi of 3 float64; all ranks are aborted\n" in told


@every_name
def test_device_memory_goes_through_the_host(name, monkeypatch):
    source = device_double.array(np.array([1.0, 2.0, 3.0]))
    for result in (source, device_double.empty(3, np.dtype("float64"))):
        expected = (source.now() + OTHER) / 2
        with Native(Comm(), name, source, result, mean=True) as reduction:
            reduction.start()
            assert reduction.wait().now().tolist() == expected.tolist()


def test_device_memory_is_not_given_to_what_it_crashes(mpi):
    source = device_double.array(np.zeros(3))
    with pytest.raises(BufferRefused, match=r"crashes Open MPI: use mpi, or cuda_aware=False"):
        Native(Comm(), "mpi-nonblocking", source, cuda_aware=True)
    mpi.Get_library_version = lambda: "MPICH Version: 5"
    assert Native(Comm(), "mpi-nonblocking", source, cuda_aware=True).result is source


def test_a_library_that_does_not_say_takes_no_device_memory(monkeypatch):
    assert native.library() == "Open MPI v5.0, package"
    assert not native.cuda_aware()  # nothing to ask
    for answer in (0, 1):
        library = SimpleNamespace(MPIX_Query_cuda_support=lambda answer=answer: answer)
        monkeypatch.setattr(native.ctypes, "CDLL", lambda path, library=library: library)
        assert native.cuda_aware() is bool(answer)
    monkeypatch.setattr(native.ctypes, "CDLL", lambda path: SimpleNamespace())
    assert not native.cuda_aware()
