"""What the device path takes for granted of CuPy and of this device, asked of the real ones.

python facts.py [DIMENSION]      one process; one JSON text: checks and figures
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from allreduce import arrays
from mpisgd.mpi import devices

TRIES, QUEUED = 20, 40
checks: list[dict[str, Any]] = []
figures: dict[str, float] = {}


def check(name: str, work: Callable[[], Any]) -> None:
    """`work` gives whether it holds, or (that, a note)."""
    try:
        told = work()
        holds, note = told if isinstance(told, tuple) else (told, "")
    except Exception as error:  # what is wrong here is what is asked
        holds, note = False, f"{type(error).__name__}: {error}".splitlines()[0]
    checks.append({"check": name, "holds": bool(holds), "note": str(note)})


def seconds(work: Callable[[], Any], memory: Any) -> float:
    """Of `work` and of all that it queued: the median of TRIES."""
    found = []
    for _ in range(TRIES):
        began = time.perf_counter()
        work()
        memory.stream.synchronize()
        found.append(time.perf_counter() - began)
    return float(np.median(found))


def ask(cupy: Any, dimension: int) -> None:
    """All checks, and the figures."""
    square = cupy.ones((dimension, dimension), np.float32)
    product = cupy.empty_like(square)
    array = cupy.zeros(1 << 20, np.float32)
    memory: Any = arrays.of(array)
    pinned = memory.pinned(array.size, array.dtype)
    cupy.matmul(square, square, out=product)
    memory.stream.synchronize()

    def queue() -> None:
        for _ in range(QUEUED):
            cupy.matmul(square, square, out=product)

    def copies_do_not_wait() -> tuple[bool, str]:
        pinned[:] = 7
        queue()
        began = time.perf_counter()
        memory.to_host(pinned, array)
        called, over = time.perf_counter() - began, memory.fence()
        early, looks = over(), 1
        while not over():
            looks += 1
        waited = time.perf_counter() - began
        held = not early and not pinned.any()  # a call that had waited would find it done
        return held, f"call {called * 1e6:.0f} us of {waited * 1e3:.1f} ms, {looks} looks"

    def another_stream_overtakes() -> tuple[bool, str]:
        aside = memory.beside()
        aside.follow()
        queue()
        working = memory.fence()
        aside.to_host(pinned, array)
        over = aside.fence()
        while not over():
            pass
        ahead = not working()
        memory.stream.synchronize()
        return ahead, "a copy on a stream of its own is done before products that were queued first"

    def follows() -> bool:
        aside = memory.beside()
        queue()
        cupy.add(array, np.float32(1), out=array)
        aside.follow()
        aside.to_host(pinned, array)
        aside.stream.synchronize()
        held = bool((pinned == array.get()).all())
        memory.stream.synchronize()
        return held

    check("the module of an array is found", lambda: hasattr(arrays.of(array).module, "asnumpy"))
    check("pinned memory can be written", lambda: pinned.flags.writeable)
    check("no elements of pinned memory", lambda: memory.pinned(0, array.dtype).size == 0)
    check("a copy out does not wait", copies_do_not_wait)
    check("a stream of its own is not held up by products", another_stream_overtakes)
    check("it follows what was queued when it was told to", follows)
    check("nothing is converted silently", lambda: refuses(lambda: np.asarray(array)))
    check("the host's arrays are refused", lambda: refuses(lambda: array + np.ones(array.size)))
    check("empty spans", lambda: memory.add(array[5:5], array[5:5]) is None)
    check("a view of octets", lambda: memory.octets(array[3:9]).size == 24)
    check("an array of PyTorch is taken where it lies", lambda: foreign())
    arithmetic(cupy)
    measure(cupy, memory)


def refuses(work: Callable[[], Any]) -> bool:
    try:
        work()
    except (TypeError, ValueError):
        return True
    return False


def foreign() -> tuple[bool, str]:
    try:
        import torch
    except ImportError:
        return True, "no PyTorch here: not asked"
    if not torch.cuda.is_available():
        return True, "PyTorch sees no device: not asked"
    tensor = torch.ones(5, device="cuda")
    flat = arrays.flat(tensor, writable=True)
    arrays.of(flat).add(flat, flat)
    torch.cuda.synchronize()
    return tensor.tolist() == [2] * 5 and flat.data.ptr == tensor.data_ptr(), ""


def arithmetic(cupy: Any) -> None:
    """Sums and means have NumPy's bits."""
    for name in ("float16", "float32", "float64"):
        one, other = (
            np.random.default_rng(seed).standard_normal(100_003).astype(name) for seed in (0, 1)
        )
        here, there = cupy.asarray(one), cupy.asarray(other)

        def same(got: Any, wanted: np.ndarray) -> bool:
            return got.dtype == wanted.dtype and got.get().tobytes() == wanted.tobytes()

        check(f"add {name}: NumPy's bits", lambda h=here, t=there, a=one, b=other, same=same:
              same(cupy.add(h, t), a + b))  # fmt: skip
        for ranks in (2, 3, 7, 256):
            divisor = np.dtype(name).type(ranks)
            check(f"divide {name} by {ranks}: NumPy's bits",
                  lambda h=here, a=one, d=divisor, same=same:
                  same(cupy.divide(h, d), np.divide(a, d)))  # fmt: skip


def measure(cupy: Any, memory: Any) -> None:
    """Bandwidth of copies, what a fence costs, a product."""
    for name, count in (("4 B", 1), ("1 MiB", 1 << 18), ("64 MiB", 1 << 24)):
        array, pinned = cupy.zeros(count, np.float32), memory.pinned(count, np.dtype(np.float32))
        out = seconds(lambda a=array, p=pinned: memory.to_host(p, a), memory)
        back = seconds(lambda a=array, p=pinned: memory.to_device(a, p), memory)
        figures[f"copy out {name} (s)"], figures[f"copy in {name} (s)"] = out, back
        figures[f"add {name} (s)"] = seconds(lambda a=array: memory.add(a, a), memory)
    began = time.perf_counter()
    for _ in range(1000):
        memory.fence()()
    memory.stream.synchronize()
    figures["a fence, recorded and asked once (s)"] = (time.perf_counter() - began) / 1000


if __name__ == "__main__":
    module = devices.module_of("cupy")
    ask(module, int(sys.argv[1]) if len(sys.argv) > 1 else 4096)
    print(json.dumps({"device": devices.facts(module), "checks": checks, "figures": figures}))
