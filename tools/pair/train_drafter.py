"""Trains the float drafter on the target's greedy continuations.

    python train_drafter.py --work DIR --minutes 26

Every step takes 8 sequences per process with 24 blocks each, at anchors in the
continuation; 85 % of them before the text begins to loop, because a loop is
easy and served often. From 60 % of the run on, every other step takes its
anchors from where the served rounds of the drafter at that moment started:
those are the positions that it will be asked about.
"""

import argparse
import math
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

import drafter
import exported
from config import DRAFTER, SEQUENCE, TARGET
from util import agree, average_gradients, log, run_workers, save_atomically, schedule, use_threads, write_json

RATE = 2e-3
SEQUENCES = 8  # per process and step
ANCHORS = 24
BEFORE_LOOP = 0.85
SERVED_FROM = 0.6
HELD = 200
SLOTS = DRAFTER.block - 1
WEIGHTS = torch.exp(-torch.arange(SLOTS) / 4.0)


class Sequences:
    """The generated sequences; the last HELD of them are never trained on."""

    def __init__(self, work: Path) -> None:
        ids = np.load(work / "ids.npy")
        self.prompt = torch.from_numpy(ids[:, 0].astype(np.int64))
        self.ids = torch.from_numpy(ids[:, 1:].astype(np.int64))
        self.loop = torch.from_numpy(np.load(work / "loops.npy").astype(np.int64))
        self.features = np.load(work / "features.npy", mmap_mode="r")
        self.held = min(HELD, len(ids) // 8)
        self.count = len(ids) - self.held

    def rows(self, chosen) -> tuple[torch.Tensor, torch.Tensor]:
        """Taps and final hidden of the chosen sequences."""
        bits = torch.from_numpy(np.ascontiguousarray(self.features[chosen]))
        rows = bits.view(torch.bfloat16).float()
        return rows.split([len(DRAFTER.taps) * TARGET.hidden, TARGET.hidden], -1)

    def anchors(self, random, sequence: int) -> np.ndarray:
        first, last = int(self.prompt[sequence]), SEQUENCE - 2
        loop = min(max(int(self.loop[sequence]), first + 1), last)
        before = round(ANCHORS * BEFORE_LOOP) if loop < last else ANCHORS
        early = np.arange(first, loop if loop < last else last)
        chosen = random.choice(early, before, replace=len(early) < before)
        late = random.choice(np.arange(loop, last), ANCHORS - before) if before < ANCHORS else []
        return np.concatenate([chosen, late]).astype(np.int64)


def losses(p: dict, w: dict, data: Sequences, chosen, anchors: torch.Tensor) -> tuple[torch.Tensor, dict]:
    """The loss of section "how it learns" in README.md, and what happened, for the log."""
    taps, final = data.rows(chosen)
    ids = data.ids[chosen]
    each = torch.arange(len(ids))[:, None]
    kv = drafter.context(p, taps)
    hidden = drafter.blocks(p, w["token_embd.weight"], kv, ids[each, anchors], anchors)
    slots = anchors[..., None] + torch.arange(1, SLOTS + 1)
    inside = (slots < SEQUENCE).float()
    slots = slots.clamp_max(SEQUENCE - 1)
    label = ids[each[..., None], slots]
    before = ids[each[..., None], slots - 1]
    weight = inside * WEIGHTS
    total = weight.sum()

    logits = F.linear(hidden[:, :, 1:], w["output.weight"])
    logs = logits.log_softmax(-1)
    with torch.no_grad():  # the target's own distribution, from the position before
        teacher = F.linear(final[each[..., None], slots - 1], w["output.weight"]).softmax(-1)
    hard = -logs.gather(-1, label[..., None])[..., 0]
    soft = -(teacher * logs).sum(-1)

    unary, candidates = logits.topk(DRAFTER.top_k, -1)
    hit = candidates == label[..., None]
    among = hit.any(-1)
    scores = unary + drafter.edge_scores(p, hidden[:, :, 1:], before, candidates)
    index = hit.float().argmax(-1, keepdim=True)
    chain = -scores.log_softmax(-1).gather(-1, index)[..., 0] * among

    loss = ((0.5 * hard + 0.5 * soft + chain) * weight).sum() / total
    with torch.no_grad():
        match = (logits.argmax(-1) == label) & (inside > 0)
        walk = (scores.argmax(-1, keepdim=True) == index)[..., 0] & among & (inside > 0)
        facts = {
            "slots": (match.float().sum((0, 1)) / inside.sum((0, 1)).clamp_min(1)).tolist(),
            "prefix": float(match.long().cumprod(-1).sum(-1).float().mean()),
            "prefix_selector": float(walk.long().cumprod(-1).sum(-1).float().mean()),
            "among": float((among * inside).sum() / inside.sum()),
        }
    return loss, facts


def held_out(p: dict, w: dict, data: Sequences) -> dict:
    """Loss and matches on the sequences kept out, at fixed anchors."""
    random = np.random.default_rng(9)
    sums: dict = {}
    parts = list(range(data.count, data.count + data.held, SEQUENCES))
    with torch.no_grad():
        for begin in parts:
            chosen = np.arange(begin, min(begin + SEQUENCES, data.count + data.held))
            anchors = torch.from_numpy(np.stack([data.anchors(random, s) for s in chosen]))
            loss, facts = losses(p, w, data, chosen, anchors)
            for name, value in {"loss": float(loss), **facts}.items():
                sums[name] = sums.get(name, 0) + np.array(value) / len(parts)
    return {name: np.round(value, 4).tolist() for name, value in sums.items()}


def served_anchors(p: dict, w: dict, data: Sequences, first: int, last: int) -> dict[int, list[int]]:
    """Where the rounds of the present drafter start, for a range of sequences."""
    out, tokens, rounds = {}, 0, 0
    for begin in range(first, last, 100):
        chosen = np.arange(begin, min(begin + 100, last))
        taps, _ = data.rows(chosen)
        ends = torch.full((len(chosen),), SEQUENCE)
        walked = drafter.serve(
            p, w["token_embd.weight"], w["output.weight"], taps, data.ids[chosen], data.prompt[chosen], ends
        )
        for sequence, those in zip(chosen.tolist(), walked, strict=True):
            out[sequence] = [anchor for anchor, _ in those if anchor < SEQUENCE - 1]
            tokens, rounds = tokens + sum(n for _, n in those), rounds + len(those)
    log(f"served rounds of sequences {first} to {last}: {tokens / rounds:.3f} tokens per round")
    return out


def step_once(p, optimizer, w, data, key, served, rate, workers) -> float:
    random = np.random.default_rng(key)
    if served:
        chosen = random.choice(sorted(served), SEQUENCES, replace=False)
        anchors = np.stack([random.choice(served[int(s)], ANCHORS) for s in chosen])
    else:
        chosen = random.choice(data.count, SEQUENCES, replace=False)
        anchors = np.stack([data.anchors(random, int(s)) for s in chosen])
    for group in optimizer.param_groups:
        group["lr"] = rate
    loss, _ = losses(p, w, data, chosen, torch.from_numpy(anchors))
    loss.backward()
    parameters = list(p.values())
    average_gradients(parameters, workers)
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(loss.detach())


def fresh_optimizer(p: dict) -> torch.optim.Optimizer:
    return torch.optim.AdamW(list(p.values()), lr=RATE, betas=(0.9, 0.95), weight_decay=0.01, fused=True)


def measure(w, data, rank, workers, seed) -> float:
    """Seconds of a step, on parameters that are thrown away."""
    p = drafter.initial(seed)
    optimizer = fresh_optimizer(p)
    times = []
    for i in range(9):
        begin = time.time()
        step_once(p, optimizer, w, data, (seed, 0, i, rank), None, 0.0, workers)
        times.append(time.time() - begin)
    return agree(sorted(times[2:])[3], workers)


def all_served(p, w, data, rank, workers) -> dict[int, list[int]]:
    """Every rank walks its share of the first sequences; then the shares are put together."""
    total = min(2400, data.count)
    edges = [total * r // workers for r in range(workers + 1)]
    mine = served_anchors(p, w, data, edges[rank], edges[rank + 1])
    if workers == 1:
        return mine
    import torch.distributed as dist

    shares: list = [None] * workers
    dist.all_gather_object(shares, mine)
    return {sequence: those for share in shares for sequence, those in share.items()}


def worker(rank: int, workers: int, options: argparse.Namespace) -> None:
    use_threads(options.threads)
    data = Sequences(options.work)
    w = exported.load(options.work / "target.gguf")
    p = drafter.initial(options.seed)
    optimizer = fresh_optimizer(p)
    path = options.work / "drafter.pt"
    first, history, served = 0, [], None
    if path.exists():
        saved = torch.load(path, weights_only=True)
        for name, value in saved["parameters"].items():
            p[name].data.copy_(value)
        optimizer.load_state_dict(saved["optimizer"])
        first, total = saved["step"], saved["total"]
        history, served = saved["history"], saved["served"]
    else:
        total = options.steps
        if total is None:
            seconds = measure(w, data, rank, workers, options.seed)
            total = max(100, int((options.minutes * 60 - 90) * 0.95 / seconds))
            if rank == 0:
                log(f"{seconds:.3f} s a step, so {total} steps")
    if rank == 0:
        count = sum(value.numel() for value in p.values())
        log(f"{count} parameters, steps {first} to {total}, {data.count} sequences")
    warmup = min(50, max(1, total // 10))
    evaluate_every = max(1, total // 10)
    smooth, begin = None, time.time()
    for step in range(first, total):
        if step >= SERVED_FROM * total and served is None:
            served = all_served(p, w, data, rank, workers)
        use = served if served and step % 2 else None
        rate = RATE * schedule(step, total, warmup, 0.3)
        loss = step_once(p, optimizer, w, data, (options.seed, 2, step, rank), use, rate, workers)
        assert math.isfinite(loss), f"the loss is {loss} at step {step}"
        smooth = loss if smooth is None else 0.98 * smooth + 0.02 * loss
        done = step + 1
        if rank == 0 and (done % 50 == 0 or done == total):
            pace = (time.time() - begin) / (done - first)
            left = (total - done) * pace / 60
            log(f"step {done}/{total} loss {smooth:.3f} rate {rate:.1e} {pace:.2f} s/step left {left:.1f} min")
        if rank == 0 and (done % evaluate_every == 0 or done == total):
            facts = held_out(p, w, data)
            history.append({"step": done, "train": smooth, **facts})
            log(
                f"held out: loss {facts['loss']:.3f} prefix {facts['prefix']:.2f} with selector "
                f"{facts['prefix_selector']:.2f} among {DRAFTER.top_k}: {facts['among']:.3f} "
                "slots " + " ".join(f"{value:.3f}" for value in facts["slots"])
            )
        if rank == 0 and (done % options.save_every == 0 or done in (total, options.stop_after)):
            plain = {name: value.detach() for name, value in p.items()}
            state = {"parameters": plain, "optimizer": optimizer.state_dict(), "step": done, "total": total}
            save_atomically({**state, "history": history, "served": served}, path)
        if done == options.stop_after:
            return
    if rank == 0:
        write_json(
            options.work / "drafter.json",
            {"steps": total, "workers": workers, "seed": options.seed, "history": history},
        )
        log("drafter trained")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=26)
    parser.add_argument("--steps", type=int, help="instead of --minutes")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="per worker")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save-every", type=int, default=200, help="steps between checkpoints")
    parser.add_argument("--stop-after", type=int, help="leave after this step, to test going on")
    options = parser.parse_args()
    run_workers(options.workers, worker, options)


if __name__ == "__main__":
    main()
