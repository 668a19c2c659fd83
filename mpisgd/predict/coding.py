"""What a rank's coding of messages takes, for `--wire`: measured, and read from a network's file.

Seconds for each byte of the values (float32): of who sends, rounding in place included; of who
receives, adding not included. Of `topk` and `powersgd` the first is all that a rank does once.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from allreduce.algorithms import build
from allreduce.compress import compresses, compressor, memory
from allreduce.network import PRESETS, Network
from allreduce.wire import FORMATS, Coder, Wire
from mpisgd.predict import calibration
from mpisgd.values.errors import UsageError

if TYPE_CHECKING:  # a rank has no use for it
    from mpisgd.predict.links import Measured

ELEMENTS = 1 << 20
CODING = "coding"  # in the table [calibration]: wire = [seconds to encode a byte, to decode one]
FULL = "float32"


def measure(wire: str | None, repetitions: int) -> "dict[str, tuple[Measured, Measured]]":
    """Of all formats, and of `wire` if it is none: seconds a byte of who sends and receives."""
    names = [name for name in FORMATS if name != FULL]
    return {name: _pair(name, repetitions) for name in [*names, *[wire] * compresses(wire)] if name}


def known(network: str | None, wire: str | None) -> tuple[float, float] | None:
    """Those of that wire in the network's file, if it has them. UsageError for nonsense."""
    found = calibration.table(network).get(CODING, {})
    pair = found.get(wire) if isinstance(found, dict) else found
    fits = isinstance(pair, list) and len(pair) == 2 and all(_seconds(each) for each in pair)
    if pair is not None and not fits:
        place = f"{network}: [calibration] {CODING} {wire}"
        raise UsageError(place, pair, "two numbers >= 0: seconds to encode, to decode a byte")
    return (float(pair[0]), float(pair[1])) if pair is not None else None


def priced(network: Network, text: str | None, wire: str | None) -> Network:
    """`network`, which `text` names, with what its file says of coding for that wire, unless it has
    seconds of its own."""
    found = None if network.encode_s_per_B or network.decode_s_per_B else known(text, wire)
    return network if found is None else network.with_(
        encode_s_per_B=found[0], decode_s_per_B=found[1]
    )  # fmt: skip


def free(network: Network, wire: str | None) -> list[str]:
    """A line where coding for that wire takes no time on the network, and something else does."""
    ideal = network.with_(name="ideal", progress="looks") == PRESETS["ideal"]
    if wire in (None, FULL) or ideal or network.encode_s_per_B or network.decode_s_per_B:
        return []
    measured = f"mpisgd calibrate --wire {wire} measures it"
    return [f"--wire {wire}: coding takes no time on {network.name}; {measured}"]


def _seconds(value: Any) -> bool:
    return isinstance(value, int | float) and value is not True and 0 <= value < 1


def _pair(wire: str, repetitions: int) -> "tuple[Measured, Measured]":
    vector = np.random.default_rng(0).standard_normal(ELEMENTS).astype("f")
    if compresses(wire):
        return _compressed(wire, vector, repetitions)
    coder = Coder(Wire(wire), [0, ELEMENTS], vector.dtype)
    octets = np.empty(coder.octets(0, ELEMENTS), np.uint8)
    send = _seconds_of(lambda: coder.send(vector, 0, ELEMENTS, octets), repetitions)
    receive = _seconds_of(lambda: coder.receive(octets, 0, ELEMENTS), repetitions)
    return _each(send, vector.nbytes), _each(receive, vector.nbytes)


def _compressed(wire: str, vector: np.ndarray, repetitions: int) -> "tuple[Measured, Measured]":
    """All of one of two ranks; what it does at the end is of topk to decode both ranks' pairs."""
    how, begun = Wire(wire), vector.copy()
    coder = compressor(how, build("ring", 2), 0, vector, memory(how, ELEMENTS, "f"), True)

    def encode() -> None:
        for stage in coder.stages:
            stage.prepare()

    def both() -> None:
        encode()
        coder.finish()

    for block in getattr(coder, "blocks", ()):
        block[0][...] = 0
    once, whole = [], []
    for _ in range(repetitions):
        vector[...] = begun
        once += _seconds_of(encode, 1)
        vector[...] = begun
        whole += _seconds_of(both, 1)
    if not wire.startswith("topk"):
        return _each(whole, vector.nbytes), _each([0.0], 1)
    pairs = sum(block[0].nbytes + block[1].nbytes for block in coder.blocks)  # type: ignore[attr-defined]
    return _each(once, vector.nbytes), _each(
        [max(0.0, float(np.median(whole) - np.median(once)))], pairs
    )


def _seconds_of(work: Callable[[], object], repetitions: int) -> list[float]:
    work()
    found = []
    for _ in range(repetitions):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return found


def _each(seconds: list[float], nbytes: int) -> "Measured":
    from mpisgd.predict.links import Measured

    return Measured.of([each / nbytes for each in seconds])
