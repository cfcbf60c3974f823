"""Writes the trained target as GGUF: PQ2_0, and two twins for cross-checks.

    python export_target.py --work DIR

DIR/target.gguf is the fixture. target-ptq1.gguf holds the same codes and
scales in the other ternary format; target-f32.gguf holds the un-rotated
weights as plain F32 and no rotation keys, for engines that know no rotation.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch

import gguf_file
import rotation
import target
from config import (
    BLOCK,
    BPE_TOKENS,
    END_OF_TEXT,
    EPS,
    IM_END,
    ROPE_THETA,
    SPECIALS,
    TARGET,
    VOCAB,
    Target,
)  # fmt: skip
from util import log

NAME = "tiny-ternary-target"


def tiled_rows(c: Target) -> np.ndarray:
    """The value head in each position of the file: position r * key_heads + kh holds kh * repeat + r."""
    return np.array([kh * c.repeat + r for r in range(c.repeat) for kh in range(c.key_heads)])


def tile(rows: np.ndarray, c: Target, width: int) -> np.ndarray:
    """Reorders the value heads, each of `width` rows, from grouped to tiled."""
    heads = rows.reshape(c.value_heads, width, *rows.shape[1:])
    return np.ascontiguousarray(heads[tiled_rows(c)]).reshape(rows.shape)


def file_order(name: str, rows: np.ndarray, c: Target) -> np.ndarray:
    """Rows of a GDN tensor in the file's order; all other tensors as they are."""
    kind = name.split(".", 2)[-1]
    if kind in ("attn_qkv.weight", "ssm_conv1d.weight"):
        keys = 2 * c.key_width
        return np.concatenate([rows[:keys], tile(rows[keys:], c, c.state)])
    if kind == "attn_gate.weight":
        return tile(rows, c, c.state)
    if kind in ("ssm_alpha.weight", "ssm_beta.weight", "ssm_a", "ssm_dt.bias"):
        return tile(rows, c, 1)
    return rows


def tokenizer_keys(work: Path) -> list[tuple[str, str, object]]:
    model = json.loads((work / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    tokens = [""] * BPE_TOKENS
    for token, number in model["vocab"].items():
        if number < BPE_TOKENS:
            tokens[number] = token
    assert all(tokens)
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    padding = VOCAB - BPE_TOKENS - len(SPECIALS)
    names = tokens + SPECIALS + [f"[PAD{VOCAB - padding + i}]" for i in range(padding)]
    types = [1] * BPE_TOKENS + [3] * len(SPECIALS) + [5] * padding
    template = Path(__file__).with_name("chat_template.jinja").read_text(encoding="utf-8")
    return [
        ("tokenizer.ggml.model", "str", "gpt2"),
        ("tokenizer.ggml.pre", "str", "qwen35"),
        ("tokenizer.ggml.tokens", "arr:str", names),
        ("tokenizer.ggml.token_type", "arr:i32", types),
        ("tokenizer.ggml.merges", "arr:str", merges),
        ("tokenizer.ggml.eos_token_id", "u32", IM_END),
        ("tokenizer.ggml.padding_token_id", "u32", END_OF_TEXT),
        ("tokenizer.ggml.bos_token_id", "u32", END_OF_TEXT),
        ("tokenizer.ggml.add_bos_token", "bool", False),
        ("tokenizer.chat_template", "str", template),
    ]


def model_keys(c: Target, file_type: int) -> list[tuple[str, str, object]]:
    q = "qwen35."
    return [
        ("general.architecture", "str", "qwen35"),
        ("general.type", "str", "model"),
        ("general.name", "str", NAME),
        ("general.size_label", "str", "4.8M"),
        ("general.license", "str", "apache-2.0"),
        ("general.file_type", "u32", file_type),
        ("general.quantization_version", "u32", 2),
        ("general.sampling.temp", "f32", 1.0),
        ("general.sampling.top_k", "i32", 20),
        ("general.sampling.top_p", "f32", 0.95),
        (q + "block_count", "u32", c.layers),
        (q + "context_length", "u32", c.context),
        (q + "embedding_length", "u32", c.hidden),
        (q + "feed_forward_length", "u32", c.ffn),
        (q + "attention.head_count", "u32", c.heads),
        (q + "attention.head_count_kv", "u32", c.kv_heads),
        (q + "attention.key_length", "u32", c.head_dim),
        (q + "attention.value_length", "u32", c.head_dim),
        (q + "attention.layer_norm_rms_epsilon", "f32", EPS),
        (q + "rope.freq_base", "f32", ROPE_THETA),
        (q + "rope.dimension_count", "u32", c.rotary),
        (q + "rope.dimension_sections", "arr:i32", list(c.sections)),
        (q + "full_attention_interval", "u32", c.interval),
        (q + "ssm.conv_kernel", "u32", c.kernel),
        (q + "ssm.state_size", "u32", c.state),
        (q + "ssm.group_count", "u32", c.key_heads),
        (q + "ssm.time_step_rank", "u32", c.value_heads),
        (q + "ssm.inner_size", "u32", c.inner),
    ]


def rotation_keys(c: Target, folded: list[str]) -> list[tuple[str, str, object]]:
    p = "prism.hadamard."
    widths = sorted({c.hidden, c.ffn, c.inner, c.heads * c.head_dim})
    values = [int(v) for width in widths for v in rotation.signs(width)]
    return [
        (p + "version", "u32", 1),
        (p + "block_size", "u32", BLOCK),
        (p + "transform", "str", "normalized-sylvester-walsh-hadamard"),
        (p + "axis", "str", "input-last-dimension"),
        (p + "sign_mode", "str", "explicit"),
        (p + "sign_widths", "arr:i32", widths),
        (p + "sign_values", "arr:i32", values),
        (p + "weight_names", "arr:str", folded),
        (p + "inverse_weight_names", "arr:str", ["token_embd.weight"]),
        (p + "gdn_v_grouped", "bool", True),
    ]


def tensors(latents: dict, c: Target, form: int) -> list[tuple]:
    """Every tensor of the file in the given format."""
    out = []
    for name, (shape, kind) in target.shapes(c).items():
        value = latents[name]
        if kind == "ternary":
            codes, scales = rotation.absmean(value)
            if form == gguf_file.F32:
                stored = (codes.double() * scales.double()).view(shape)
                rows = rotation.unrotate(stored, rotation.signs(shape[1])).numpy()
                rows = file_order(name, rows, c)
                if name.endswith("ssm_out.weight"):  # columns grouped -> tiled
                    rows = np.ascontiguousarray(tile(np.ascontiguousarray(rows.T), c, c.state).T)
                out.append((name, form, shape, rows.astype("<f4").tobytes()))
                continue
            groups = (shape[0], shape[1] // 128)
            codes = file_order(name, codes.view(*groups, 128).to(torch.int8).numpy(), c)
            scales = file_order(name, scales.view(groups).numpy(), c)
            half = scales.astype("<f2")
            assert (half.astype(np.float32) == scales).all(), f"{name}: a scale is not exact in fp16"
            pack = gguf_file.pq2_0 if form == gguf_file.PQ2_0 else gguf_file.ptq1_0
            out.append((name, form, shape, pack(codes.reshape(-1, 128), half.reshape(-1))))
        elif kind == "bf16":
            rows = file_order(name, value.to(torch.bfloat16).float().numpy(), c)
            if form == gguf_file.F32:
                out.append((name, gguf_file.F32, shape, rows.astype("<f4").tobytes()))
            else:
                out.append((name, gguf_file.BF16, shape, gguf_file.to_bf16(rows)))
        else:
            if name.endswith("ssm_a"):
                value = -value.exp()
            rows = file_order(name, value.numpy(), c)
            out.append((name, gguf_file.F32, shape, rows.astype("<f4").tobytes()))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True)
    options = parser.parse_args()
    saved = torch.load(options.work / "target.pt", weights_only=True)
    latents = saved["latents"]
    if saved["step"] < saved["total"]:
        log(f"warning: training stopped at step {saved['step']} of {saved['total']}")
    words = tokenizer_keys(options.work)
    kinds = target.shapes(TARGET)
    folded = [n for n, (_, kind) in kinds.items() if kind == "ternary" and n != "token_embd.weight"]
    for suffix, form, file_type, keys in (
        ("", gguf_file.PQ2_0, 141, rotation_keys(TARGET, folded)),
        ("-ptq1", gguf_file.PTQ1_0, 143, rotation_keys(TARGET, folded)),
        ("-f32", gguf_file.F32, 0, []),
    ):
        path = options.work / f"target{suffix}.gguf"
        gguf_file.write(path, model_keys(TARGET, file_type) + words + keys, tensors(latents, TARGET, form))
        log(f"{path.name}: {path.stat().st_size} bytes")
    zeros = [float((rotation.absmean(latents[n])[0] == 0).float().mean()) for n in folded]
    log(f"zero codes: {min(zeros):.3f} to {max(zeros):.3f} of a matrix")


if __name__ == "__main__":
    main()
