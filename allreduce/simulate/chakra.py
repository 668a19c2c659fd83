"""Workloads as Chakra execution traces of MLCommons (Sridharan et al. 2023), one a rank.

A trace is a row of protobuf messages, each behind its length: one GlobalMetadata, then the Nodes
(mlcommons/chakra, et_def.proto, of which this writes what it needs). Times are whole microseconds
there; attribute `runtime_ns` has what that loses.
"""

from collections.abc import Iterator

from allreduce.simulate.workload import Operation, Workload

SCHEMA = "0.0.4"
TYPES = {"calc": 4, "send": 5, "recv": 6}  # COMP_NODE, COMM_SEND_NODE, COMM_RECV_NODE
BOOL, INT32, INT64 = 27, 7, 9  # the value of an attribute, by its field


def trace(workload: Workload, rank: int) -> Iterator[bytes]:
    """The trace of a rank, message by message; node n is its operation n."""
    yield _framed(_text(1, SCHEMA))
    for number, operation in enumerate(workload.operations(rank)):
        yield _framed(_node(rank, number, operation))


def _node(rank: int, number: int, operation: Operation) -> bytes:
    kind, amount, after, peer, tag = operation
    parts = [_number(1, number), _text(2, f"{kind} {number}"), _number(3, TYPES[kind])]
    if after:
        parts.append(_bytes(5, b"".join(map(_varint, after))))  # data_deps
    attributes = [("is_cpu_op", BOOL, 0)]
    if kind == "calc":
        parts.append(_number(7, round(amount * 1e6)))  # duration_micros
        attributes += [("runtime_ns", INT64, round(amount * 1e9))]
    else:
        source, destination = (rank, peer) if kind == "send" else (peer, rank)
        attributes += [
            ("comm_size", INT64, int(amount)),
            ("comm_src", INT32, source),
            ("comm_dst", INT32, destination),
            ("comm_tag", INT32, tag),
        ]
    parts += [_bytes(10, _text(1, name) + _number(field, n)) for name, field, n in attributes]
    return b"".join(parts)


def _framed(message: bytes) -> bytes:
    return _varint(len(message)) + message


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _framed(value)


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the others tell that more follows."""
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    made.append(value)
    return bytes(made)
