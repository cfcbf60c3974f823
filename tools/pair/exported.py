"""The exported target, read from its bytes, as weights of target.forward."""

from pathlib import Path

import numpy as np
import torch

import gguf_file
import rotation
import target
from config import TARGET, Target
from export_target import tiled_rows


def untile(rows: np.ndarray, c: Target, width: int) -> np.ndarray:
    out = np.empty_like(rows.reshape(c.value_heads, width, *rows.shape[1:]))
    out[tiled_rows(c)] = rows.reshape(out.shape)
    return out.reshape(rows.shape)


def grouped(name: str, rows: np.ndarray, c: Target) -> np.ndarray:
    """The inverse of export_target.file_order."""
    kind = name.split(".", 2)[-1]
    if kind in ("attn_qkv.weight", "ssm_conv1d.weight"):
        keys = 2 * c.key_width
        return np.concatenate([rows[:keys], untile(rows[keys:], c, c.state)])
    if kind == "attn_gate.weight":
        return untile(rows, c, c.state)
    if kind in ("ssm_alpha.weight", "ssm_beta.weight", "ssm_a", "ssm_dt.bias"):
        return untile(rows, c, 1)
    return rows


def load(path: Path, dtype=torch.float32) -> dict[str, torch.Tensor]:
    """Weights in the primal basis and in grouped order; un-rotated in f64, then rounded once."""
    file = gguf_file.Reader(path)
    rotated = set(file.keys["prism.hadamard.weight_names"]) | {"token_embd.weight"}
    values = np.array(file.keys["prism.hadamard.sign_values"])
    sign, offset = {}, 0
    for width in file.keys["prism.hadamard.sign_widths"]:
        sign[width] = torch.from_numpy(values[offset : offset + width]).double()
        offset += width
    out = {}
    for name, (shape, _) in target.shapes(TARGET).items():
        stored = torch.from_numpy(np.ascontiguousarray(grouped(name, file.weight(name), TARGET)))
        assert tuple(stored.shape) == shape, name
        if name in rotated:
            stored = rotation.unrotate(stored, sign[shape[1]], file.keys["prism.hadamard.block_size"])
        out[name] = stored.to(dtype)
    return out
