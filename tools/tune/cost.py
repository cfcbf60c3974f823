"""What tuning costs, from the sizes in config.json: positions, operations, memory, hours. No torch.

Rows of a block go through all matrices of the layers and the selector's; context
rows through fc and the keys and values of every layer. A product costs 2
operations per weight, its backward pass 4: one for the inputs, one for the
weights. The head stays as it is and costs only the former. The float drafter
that is followed runs forward only. Once a step, every matrix is taken to the
plain basis, and its gradient back.
"""

import argparse
import json
import math
from pathlib import Path

import pair  # noqa: F401  its folder on the path

BYTES_PER_TUNED = 4 + 4 + 8  # latent, gradient, two moments of AdamW
BYTES_IN_USE = {False: 4 + 2, True: 4 + 2 + 2}  # plain weight, code and mask; a copy in bf16


def shapes(c: dict) -> dict[str, tuple[int, ...]]:
    """The ternary matrices of a config.json: [outputs, inputs]."""
    inner, hidden = c["dflash_config"], c["hidden_size"]
    q, kv = (c[name] * c["head_dim"] for name in ("num_attention_heads", "num_key_value_heads"))
    ffn, groups = c["intermediate_size"], hidden // inner["conv_group_size"]
    out = {
        "fc.weight": (hidden, len(inner["target_layer_ids"]) * hidden),
        "candidate_selector.hidden_projection.weight": (inner["selector_rank"], hidden),
    }
    for layer in range(c["num_hidden_layers"]):
        for name, shape in {
            "attention_conv.kernel_projection": (2 * inner["conv_kernel_size"] * groups, hidden),
            "mlp_conv.kernel_projection": (2 * inner["conv_kernel_size"] * groups, hidden),
            "self_attn.q_proj": (q, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, q),
            "mlp.gate_proj": (ffn, hidden),
            "mlp.up_proj": (ffn, hidden),
            "mlp.down_proj": (hidden, ffn),
        }.items():
            out[f"layers.{layer}.{name}.weight"] = shape
    return out


def costs(c: dict, options: argparse.Namespace, block: int = 1024) -> dict[str, float]:
    """Figures of a run over `options.positions` labelled positions."""
    inner = c["dflash_config"]
    sizes = {name: math.prod(shape) for name, shape in shapes(c).items()}
    parts = [part for part in options.only.split(",") if part]
    tuned = sum(n for name, n in sizes.items() if not parts or any(part in name for part in parts))
    context = sum(n for name, n in sizes.items() if name == "fc.weight" or "k_proj" in name or "v_proj" in name)
    rows = inner["block_size"]
    blocks = options.positions / options.tokens_per_round * options.epochs
    positions = options.positions * options.epochs
    steps = blocks / (options.sequences * options.workers * options.anchors)

    per_row = sum(sizes.values()) - sizes["fc.weight"]
    seen = c["sliding_window"] + rows
    q = c["num_attention_heads"] * c["head_dim"] * c["num_hidden_layers"]
    head = c["vocab_size"] * c["hidden_size"]
    share = tuned / sum(sizes.values())  # of the backward pass to the weights
    led = 2 if options.follow > 0 else 0
    operations = {
        "blocks": blocks * rows * per_row * (4 + 2 * share + led),
        "context": positions * context * (4 + 2 * share + led),
        "attention": blocks * rows * (12 + 2 * led) * seen * q,
        "head": blocks * (rows - 1) * head * (4 + led),
        "rotation": 0.0 if options.float else steps * tuned * 2 * 2 * block,
    }
    others = 2 * c["vocab_size"] * inner["selector_rank"]
    learnt = tuned + (others if options.rest_rate > 0 else 0)
    frozen, value = sum(sizes.values()) - tuned, 2 if options.bf16 else 4
    memory = {
        "learnt": learnt * BYTES_PER_TUNED,
        "in use": tuned * BYTES_IN_USE[options.bf16] + value * frozen + 4 * others,
        "float": (sum(sizes.values()) + others) * value if options.follow > 0 else 0,
        "words": 2 * head * value,
        "logits": 4 * 3 * options.sequences * options.anchors * (rows - 1) * c["vocab_size"],
    }
    taps = 2 * len(inner["target_layer_ids"]) * c["hidden_size"] + 32 * 8
    return {
        "weights": sum(sizes.values()),
        "tuned": tuned,
        "blocks": blocks,
        "steps": steps,
        "label_bytes": options.positions * taps,
        "operations": operations,
        "hours": sum(operations.values()) / options.tflops / 1e12 / 3600,
        "capture_hours": options.positions / options.capture_rate / 3600,
        "memory": memory,
    }


def report(options: argparse.Namespace) -> None:
    folder = options.drafter if options.drafter.is_dir() else options.drafter.parent
    path = folder / "config.json"
    c = json.loads(Path(path).read_text())
    k = costs(c, options)
    total = sum(k["operations"].values())
    parts = ", ".join(f"{name} {value / total:.0%}" for name, value in k["operations"].items())
    memory = ", ".join(f"{name} {value / 1e9:.1f}" for name, value in k["memory"].items())
    print(f"{path}: {k['weights']:,} weights in ternary matrices, {k['tuned']:,} of them tuned")
    print(
        f"labels    {options.positions:,.0f} positions, {k['label_bytes'] / 1e9:,.1f} GB; "
        f"{k['capture_hours']:,.1f} hours at {options.capture_rate:g} positions per second, or less in shards"
    )
    print(f"blocks    {k['blocks']:,.0f} in {options.epochs:g} passes; {k['steps']:,.0f} steps for --steps")
    print(f"work      {total:.2e} floating-point operations ({parts})")
    print(f"time      {k['hours']:,.1f} hours at {options.tflops:g} TFLOP/s sustained")
    print(f"memory    {sum(k['memory'].values()) / 1e9:,.1f} GB without activations ({memory})")
