"""The ternary grid in numpy: what the compiler reads, and how to write it back for the compiler.

A matrix is codes t in {-1, 0, 1} and one scale s per 128 weights of a row, in the
basis that a normalized Walsh-Hadamard transform of every `block` inputs gives.
`unrotated` takes it to the plain basis. There the values are sums of `block`
terms `+-s / sqrt(block)` with scales of 8 significant bits: where sqrt(block) is a
power of two and the scales of a block lie within a factor of 32, f32 holds them
without rounding, and so do the compiler's sums when it rotates them again. Then
even a group of zeros comes back as zeros. `ternarize --rule ternary` refuses what
does not come back.
"""

import numpy as np

import pair  # noqa: F401  its folder on the path
import gguf_file
import gguf_names

GROUP = 128
SMALLEST = 2.0**-14  # of the scales that training keeps: below it the grid gets coarse
LARGEST = 65280.0


def to_grid(scale: np.ndarray) -> np.ndarray:
    """The nearest scale of the compiler's grid: 8 significant bits within fp16's normal range."""
    fraction, exponent = np.frexp(np.clip(np.asarray(scale, np.float64), SMALLEST, LARGEST))
    return np.minimum(np.ldexp(np.rint(fraction * 256) / 256, exponent), LARGEST)


def rotated(values: np.ndarray, block: int) -> np.ndarray:
    """Rows times the block transform, in f64; its own inverse."""
    shape = values.shape
    x = values.astype(np.float64).reshape(-1, block)
    half = 1
    while half < block:
        pairs = x.reshape(len(x), -1, 2, half)
        x = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], 2)
        x = x.reshape(-1, block)
        half *= 2
    return (x / block**0.5).reshape(shape)


def dense(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """codes [rows, inputs], scales [rows, inputs / 128] to values in f64."""
    rows, inputs = codes.shape
    grouped = codes.astype(np.float64).reshape(rows, -1, GROUP)
    return (grouped * scales.astype(np.float64)[..., None]).reshape(rows, inputs)


def unrotated(name: str, codes: np.ndarray, scales: np.ndarray, block: int) -> np.ndarray:
    """The f32 matrix that `ternarize --rule ternary --block BLOCK` takes back to these codes and scales."""
    values = rotated(dense(codes, scales), block).astype(np.float32)
    back = rotated(values, block)
    here = np.abs(back - dense(codes, scales))
    allowed = np.repeat(scales, GROUP, 1) / 8192
    if not (here <= allowed).all():
        row = int(np.argwhere(here > allowed)[0][0])
        raise SystemExit(
            f"`{name}`: row {row} does not survive the rotation in f32: its scales go from "
            f"{scales[row].min():.3g} to {scales[row].max():.3g}"
        )
    return values


class Ternary:
    """A ternary drafter that `ternarize` wrote as PQ2_0 or PTQ1_0, by the published names."""

    def __init__(self, path) -> None:
        self.file = gguf_file.Reader(path)
        self.block = self.file.keys["prism.hadamard.block_size"]
        if any(value != 1 for value in self.file.keys.get("prism.hadamard.sign_values", [])):
            raise SystemExit(f"{path}: expected a rotation without signs, as `ternarize` makes it")

    def matrix(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Codes [rows, inputs] and scales [rows, inputs / 128]."""
        stored = gguf_names.gguf_name(name)
        number, shape, _ = self.file.tensors[stored]
        read = {gguf_file.PQ2_0: gguf_file.from_pq2_0, gguf_file.PTQ1_0: gguf_file.from_ptq1_0}[number]
        codes, scales = read(self.file.stored(stored))
        if codes.max(initial=0) > 1:
            raise SystemExit(f"`{name}`: a code of +2 is not ternary")
        # A negative scale turns its codes.
        signs = np.where(np.signbit(scales), -1, 1).astype(np.int8)
        return (codes * signs[:, None]).reshape(shape), np.abs(scales.astype(np.float32)).reshape(shape[0], -1)
