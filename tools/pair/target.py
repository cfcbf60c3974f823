"""The target in PyTorch: parameters, and one forward pass for training and decoding.

Parameters carry the names of the GGUF tensors. Value heads stay in grouped
order here (head g belongs to key head g // repeat), so no activation is
permuted; the exporter writes the file's tiled order.
"""

import math
from dataclasses import dataclass, field

import torch
from torch.nn import functional as F

import rotation
from config import EPS, ROPE_THETA, VOCAB, Target

CHUNK = 32


def shapes(c: Target) -> dict[str, tuple[tuple[int, ...], str]]:
    """Name to (shape, kind); kind is ternary, bf16 or f32, as the file stores it."""
    out = {"token_embd.weight": ((VOCAB, c.hidden), "ternary")}
    for layer in range(c.layers):
        at = f"blk.{layer}."
        out[at + "attn_norm.weight"] = ((c.hidden,), "f32")
        if c.is_full(layer):
            width = c.heads * c.head_dim
            out[at + "attn_q.weight"] = ((2 * width, c.hidden), "ternary")
            out[at + "attn_k.weight"] = ((c.kv_heads * c.head_dim, c.hidden), "ternary")
            out[at + "attn_v.weight"] = ((c.kv_heads * c.head_dim, c.hidden), "ternary")
            out[at + "attn_output.weight"] = ((c.hidden, width), "ternary")
            out[at + "attn_q_norm.weight"] = ((c.head_dim,), "f32")
            out[at + "attn_k_norm.weight"] = ((c.head_dim,), "f32")
        else:
            out[at + "attn_qkv.weight"] = ((c.channels, c.hidden), "ternary")
            out[at + "attn_gate.weight"] = ((c.inner, c.hidden), "ternary")
            out[at + "ssm_out.weight"] = ((c.hidden, c.inner), "ternary")
            out[at + "ssm_alpha.weight"] = ((c.value_heads, c.hidden), "bf16")
            out[at + "ssm_beta.weight"] = ((c.value_heads, c.hidden), "bf16")
            out[at + "ssm_conv1d.weight"] = ((c.channels, c.kernel), "f32")
            out[at + "ssm_a"] = ((c.value_heads,), "f32")
            out[at + "ssm_dt.bias"] = ((c.value_heads,), "f32")
            out[at + "ssm_norm.weight"] = ((c.state,), "f32")
        out[at + "post_attention_norm.weight"] = ((c.hidden,), "f32")
        out[at + "ffn_gate.weight"] = ((c.ffn, c.hidden), "ternary")
        out[at + "ffn_up.weight"] = ((c.ffn, c.hidden), "ternary")
        out[at + "ffn_down.weight"] = ((c.hidden, c.ffn), "ternary")
    out["output_norm.weight"] = ((c.hidden,), "f32")
    out["output.weight"] = ((VOCAB, c.hidden), "ternary")
    return out


def initial(c: Target, seed: int) -> dict[str, torch.Tensor]:
    """Random latents. `ssm_a` is trained as A_log, the logarithm of its negative."""
    draw = torch.Generator().manual_seed(seed)
    out = {}
    for name, (shape, kind) in shapes(c).items():
        if kind != "f32":
            deviation = 0.1 if name.startswith("token_embd") else shape[1] ** -0.5
            if name.endswith(("attn_output.weight", "ssm_out.weight", "ffn_down.weight")):
                deviation /= math.sqrt(2 * c.layers)
            value = torch.randn(shape, generator=draw) * deviation
        elif name.endswith("ssm_conv1d.weight"):
            value = (torch.rand(shape, generator=draw) * 2 - 1) * c.kernel**-0.5
        elif name.endswith("ssm_a"):
            value = (torch.rand(shape, generator=draw) * 15 + 1).log()
        elif name.endswith("ssm_dt.bias"):
            low, high = math.log(1e-3), math.log(1e-1)
            step = (torch.rand(shape, generator=draw) * (high - low) + low).exp()
            value = step + torch.log(-torch.expm1(-step))  # inverse softplus
        else:
            value = torch.ones(shape)
        out[name] = value.requires_grad_(True)
    return out


def plain_weights(latents: dict, c: Target, quantize: bool) -> dict[str, torch.Tensor]:
    """The weights of the forward pass: primal basis, on the file's grid if `quantize`."""
    sign = {width: rotation.signs(width) for width in {c.hidden, c.ffn, c.inner}}
    out = {}
    for name, (shape, kind) in shapes(c).items():
        value = latents[name]
        if kind == "ternary":
            value = rotation.primal(value, sign[shape[1]], quantize)
        elif kind == "bf16" and quantize:
            value = rotation.rounded_bf16(value)
        elif name.endswith("ssm_a"):
            value = -value.exp()
        out[name] = value
    return out


# --- forward pass -----------------------------------------------------------


@dataclass
class State:
    """What decoding carries from token to token."""

    length: int = 0
    kv: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    conv: dict[int, torch.Tensor] = field(default_factory=dict)
    recurrent: dict[int, torch.Tensor] = field(default_factory=dict)


def forward(
    w: dict, c: Target, ids: torch.Tensor, state: State | None = None, room: int = 0
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """ids [batch, tokens] to the normed final hidden and every layer's output.

    With a `state` the tokens follow those already seen and the state moves on;
    `room` is the number of tokens it will ever hold. Call `head` for logits.
    """
    x = w["token_embd.weight"][ids]
    outputs = []
    for layer in range(c.layers):
        at = f"blk.{layer}."
        a = norm(x, w[at + "attn_norm.weight"])
        mixer = attention if c.is_full(layer) else delta_net
        x = x + mixer(w, c, layer, a, state, room)
        h = norm(x, w[at + "post_attention_norm.weight"])
        gate = F.silu(F.linear(h, w[at + "ffn_gate.weight"]))
        x = x + F.linear(gate * F.linear(h, w[at + "ffn_up.weight"]), w[at + "ffn_down.weight"])
        outputs.append(x)
    if state is not None:
        state.length += ids.shape[1]
    return norm(x, w["output_norm.weight"]), outputs


def head(w: dict, hidden: torch.Tensor) -> torch.Tensor:
    return F.linear(hidden, w["output.weight"])


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, EPS)


def rope_table(start: int, count: int, rotary: int, dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [count, rotary / 2]; angles in f64, rounded once."""
    position = torch.arange(start, start + count, dtype=torch.float64)[:, None]
    frequency = ROPE_THETA ** (-torch.arange(0, rotary, 2, dtype=torch.float64) / rotary)
    angle = position * frequency
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotates the pairs (j, j + n) of the first 2n dims; cos broadcasts over x[..., :n]."""
    n = cos.shape[-1]
    a, b, rest = x[..., :n], x[..., n : 2 * n], x[..., 2 * n :]
    return torch.cat([a * cos - b * sin, a * sin + b * cos, rest], -1)


def attention(w, c: Target, layer: int, a, state, room):
    at = f"blk.{layer}."
    batch, tokens, _ = a.shape
    start = state.length if state is not None else 0
    both = F.linear(a, w[at + "attn_q.weight"]).view(batch, tokens, c.heads, 2, c.head_dim)
    k = F.linear(a, w[at + "attn_k.weight"]).view(batch, tokens, c.kv_heads, c.head_dim)
    v = F.linear(a, w[at + "attn_v.weight"]).view(batch, tokens, c.kv_heads, c.head_dim)
    cos, sin = rope_table(start, tokens, c.rotary, a.dtype)
    q = rope(norm(both[..., 0, :], w[at + "attn_q_norm.weight"]), cos[:, None], sin[:, None])
    k = rope(norm(k, w[at + "attn_k_norm.weight"]), cos[:, None], sin[:, None])
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    if state is not None:
        if layer not in state.kv:
            shape = (batch, c.kv_heads, room, c.head_dim)
            state.kv[layer] = (a.new_zeros(shape), a.new_zeros(shape))
        keys, values = state.kv[layer]
        keys[:, :, start : start + tokens] = k
        values[:, :, start : start + tokens] = v
        k, v = keys[:, :, : start + tokens], values[:, :, : start + tokens]
    k = k.repeat_interleave(c.heads // c.kv_heads, 1)
    v = v.repeat_interleave(c.heads // c.kv_heads, 1)
    if tokens == 1:
        out = F.scaled_dot_product_attention(q, k, v)
    else:
        assert start == 0, "several tokens at once only at the start"
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    out = out.transpose(1, 2) * torch.sigmoid(both[..., 1, :])
    return F.linear(out.reshape(batch, tokens, -1), w[at + "attn_output.weight"])


def delta_net(w, c: Target, layer: int, a, state, room):
    at = f"blk.{layer}."
    batch, tokens, _ = a.shape
    u = F.linear(a, w[at + "attn_qkv.weight"])
    z = F.linear(a, w[at + "attn_gate.weight"])
    before = state.conv.get(layer) if state is not None else None
    if before is None:
        before = u.new_zeros(batch, c.kernel - 1, c.channels)
    seen = torch.cat([before, u], 1)
    mixed = _ConvSilu.apply(seen, w[at + "ssm_conv1d.weight"])
    q, k, v = mixed.split([c.key_width, c.key_width, c.inner], -1)
    q = unit(q.view(batch, tokens, c.key_heads, c.state)) * c.state**-0.5
    k = unit(k.view(batch, tokens, c.key_heads, c.state))
    v = v.view(batch, tokens, c.key_heads, c.repeat, c.state)
    beta = torch.sigmoid(F.linear(a, w[at + "ssm_beta.weight"]))
    alpha = F.linear(a, w[at + "ssm_alpha.weight"])
    g = w[at + "ssm_a"] * F.softplus(alpha + w[at + "ssm_dt.bias"])
    beta = beta.view(batch, tokens, c.key_heads, c.repeat)
    g = g.view(batch, tokens, c.key_heads, c.repeat)
    old = state.recurrent.get(layer) if state is not None else None
    if tokens == 1 and old is not None:
        out, new = delta_step(q[:, 0], k[:, 0], v[:, 0], g[:, 0], beta[:, 0], old)
        out = out[:, None]
    else:
        out, new = delta_chunks(q, k, v, g, beta, old)
    if state is not None:
        state.conv[layer] = seen[:, -(c.kernel - 1) :]
        state.recurrent[layer] = new
    out = norm(out, w[at + "ssm_norm.weight"]) * F.silu(z.view_as(out))
    return F.linear(out.reshape(batch, tokens, c.inner), w[at + "ssm_out.weight"])


def unit(x: torch.Tensor) -> torch.Tensor:
    """x / max(|x|, eps): the GGUF form of the L2 norm."""
    return x * x.square().sum(-1, keepdim=True).clamp_min(EPS**2).rsqrt()


class _ConvSilu(torch.autograd.Function):
    """Causal depthwise convolution, then SiLU, with few passes over memory.

    seen [batch, kernel - 1 + tokens, channels] holds the history in front.
    Autograd over the shifted products would make three times as many passes.
    """

    @staticmethod
    def forward(ctx, seen, weight):
        kernel = weight.shape[1]
        tokens = seen.shape[1] - kernel + 1
        y = seen[:, :tokens] * weight[:, 0]
        for tap in range(1, kernel):
            y.addcmul_(seen[:, tap : tap + tokens], weight[:, tap])
        ctx.save_for_backward(seen, weight, y)
        return F.silu(y)

    @staticmethod
    def backward(ctx, gradient):
        seen, weight, y = ctx.saved_tensors
        tokens = y.shape[1]
        dy = torch.ops.aten.silu_backward(gradient, y)
        back = torch.zeros_like(seen)
        dw = torch.empty_like(weight)
        for tap in range(weight.shape[1]):
            back[:, tap : tap + tokens].addcmul_(dy, weight[:, tap])
            dw[:, tap] = (dy * seen[:, tap : tap + tokens]).sum((0, 1))
        return back, dw


def delta_step(q, k, v, g, beta, state):
    """One token of the recurrence. q, k [batch, key head, d]; v [batch, key head, repeat, d]."""
    state = state * g.exp()[..., None, None]
    k, q = k[:, :, None, :, None], q[:, :, None, None, :]
    innovation = (v - (state * k).sum(-2)) * beta[..., None]
    state = state + k * innovation[..., None, :]
    return (q @ state).squeeze(-2), state


def delta_chunks(q, k, v, g, beta, state=None, chunk: int = CHUNK):
    """The same recurrence, `chunk` tokens at a time. Returns outputs and the last state.

    Within a chunk the innovations u solve (I + A) u = beta v - beta e^G k S0,
    with A[t][j] = beta_t e^(G_t - G_j) k_t.k_j below the diagonal and G the
    running sum of g; one batched triangular solve serves both right sides.
    Missing tokens at the end count as beta = g = 0 and change nothing.
    """
    batch, tokens, heads, repeat, d = v.shape
    pad = -tokens % chunk
    if pad:
        q, k = F.pad(q, (0, 0, 0, 0, 0, pad)), F.pad(k, (0, 0, 0, 0, 0, pad))
        v = F.pad(v, (0, 0, 0, 0, 0, 0, 0, pad))
        g, beta = F.pad(g, (0, 0, 0, 0, 0, pad)), F.pad(beta, (0, 0, 0, 0, 0, pad))
    n = (tokens + pad) // chunk
    q = q.view(batch, n, chunk, heads, 1, d).permute(0, 3, 4, 1, 2, 5)
    k = k.view(batch, n, chunk, heads, 1, d).permute(0, 3, 4, 1, 2, 5)
    v = v.view(batch, n, chunk, heads, repeat, d).permute(0, 3, 4, 1, 2, 5)
    total = g.view(batch, n, chunk, heads, repeat).permute(0, 3, 4, 1, 2).cumsum(-1)
    beta = beta.view(batch, n, chunk, heads, repeat).permute(0, 3, 4, 1, 2)[..., None]

    above = torch.ones(chunk, chunk, dtype=torch.bool).triu(1)
    decay = (total[..., :, None] - total[..., None, :]).masked_fill(above, -math.inf).exp()
    kt = k.transpose(-1, -2)
    a = (beta * decay * (k @ kt)).tril(-1)
    grown = total.exp()[..., None]
    right = torch.cat([beta * v, (beta * grown) * k], -1)
    solved = torch.linalg.solve_triangular(a, right, upper=False, unitriangular=True)
    own, through = solved.split([d, d], -1)
    within = decay * (q @ kt)
    q = q * grown
    last = total[..., -1:]
    k = k * (last - total).exp()[..., None]
    kept = last.exp()[..., None]

    if state is None:
        state = v.new_zeros(batch, heads, repeat, d, d)
    outputs = []
    # unbind, not indexing: its backward is one stack instead of n sums of mostly zeros.
    chunks = [x.unbind(3) for x in (own, through, q, within, kept, k.transpose(-1, -2))]
    for own_i, through_i, q_i, within_i, kept_i, kt_i in zip(*chunks, strict=True):
        u = own_i - through_i @ state
        outputs.append(q_i @ state + within_i @ u)
        state = kept_i * state + kt_i @ u
    out = torch.stack(outputs, 3)  # batch, head, repeat, n, chunk, d
    out = out.permute(0, 3, 4, 1, 2, 5).reshape(batch, n * chunk, heads, repeat, d)
    return out[:, :tokens], state
