"""One buffer, seen from several sides."""

import numpy as np
import pytest

from mpisgd.training.parameters import Parameters
from mpisgd.values.errors import UsageError

SHAPES = {"weight": (3, 2), "bias": (2,), "scalar": (), "nothing": (0, 4)}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_views_tile_the_flat_buffer_in_order(dtype):
    parameters = Parameters(SHAPES, dtype, extra=2)
    parameters.buffer[:] = np.arange(11)
    assert parameters.size == 9
    assert parameters.buffer.dtype == parameters.dtype == np.dtype(dtype)
    assert parameters.buffer.flags.c_contiguous
    assert parameters.buffer.ndim == 1
    assert parameters["weight"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert parameters["bias"].tolist() == [6, 7]
    assert parameters["scalar"] == 8
    assert parameters["nothing"].size == 0
    assert parameters.extra.tolist() == [9, 10]
    assert parameters.flat.tolist() == list(range(9))


def test_writing_through_a_view_is_seen_by_all():
    parameters = Parameters(SHAPES, extra=1)
    parameters["bias"][:] = 5
    parameters["scalar"][...] = 7
    parameters.extra[0] = 9
    assert parameters.buffer.tolist() == [0] * 6 + [5, 5, 7, 9]


def test_the_twin_has_the_same_shapes_and_no_memory_in_common():
    parameters = Parameters(SHAPES, "float64", extra=2)
    parameters.buffer[:] = 1
    twin = parameters.like()
    assert dict(twin.shapes) == SHAPES
    assert twin.dtype == parameters.dtype
    assert twin.extra.size == 2
    assert not twin.buffer.any()
    assert not np.shares_memory(twin.buffer, parameters.buffer)


def test_no_parameters_at_all():
    assert Parameters({}, extra=2).buffer.size == 2


@pytest.mark.parametrize("dtype", ["int32", "float16", "complex64"])
def test_other_dtypes_are_refused(dtype):
    with pytest.raises(UsageError, match=f"{dtype}.*float32 or float64"):
        Parameters(SHAPES, dtype)
