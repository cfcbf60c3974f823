"""The target's own greedy continuations, with what the drafter learns from.

    python generate.py --work DIR

Prompts of 32 to 128 tokens of training text, continued to 256 tokens by the
exported target. Stored per position: the token, the tapped hidden states and
the normed final hidden (bf16). Stop tokens do not stop: the text goes on after
them, as it would in a chat of several turns. Both workers write their part of
one file; a part that is complete is not generated again.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

import exported
import target
from config import DRAFTER, SEQUENCE, TARGET
from data import CLASSES, SHARES, Corpus
from util import log, run_workers, use_threads, write_json

PROMPTS = (32, 64, 96, 128)
BATCH = 400
ROW = (len(DRAFTER.taps) + 1) * TARGET.hidden  # taps, then the final hidden


@torch.no_grad()
def continue_greedily(w: dict, prompts: torch.Tensor, total: int) -> tuple[torch.Tensor, torch.Tensor]:
    """ids [batch, total] and features [batch, total, ROW]; one length of prompt per call."""
    batch, length = prompts.shape
    ids = torch.zeros(batch, total, dtype=torch.long)
    ids[:, :length] = prompts
    features = torch.zeros(batch, total, ROW)
    state = target.State()
    fresh, at = prompts, 0
    while at < total:
        final, layers = target.forward(w, TARGET, fresh, state, total)
        rows = torch.cat([layers[tap] for tap in DRAFTER.taps] + [final], -1)
        features[:, at : at + fresh.shape[1]] = rows
        at += fresh.shape[1]
        if at < total:
            ids[:, at] = target.head(w, final[:, -1]).argmax(-1)
            fresh = ids[:, at : at + 1]
    return ids, features


def loop_start(tokens: np.ndarray, first: int) -> int:
    """Index at which the text begins to repeat itself to the end; its length if it never does.

    Short texts of one period say nothing, so twice the period and at least 16
    tokens must repeat.
    """
    n = len(tokens)
    best = n
    for period in range(1, 49):
        same = tokens[first + period :] == tokens[first : n - period]
        wrong = np.flatnonzero(~same)
        begin = first + period + (int(wrong[-1]) + 1 if len(wrong) else 0)
        if n - begin >= max(2 * period, 16):
            best = min(best, begin)
    return best


def worker(rank: int, workers: int, options: argparse.Namespace) -> None:
    use_threads(1)
    corpus = Corpus(options.work)
    w = exported.load(options.work / "target.gguf")
    features = np.lib.format.open_memmap(options.work / "features.npy", mode="r+")
    ids = np.lib.format.open_memmap(options.work / "ids.npy", mode="r+")
    parts = list(range(0, len(ids), BATCH))
    for number, begin in enumerate(parts):
        if number % workers != rank or ids[begin, 0] != 0:
            continue
        count = min(BATCH, len(ids) - begin)
        random = np.random.default_rng((options.seed, 1, number))
        length = PROMPTS[number // 2 % len(PROMPTS)]
        rows = []
        for name in random.choice(CLASSES, size=count, p=SHARES):
            rows.append(corpus.window(random, name, "train", length, 0.7 if name == "chat" else 0.1))
        out, rows = continue_greedily(w, torch.from_numpy(np.stack(rows)), SEQUENCE)
        bits = rows.to(torch.bfloat16).view(torch.int16).numpy()
        features[begin : begin + count] = bits
        features.flush()
        # Column 0 holds the prompt's length, written last: the mark that the part is complete.
        ids[begin : begin + count, 1:] = out.numpy()
        ids[begin : begin + count, 0] = length
        ids.flush()
        if rank == 0:
            log(f"{begin + count}/{len(ids)} sequences")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--sequences", type=int, default=6400)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for name, shape, kind in (
        ("features.npy", (options.sequences, SEQUENCE, ROW), np.int16),
        ("ids.npy", (options.sequences, SEQUENCE + 1), np.int16),
    ):
        path = options.work / name
        if not path.exists():
            np.lib.format.open_memmap(path, mode="w+", dtype=kind, shape=shape).flush()
    run_workers(options.workers, worker, options)
    ids = np.load(options.work / "ids.npy")
    starts = [loop_start(row[1:], int(row[0])) for row in ids]
    np.save(options.work / "loops.npy", np.array(starts, np.int16))
    looping = float(np.mean(np.array(starts) < SEQUENCE))
    write_json(options.work / "generate.json", {"sequences": len(ids), "looping": looping})
    log(f"{len(ids)} sequences, {looping:.2f} of them end in a loop")


if __name__ == "__main__":
    main()
