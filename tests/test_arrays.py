"""What can be reduced, what is refused and why, and memory that is not NumPy's."""

from typing import Any

import numpy as np
import pytest

from allreduce import arrays
from allreduce.errors import AllreduceError, BufferRefused
from allreduce.testing import device as device_double


def memory_of(array: Any) -> Any:
    """Of whatever kind: what it can do is what is tested."""
    return arrays.of(array)


def read_only(array):
    array.flags.writeable = False
    return array


REFUSED = {
    "0-dimensional": lambda: np.array(3.0),
    "not contiguous": lambda: np.zeros(10)[::2],
    "not contiguous; pass": lambda: np.zeros(10)[::-1],
    "in Fortran order": lambda: np.zeros((3, 4), order="F"),
    "read-only": lambda: read_only(np.zeros(3)),
    "dtype is >f8": lambda: np.zeros(3, ">f8"),
    "dtype is bool": lambda: np.zeros(3, bool),
    "dtype is complex128": lambda: np.zeros(3, complex),
    "dtype is object": lambda: np.zeros(3, object),
    "dtype is float128": lambda: np.zeros(3, np.longdouble),
    r"dtype is \[": lambda: np.zeros(3, [("a", "f4")]),
    "dtype is datetime64": lambda: np.zeros(3, "M8[s]"),
    "cannot reduce list": lambda: [1.0, 2.0],
    "cannot reduce float": lambda: 1.0,
    "cannot reduce memoryview": lambda: memoryview(b"abc"),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_refusal_says_why(reason):
    with pytest.raises(BufferRefused, match=reason):
        arrays.flat(REFUSED[reason](), writable=True)
    assert issubclass(BufferRefused, AllreduceError)


def test_an_input_may_be_read_only():
    array = read_only(np.arange(3.0))
    assert np.shares_memory(arrays.flat(array, writable=False), array)


@pytest.mark.parametrize("shape", [(0,), (1,), (3, 4), (2, 1, 3), (0, 5)])
def test_flat_is_the_same_memory(shape):
    array = np.zeros(shape, np.float32)
    flat = arrays.flat(array, writable=True)
    assert flat.shape == (array.size,)
    flat += 1
    assert (array == 1).all()


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_flat_of_a_matrix_has_one_dimension():
    matrix = np.asmatrix(np.zeros((2, 3)))
    assert arrays.flat(matrix, writable=True).shape == (6,)


def test_overlap_is_about_memory():
    base = np.zeros(10)
    assert arrays.overlap(base[:6], base[5:])
    assert not arrays.overlap(base[:5], base[5:])
    on_device = device_double.array(base)
    assert arrays.overlap(on_device[:6], on_device[5:])
    assert not arrays.overlap(on_device[:5], on_device[5:])


def test_host_memory_is_never_outstanding():
    memory = arrays.of(np.zeros(3))
    assert memory is arrays.HOST
    assert memory.fence() is None
    target = np.array([1, 2], np.float16)
    memory.add(target, np.array([3, 4], np.float16))
    memory.divide(target, 2)
    assert target.tolist() == [2, 3]
    assert memory.octets(target).nbytes == 4


def test_device_work_is_done_when_its_fence_says_so():
    array = device_double.array(np.arange(4.0))
    memory = memory_of(array)
    assert memory.name == "allreduce.testing.device"
    assert not (array.host == np.arange(4)).any()  # its bytes have not come yet
    memory.add(array, array)
    memory.divide(array, 4)
    poll = memory.fence()
    looks = 1
    while not poll():
        looks += 1
    assert looks <= device_double.settings.polls
    assert array.host.tolist() == [0, 0.5, 1, 1.5]
    assert poll()


def test_a_fence_is_not_about_what_comes_later():
    array = device_double.array(np.ones(2))
    memory = memory_of(array)
    poll = memory.fence()
    memory.add(array, array)
    while not poll():
        pass
    assert array.host.tolist() == [1, 1]
    assert array.now().tolist() == [2, 2]


def test_pinned_memory_goes_both_ways():
    array = device_double.array(np.arange(5.0))
    memory = memory_of(array)
    pinned = memory.pinned(5, array.dtype)
    memory.to_host(pinned, array)
    assert pinned.tolist() != [0, 1, 2, 3, 4]
    assert array.now().tolist() == pinned.tolist() == [0, 1, 2, 3, 4]
    pinned[:] = 7
    memory.to_device(array, pinned)
    assert array.now().tolist() == [7] * 5
    assert memory.pinned(0, array.dtype).size == 0


def test_a_memory_keeps_the_stream_it_was_made_on():
    stream = device_double.Stream()
    with stream:
        array = device_double.array(np.ones(3))
        memory = memory_of(array)
    memory.add(array, array)
    assert len(stream.queue) == 2
    stream.synchronize()
    assert array.host.tolist() == [2, 2, 2]


@pytest.mark.parametrize("count", [0, 1, 1000, 4096])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
def test_scratch_lies_half_a_page_off_whatever_the_array_s_place(count, dtype):
    block = np.zeros(3 * 4096, np.uint8)
    for offset in range(0, 4096, 528):
        array = block[offset : offset + 4096].view(dtype)
        scratch = arrays.HOST.apart(array, count)
        assert (scratch.size, scratch.dtype) == (count, array.dtype)
        assert not count or (scratch.ctypes.data - array.ctypes.data) % 4096 == 2048
        scratch[...] = 1
    assert not block.any()
