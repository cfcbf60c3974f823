"""Trains the target: float first, then with quantized weights in every step.

    python train_target.py --work DIR --minutes 55

The number of steps follows from the minutes and the measured time of a step
(or from --steps, for a run that another machine shall repeat). A run that was
stopped goes on from its last checkpoint. Two processes of one thread each.
"""

import argparse
import math
import time
from pathlib import Path

import torch
from torch.nn import functional as F

import target
from config import SEQUENCE, TARGET
from data import CLASSES, Corpus
from util import agree, average_gradients, log, run_workers, save_atomically, schedule, use_threads, write_json

RATE = 3e-3
DECAY = 0.05
WINDOWS = 8  # per process and step
FLOAT_SHARE = 0.2875  # of the steps before weights are quantized
FLAT_SHARE = 0.4
EVALUATE_EVERY = 250


def loss_of(latents: dict, batch: torch.Tensor, quantize: bool) -> torch.Tensor:
    w = target.plain_weights(latents, TARGET, quantize)
    hidden, _ = target.forward(w, TARGET, batch[:, :-1])
    return F.cross_entropy(target.head(w, hidden).flatten(0, 1), batch[:, 1:].flatten())


def held_out(latents: dict, corpus: Corpus, quantize: bool, windows: int) -> dict[str, float]:
    """Nats per token of each class."""
    out = {}
    with torch.no_grad():
        for name in CLASSES:
            rows = corpus.held(name, windows, SEQUENCE + 1)
            losses = [float(loss_of(latents, part, quantize)) for part in rows.split(WINDOWS)]
            out[name] = sum(losses) / len(losses)
    return out


def optimizer_for(latents: dict) -> torch.optim.Optimizer:
    matrices = [p for name, p in latents.items() if p.dim() == 2 and "conv1d" not in name]
    rest = [p for name, p in latents.items() if not (p.dim() == 2 and "conv1d" not in name)]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), fused=True)


def train_step(latents, optimizer, batch, quantize, rate, workers) -> float:
    for group in optimizer.param_groups:
        group["lr"] = rate
    loss = loss_of(latents, batch, quantize)
    loss.backward()
    parameters = list(latents.values())
    average_gradients(parameters, workers)
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(loss.detach())


def measure(corpus: Corpus, rank: int, workers: int, seed: int) -> float:
    """Seconds of a quantized step, on parameters that are thrown away."""
    latents = target.initial(TARGET, seed)
    optimizer = optimizer_for(latents)
    times = []
    for i in range(7):
        begin = time.time()
        train_step(latents, optimizer, corpus.batch((seed, i, rank), WINDOWS, SEQUENCE + 1), True, 0.0, workers)
        times.append(time.time() - begin)
    return agree(sorted(times[2:])[2], workers)


def worker(rank: int, workers: int, options: argparse.Namespace) -> None:
    use_threads(options.threads)
    corpus = Corpus(options.work)
    latents = target.initial(TARGET, options.seed)
    optimizer = optimizer_for(latents)
    path = options.work / "target.pt"
    first, history = 0, []
    if path.exists():
        saved = torch.load(path, weights_only=True)
        for name, value in saved["latents"].items():
            latents[name].data.copy_(value)
        optimizer.load_state_dict(saved["optimizer"])
        first, total, history = saved["step"], saved["total"], saved["history"]
    else:
        total = options.steps
        if total is None:
            seconds = measure(corpus, rank, workers, options.seed)
            total = max(100, int(options.minutes * 60 * 0.95 / seconds))
            if rank == 0:
                log(f"{seconds:.2f} s a step, so {total} steps")
    if rank == 0:
        count = sum(p.numel() for p in latents.values())
        log(f"{count} parameters, steps {first} to {total}, {workers} processes x {options.threads} threads")
    warmup = min(60, max(1, total // 10))
    float_steps = int(FLOAT_SHARE * total)
    smooth, begin = None, time.time()
    for step in range(first, total):
        quantize = step >= float_steps
        batch = corpus.batch((options.seed, step, rank), WINDOWS, SEQUENCE + 1)
        rate = RATE * schedule(step, total, warmup, FLAT_SHARE)
        loss = train_step(latents, optimizer, batch, quantize, rate, workers)
        assert math.isfinite(loss), f"the loss is {loss} at step {step}"
        smooth = loss if smooth is None else 0.95 * smooth + 0.05 * loss
        done = step + 1
        if rank == 0 and (done % 20 == 0 or done == total):
            pace = (time.time() - begin) / (done - first)
            log(
                f"step {done}/{total} {'ternary' if quantize else 'float  '} loss {smooth:.3f} "
                f"rate {rate:.1e} {workers * WINDOWS * SEQUENCE / pace:.0f} tok/s "
                f"left {(total - done) * pace / 60:.1f} min"
            )
        if rank == 0 and (done % EVALUATE_EVERY == 0 or done == total):
            held = held_out(latents, corpus, quantize, 16)
            history.append({"step": done, "ternary": quantize, "train": smooth, **held})
            log("held out: " + " ".join(f"{name} {value:.3f}" for name, value in held.items()))
        if rank == 0 and (done % options.save_every == 0 or done in (total, options.stop_after)):
            plain = {name: p.detach() for name, p in latents.items()}
            state = {"latents": plain, "optimizer": optimizer.state_dict(), "step": done}
            save_atomically({**state, "total": total, "history": history}, path)
        if done == options.stop_after:
            return
    if rank == 0:
        write_json(
            options.work / "target.json",
            {"steps": total, "tokens": total * workers * WINDOWS * SEQUENCE, "workers": workers,
             "seed": options.seed, "history": history},
        )  # fmt: skip
        log("target trained")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=55)
    parser.add_argument("--steps", type=int, help="instead of --minutes")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="per worker")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save-every", type=int, default=100, help="steps between checkpoints")
    parser.add_argument("--stop-after", type=int, help="leave after this step, to test going on")
    options = parser.parse_args()
    run_workers(options.workers, worker, options)


if __name__ == "__main__":
    main()
