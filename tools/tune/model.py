"""The drafter that is tuned: its configuration, the target's words, and weights on the ternary grid."""

import json
from pathlib import Path

import numpy as np
import torch

import pair  # noqa: F401  its folder on the path
import gguf_file
import rotation
from config import EPS, ROPE_THETA, Drafter

GROUP = 128
MARGIN = 0.02  # distance of a fresh latent from the thresholds, in scales
REACH = 1.5  # latents farther out than this many scales get no gradient


def configuration(path: Path) -> Drafter:
    """The sizes of a config.json; what the model here does not compute is refused."""
    about = json.loads(path.read_text())
    inner = about["dflash_config"]

    def demand(name: str, found, expected) -> None:
        if found != expected:
            raise SystemExit(f"{path}: `{name}`: expected {expected}, found {found}")

    demand("architectures", about["architectures"], ["DFlash2DraftModel"])
    demand("rms_norm_eps", about["rms_norm_eps"], EPS)
    demand("rope_parameters.rope_theta", float(about["rope_parameters"]["rope_theta"]), ROPE_THETA)
    demand("rope_parameters.rope_type", about["rope_parameters"]["rope_type"], "default")
    demand("is_causal", about.get("is_causal", False), False)
    demand("attention_bias", about.get("attention_bias", False), False)
    for name, default in (("input_embedding_scale", 1.0), ("output_multiplier", 1.0)):
        demand(name, inner.get(name, about.get(name, default)), default)
    if (inner.get("final_logit_softcapping") or 0) > 0:
        raise SystemExit(f"{path}: `final_logit_softcapping` is not supported")
    return Drafter(
        layers=about["num_hidden_layers"],
        hidden=about["hidden_size"],
        ffn=about["intermediate_size"],
        heads=about["num_attention_heads"],
        kv_heads=about["num_key_value_heads"],
        head_dim=about["head_dim"],
        window=about["sliding_window"],
        taps=tuple(inner["target_layer_ids"]),
        block=inner["block_size"],
        conv_kernel=inner["conv_kernel_size"],
        conv_group=inner["conv_group_size"],
        rank=inner["selector_rank"],
        top_k=inner["selector_top_k"],
        vocab=about["vocab_size"],
        mask=inner["mask_token_id"],
    )


def is_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """What the compiler ternarizes: all matrices but the codebooks."""
    return len(shape) == 2 and "codebook" not in name


def words(path: Path, dtype: torch.dtype, rows: int = 4096) -> tuple[torch.Tensor, torch.Tensor]:
    """Embedding and head of the target [vocab, hidden], in the plain basis."""
    file = gguf_file.Reader(path)
    rotated = set(file.keys.get("prism.hadamard.weight_names", []))
    rotated |= set(file.keys.get("prism.hadamard.inverse_weight_names", []))
    block = file.keys.get("prism.hadamard.block_size", 1)
    values = np.array(file.keys.get("prism.hadamard.sign_values", []), np.float32)
    sign, offset = {}, 0
    for width in file.keys.get("prism.hadamard.sign_widths", []):
        sign[width] = torch.from_numpy(values[offset : offset + width]).to(torch.get_default_device())
        offset += width

    def plain(name: str) -> torch.Tensor:
        _, (count, width), _ = file.tensors[name]
        out = torch.empty(count, width, dtype=dtype)
        for begin in range(0, count, rows):
            part = torch.from_numpy(file.rows(name, begin, min(rows, count - begin)))
            part = part.to(out.device, torch.float32)
            if name in rotated:
                part = rotation.unrotate(part, sign.get(width, torch.ones(width)), block)
            out[begin : begin + len(part)] = part
        return out

    table = plain("token_embd.weight")
    return table, plain("output.weight") if "output.weight" in file.tensors else table


class _Ternary(torch.autograd.Function):
    """Latents and scales [rows, groups] to the matrix in the plain basis.

    The codes are the rounded ratios; the gradient passes the rounding unchanged
    where a latent is near enough, and reaches a scale through its group's codes.
    """

    @staticmethod
    def forward(ctx, latent, scale, block):
        codes, scale, near = coded(latent, scale)
        ctx.save_for_backward(codes.to(torch.int8), near)
        ctx.block = block
        return _transform((codes * scale[..., None]).view_as(latent), block)

    @staticmethod
    def backward(ctx, gradient):
        codes, near = ctx.saved_tensors
        gradient = _transform(gradient, ctx.block).view(codes.shape)
        return (gradient * near).flatten(1), (gradient * codes).sum(-1), None


def _transform(weight: torch.Tensor, block: int) -> torch.Tensor:
    # A matmul against the transform outruns butterflies on CPUs and GPUs alike.
    return (weight.reshape(-1, block) @ rotation.hadamard(block, weight.dtype)).view_as(weight)


def coded(latent: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes [rows, groups, 128], scales on the grid [rows, groups], and which latents are near."""
    scale = rotation.to_grid(scale)
    ratio = latent.view(len(latent), -1, GROUP) / scale[..., None]
    return ratio.round().clamp_(-1, 1), scale, ratio.abs() < REACH


class Matrix:
    """A matrix that is learnt on the grid."""

    def __init__(self, weight: np.ndarray, codes: np.ndarray, scales: np.ndarray, block: int) -> None:
        """From the float weights (plain basis) and what a conversion made of them."""
        device = torch.get_default_device()
        weight = _transform(torch.from_numpy(np.array(weight, np.float32)).to(device), block)
        codes = torch.from_numpy(codes).to(device).view(len(weight), -1, GROUP)
        scale = torch.from_numpy(np.array(scales)).to(device)
        grouped = weight.view(codes.shape)
        scale = rotation.to_grid(torch.where(scale > 0, scale, grouped.abs().mean(-1)))
        ratio = grouped / scale[..., None]
        inside = ratio.clamp(-0.5 + MARGIN, 0.5 - MARGIN)
        outside = codes * (ratio * codes).clamp(0.5 + MARGIN, REACH - MARGIN)
        ratio = torch.where(codes == 0, inside, outside)
        self.block = block
        self.size = float(weight.square().mean().sqrt())
        self.latent = (ratio * scale[..., None]).view_as(weight).requires_grad_(True)
        self.scale = scale.requires_grad_(True)

    def plain(self) -> torch.Tensor:
        return _Ternary.apply(self.latent, self.scale, self.block)

    @torch.no_grad()
    def coded(self) -> tuple[np.ndarray, np.ndarray]:
        """Codes [rows, inputs] and scales; the scale of a group of zeros is 0, as the compiler has it."""
        codes, scale, _ = coded(self.latent, self.scale)
        scale = torch.where(codes.any(-1), scale, 0.0)
        return codes.to(torch.int8).flatten(1).cpu().numpy(), scale.cpu().numpy()
