"""Tunes a ternary drafter on the target's own words, or the float one alike to compare with.

    drafter capture --target T --drafter D --prompts P.jsonl --labels LABELS -o calib.safetensors
    ternarize D --calib calib.safetensors -o start.gguf
    python tools/tune/tune.py --target T --drafter D --start start.gguf --labels LABELS -o tuned
    ternarize tuned --rule ternary -o tuned.gguf

Every matrix is learnt where it is used: latents in the rotated basis, rounded to
-1, 0 and 1 in every step, with a scale per 128 weights; gradients pass the
rounding straight through. Codes and scales start as the calibrated conversion has
them. `tuned/model.safetensors` is what `ternarize --rule ternary` turns into
exactly the codes and scales that were tuned. A run that was stopped goes on with
the same command. `--dry-run` says what a run costs, and needs no torch.
"""

import argparse
import hashlib
import json
import math
import shutil
import sys
import time
from pathlib import Path

import pair  # noqa: F401  its folder on the path


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--target", type=Path, required=True, metavar="GGUF", help="the target, for its embedding and head")
    add("--drafter", type=Path, required=True, metavar="FOLDER", help="float drafter with its config.json")
    add("--start", type=Path, metavar="GGUF", help="calibrated ternary drafter that tuning starts from")
    add("--float", action="store_true", help="tune the float drafter instead, to compare with")
    add("--labels", type=Path, metavar="FOLDER", help="of `drafter capture --labels`")
    add("-o", "--output", type=Path, metavar="FOLDER", help="model.safetensors, config.json, state.pt")
    add("--steps", type=int, default=500)
    add("--sequences", type=int, default=8, help="per worker and step")
    add("--anchors", type=int, default=24, help="blocks per sequence")
    add("--served", type=float, default=0.5, help="share of blocks that begin where served rounds began")
    add("--hard", type=float, default=0.5, help="share of the likeliest token alone in the label")
    add("--follow", type=float, default=0.5, help="share of the float drafter's own distributions in the loss")
    add("--rate", type=float, default=0.012, help="of a matrix, relative to its root mean square")
    add("--scale-rate", type=float, default=1.6e-3, help="of scales, relative to the same")
    add("--rest-rate", type=float, default=3e-4, help="of norms, base kernels and codebooks; 0 keeps them")
    add("--only", default="", metavar="PART,…", help="tune matrices whose names have a part; others stay as they start")
    add("--held", type=int, default=100, help="files of labels that are kept out, to watch the loss")
    add("--workers", type=int, default=1, help="processes on a CPU")
    add("--threads", type=int, default=1, help="of each worker")
    add("--device", default="cpu", help="such as cuda")
    add("--bf16", action="store_true", help="products in bf16")
    add("--seed", type=int, default=1)
    add("--save-every", type=int, default=200, help="steps between checkpoints")
    add("--stop-after", type=int, help="leave after this step, to test going on")
    add("--dry-run", action="store_true", help="say what it costs and end")
    add("--positions", type=float, default=1.7e6, help="with --dry-run: labelled positions")
    add("--tokens-per-round", type=float, default=3.6, help="with --dry-run")
    add("--epochs", type=float, default=2, help="with --dry-run: passes over the labels")
    add("--tflops", type=float, default=12, help="with --dry-run: what the device sustains")
    add("--capture-rate", type=float, default=16, help="with --dry-run: positions per second of the capture")
    options = parser.parse_args()
    if not options.dry_run:
        for name in ("labels", "output"):
            if getattr(options, name) is None:
                parser.error(f"--{name} is needed")
        if (options.start is None) != options.float:
            parser.error("give either --start or --float")
    if options.float:
        options.follow = 0.0
    return options


def weights_of(folder: Path) -> Path:
    return folder / "model.safetensors" if folder.is_dir() else folder


class Tuned:
    """Everything that is learnt or kept, by the published names."""

    def __init__(self, options: argparse.Namespace) -> None:
        import torch

        import drafter
        import grid
        import model
        import rotation
        import tensors

        self.c = model.configuration(weights_of(options.drafter).with_name("config.json"))
        file = tensors.File(weights_of(options.drafter))
        start = None if options.float else grid.Ternary(options.start)
        self.block = None if start is None else start.block
        self.matrices, self.kept, self.rest, self.leader = {}, {}, {}, {}
        kind = torch.bfloat16 if options.bf16 else torch.float32
        self._rounded = rotation.rounded_bf16
        parts = [part for part in options.only.split(",") if part]
        for name, shape in drafter.shapes(self.c).items():
            stored = name if name in file.about else name + ".weight"
            if file.shape(stored) != tuple(shape):
                raise SystemExit(f"{file.path}: `{stored}`: expected {list(shape)}, found {file.shape(stored)}")
            if options.follow > 0:
                given = torch.from_numpy(file[stored].astype("float32"))
                self.leader[name] = given.to(torch.get_default_device(), kind)
            chosen = not parts or any(part in name for part in parts)
            if start is None or not model.is_matrix(name, shape):
                value = torch.from_numpy(file[stored].astype("float32")).to(torch.get_default_device())
                learnt = chosen if model.is_matrix(name, shape) else options.rest_rate > 0
                self.rest[name] = value.requires_grad_(learnt)
            elif chosen:
                self.matrices[name] = model.Matrix(file[stored], *start.matrix(name), start.block)
            else:
                codes, scales = start.matrix(name)
                plain = torch.from_numpy(grid.unrotated(name, codes, scales, start.block))
                self.kept[name] = (codes, scales, plain.to(torch.get_default_device(), kind))

    def plain(self) -> dict:
        """The weights of a forward pass: matrices on their grid, the rest as bf16 holds it."""
        out = {name: matrix.plain() for name, matrix in self.matrices.items()}
        out |= {name: plain for name, (_, _, plain) in self.kept.items()}
        return out | {name: self._rounded(value) for name, value in self.rest.items()}

    def groups(self, options: argparse.Namespace) -> list[dict]:
        """What is learnt, each with its rate."""
        import model

        out = []
        for matrix in self.matrices.values():
            out.append({"params": [matrix.latent], "rate": options.rate * matrix.size})
            out.append({"params": [matrix.scale], "rate": options.scale_rate * matrix.size})
        for name, value in self.rest.items():
            if value.requires_grad:
                rate = options.rest_rate
                if model.is_matrix(name, value.shape):
                    rate = options.rate * float(value.detach().square().mean().sqrt())
                out.append({"params": [value], "rate": rate})
        return out

    def tensors(self) -> dict:
        """For tensors.write: matrices in f32 so that they come back to the grid, the rest in bf16."""
        import grid

        def unrotated(name, both):
            return lambda: grid.unrotated(name, *both(), self.block)

        def given(value):
            return lambda: value.detach().float().cpu().numpy()

        out = {n: ("BF16", tuple(value.shape), given(value)) for n, value in self.rest.items()}
        for name, matrix in self.matrices.items():
            out[name] = ("F32", tuple(matrix.latent.shape), unrotated(name, matrix.coded))
        for name, (codes, scales, _) in self.kept.items():
            out[name] = ("F32", codes.shape, unrotated(name, lambda both=(codes, scales): both))
        return out

    def codes(self) -> dict:
        """Codes and scales of every ternary matrix: what the compiler must come to."""
        out = {name: matrix.coded() for name, matrix in self.matrices.items()}
        return out | {name: (codes, scales) for name, (codes, scales, _) in self.kept.items()}


def held_out(p: dict, words, labels, c, options) -> dict:
    """Loss and accepted prefix on the files that were kept out, at fixed anchors."""
    import numpy as np
    import torch
    from loss import Weighting, losses

    random = np.random.default_rng(9)
    sums: dict = {}
    parts = range(labels.count, labels.count + labels.held, options.sequences)
    for begin in parts:
        numbers = range(begin, min(begin + options.sequences, labels.count + labels.held))
        anchors = np.stack([labels.anchors(n, options.anchors, 1.0, random) for n in numbers])
        with torch.no_grad():
            loss, facts = losses(p, words, labels.batch(numbers, anchors), c, Weighting(options.hard, 0.0))
        for name, value in {"loss": float(loss), **facts}.items():
            sums[name] = sums.get(name, 0.0) + value / len(parts)
    return sums


def worker(rank: int, workers: int, options: argparse.Namespace) -> None:
    import numpy as np
    import torch
    from util import average_gradients, log, save_atomically, use_threads, write_json

    import model
    import tensors
    from labels import Labels
    from loss import Weighting, losses

    use_threads(options.threads)
    torch.set_default_device(options.device)
    torch.manual_seed(options.seed)
    tuned = Tuned(options)
    labels = Labels(options.labels, tuned.c, options.held)
    words = model.words(options.target, torch.bfloat16 if options.bf16 else torch.float32)
    groups = tuned.groups(options)
    parameters = [value for group in groups for value in group["params"]]
    how = Weighting(options.hard, options.follow)
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95), weight_decay=0.0)
    # What another run's checkpoint must have in common with this one.
    kind = {
        name: str(value)
        for name, value in sorted(vars(options).items())
        if name not in ("save_every", "stop_after", "device", "threads", "output", "dry_run")
    }
    path = options.output / "state.pt"
    first, history = 0, []
    if path.exists():
        saved = torch.load(path, weights_only=True, map_location=options.device)
        if saved["kind"] != kind:
            raise SystemExit(f"{path}: a run with other options; give another folder or delete it")
        for value, old in zip(parameters, saved["parameters"], strict=True):
            value.data.copy_(old)
        optimizer.load_state_dict(saved["optimizer"])
        first, history = saved["step"], saved["history"]
    if rank == 0:
        count = sum(value.numel() for value in parameters)
        log(f"{count} values, steps {first} to {options.steps}, {labels.count} files of labels")

    if rank == 0 and labels.held and first == 0 and tuned.leader:
        facts = held_out(tuned.leader, words, labels, tuned.c, options)
        log("float, held out: " + ", ".join(f"{name} {value:.3f}" for name, value in facts.items()))

    def report(step: int) -> None:
        if rank == 0 and labels.held:
            with torch.no_grad():
                facts = held_out(tuned.plain(), words, labels, tuned.c, options)
            history.append({"step": step, **{name: round(value, 4) for name, value in facts.items()}})
            log("held out: " + ", ".join(f"{name} {value:.3f}" for name, value in facts.items()))

    if first == 0:
        report(0)
    smooth, begin = None, time.time()
    warmup = min(20, max(1, options.steps // 10))
    for step in range(first, options.steps):
        random = np.random.default_rng((options.seed, step, rank))
        numbers = random.choice(labels.count, options.sequences, replace=labels.count < options.sequences)
        anchors = np.stack([labels.anchors(n, options.anchors, options.served, random) for n in numbers])
        factor = min(1.0, (step + 1) / warmup) * (1 - step / options.steps)
        for group in optimizer.param_groups:
            group["lr"] = group["rate"] * factor
        with torch.autocast(options.device.split(":")[0], torch.bfloat16, enabled=options.bf16):
            batch = labels.batch(numbers, anchors)
            loss, _ = losses(tuned.plain(), words, batch, tuned.c, how, tuned.leader or None)
        loss.backward()
        average_gradients(parameters, workers)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise SystemExit(f"the loss is {value} at step {step}; try a smaller --rate")
        smooth = value if smooth is None else 0.98 * smooth + 0.02 * value
        done = step + 1
        if rank == 0 and (done % 50 == 0 or done == options.steps):
            pace = (time.time() - begin) / (done - first)
            left = (options.steps - done) * pace / 60
            log(f"step {done}/{options.steps} loss {smooth:.3f}, {pace:.2f} s/step, {left:.1f} min left")
        if done % max(1, options.steps // 5) == 0 or done == options.steps:
            report(done)
        if rank == 0 and (done % options.save_every == 0 or done in (options.steps, options.stop_after)):
            state = {"kind": kind, "step": done, "history": history, "optimizer": optimizer.state_dict()}
            save_atomically({**state, "parameters": [value.detach() for value in parameters]}, path)
        if done == options.stop_after:
            return
    if rank == 0:
        tensors.write(options.output / "model.safetensors", tuned.tensors())
        if tuned.codes():
            np.savez(options.output / "codes.npz", **flat(tuned.codes()))
        about = {"options": kind, "target_sha256": labels.target_sha256, "block": tuned.block, "history": history}
        write_json(options.output / "tuning.json", about)
        rule = "" if tuned.block is None else f" --rule ternary --block {tuned.block}"
        log(f"now: ternarize {options.output}{rule} -o {options.output}/model.gguf")


def flat(codes: dict) -> dict:
    return {f"{name}.{part}": value for name, both in codes.items() for part, value in zip(("codes", "scales"), both)}


def main() -> None:
    options = arguments()
    if options.dry_run:
        import cost

        cost.report(options)
        return
    try:
        import torch  # noqa: F401
    except ImportError:
        sys.exit("tuning needs PyTorch: pip install -r tools/tune/requirements.txt")
    from labels import documents
    from util import run_workers

    with options.target.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    for file, document in documents(options.labels):
        if document["target_sha256"] != sha256:
            sys.exit(f"{file.path}: expected labels of `{options.target}`, found those of another target")
    options.output.mkdir(parents=True, exist_ok=True)
    config = weights_of(options.drafter).with_name("config.json")
    json.loads(config.read_text())
    if config.resolve() != (options.output / "config.json").resolve():
        shutil.copyfile(config, options.output / "config.json")
    run_workers(options.workers, worker, options)


if __name__ == "__main__":
    main()
