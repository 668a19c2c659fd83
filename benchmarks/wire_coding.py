"""What it costs to send in fewer bytes: seconds of coding, and below which link rate that pays.

    python benchmarks/wire_coding.py [--elements 1M] [--repetitions 15]

A message of float32 is encoded, and rounded in place, by who sends it; decoded and added by who
receives it; at the end all is rounded once more, which a ring of many ranks does once for 2 vectors
sent. The link rate at which saved bytes and coding take equally long, with nothing overlapped:
above it, `--wire` makes an all-reduce slower. Medians and the least of repetitions, on one core.
"""

import argparse
import time

import numpy as np

from allreduce.wire import FORMATS, Coder, Wire
from mpisgd.values.tables import render
from mpisgd.values.units import parse_size

COLUMNS = ("wire", "octets", "send_ns", "receive_ns", "least_ns", "pays_below_Gbps")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", default="1M", help="of a message")
    parser.add_argument("--repetitions", type=int, default=15)
    arguments = parser.parse_args()
    count = parse_size(arguments.elements, "--elements")
    print(render(COLUMNS, [row(name, count, arguments.repetitions) for name in FORMATS], "table"))


def row(name: str, count: int, repetitions: int) -> dict[str, object]:
    """Nanoseconds an element of either side, and the rate (Gbit/s)."""
    coder = Coder(Wire(name), [0, count], np.dtype("float32"))
    vector = np.random.default_rng(0).standard_normal(count).astype("f")
    total, octets = np.zeros_like(vector), np.empty(coder.octets(0, count), np.uint8)
    seconds = np.empty((repetitions, 2))
    for repetition in range(repetitions):
        began = time.perf_counter()
        coder.send(vector, 0, count, octets)
        sent = time.perf_counter()
        np.add(total, coder.receive(octets, 0, count), out=total)
        seconds[repetition] = sent - began, time.perf_counter() - sent
    send, receive = (np.median(seconds, axis=0) / count).tolist()
    least = float(seconds.sum(axis=1).min() / count)
    saved = 4 - octets.size / count  # bytes an element
    return {
        "wire": name, "octets": octets.size, "send_ns": 1e9 * send, "receive_ns": 1e9 * receive,
        "least_ns": 1e9 * least, "pays_below_Gbps": 8e-9 * saved / (send + receive),
    }  # fmt: skip


if __name__ == "__main__":
    main()
