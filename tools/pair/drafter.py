"""The DFlash 2 drafter in PyTorch: parameters with the published names, and its forward pass.

Context enters only as keys and values made from the target's tapped hidden
states. A block is the pending token and seven masks; row i predicts the token
at its own position. All rows of a block see each other and the context
strictly before the block, at most `window - 1` positions back.
"""

import math

import torch
from torch.nn import functional as F

from config import BLOCK, DRAFTER, Drafter
from target import norm, rope, rope_table


def shapes(c: Drafter = DRAFTER) -> dict[str, tuple[int, ...]]:
    groups = c.hidden // c.conv_group
    out = {
        "candidate_selector.hidden_projection.weight": (c.rank, c.hidden),
        "candidate_selector.predecessor_codebook": (c.vocab, c.rank),
        "candidate_selector.successor_codebook": (c.vocab, c.rank),
        "fc.weight": (c.hidden, len(c.taps) * c.hidden),
        "hidden_norm.weight": (c.hidden,),
        "norm.weight": (c.hidden,),
    }
    for layer in range(c.layers):
        at = f"layers.{layer}."
        q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
        for conv in ("attention_conv", "mlp_conv"):
            out[at + conv + ".base_kernel"] = (2, c.conv_kernel, c.hidden)
            out[at + conv + ".kernel_projection.weight"] = (2 * c.conv_kernel * groups, c.hidden)
        out[at + "input_layernorm.weight"] = (c.hidden,)
        out[at + "post_attention_layernorm.weight"] = (c.hidden,)
        out[at + "self_attn.q_norm.weight"] = (c.head_dim,)
        out[at + "self_attn.k_norm.weight"] = (c.head_dim,)
        out[at + "self_attn.q_proj.weight"] = (q, c.hidden)
        out[at + "self_attn.k_proj.weight"] = (kv, c.hidden)
        out[at + "self_attn.v_proj.weight"] = (kv, c.hidden)
        out[at + "self_attn.o_proj.weight"] = (c.hidden, q)
        out[at + "mlp.gate_proj.weight"] = (c.ffn, c.hidden)
        out[at + "mlp.up_proj.weight"] = (c.ffn, c.hidden)
        out[at + "mlp.down_proj.weight"] = (c.hidden, c.ffn)
    return dict(sorted(out.items()))


def is_ternarizable(name: str) -> bool:
    """Matrices that the compiler ternarizes: all but the codebooks."""
    return name.endswith("weight") and len(shapes()[name]) == 2 and shapes()[name][1] % BLOCK == 0


def initial(seed: int, c: Drafter = DRAFTER) -> dict[str, torch.Tensor]:
    """Identity convolutions, a selector without effect, the rest random."""
    draw = torch.Generator().manual_seed(seed)
    out = {}
    for name, shape in shapes(c).items():
        if name.endswith("predecessor_codebook"):
            value = torch.randn(shape, generator=draw) * 0.5
        elif name.endswith(("successor_codebook", "kernel_projection.weight")):
            value = torch.zeros(shape)
        elif name.endswith("base_kernel"):
            value = torch.zeros(shape)
            value[:, 0] = 1.0
        elif len(shape) == 1:
            value = torch.ones(shape)
        else:
            value = torch.randn(shape, generator=draw) * shape[1] ** -0.5
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                value /= math.sqrt(2 * c.layers)
        out[name] = value.requires_grad_(True)
    return out


def context(p: dict, taps: torch.Tensor, start: int = 0, c: Drafter = DRAFTER) -> list[tuple]:
    """Keys and values [sequence, kv head, position, dim] of every layer for taps [sequence, position, -1]."""
    h = norm(F.linear(taps, p["fc.weight"]), p["hidden_norm.weight"])
    cos, sin = rope_table(start, taps.shape[1], c.head_dim, taps.dtype)
    out = []
    for layer in range(c.layers):
        at = f"layers.{layer}.self_attn."
        k = F.linear(h, p[at + "k_proj.weight"]).view(*h.shape[:2], c.kv_heads, c.head_dim)
        v = F.linear(h, p[at + "v_proj.weight"]).view(*h.shape[:2], c.kv_heads, c.head_dim)
        k = rope(norm(k, p[at + "k_norm.weight"]), cos[:, None], sin[:, None])
        out.append((k.transpose(1, 2), v.transpose(1, 2)))
    return out


def blocks(
    p: dict,
    table: torch.Tensor,
    kv: list[tuple],
    tokens: torch.Tensor,
    anchors: torch.Tensor,
    c: Drafter = DRAFTER,
) -> torch.Tensor:
    """Final hidden [sequence, anchor, row, hidden] of a block at every anchor.

    `table` is the target's embedding, `tokens` [sequence, anchor] the pending
    tokens, `anchors` their positions; kv comes from `context` from position 0.
    """
    sequences, count = tokens.shape
    ids = torch.full((sequences, count, c.block), c.mask, dtype=torch.long)
    ids[..., 0] = tokens
    x = table[ids]
    length = kv[0][0].shape[2]
    positions = anchors[..., None] + torch.arange(c.block)
    cos, sin = rope_table(0, int(positions.max()) + 1, c.head_dim, x.dtype)
    cos, sin = cos[positions][..., None, :], sin[positions][..., None, :]

    back = positions[..., None] - torch.arange(length)  # how far a context position lies behind
    seen = (torch.arange(length) < anchors[..., None, None]) & (back < c.window)
    own = torch.eye(count, dtype=torch.bool)[:, None, :, None]
    own = own.expand(count, c.block, count, c.block).reshape(count * c.block, count * c.block)
    mask = torch.cat([seen.flatten(1, 2), own.expand(sequences, -1, -1)], -1)[:, None]

    for layer in range(c.layers):
        at = f"layers.{layer}."
        a = norm(x, p[at + "input_layernorm.weight"])
        a, after = convolved(p, at + "attention_conv", a, c)
        q = F.linear(a, p[at + "self_attn.q_proj.weight"]).view(*a.shape[:3], c.heads, c.head_dim)
        k = F.linear(a, p[at + "self_attn.k_proj.weight"]).view(*a.shape[:3], c.kv_heads, c.head_dim)
        v = F.linear(a, p[at + "self_attn.v_proj.weight"]).view(*a.shape[:3], c.kv_heads, c.head_dim)
        q = rope(norm(q, p[at + "self_attn.q_norm.weight"]), cos, sin).flatten(1, 2).transpose(1, 2)
        k = rope(norm(k, p[at + "self_attn.k_norm.weight"]), cos, sin).flatten(1, 2).transpose(1, 2)
        k = torch.cat([kv[layer][0], k], 2).repeat_interleave(c.heads // c.kv_heads, 1)
        v = torch.cat([kv[layer][1], v.flatten(1, 2).transpose(1, 2)], 2)
        v = v.repeat_interleave(c.heads // c.kv_heads, 1)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        out = out.transpose(1, 2).reshape(*a.shape[:3], c.heads * c.head_dim)
        x = x + after(F.linear(out, p[at + "self_attn.o_proj.weight"]))
        m = norm(x, p[at + "post_attention_layernorm.weight"])
        m, after = convolved(p, at + "mlp_conv", m, c)
        gate = F.silu(F.linear(m, p[at + "mlp.gate_proj.weight"]))
        up = F.linear(m, p[at + "mlp.up_proj.weight"])
        x = x + after(F.linear(gate * up, p[at + "mlp.down_proj.weight"]))
    return norm(x, p["norm.weight"])


def convolved(p: dict, name: str, x: torch.Tensor, c: Drafter):
    """The sublayer's input after its convolution, and the convolution for its output.

    Both kernels come from the same input: projected index = side, tap, group.
    """
    groups = c.hidden // c.conv_group
    dynamic = F.linear(x, p[name + ".kernel_projection.weight"])
    dynamic = dynamic.view(*x.shape[:-1], 2, c.conv_kernel, groups, 1)
    base = p[name + ".base_kernel"].view(2, c.conv_kernel, groups, c.conv_group)

    def apply(z: torch.Tensor, side: int) -> torch.Tensor:
        z = z.view(*z.shape[:-1], groups, c.conv_group)
        out = (base[side, 0] + dynamic[..., side, 0, :, :]) * z
        for tap in range(1, c.conv_kernel):
            kernel = (base[side, tap] + dynamic[..., side, tap, :, :])[..., tap:, :, :]
            moved = kernel * z[..., :-tap, :, :]
            out = out + F.pad(moved, (0, 0, 0, 0, tap, 0))
        return out.flatten(-2)

    return apply(x, 0), lambda z: apply(z, 1)


def edge_scores(
    p: dict, hidden: torch.Tensor, previous: torch.Tensor, candidates: torch.Tensor
) -> torch.Tensor:
    """The selector's score of every candidate after `previous`; shapes [..., hidden], [...], [..., k]."""
    z = F.linear(hidden, p["candidate_selector.hidden_projection.weight"])
    z = z * p["candidate_selector.predecessor_codebook"][previous]
    # A product and a sum: as a batched matmul of one row each this was a tenth of a step.
    return (z[..., None, :] * p["candidate_selector.successor_codebook"][candidates]).sum(-1)


@torch.no_grad()
def propose(p: dict, head: torch.Tensor, hidden: torch.Tensor, pending: torch.Tensor, c: Drafter = DRAFTER):
    """Drafts [n, block - 1] for hidden [n, block, hidden] by the greedy walk, and the candidates."""
    logits = F.linear(hidden[:, 1:], head)
    unary, candidates = top(logits, c.top_k)
    drafts, previous = [], pending
    for slot in range(c.block - 1):
        scores = unary[:, slot] + edge_scores(p, hidden[:, slot + 1], previous, candidates[:, slot])
        best = scores.argmax(-1, keepdim=True)
        previous = candidates[:, slot].gather(-1, best)[:, 0]
        drafts.append(previous)
    return torch.stack(drafts, 1), candidates, unary


def top(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k largest by value, then by lower id: a stable sort, because topk promises no order."""
    values, ids = logits.sort(dim=-1, descending=True, stable=True)
    return values[..., :k], ids[..., :k]


@torch.no_grad()
def serve(
    p: dict, table: torch.Tensor, head: torch.Tensor, taps: torch.Tensor, ids: torch.Tensor,
    starts: torch.Tensor, ends: torch.Tensor, cap: int = 7,
) -> list[list[tuple[int, int]]]:  # fmt: skip
    """The served loop, walked along the target's known greedy text: rounds (anchor, committed tokens).

    Because the target is greedy, a draft is accepted exactly if it equals the
    text; so no target pass is needed. Sequence s starts with its pending token
    at starts[s] and ends when the pending token reaches ends[s] - 1. The block
    always has all rows; `cap` drafts of it are used.
    """
    kv = context(p, taps)
    at = starts.clone()
    rounds: list[list[tuple[int, int]]] = [[] for _ in range(len(ids))]
    padded = F.pad(ids, (0, DRAFTER.block), value=-1)
    while True:
        live = torch.nonzero(at < ends - 1).flatten()
        if not len(live):
            return rounds
        part = [(k[live], v[live]) for k, v in kv]
        pending = ids[live, at[live]]
        hidden = blocks(p, table, part, pending[:, None], at[live][:, None])[:, 0]
        drafts, _, _ = propose(p, head, hidden, pending)
        truth = padded[live[:, None], at[live][:, None] + torch.arange(1, DRAFTER.block)]
        accepted = (drafts == truth)[:, :cap].long().cumprod(1).sum(1)
        for s, n in zip(live.tolist(), accepted.tolist(), strict=True):
            rounds[s].append((int(at[s]), n + 1))
        at[live] += accepted + 1
