"""The rotated basis and the ternary grid.

A folded matrix is stored as W' = W diag(s) H: signs first, then a normalized
Walsh-Hadamard transform of every BLOCK inputs. H is its own inverse, so
W = W' H diag(s), and the same formula takes a stored embedding row back.
"""

from functools import lru_cache

import torch

from config import BLOCK, GROUP, SIGN_SEED

SMALLEST_SCALE = 2.0**-14  # the smallest normal fp16 number


@lru_cache
def hadamard(size: int, dtype=torch.float32) -> torch.Tensor:
    """The normalized transform in natural (Sylvester) order."""
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while matrix.shape[0] < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return (matrix / size**0.5).to(dtype)


def signs(width: int) -> torch.Tensor:
    """Random +-1, one vector per width: every matrix of that input width shares it."""
    generator = torch.Generator().manual_seed(SIGN_SEED + width)
    return (torch.randint(0, 2, (width,), generator=generator) * 2 - 1).to(torch.float32)


def rotate(weight: torch.Tensor, sign: torch.Tensor, block: int = BLOCK) -> torch.Tensor:
    """Primal to stored: the rows of W diag(s) H."""
    signed = weight * sign.to(weight.dtype)
    return (signed.view(-1, block) @ hadamard(block, weight.dtype)).view_as(weight)


def unrotate(weight: torch.Tensor, sign: torch.Tensor, block: int = BLOCK) -> torch.Tensor:
    """Stored to primal: the rows of W' H diag(s)."""
    plain = (weight.reshape(-1, block) @ hadamard(block, weight.dtype)).view_as(weight)
    return plain * sign.to(weight.dtype)


def to_grid(scale: torch.Tensor) -> torch.Tensor:
    """The nearest fp16 value with at most 8 significant bits.

    Every container of ternary weights can hold such a scale: PQ2_0 and PTQ1_0
    as fp16, the others as bf16. Within fp16's normal range these are exactly
    the bf16 values.
    """
    assert float(scale.max()) < 65024, "a scale overflows fp16"
    return scale.clamp_min(SMALLEST_SCALE).to(torch.bfloat16).to(scale.dtype)


def absmean(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes -1, 0, 1 and one scale per GROUP: s = mean |w|, code = round(w / s)."""
    grouped = weight.reshape(-1, GROUP)
    scale = to_grid(grouped.abs().mean(1, keepdim=True))
    codes = (grouped / scale).round_().clamp_(-1, 1)
    return codes, scale


def optimal(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The least-squares threshold and scale of every group, then the scale's grid.

    For the k largest magnitudes with sum S_k the best scale is S_k / k and the
    error falls by S_k^2 / k; so the best k is found by one sort.
    """
    grouped = weight.reshape(-1, GROUP)
    magnitude, order = grouped.abs().sort(1, descending=True)
    count = torch.arange(1, GROUP + 1, dtype=grouped.dtype)
    sums = magnitude.cumsum(1)
    best = (sums.square() / count).argmax(1, keepdim=True)
    scale = to_grid(sums.gather(1, best) / (best + 1))
    chosen = torch.zeros_like(grouped).scatter_(1, order, (torch.arange(GROUP)[None] <= best).to(grouped.dtype))
    return grouped.sign() * chosen, scale


class _Ternary(torch.autograd.Function):
    """Latent rotated weight to primal weight, through absmean codes.

    The gradient passes the rounding unchanged (straight through) and is taken
    back into the rotated basis. Rotating weights once a step is far cheaper
    than rotating activations.
    """

    @staticmethod
    def forward(ctx, latent, sign, quantize):
        ctx.save_for_backward(sign)
        if quantize:
            codes, scale = absmean(latent)
            latent = codes.mul_(scale).view_as(latent)
        return unrotate(latent, sign)

    @staticmethod
    def backward(ctx, gradient):
        (sign,) = ctx.saved_tensors
        return rotate(gradient.contiguous(), sign), None, None


def primal(latent: torch.Tensor, sign: torch.Tensor, quantize: bool) -> torch.Tensor:
    return _Ternary.apply(latent, sign, quantize)


class _Bf16(torch.autograd.Function):
    """Rounds to bf16, gradient straight through: what the file will hold."""

    @staticmethod
    def forward(ctx, weight):
        return weight.to(torch.bfloat16).to(weight.dtype)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def rounded_bf16(weight: torch.Tensor) -> torch.Tensor:
    return _Bf16.apply(weight)
