"""Reads the exported files with independent readers.

    python check_files.py --work DIR

GGUF with the `gguf` package (the ternary types registered first, as in
tools/check_gguf.py), decoded by that file's own decoders; the PTQ1_0 twin must
hold the same numbers, the F32 twin the same un-rotated weights; the drafter's
safetensors must fit its config.json.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

sys.path.insert(1, str(Path(__file__).parents[1]))
import check_gguf  # noqa: E402

import drafter  # noqa: E402
import exported  # noqa: E402
import gguf_file  # noqa: E402
from config import IM_END, TARGET, VOCAB  # noqa: E402


def values(tensor) -> np.ndarray:
    number = int(tensor.tensor_type)
    if number in check_gguf.TERNARY:
        blocks = np.asarray(tensor.data).reshape(-1, check_gguf.TERNARY[number][1])
        scales, codes = (check_gguf.decode_pq2_0 if number == 142 else check_gguf.decode_ptq1_0)(blocks)
        assert codes.min() >= -1 and codes.max() <= 1
        return (codes * scales.astype(np.float64)[:, None]).reshape(tensor.shape[::-1].tolist())
    if number == gguf_file.BF16:
        bits = np.ascontiguousarray(tensor.data).view("<u2").astype("<u4") << 16
        return bits.view("<f4").astype(np.float64).reshape(tensor.shape[::-1].tolist())
    return np.asarray(tensor.data, np.float64)


def target_files(work: Path) -> None:
    import gguf

    check_gguf.register()
    decoded = {}
    for name in ("target", "target-ptq1", "target-f32"):
        reader = gguf.GGUFReader(work / f"{name}.gguf")
        assert reader.get_field("general.architecture").contents() == "qwen35"
        assert len(reader.get_field("tokenizer.ggml.tokens").contents()) == VOCAB
        assert reader.get_field("tokenizer.ggml.eos_token_id").contents() == IM_END
        decoded[name] = {t.name: values(t) for t in reader.tensors}
        kinds: dict[int, int] = {}
        for tensor in reader.tensors:
            assert tensor.data_offset % 32 == 0
            kinds[int(tensor.tensor_type)] = kinds.get(int(tensor.tensor_type), 0) + 1
        keys = [k for k in reader.fields if not k.startswith("GGUF.")]
        print(f"{name}.gguf: {len(keys)} keys, {len(reader.tensors)} tensors, by type {kinds}")
        if name == "target":
            folded = reader.get_field("prism.hadamard.weight_names").contents()
            assert kinds[142] == len(folded) + 1 and len(set(folded)) == len(folded)
            own = gguf_file.Reader(work / "target.gguf")
            for tensor in reader.tensors:
                assert (own.weight(tensor.name) == decoded[name][tensor.name]).all(), tensor.name
    for name, value in decoded["target"].items():
        assert (decoded["target-ptq1"][name] == value).all(), f"{name} differs in the PTQ1_0 twin"
    w = exported.load(work / "target.gguf", torch.float64)
    for name, value in decoded["target-f32"].items():
        if name.endswith("ssm_out.weight"):  # columns are tiled there
            value = exported.untile(np.ascontiguousarray(value.T), TARGET, TARGET.state).T
        gap = np.abs(exported.grouped(name, np.ascontiguousarray(value), TARGET) - w[name].numpy()).max()
        assert gap < 1e-7, (name, gap)
    print("the three hold the same weights")


def drafter_files(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    assert {n: tuple(t.shape) for n, t in tensors.items()} == drafter.shapes()
    assert all(t.dtype == torch.bfloat16 and t.isfinite().all() for t in tensors.values())
    assert config["architectures"] == ["DFlash2DraftModel"] and config["vocab_size"] == VOCAB
    print(f"drafter: {len(tensors)} tensors, {sum(t.numel() for t in tensors.values())} parameters")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True)
    options = parser.parse_args()
    target_files(options.work)
    drafter_files(options.work / "drafter")


if __name__ == "__main__":
    main()
