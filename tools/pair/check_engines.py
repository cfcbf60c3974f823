"""The golden records against other implementations: transformers and the `dflash` package.

    python check_engines.py --work DIR

The target, un-rotated, runs as Qwen3_5ForCausalLM in f32; every layer must
agree to 1e-4 of the larger of 1 and the layer's maximum. The drafter runs as
DFlash2DraftModel in f32 on the target's hidden states; its drafts and
candidates must be those of golden.json.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file as load_numpy
from safetensors.torch import load_file

import exported
from config import DRAFTER, EPS, MASK, ROPE_THETA, TARGET, VOCAB, Target


def published_name(name: str) -> str:
    """GGUF to transformers."""
    whole = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output.weight": "lm_head.weight",
        "output_norm.weight": "model.norm.weight",
    }
    if name in whole:
        return whole[name]
    _, layer, rest = name.split(".", 2)
    parts = {
        "attn_norm.weight": "input_layernorm.weight", "post_attention_norm.weight": "post_attention_layernorm.weight",
        "attn_q.weight": "self_attn.q_proj.weight", "attn_k.weight": "self_attn.k_proj.weight",
        "attn_v.weight": "self_attn.v_proj.weight", "attn_output.weight": "self_attn.o_proj.weight",
        "attn_q_norm.weight": "self_attn.q_norm.weight", "attn_k_norm.weight": "self_attn.k_norm.weight",
        "attn_qkv.weight": "linear_attn.in_proj_qkv.weight", "attn_gate.weight": "linear_attn.in_proj_z.weight",
        "ssm_alpha.weight": "linear_attn.in_proj_a.weight", "ssm_beta.weight": "linear_attn.in_proj_b.weight",
        "ssm_out.weight": "linear_attn.out_proj.weight", "ssm_conv1d.weight": "linear_attn.conv1d.weight",
        "ssm_a": "linear_attn.A_log", "ssm_dt.bias": "linear_attn.dt_bias", "ssm_norm.weight": "linear_attn.norm.weight",
        "ffn_gate.weight": "mlp.gate_proj.weight", "ffn_up.weight": "mlp.up_proj.weight", "ffn_down.weight": "mlp.down_proj.weight",
    }  # fmt: skip
    return f"model.layers.{layer}.{parts[rest]}"


def as_transformers(work: Path, c: Target = TARGET):
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    config = Qwen3_5TextConfig(
        vocab_size=VOCAB, hidden_size=c.hidden, intermediate_size=c.ffn, num_hidden_layers=c.layers,
        num_attention_heads=c.heads, num_key_value_heads=c.kv_heads, head_dim=c.head_dim, rms_norm_eps=EPS,
        max_position_embeddings=c.context, linear_conv_kernel_dim=c.kernel, linear_key_head_dim=c.state,
        linear_value_head_dim=c.state, linear_num_key_heads=c.key_heads, linear_num_value_heads=c.value_heads,
        layer_types=["full_attention" if c.is_full(i) else "linear_attention" for i in range(c.layers)],
        rope_parameters={
            "rope_type": "default", "rope_theta": ROPE_THETA, "partial_rotary_factor": c.rotary / c.head_dim,
            "mrope_section": list(c.sections[:3]), "mrope_interleaved": True,
        },
        tie_word_embeddings=False, attn_implementation="eager",
    )  # fmt: skip
    model = Qwen3_5ForCausalLM(config).float().eval()
    state = {}
    for name, value in exported.load(work / "target.gguf").items():
        if name.endswith("ssm_a"):
            value = torch.log(-value)
        elif name.endswith("norm.weight") and not name.endswith("ssm_norm.weight"):
            value = value - 1
        elif name.endswith("ssm_conv1d.weight"):
            value = value[:, None]
        state[published_name(name)] = value
    model.load_state_dict(state, strict=True)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = options.work / "golden"
    golden = json.loads((folder / "golden.json").read_text(encoding="utf-8"))
    rows = load_numpy(folder / "target.safetensors")
    blocks = load_numpy(folder / "drafter.safetensors")
    target = as_transformers(options.work)

    from dflash.model import DFlash2DraftModel, extract_context_feature
    from transformers import Qwen3Config

    config = Qwen3Config(**json.loads((options.work / "drafter/config.json").read_text()))
    draft = DFlash2DraftModel(config).float().eval()
    weights = {n: t.float() for n, t in load_file(options.work / "drafter/model.safetensors").items()}
    renamed = {n + ".weight" if n.endswith("codebook") else n: t for n, t in weights.items()}
    draft.load_state_dict(renamed, strict=True)

    worst, hidden_gap, wrong, compared = 0.0, 0.0, 0, 0
    for number, record in enumerate(golden["prompts"]):
        ids = torch.tensor([record["prompt"] + record["greedy"]])
        with torch.no_grad():
            out = target(ids, output_hidden_states=True)
            answer = out.logits[0, len(record["prompt"]) - 1 : -1].argmax(-1).tolist()
        assert answer == record["greedy"] or record["min_margin"] < 1e-4, f"prompt {number}: other tokens"
        if "positions" in record:
            at = record["positions"]
            for layer in range(TARGET.layers - 1):  # the last entry is after the final norm there
                theirs = out.hidden_states[layer + 1][0, at].numpy()
                truth = rows[f"{number}.layers"][:, layer]
                worst = max(worst, float(np.abs(theirs - truth).max() / max(1, np.abs(truth).max())))
            truth = rows[f"{number}.logits"]
            worst = max(
                worst, float(np.abs(out.logits[0, at].numpy() - truth).max() / max(1, np.abs(truth).max()))
            )
        features = extract_context_feature(out.hidden_states, list(DRAFTER.taps))
        for (anchor, _), drafts in zip(record["rounds_7"], record["drafts"], strict=True):
            noise = torch.full((1, DRAFTER.block), MASK)
            noise[0, 0] = ids[0, anchor]
            with torch.no_grad():
                hidden = draft(
                    target_hidden=features[:, :anchor],
                    noise_embedding=target.get_input_embeddings()(noise),
                    position_ids=torch.arange(anchor + DRAFTER.block)[None],
                )
                theirs, _, _ = draft.propose(hidden[:, 1:], noise[:, 0], target.lm_head, 0.0)
            wrong += theirs[0].tolist() != drafts
            compared += 1
            if anchor == len(record["prompt"]) and f"{number}.hidden" in blocks:
                hidden_gap = max(
                    hidden_gap, float(np.abs(hidden[0].numpy() - blocks[f"{number}.hidden"]).max())
                )
    print(f"transformers: {len(golden['prompts'])} prompts, largest relative difference {worst:.1e}")
    print(f"dflash: {wrong} of {compared} rounds differ, hidden states by at most {hidden_gap:.1e}")
    assert worst < 1e-4 and hidden_gap < 1e-3 and wrong <= compared // 200


if __name__ == "__main__":
    main()
