"""The names of a drafter's tensors in a GGUF, those of the compiler (formats/src/dflash2)."""

TOP = {
    "fc.weight": "fc.weight",
    "hidden_norm.weight": "enc.output_norm.weight",
    "norm.weight": "output_norm.weight",
    "candidate_selector.hidden_projection.weight": "selector_hidden.weight",
    "candidate_selector.predecessor_codebook": "selector_predecessor.weight",
    "candidate_selector.successor_codebook": "selector_successor.weight",
}
LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "attention_conv.kernel_projection.weight": "attn_conv_proj.weight",
    "attention_conv.base_kernel": "attn_conv_base",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp_conv.kernel_projection.weight": "ffn_conv_proj.weight",
    "mlp_conv.base_kernel": "ffn_conv_base",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}


def gguf_name(name: str) -> str:
    if name in TOP:
        return TOP[name]
    _, layer, rest = name.split(".", 2)
    return f"blk.{layer}.{LAYER[rest]}"
