"""Safetensors files in numpy: bf16 as f32, one tensor in memory at a time.

The `safetensors` package gives numpy no bf16, and writes what is in memory whole.
"""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np

_TYPES = {"F32": "<f4", "F16": "<f2", "I32": "<i4", "I64": "<i8"}


class File:
    """A safetensors file that is read tensor by tensor."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(size))
        self.metadata = header.pop("__metadata__", {})
        self.about = header
        self.base = 8 + size

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.about[name]["shape"])

    def __getitem__(self, name: str) -> np.ndarray:
        about = self.about[name]
        begin, end = about["data_offsets"]
        with self.path.open("rb") as file:
            file.seek(self.base + begin)
            data = file.read(end - begin)
        if about["dtype"] == "BF16":
            values = from_bf16(np.frombuffer(data, "<u2"))
        elif about["dtype"] in _TYPES:
            values = np.frombuffer(data, _TYPES[about["dtype"]])
        else:
            raise SystemExit(f"{self.path}: `{name}`: expected BF16, F16 or F32, found {about['dtype']}")
        return values.reshape(about["shape"])


def from_bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype("<u4") << 16).view("<f4")


def to_bf16(values: np.ndarray) -> np.ndarray:
    """The bits of the nearest bf16, half to even; values are finite."""
    bits = np.ascontiguousarray(values, "<f4").view("<u4")
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")


_WRITTEN = {
    "F32": lambda values: np.ascontiguousarray(values, "<f4"),
    "BF16": to_bf16,
    "I32": lambda values: np.ascontiguousarray(values, "<i4"),
}


def write(
    path: Path,
    tensors: dict[str, tuple[str, tuple[int, ...], Callable[[], np.ndarray]]],
    metadata: dict[str, str] | None = None,
) -> None:
    """Each tensor: "F32", "BF16" or "I32", its shape, and what computes its values when they are due."""
    header: dict = {"__metadata__": metadata or {"format": "pt"}}
    offset = 0
    for name, (kind, shape, _) in sorted(tensors.items()):
        size = int(np.prod(shape)) * (2 if kind == "BF16" else 4)
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, (kind, shape, values) in sorted(tensors.items()):
            data = values()
            assert data.shape == tuple(shape), f"{name}: {data.shape}, expected {shape}"
            file.write(_WRITTEN[kind](data).tobytes())
    partial.replace(path)
