"""Labels of the fixture pair in bulk: files as of `drafter capture --labels`, hundreds of answers at once.

    python tools/tune/fixture_labels.py --prompts prompts.jsonl -n 160 -o LABELS

`drafter capture` answers one prompt after another with the arithmetic of serving.
The fixture's target is so small that PyTorch, with f32 and many answers in step,
is ten times faster on the same cores. Near ties may be decided the other way;
--compare says how many files of `drafter capture` have the same answer and rounds.
Only for this target: others have no model here.
"""

import argparse
import hashlib
import json
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

import pair  # noqa: F401  its folder on the path
import drafter
import exported
import target
import tensors
from config import DRAFTER, TARGET
from util import log, run_workers, use_threads

FIXTURE = Path(__file__).parents[2] / "tests/fixtures/pair"
BATCH = 250
TOP = 32


@torch.no_grad()
def answered(w: dict, p: dict, prompts: list[list[int]], tokens: int) -> list[dict]:
    """What `drafter capture` would write of each prompt, with answers of `tokens` tokens."""
    lengths = torch.tensor([len(ids) for ids in prompts])
    total = int(lengths.max()) + tokens
    ids = torch.zeros(len(prompts), total, dtype=torch.long)
    for row, prompt in zip(ids, prompts, strict=True):
        row[: len(prompt)] = torch.tensor(prompt)
    taps = torch.zeros(len(prompts), total - 1, len(DRAFTER.taps) * TARGET.hidden)
    top_ids = torch.zeros(len(prompts), total, TOP, dtype=torch.long)
    top_logs = torch.zeros(len(prompts), total, TOP)
    state, at, fresh = target.State(), 0, int(lengths.min())
    while at < total - 1:
        final, layers = target.forward(w, TARGET, ids[:, at : at + fresh], state, total)
        taps[:, at : at + fresh] = torch.cat([layers[tap] for tap in DRAFTER.taps], -1)
        at, fresh = at + fresh, 1
        logs = F.linear(final[:, -1], w["output.weight"]).log_softmax(-1)
        top_logs[:, at], top_ids[:, at] = drafter.top(logs, TOP)
        ids[:, at] = torch.where(at < lengths, ids[:, at], top_ids[:, at, 0])
    table, head = w["token_embd.weight"], w["output.weight"]
    rounds = drafter.serve(p, table, head, taps, ids, lengths, lengths + tokens)
    out = []
    for i, n in enumerate(lengths.tolist()):
        answer = slice(n, n + tokens)
        out.append(
            {
                "first": n,
                "ids": ids[i, : n + tokens].numpy(),
                "anchors": np.array([anchor for anchor, _ in rounds[i]]),
                "taps": taps[i, : n + tokens - 1].numpy(),
                "top_ids": top_ids[i, answer].numpy(),
                "top_logprobs": top_logs[i, answer].numpy(),
            }
        )
    return out


def write(path: Path, one: dict, sha256: str) -> None:
    document = {"program": Path(__file__).name, "target_sha256": sha256, "act": "f32", "kv": "f32"}
    document |= {"target_layer_ids": list(DRAFTER.taps), "first": one.pop("first")}
    text = json.dumps(document)
    kinds = {"taps": "BF16", "top_logprobs": "F32"}
    given = {
        name: (kinds.get(name, "I32"), values.shape, lambda values=values: values) for name, values in one.items()
    }
    metadata = {"format": "drafter-labels/1", "document": text}
    tensors.write(path, given, metadata | {"document_sha256": hashlib.sha256(text.encode()).hexdigest()})


def worker(rank: int, workers: int, options: argparse.Namespace) -> None:
    use_threads(1)
    w = exported.load(FIXTURE / "target.gguf")
    file = tensors.File(FIXTURE / "drafter/model.safetensors")
    p = {name: torch.from_numpy(file[name]) for name in file.about}
    sha256 = hashlib.sha256((FIXTURE / "target.gguf").read_bytes()).hexdigest()
    lines = options.prompts.read_text(encoding="utf-8").splitlines()
    prompts = [json.loads(line)["ids"] for line in lines]
    # Prompts of like length together, so that few tokens are fed one by one.
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    parts = [order[i : i + BATCH] for i in range(0, len(order), BATCH)]
    for done, part in enumerate(parts[rank::workers]):
        paths = [options.output / f"{i:06}.safetensors" for i in part]
        if all(path.exists() for path in paths):
            continue
        for path, one in zip(paths, answered(w, p, [prompts[i] for i in part], options.tokens), strict=True):
            write(path, one, sha256)
        if rank == 0:
            log(f"part {done + 1} of {len(parts[rank::workers])}")


def compare(ours: Path, theirs: Path) -> None:
    """Of the files that both folders have: the same answers, rounds, and how far probabilities differ."""
    count = answers = rounds = 0
    worst = 0.0
    for path in sorted(theirs.glob("*.safetensors")):
        if not (ours / path.name).exists():
            continue
        a, b = tensors.File(ours / path.name), tensors.File(path)
        n = min(len(a["ids"]), len(b["ids"]))
        count += 1
        if np.array_equal(a["ids"][:n], b["ids"][:n]):
            answers += 1
            last = n - DRAFTER.block
            begun = [file["anchors"][file["anchors"] < last] for file in (a, b)]
            rounds += np.array_equal(*begun)
            m = min(a.shape("top_ids")[0], b.shape("top_ids")[0])
            worst = max(worst, float(np.abs(np.exp(a["top_logprobs"][:m]) - np.exp(b["top_logprobs"][:m])).max()))
    log(f"{count} files in both: {answers} the same answer, {rounds} of them the same rounds")
    log(f"probabilities of the same answers differ by at most {worst:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=Path, required=True, help="JSON lines with ids")
    parser.add_argument("-n", "--tokens", type=int, default=160, help="of each answer")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--compare", type=Path, help="labels of `drafter capture` of the same prompts")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    run_workers(options.workers, worker, options)
    if options.compare:
        compare(options.output, options.compare)


if __name__ == "__main__":
    main()
