"""The first block of an HDF5 file: see whether its writer is gone, and read what it left.

A file whose writer was killed says that it is open for writing, and its end may not be noted.
HDF5 then refuses it, or reads it as a single-writer file: and that waits for ever for a damaged
block to mend. So such a file is opened through `Left`, which shows HDF5 a settled first block.

Source: HDF5 File Format Specification 3.0, II.A (superblock versions 2 and 3); the checksum is Bob
Jenkins's lookup3 (public domain).
"""

import io
import struct
from pathlib import Path

SIGNATURE = b"\x89HDF\r\n\x1a\n"
LENGTH = 48  # of a superblock of version 3 with offsets of 8 bytes
_HEAD = struct.Struct("<8sBBBBQQQQ")
_MASK = 0xFFFFFFFF


def settled(block: bytes, size: int) -> bytes | None:
    """`block` as if its writer had closed a file of `size` bytes; None when it needs no change.

    None as well when `block` is not an intact superblock of version 3: HDF5 then says why.
    """
    if len(block) < LENGTH or block[:9] != SIGNATURE + b"\x03" or block[9] != 8:
        return None
    head, (checksum,) = block[: LENGTH - 4], struct.unpack("<I", block[LENGTH - 4 : LENGTH])
    signature, version, offsets, lengths, flags, base, extension, _, root = _HEAD.unpack(head)
    if not flags or lookup3(head) != checksum:
        return None
    head = _HEAD.pack(signature, version, offsets, lengths, 0, base, extension, size, root)
    return head + struct.pack("<I", lookup3(head))


class Left(io.FileIO):
    """A file, read only, whose first block is shown settled."""

    def __init__(self, path: Path, block: bytes):
        super().__init__(path, "r")
        self._block = block

    def readinto(self, buffer) -> int:
        """Bytes from the current position on."""
        position = self.tell()
        count = super().readinto(buffer) or 0
        over = min(count, len(self._block) - position)
        if over > 0:
            memoryview(buffer).cast("B")[:over] = self._block[position : position + over]
        return count


def lookup3(data: bytes) -> int:
    """Jenkins's hash of at least one byte, start value 0, as HDF5 checksums its metadata."""
    a = b = c = (0xDEADBEEF + len(data)) & _MASK
    padded = data + bytes(-len(data) % 12)
    words = struct.unpack(f"<{len(padded) // 4}I", padded)
    for at in range(0, len(words), 3):
        a, b, c = (a + words[at]) & _MASK, (b + words[at + 1]) & _MASK, (c + words[at + 2]) & _MASK
        if at + 3 < len(words):
            a, b, c = _mix(a, b, c)
    return _last(a, b, c)


def _turn(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (32 - bits))) & _MASK


def _mix(a: int, b: int, c: int) -> tuple[int, int, int]:
    for bits in (4, 6, 8, 16, 19, 4):
        a = ((a - c) & _MASK) ^ _turn(c, bits)
        c = (c + b) & _MASK
        a, b, c = b, c, a
    return a, b, c


def _last(a: int, b: int, c: int) -> int:
    for bits in (14, 11, 25, 16, 4, 14, 24):
        c = ((c ^ b) - _turn(b, bits)) & _MASK
        a, b, c = b, c, a
    return b
