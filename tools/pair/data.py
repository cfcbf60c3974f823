"""Windows of the corpus, chosen by (seed, step, rank) alone, so that a resumed run repeats them."""

from pathlib import Path

import numpy as np
import torch

CLASSES = ("code", "prose", "chat")
SHARES = (0.5, 0.2, 0.3)


class Corpus:
    def __init__(self, work: Path) -> None:
        with np.load(work / "corpus.npz") as arrays:
            self.arrays = {name: arrays[name] for name in arrays.files}

    def window(self, random, name: str, part: str, length: int, at_start: float) -> np.ndarray:
        """`length` tokens of one class; with probability `at_start` from a document's start."""
        ids = self.arrays[f"{name}.{part}.ids"]
        starts = self.arrays[f"{name}.{part}.starts"]
        last = len(ids) - length
        if random.random() < at_start:
            usable = starts[starts <= last]
            begin = int(usable[random.integers(len(usable))])
        else:
            begin = int(random.integers(last + 1))
        return ids[begin : begin + length].astype(np.int64)

    def batch(self, key: tuple[int, ...], count: int, length: int) -> torch.Tensor:
        random = np.random.default_rng(key)
        rows = []
        for name in random.choice(CLASSES, size=count, p=SHARES):
            rows.append(self.window(random, name, "train", length, 0.7 if name == "chat" else 0.0))
        return torch.from_numpy(np.stack(rows))

    def held(self, name: str, count: int, length: int) -> torch.Tensor:
        """The same held-out windows each time."""
        random = np.random.default_rng((7, CLASSES.index(name)))
        rows = [self.window(random, name, "held", length, 0.5) for _ in range(count)]
        return torch.from_numpy(np.stack(rows))
