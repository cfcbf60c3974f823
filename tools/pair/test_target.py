"""Checks of the target's mathematics with plain asserts; runs in seconds, on random weights.

    python test_target.py [target.gguf]

With a GGUF the last check runs on that file instead of a random one.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

import exported
import gguf_file
import rotation
import target
from config import BLOCK, TARGET, VOCAB
from export_target import file_order, model_keys, rotation_keys, tensors
from reference import Reference


def rotations() -> None:
    h = rotation.hadamard(BLOCK, torch.float64)
    assert torch.allclose(h @ h, torch.eye(BLOCK, dtype=torch.float64), atol=1e-12)
    weight = torch.randn(7, 512, dtype=torch.float64)
    x = torch.randn(512, dtype=torch.float64)
    sign = rotation.signs(512).double()
    stored = rotation.rotate(weight, sign)
    assert torch.allclose(rotation.unrotate(stored, sign), weight)
    rotated = ((sign * x).view(-1, BLOCK) @ h).flatten()
    assert torch.allclose(stored @ rotated, weight @ x)
    latent = torch.randn(3, 256, requires_grad=True)
    gradient = torch.randn(3, 256)
    rotation.primal(latent, rotation.signs(256), True).backward(gradient)
    assert torch.allclose(latent.grad, rotation.rotate(gradient, rotation.signs(256)), atol=1e-5)


def grids() -> None:
    scale = rotation.to_grid(torch.rand(10000) * 0.1)
    assert (scale.half().float() == scale).all() and (scale.bfloat16().float() == scale).all()
    weight = torch.randn(50, 256)
    error = []
    for method in (rotation.absmean, rotation.optimal):
        codes, scale = method(weight)
        error.append(float((codes * scale - weight.view(-1, 128)).square().mean()))
    assert 0.17 < error[1] < 0.2 < error[0], error  # 0.19 is the optimum for a normal density


def blocks() -> None:
    codes = np.random.default_rng(1).integers(-1, 2, (500, 128)).astype(np.int8)
    scales = np.random.default_rng(2).random(500).astype("<f2")
    for pack, unpack, size in (
        (gguf_file.pq2_0, gguf_file.from_pq2_0, 34),
        (gguf_file.ptq1_0, gguf_file.from_ptq1_0, 28),
    ):
        data = pack(codes, scales)
        assert len(data) == 500 * size
        again, same = unpack(data)
        assert (again == codes).all() and (same == scales).all()


def orders() -> None:
    rows = np.arange(TARGET.inner)
    there = file_order("blk.0.attn_gate.weight", rows, TARGET)
    assert (there != rows).any() and (exported.grouped("blk.0.attn_gate.weight", there, TARGET) == rows).all()
    twice = file_order("blk.0.attn_gate.weight", there, TARGET)
    assert (twice != rows).any(), "the permutation must differ from its inverse"


def recurrence() -> None:
    """The chunk form against one token at a time, forward and backward, with a state in front."""
    torch.manual_seed(3)
    batch, tokens, heads, repeat, d = 2, 75, 4, 2, 32

    def inputs():
        q = target.unit(torch.randn(batch, tokens, heads, d, dtype=torch.float64))
        k = target.unit(torch.randn(batch, tokens, heads, d, dtype=torch.float64))
        v = torch.randn(batch, tokens, heads, repeat, d, dtype=torch.float64)
        g = -torch.rand(batch, tokens, heads, repeat, dtype=torch.float64) * 2
        beta = torch.rand(batch, tokens, heads, repeat, dtype=torch.float64)
        state = torch.randn(batch, heads, repeat, d, d, dtype=torch.float64)
        return [x.requires_grad_() for x in (q, k, v, g, beta, state)]

    arguments = inputs()
    out, last = target.delta_chunks(*arguments)
    q, k, v, g, beta, state = arguments
    steps = []
    for t in range(tokens):
        one, state = target.delta_step(q[:, t], k[:, t], v[:, t], g[:, t], beta[:, t], state)
        steps.append(one)
    serial = torch.stack(steps, 1)
    difference = [float((a - b).detach().abs().max()) for a, b in ((out, serial), (last, state))]
    assert max(difference) < 1e-12, difference
    weight = torch.randn_like(out)
    first = torch.autograd.grad((out * weight).sum(), arguments, retain_graph=True)
    second = torch.autograd.grad((serial * weight).sum(), arguments)
    for a, b in zip(first, second, strict=True):
        assert torch.allclose(a, b, atol=1e-10)
    print(f"  chunks against recurrence: {max(difference):.1e}")


def convolution() -> None:
    seen = torch.randn(2, 9, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(target._ConvSilu.apply, (seen, weight))


def whole(path: Path) -> None:
    """target.forward on the file's weights against the independent f64 reference."""
    ids = torch.randint(0, VOCAB, (1, 70), generator=torch.Generator().manual_seed(5))
    reference = Reference(path)
    steps = [reference.step(int(token)) for token in ids[0]]
    logits = torch.from_numpy(np.stack([s[0] for s in steps]))
    layers = torch.from_numpy(np.stack([s[2] for s in steps]))
    # The file rounds eps to f32, the trainer does not: 1e-9, not 1e-13.
    for dtype, limit in ((torch.float64, 1e-8), (torch.float32, 1e-4)):
        w = exported.load(path, dtype)
        with torch.no_grad():
            final, outputs = target.forward(w, TARGET, ids)
            ours = target.head(w, final)[0].double()
            worst = float((ours - logits).abs().max() / logits.abs().max().clamp_min(1))
            for layer, output in enumerate(outputs):
                truth = layers[:, layer]
                gap = float((output[0].double() - truth).abs().max() / truth.abs().max().clamp_min(1))
                worst = max(worst, gap)
            assert worst < limit, (dtype, worst)
            # prefill of 40, then single tokens, must be the same function
            state = target.State()
            target.forward(w, TARGET, ids[:, :40], state, 70)
            for t in range(40, 70):
                final, _ = target.forward(w, TARGET, ids[:, t : t + 1], state, 70)
            gap = float((target.head(w, final)[0, 0].double() - logits[-1]).abs().max())
            assert gap < limit * float(logits.abs().max().clamp_min(1)), (dtype, gap)
        print(f"  {dtype} against the reference: {worst:.1e}, decoding {gap:.1e}")


def random_file(folder: Path) -> Path:
    """A random target with norms, decays and convolutions that are not their initial values."""
    draw = torch.Generator().manual_seed(11)
    latents = {n: p.detach() for n, p in target.initial(TARGET, 11).items()}
    for value in latents.values():
        if value.dim() == 1:
            value += 0.2 * torch.randn(value.shape, generator=draw)
    shapes = target.shapes(TARGET)
    folded = [n for n, (_, kind) in shapes.items() if kind == "ternary" and n != "token_embd.weight"]
    path = folder / "random.gguf"
    gguf_file.write(
        path, model_keys(TARGET, 141) + rotation_keys(TARGET, folded), tensors(latents, TARGET, gguf_file.PQ2_0)
    )
    # The file's weights are those of a quantized training step.
    trained = target.plain_weights(latents, TARGET, True)
    for name, value in exported.load(path).items():
        assert torch.allclose(value, trained[name], atol=1e-6), name
    return path


def main() -> None:
    torch.set_num_threads(1)
    for check in (rotations, grids, blocks, orders, recurrence, convolution):
        check()
        print(f"{check.__name__}: fine")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(sys.argv[1]) if len(sys.argv) > 1 else random_file(Path(folder))
        whole(path)
    print("whole: fine")


if __name__ == "__main__":
    main()
