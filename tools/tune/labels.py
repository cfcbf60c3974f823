"""Files of `drafter capture --labels`: what the target said, and batches of blocks to learn from."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import tensors
from config import Drafter


@dataclass
class Batch:
    """Sequences padded to one length; blocks at `anchors` [sequence, anchor]."""

    ids: torch.Tensor  # [sequence, position]
    taps: torch.Tensor  # [sequence, position, taps x hidden]
    first: torch.Tensor  # [sequence], the position of the first label
    count: torch.Tensor  # [sequence], labels
    top_ids: torch.Tensor  # [sequence, label, 32]
    top_logprobs: torch.Tensor
    anchors: torch.Tensor


def documents(folder: Path) -> Iterator[tuple[tensors.File, dict]]:
    """The files of a folder in the order of their names, and what they say of themselves."""
    for path in sorted(folder.glob("*.safetensors")):
        file = tensors.File(path)
        if file.metadata.get("format") != "drafter-labels/1":
            raise SystemExit(f"{path}: expected labels of `drafter capture --labels`")
        yield file, json.loads(file.metadata["document"])


class Labels:
    """The files of a folder, in the order of their names; read when they are needed."""

    def __init__(self, folder: Path, c: Drafter, held: int) -> None:
        self.files, self.first = [], []
        for file, document in documents(folder):
            path = file.path
            if tuple(document["target_layer_ids"]) != c.taps:
                raise SystemExit(f"{path}: expected taps {c.taps}, found {document['target_layer_ids']}")
            if file.shape("taps")[1] != len(c.taps) * c.hidden:
                raise SystemExit(f"{path}: expected taps of {len(c.taps)} x {c.hidden} values")
            # A block needs a label after its pending token.
            if len(file["anchors"]) and len(file["top_ids"]) > 1:
                self.files.append(file)
                self.first.append(document["first"])
            self.target_sha256 = document["target_sha256"]
        self.held = min(held, len(self.files) // 8)
        self.count = len(self.files) - self.held
        if self.count < 1:
            raise SystemExit(f"{folder}: no labels to learn from")

    def anchors(self, number: int, count: int, served: float, random) -> np.ndarray:
        """Positions of pending tokens: a share where served rounds began, the rest anywhere in the answer."""
        file, first = self.files[number], self.first[number]
        last = min(first + file.shape("top_ids")[0] - 1, file.shape("taps")[0])
        begun = file["anchors"]
        begun = begun[begun < last]
        some = round(count * served) if len(begun) else 0
        anywhere = np.arange(first, last) if last > first else begun
        chosen = [random.choice(begun, some), random.choice(anywhere, count - some)]
        return np.concatenate(chosen).astype(np.int64)

    def batch(self, numbers, anchors: np.ndarray) -> Batch:
        files = [self.files[number] for number in numbers]

        def padded(name: str, kind) -> torch.Tensor:
            # One position more than there are, so that a position past the end has a row too.
            values = [file[name] for file in files]
            out = np.zeros((len(values), max(map(len, values)) + 1, *values[0].shape[1:]), kind)
            for row, value in zip(out, values, strict=True):
                row[: len(value)] = value
            return torch.from_numpy(out).to(torch.get_default_device())

        count = [file.shape("top_ids")[0] for file in files]
        return Batch(
            ids=padded("ids", np.int64),
            taps=padded("taps", np.float32),
            first=torch.tensor([self.first[number] for number in numbers]),
            count=torch.tensor(count),
            top_ids=padded("top_ids", np.int64),
            top_logprobs=padded("top_logprobs", np.float32),
            anchors=torch.from_numpy(anchors).to(torch.get_default_device()),
        )
