"""Writes the drafter as published ones are: bf16 safetensors and config.json.

python export_drafter.py --work DIR
"""

import argparse
from pathlib import Path

import torch
from safetensors.torch import save_file

import drafter
from config import DRAFTER, END_OF_TEXT, EPS, MASK, ROPE_THETA, TARGET, VOCAB
from util import log, write_json


def configuration() -> dict:
    """The keys of the published config.json, and no others."""
    c = DRAFTER
    return {
        "architectures": ["DFlash2DraftModel"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "is_causal": False,
        "dflash_config": {
            "block_size": c.block,
            "conv_group_size": c.conv_group,
            "conv_kernel_size": c.conv_kernel,
            "mask_token_id": MASK,
            "selector_rank": c.rank,
            "selector_top_k": c.top_k,
            "target_layer_ids": list(c.taps),
        },
        "dtype": "bfloat16",
        "eos_token_id": END_OF_TEXT,
        "head_dim": c.head_dim,
        "hidden_act": "silu",
        "hidden_size": c.hidden,
        "initializer_range": 0.02,
        "intermediate_size": c.ffn,
        "layer_types": ["sliding_attention"] * c.layers,
        "max_position_embeddings": TARGET.context,
        "max_window_layers": c.layers,
        "model_type": "qwen3",
        "num_attention_heads": c.heads,
        "num_hidden_layers": c.layers,
        "num_key_value_heads": c.kv_heads,
        "num_target_layers": TARGET.layers,
        "pad_token_id": END_OF_TEXT,
        "rms_norm_eps": EPS,
        "rope_parameters": {"rope_theta": int(ROPE_THETA), "rope_type": "default"},
        "sliding_window": c.window,
        "tie_word_embeddings": False,
        "transformers_version": "5.15.0",
        "use_cache": True,
        "use_sliding_window": True,
        "vocab_size": VOCAB,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True)
    options = parser.parse_args()
    saved = torch.load(options.work / "drafter.pt", weights_only=True)
    if saved["step"] < saved["total"]:
        log(f"warning: training stopped at step {saved['step']} of {saved['total']}")
    folder = options.work / "drafter"
    folder.mkdir(exist_ok=True)
    tensors = {name: saved["parameters"][name].to(torch.bfloat16).contiguous() for name in drafter.shapes()}
    path = folder / "model.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    write_json(folder / "config.json", configuration(), indent=2)
    log(f"{len(tensors)} tensors, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
