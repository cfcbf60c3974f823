"""Writes the float drafter as a GGUF that llama.cpp loads.

    python drafter_gguf.py --work DIR -o FILE

Every tensor as F32, so that nothing is rounded: this file is for cross-checks.
The tokenizer is that of DIR/target-f32.gguf. Names and keys are those of the
compiler (formats/src/dflash2), written here once more with the `gguf` package.
"""

import argparse
import json
import struct
from pathlib import Path

import gguf
import numpy as np

from gguf_names import gguf_name


def bf16_tensors(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a bf16 safetensors file as f32; numpy itself knows no bf16."""
    data = path.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    out = {}
    for name, about in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__":
            assert about["dtype"] == "BF16", f"{name}: {about['dtype']}"
            start, end = (8 + size + offset for offset in about["data_offsets"])
            bits = np.frombuffer(data[start:end], "<u2").astype("<u4") << 16
            out[name] = bits.view("<f4").reshape(about["shape"])
    return out


def add_network(writer: gguf.GGUFWriter, config: dict) -> None:
    d, inner = "dflash.", config["dflash_config"]
    for key, value in (
        ("block_count", config["num_hidden_layers"]),
        ("context_length", config["max_position_embeddings"]),
        ("embedding_length", config["hidden_size"]),
        ("feed_forward_length", config["intermediate_size"]),
        ("attention.head_count", config["num_attention_heads"]),
        ("attention.head_count_kv", config["num_key_value_heads"]),
        ("attention.key_length", config["head_dim"]),
        ("attention.value_length", config["head_dim"]),
        ("attention.sliding_window", config["sliding_window"]),
        *((name, inner[name]) for name in ("block_size", "conv_kernel_size", "conv_group_size")),
        *((name, inner[name]) for name in ("selector_rank", "selector_top_k")),
    ):
        writer.add_uint32(d + key, value)
    writer.add_float32(d + "attention.layer_norm_rms_epsilon", config["rms_norm_eps"])
    writer.add_float32(d + "rope.freq_base", config["rope_parameters"]["rope_theta"])
    writer.add_bool(d + "attention.causal", config["is_causal"])
    sliding = [kind == "sliding_attention" for kind in config["layer_types"]]
    writer.add_array(d + "attention.sliding_window_pattern", sliding)
    # A GGUF names the layers whose input is tapped, config.json those whose output is.
    writer.add_array(d + "target_layers", [layer + 1 for layer in inner["target_layer_ids"]])
    writer.add_uint32("tokenizer.ggml.mask_token_id", inner["mask_token_id"])


def add_tokenizer(writer: gguf.GGUFWriter, target: Path) -> None:
    for name, field in gguf.GGUFReader(target).fields.items():
        if name.startswith("tokenizer.ggml."):
            writer.add_key_value(name, field.contents(), field.types[0], (*field.types, None)[1])


def write(work: Path, path: Path) -> None:
    config = json.loads((work / "drafter/config.json").read_text(encoding="utf-8"))
    writer = gguf.GGUFWriter(path, "dflash")
    writer.add_name("tiny-drafter")
    writer.add_file_type(0)
    add_network(writer, config)
    add_tokenizer(writer, work / "target-f32.gguf")
    for name, values in bf16_tensors(work / "drafter/model.safetensors").items():
        writer.add_tensor(gguf_name(name), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    write(options.work, options.output)


if __name__ == "__main__":
    main()
