"""Deletion vectors: the positions of a file's dead rows, in the format of the Delta protocol.

A vector is a magic number and a 64-bit roaring bitmap in the portable format. It is stored in the log itself (storage
`i`, as Z85 text) or in a `deletion_vector_<uuid>.bin` next to the data (storage `u`), which may hold those of many
files: a version byte, then per vector its size, its bytes and a checksum. We read both, and write only the second,
because VACUUM of delta-spark 4.4.0 fails on a table that has the first.
"""

from __future__ import annotations

import struct
import uuid
import zlib
from array import array
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from millstream.engine.storage.log.actions import Json

_MAGIC = struct.pack("<i", 1681511377)
_FORMAT = b"\x01"
_ALPHABET = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_DIGIT = {c: i for i, c in enumerate(_ALPHABET)}


class UnreadableVectorError(Exception):
    """A deletion vector is missing, damaged, or stored in an unknown format."""


def z85_encode(data: bytes) -> str:
    """Text of 5 characters per 4 bytes; the bytes are padded with zeros.

    >>> z85_encode(bytes([0x86, 0x4F, 0xD2, 0x6F, 0xB5, 0x59, 0xF7, 0x5B]))
    'HelloWorld'
    """
    padded = data + b"\0" * (-len(data) % 4)
    out = bytearray()
    for (value,) in struct.iter_unpack(">I", padded):
        out += bytes(_ALPHABET[value // 85**power % 85] for power in (4, 3, 2, 1, 0))
    return out.decode("ascii")


def z85_decode(text: str) -> bytes:
    """The inverse of `z85_encode`, including its padding."""
    raw = text.encode("ascii")
    out = bytearray()
    for start in range(0, len(raw), 5):
        value = 0
        for c in raw[start : start + 5]:
            value = value * 85 + _DIGIT[c]
        out += struct.pack(">I", value)
    return bytes(out)


def positions(values: npt.NDArray[np.int64]) -> BitMap64:
    """A bitmap of row positions."""
    return BitMap64(array("Q", values.astype(np.uint64).tobytes()))


def to_numpy(bitmap: BitMap64) -> npt.NDArray[np.int64]:
    """The positions in ascending order."""
    return np.frombuffer(bitmap.to_array(), dtype=np.uint64).astype(np.int64)


def read(root: Path, descriptor: Json | None) -> BitMap64:
    """The dead rows that a descriptor stands for; empty for a file without one."""
    if not descriptor:
        return BitMap64()
    storage, text, size = descriptor["storageType"], descriptor["pathOrInlineDv"], int(descriptor["sizeInBytes"])
    if storage == "i":
        data = z85_decode(text)[:size]
    elif name := stored_name(descriptor):
        data = _read_stored(root / name, int(descriptor.get("offset") or 0), size)
    else:
        raise UnreadableVectorError(f"deletion vector of storage type {storage!r}")
    if data[:4] != _MAGIC:
        raise UnreadableVectorError("deletion vector in an unknown format")
    bitmap = BitMap64.deserialize(data[4:])
    if len(bitmap) != int(descriptor["cardinality"]):
        raise UnreadableVectorError("deletion vector with the wrong number of rows")
    return bitmap


def _read_stored(file: Path, offset: int, size: int) -> bytes:
    try:
        with file.open("rb") as handle:
            handle.seek(offset)
            block = handle.read(size + 8)
    except FileNotFoundError as e:
        raise UnreadableVectorError(f"{file.name} does not exist") from e
    stored_size, data, checksum = block[:4], block[4 : 4 + size], block[4 + size :]
    if struct.unpack(">i", stored_size)[0] != size or struct.unpack(">I", checksum)[0] != zlib.crc32(data):
        raise UnreadableVectorError(f"{file.name} is damaged")
    return data


def write(root: Path, bitmaps: Mapping[str, BitMap64]) -> dict[str, Json]:
    """Store the vectors of several data files in one new file; returns their descriptors by the data files' paths."""
    if not bitmaps:
        return {}
    name = uuid.uuid4()
    reference, offset = z85_encode(name.bytes), len(_FORMAT)
    descriptors: dict[str, Json] = {}
    with (root / f"deletion_vector_{name}.bin").open("xb") as handle:
        handle.write(_FORMAT)
        for path, bitmap in bitmaps.items():
            bitmap.run_optimize()
            data = _MAGIC + bitmap.serialize()
            handle.write(struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data)))
            descriptors[path] = {
                "storageType": "u",
                "pathOrInlineDv": reference,
                "offset": offset,
                "sizeInBytes": len(data),
                "cardinality": len(bitmap),
            }
            offset += len(data) + 8
    return descriptors


def stored_name(descriptor: Json | None) -> str | None:
    """The path, relative to the table, of the `.bin` file that a descriptor points to, if any."""
    if not descriptor or descriptor["storageType"] != "u":
        return None
    text = descriptor["pathOrInlineDv"]
    name = f"deletion_vector_{uuid.UUID(bytes=z85_decode(text[-20:]))}.bin"
    return f"{text[:-20]}/{name}" if text[:-20] else name
