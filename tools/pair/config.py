"""The sizes of the pair: one place, because trainer, exporters and checks must agree.

Why these numbers: 4 key heads with 2 value heads each make the tiled/grouped
permutation of the value heads differ from its inverse, so a wrong direction is
noticed; the widths 256 and 512 give one rotation of one block and one of two;
a window of 128 is shorter than prompt plus answer, so it really cuts; top-k 15
keeps top_k * (top_k + 1) within the hidden size, a limit of llama.cpp.
"""

from dataclasses import dataclass

GROUP = 128  # weights that share a scale
BLOCK = 256  # width of one Hadamard block
SIGN_SEED = 20260101

BPE_TOKENS = 1520
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<|mask|>"]
VOCAB = 1536  # BPE + specials + 10 padding rows
END_OF_TEXT, IM_START, IM_END, THINK, END_THINK, MASK = range(BPE_TOKENS, BPE_TOKENS + 6)

EPS = 1e-6
ROPE_THETA = 1e7
SEQUENCE = 256  # tokens of a training window and of a generated sequence


@dataclass(frozen=True)
class Target:
    """The qwen35 hybrid: layers of the gated delta rule with one full-attention layer among them."""

    layers: int = 6
    interval: int = 4  # layer i is full attention iff (i + 1) % interval == 0
    hidden: int = 256
    ffn: int = 512
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    rotary: int = 16
    sections: tuple[int, ...] = (3, 3, 2, 0)
    key_heads: int = 4
    value_heads: int = 8
    state: int = 32  # width of a GDN key head and of a value head
    kernel: int = 4
    context: int = 4096

    @property
    def repeat(self) -> int:
        return self.value_heads // self.key_heads

    @property
    def key_width(self) -> int:
        return self.key_heads * self.state

    @property
    def inner(self) -> int:
        return self.value_heads * self.state

    @property
    def channels(self) -> int:
        return 2 * self.key_width + self.inner

    def is_full(self, layer: int) -> bool:
        return (layer + 1) % self.interval == 0


@dataclass(frozen=True)
class Drafter:
    """The DFlash 2 drafter; it borrows embedding and head from the target."""

    layers: int = 2
    hidden: int = 256
    ffn: int = 512
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    window: int = 128
    taps: tuple[int, ...] = (1, 3, 4)  # GDN, full attention, GDN
    block: int = 8
    conv_kernel: int = 2
    conv_group: int = 16
    rank: int = 64
    top_k: int = 15
    vocab: int = VOCAB
    mask: int = MASK


TARGET = Target()
DRAFTER = Drafter()
assert DRAFTER.top_k * (DRAFTER.top_k + 1) <= DRAFTER.hidden
