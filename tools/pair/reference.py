"""The target once more, in numpy and f64, token by token, straight from the file's bytes.

It shares no code with target.py: activations are rotated instead of weights,
value heads stay in the file's tiled order, and the delta rule runs as the plain
recurrence. The golden records are made by this file; agreement of the two is
what test_target.py asserts.
"""

from pathlib import Path

import numpy as np

import gguf_file


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


class Reference:
    def __init__(self, path: Path) -> None:
        self.file = gguf_file.Reader(path)
        keys = self.file.keys
        key = lambda name: keys["qwen35." + name]  # noqa: E731
        self.layers, self.interval = key("block_count"), key("full_attention_interval")
        self.heads, self.kv_heads = key("attention.head_count"), key("attention.head_count_kv")
        self.head_dim, self.rotary = key("attention.key_length"), key("rope.dimension_count")
        self.key_heads, self.value_heads = key("ssm.group_count"), key("ssm.time_step_rank")
        self.state_size, self.kernel = key("ssm.state_size"), key("ssm.conv_kernel")
        self.eps = float(np.float32(key("attention.layer_norm_rms_epsilon")))
        self.theta = key("rope.freq_base")
        self.w = {name: self.file.weight(name) for name in self.file.tensors}
        self.block = keys["prism.hadamard.block_size"]
        self.folded = set(keys["prism.hadamard.weight_names"])
        signs, self.signs = keys["prism.hadamard.sign_values"], {}
        for width in keys["prism.hadamard.sign_widths"]:
            self.signs[width], signs = np.array(signs[:width], np.float64), signs[width:]
        self.reset()

    def reset(self) -> None:
        self.position = 0
        self.keys = {layer: [] for layer in range(self.layers)}
        self.values = {layer: [] for layer in range(self.layers)}
        channels = 2 * self.key_heads * self.state_size + self.value_heads * self.state_size
        shape = (self.value_heads, self.state_size, self.state_size)
        self.conv = {layer: np.zeros((self.kernel - 1, channels)) for layer in range(self.layers)}
        self.s = {layer: np.zeros(shape) for layer in range(self.layers)}  # [head][v][k]

    def transform(self, x):
        """The normalized Walsh-Hadamard transform of every block, by butterflies."""
        y = x.reshape(-1, self.block) / np.sqrt(self.block)
        stride = 1
        while stride < self.block:
            y = y.reshape(-1, self.block // (2 * stride), 2, stride)
            y = np.stack([y[:, :, 0] + y[:, :, 1], y[:, :, 0] - y[:, :, 1]], 2)
            stride *= 2
        return y.reshape(x.shape)

    def multiply(self, name, x):
        if name in self.folded:
            x = self.transform(x * self.signs[len(x)])
        return self.w[name] @ x

    def norm(self, x, weight):
        return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + self.eps) * weight

    def step(self, token: int):
        """One token: logits, the normed final hidden, and the output of every layer."""
        e = self.w["token_embd.weight"][token]
        x = self.signs[len(e)] * self.transform(e)
        outputs = []
        for layer in range(self.layers):
            w = {n.split(".", 2)[2]: n for n in self.w if n.startswith(f"blk.{layer}.")}
            a = self.norm(x, self.w[w["attn_norm.weight"]])
            full = (layer + 1) % self.interval == 0
            x = x + (self.attention(layer, w, a) if full else self.delta_net(layer, w, a))
            h = self.norm(x, self.w[w["post_attention_norm.weight"]])
            gate = silu(self.multiply(w["ffn_gate.weight"], h))
            up = self.multiply(w["ffn_up.weight"], h)
            x = x + self.multiply(w["ffn_down.weight"], gate * up)
            outputs.append(x)
        self.position += 1
        final = self.norm(x, self.w["output_norm.weight"])
        return self.multiply("output.weight", final), final, np.stack(outputs)

    def rope(self, x):
        half = self.rotary // 2
        angle = self.position * self.theta ** (-2.0 * np.arange(half) / self.rotary)
        a, b = x[:, :half].copy(), x[:, half : 2 * half].copy()
        out = x.copy()
        out[:, :half] = a * np.cos(angle) - b * np.sin(angle)
        out[:, half : 2 * half] = a * np.sin(angle) + b * np.cos(angle)
        return out

    def attention(self, layer, w, a):
        d = self.head_dim
        both = self.multiply(w["attn_q.weight"], a).reshape(self.heads, 2 * d)
        gate = both[:, d:]
        q = self.rope(self.norm(both[:, :d], self.w[w["attn_q_norm.weight"]]))
        k = self.multiply(w["attn_k.weight"], a).reshape(self.kv_heads, d)
        self.keys[layer].append(self.rope(self.norm(k, self.w[w["attn_k_norm.weight"]])))
        self.values[layer].append(self.multiply(w["attn_v.weight"], a).reshape(self.kv_heads, d))
        keys, values = np.stack(self.keys[layer]), np.stack(self.values[layer])
        out = np.zeros((self.heads, d))
        for head in range(self.heads):
            kv = head // (self.heads // self.kv_heads)
            score = keys[:, kv] @ q[head] / np.sqrt(d)
            weight = np.exp(score - score.max())
            out[head] = weight @ values[:, kv] / weight.sum()
        return self.multiply(w["attn_output.weight"], (out * sigmoid(gate)).reshape(-1))

    def delta_net(self, layer, w, a):
        d, nk, nv = self.state_size, self.key_heads, self.value_heads
        u = self.multiply(w["attn_qkv.weight"], a)
        z = self.multiply(w["attn_gate.weight"], a).reshape(nv, d)
        alpha = self.multiply(w["ssm_alpha.weight"], a)
        b = self.multiply(w["ssm_beta.weight"], a)
        rows = np.vstack([self.conv[layer], u])
        c = silu((rows * self.w[w["ssm_conv1d.weight"]].T).sum(0))
        self.conv[layer] = rows[1:]
        q, k, v = (
            c[: nk * d].reshape(nk, d),
            c[nk * d : 2 * nk * d].reshape(nk, d),
            c[2 * nk * d :].reshape(nv, d),
        )
        unit = lambda x: x / np.maximum(np.sqrt((x * x).sum(-1, keepdims=True)), self.eps)  # noqa: E731
        q, k = unit(q) / np.sqrt(d), unit(k)
        beta = sigmoid(b)
        g = self.w[w["ssm_a"]] * np.logaddexp(0.0, alpha + self.w[w["ssm_dt.bias"]])
        out = np.zeros((nv, d))
        for head in range(nv):
            kh = head % nk
            s = self.s[layer][head]
            s *= np.exp(g[head])
            delta = (v[head] - s @ k[kh]) * beta[head]
            s += np.outer(delta, k[kh])
            out[head] = s @ q[kh]
        y = self.norm(out, self.w[w["ssm_norm.weight"]]) * silu(z)
        repeat = nv // nk
        y = y.reshape(repeat, nk, d).transpose(1, 0, 2).reshape(-1)  # tiled -> grouped
        return self.multiply(w["ssm_out.weight"], y)
