"""Reads a GGUF of ours with the `gguf` Python package, an independent reader.

    pip install gguf==0.19.0
    python tools/check_gguf.py FILE.gguf

The package does not know the block types PQ2_0 (142) and PTQ1_0 (143), so they
are registered first. Every tensor's size, alignment and decoded values are
checked; the block decoders below are written from the format's description and
share no code with the Rust ones.
"""

import sys

import gguf
import numpy as np
from gguf import constants

TERNARY = {142: ("PQ2_0", 34), 143: ("PTQ1_0", 28)}


def register() -> None:
    """Adds the ternary types to the package's enum and size table."""
    for number, (name, size) in TERNARY.items():
        enum = constants.GGMLQuantizationType
        member = int.__new__(enum, number)
        member._name_, member._value_ = name, number
        enum._member_map_[name] = member
        enum._value2member_map_[number] = member
        constants.GGML_QUANT_SIZES[member] = (128, size)


def decode_pq2_0(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Blocks of 34 bytes: fp16 scale, then 4 codes per byte. Returns scales and values -1, 0, 1."""
    scales = np.ascontiguousarray(blocks[:, :2]).view("<f2")[:, 0]
    fields = [(blocks[:, 2:] >> shift) & 3 for shift in (0, 2, 4, 6)]
    codes = np.stack(fields, axis=-1).reshape(len(blocks), 128)
    return scales, codes.astype(np.int8) - 1


def decode_ptq1_0(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Blocks of 28 bytes: 26 bytes of base-3 digits, then the fp16 scale."""
    scales = np.ascontiguousarray(blocks[:, 26:]).view("<f2")[:, 0]
    trits = np.zeros((len(blocks), 128), np.int8)
    for byte in range(26):
        if byte < 16:
            start, step, digits = byte, 16, 5
        elif byte < 24:
            start, step, digits = 80 + byte - 16, 8, 5
        else:
            start, step, digits = 120 + byte - 24, 2, 4
        for digit in range(digits):
            power = (blocks[:, byte].astype(np.uint32) * 3**digit) & 255
            trits[:, start + step * digit] = (power * 3 >> 8).astype(np.int8)
    return scales, trits - 1


def main(path: str) -> None:
    register()
    reader = gguf.GGUFReader(path)
    architecture = reader.get_field("general.architecture").contents()
    assert architecture == "dflash", architecture
    block = reader.get_field("prism.hadamard.block_size").contents()
    folded = set(reader.get_field("prism.hadamard.weight_names").contents())
    end = 0
    ternary = 0
    for tensor in reader.tensors:
        assert tensor.data_offset % 32 == 0, f"{tensor.name}: misaligned"
        assert tensor.data_offset >= end, f"{tensor.name}: overlaps the tensor before"
        end = tensor.data_offset + tensor.n_bytes
        number = int(tensor.tensor_type)
        if number in TERNARY:
            name, size = TERNARY[number]
            inputs = int(tensor.shape[0])
            assert inputs % block == 0, f"{tensor.name}: {inputs} inputs, blocks of {block}"
            assert tensor.name in folded, f"{tensor.name}: not listed as rotated"
            blocks = np.asarray(tensor.data).reshape(-1, size)
            decode = decode_pq2_0 if number == 142 else decode_ptq1_0
            scales, values = decode(blocks)
            assert np.isfinite(scales).all() and (scales >= 0).all(), f"{tensor.name}: bad scale"
            assert values.min() >= -1 and values.max() <= 1, f"{tensor.name}: not ternary"
            as_bf16 = scales.astype("<f4").view("<u4") & 0xFFFF
            assert (as_bf16 == 0).all(), f"{tensor.name}: a scale is not exact in bf16"
            ternary += 1
        else:
            assert tensor.tensor_type.name in ("F32", "BF16"), f"{tensor.name}: {tensor.tensor_type}"
    assert ternary == len(folded), (ternary, len(folded))
    print(f"{path}: {len(reader.tensors)} tensors, {ternary} ternary, block {block}: fine")


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        main(argument)
