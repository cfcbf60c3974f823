"""A small writer and reader of GGUF v3, and the block formats of the ternary target.

Own code, because the `gguf` package knows neither PQ2_0 (142) nor PTQ1_0 (143);
check_files.py reads the result back with that package.
"""

import mmap
import struct
from pathlib import Path

import numpy as np

F32, BF16, PQ2_0, PTQ1_0 = 0, 30, 142, 143
ALIGNMENT = 32
GROUP = 128


# --- blocks: codes int8 [groups, 128] in -1, 0, 1; scales fp16 [groups] -----


def pq2_0(codes: np.ndarray, scales: np.ndarray) -> bytes:
    """34 bytes: fp16 scale; weight j at bits 2 (j & 3) of byte j >> 2, as code + 1."""
    fields = (codes + 1).astype(np.uint8).reshape(-1, 32, 4)
    packed = fields[..., 0] | fields[..., 1] << 2 | fields[..., 2] << 4 | fields[..., 3] << 6
    return np.concatenate([scales.reshape(-1, 1).view(np.uint8), packed], 1).tobytes()


def from_pq2_0(data: bytes) -> tuple[np.ndarray, np.ndarray]:
    blocks = np.frombuffer(data, np.uint8).reshape(-1, 34)
    scales = np.ascontiguousarray(blocks[:, :2]).view("<f2")[:, 0]
    fields = np.stack([blocks[:, 2:] >> shift & 3 for shift in (0, 2, 4, 6)], -1)
    return fields.reshape(-1, GROUP).astype(np.int8) - 1, scales


def _trit_places() -> list[list[int]]:
    """For every byte of a PTQ1_0 block the weights it holds, most significant digit first."""
    places = [[i + 16 * n for n in range(5)] for i in range(16)]
    places += [[80 + i + 8 * n for n in range(5)] for i in range(8)]
    return places + [[120 + i + 2 * n for n in range(4)] for i in range(2)]


def ptq1_0(codes: np.ndarray, scales: np.ndarray) -> bytes:
    """28 bytes: 26 bytes of base-3 digits as fractions of 256, then the fp16 scale."""
    digits = (codes + 1).astype(np.uint32)
    out = np.zeros((len(codes), 28), np.uint8)
    for byte, places in enumerate(_trit_places()):
        value = sum(digits[:, place] * 3 ** (4 - n) for n, place in enumerate(places))
        out[:, byte] = (256 * value + 242) // 243
    out[:, 26:] = scales.reshape(-1, 1).view(np.uint8)
    return out.tobytes()


def from_ptq1_0(data: bytes) -> tuple[np.ndarray, np.ndarray]:
    blocks = np.frombuffer(data, np.uint8).reshape(-1, 28)
    codes = np.zeros((len(blocks), GROUP), np.int8)
    for byte, places in enumerate(_trit_places()):
        for n, place in enumerate(places):
            power = blocks[:, byte].astype(np.uint32) * 3**n & 255
            codes[:, place] = (power * 3 >> 8).astype(np.int8) - 1
    return codes, np.ascontiguousarray(blocks[:, 26:]).view("<f2")[:, 0]


def to_bf16(values: np.ndarray) -> bytes:
    """Values that are exact in bf16 already."""
    bits = np.ascontiguousarray(values, "<f4").view("<u4")
    assert not (bits & 0xFFFF).any(), "not exact in bf16"
    return (bits >> 16).astype("<u2").tobytes()


# --- the container ----------------------------------------------------------

_SCALARS = {"u32": (4, "<I"), "i32": (5, "<i"), "f32": (6, "<f"), "bool": (7, "<?")}


def _string(text: str) -> bytes:
    data = text.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def _value(kind: str, value) -> bytes:
    if kind == "str":
        return struct.pack("<I", 8) + _string(value)
    if kind.startswith("arr:"):
        inner = kind[4:]
        number = 8 if inner == "str" else _SCALARS[inner][0]
        data = struct.pack("<IIQ", 9, number, len(value))
        if inner == "str":
            return data + b"".join(map(_string, value))
        return data + b"".join(struct.pack(_SCALARS[inner][1], item) for item in value)
    number, form = _SCALARS[kind]
    return struct.pack("<I", number) + struct.pack(form, value)


def write(path: Path, keys: list[tuple[str, str, object]], tensors: list[tuple]) -> None:
    """keys (name, kind, value); tensors (name, type, shape as rows x inputs, data)."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    for name, kind, value in keys:
        head += _string(name) + _value(kind, value)
    offset = 0
    for name, number, shape, data in tensors:
        head += _string(name) + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}Q", *reversed(shape)) + struct.pack("<IQ", number, offset)
        offset += len(data) + -len(data) % ALIGNMENT
    with path.open("wb") as file:
        file.write(head + b"\0" * (-len(head) % ALIGNMENT))
        for _, _, _, data in tensors:
            file.write(data + b"\0" * (-len(data) % ALIGNMENT))


class Reader:
    """All keys and tensors of a file. `weight` gives stored values as f64, not un-rotated."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.at = 0
        assert self._take("<4s") == b"GGUF" and self._take("<I") == 3
        n_tensors, n_keys = self._take("<Q"), self._take("<Q")
        self.keys, self.kinds = {}, {}
        for _ in range(n_keys):
            name, number = self._text(), self._take("<I")
            self.kinds[name] = self._kind(number)
            self.keys[name] = self._read(number)
        self.tensors = {}
        for _ in range(n_tensors):
            name = self._text()
            shape = tuple(self._take("<Q") for _ in range(self._take("<I")))[::-1]
            self.tensors[name] = (self._take("<I"), shape, self._take("<Q"))
        self.base = self.at + -self.at % ALIGNMENT

    def _take(self, form: str):
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def _text(self) -> str:
        size = self._take("<Q")
        self.at += size
        return self.data[self.at - size : self.at].decode("utf-8")

    def _kind(self, number: int) -> str:
        """The kind as `write` takes it; of an array from its head, which stays unread."""
        if number == 9:
            return "arr:" + self._kind(*struct.unpack_from("<I", self.data, self.at))
        return "str" if number == 8 else next(kind for kind, (n, _) in _SCALARS.items() if n == number)

    def _read(self, number: int):
        if number == 8:
            return self._text()
        if number == 9:
            inner, count = self._take("<I"), self._take("<Q")
            return [self._read(inner) for _ in range(count)]
        return self._take(next(form for n, form in _SCALARS.values() if n == number))

    def stored(self, name: str, first: int = 0, rows: int | None = None) -> bytes:
        """The bytes of a tensor, or of some of its rows."""
        number, shape, offset = self.tensors[name]
        row = int(np.prod(shape[1:]))
        size = {F32: 4 * row, BF16: 2 * row, PQ2_0: 34 * row // 128, PTQ1_0: 28 * row // 128}[number]
        begin = self.base + offset + first * size
        return self.data[begin : begin + (shape[0] if rows is None else rows) * size]

    def weight(self, name: str) -> np.ndarray:
        return self.rows(name, 0, self.tensors[name][1][0])

    def rows(self, name: str, first: int, count: int) -> np.ndarray:
        """Stored values of `count` rows from `first` on, as f64."""
        number, shape, _ = self.tensors[name]
        data = self.stored(name, first, count)
        if number == F32:
            values = np.frombuffer(data, "<f4").astype(np.float64)
        elif number == BF16:
            bits = np.frombuffer(data, "<u2").astype("<u4") << 16
            values = bits.view("<f4").astype(np.float64)
        else:
            codes, scales = from_pq2_0(data) if number == PQ2_0 else from_ptq1_0(data)
            values = codes.astype(np.float64) * scales.astype(np.float64)[:, None]
        return values.reshape(count, *shape[1:])


def transcode_to_ptq1_0(source: Path, path: Path) -> None:
    """Writes a PQ2_0 file once more with the same codes and scales as PTQ1_0."""
    file = Reader(source)
    keys = [(name, file.kinds[name], value) for name, value in file.keys.items()]
    keys = [(n, k, 143 if n == "general.file_type" else value) for n, k, value in keys]
    tensors = []
    for name, (number, shape, _) in file.tensors.items():
        data = file.stored(name)
        if number == PQ2_0:
            codes, scales = from_pq2_0(data)
            assert codes.max() <= 1, f"{name}: code 3 has no place in PTQ1_0"
            number, data = PTQ1_0, ptq1_0(codes, scales)
        tensors.append((name, number, shape, data))
    write(path, keys, tensors)
