"""Prompts of the fixture pair's training text, to tune its drafter on.

    python tools/pair/prepare.py --work DIR
    python tools/tune/fixture_prompts.py --work DIR --count 3000 -o prompts.jsonl

Prompts of 32 to 128 tokens of the modules that the pair was trained on; those of
tests/fixtures/pair/prompts.jsonl come from other modules, and none of them may
begin a prompt here either.
"""

import argparse
import json
from pathlib import Path

import numpy as np

import pair  # noqa: F401  its folder on the path
from config import END_OF_TEXT
from data import CLASSES, SHARES, Corpus

HELD_OUT = Path(__file__).parents[2] / "tests/fixtures/pair/prompts.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder of prepare.py")
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    corpus = Corpus(options.work)
    held = [json.loads(line)["ids"] for line in HELD_OUT.read_text().splitlines()]
    held = {tuple(ids[:32]) for ids in held}
    random = np.random.default_rng(options.seed)
    lines = []
    while len(lines) < options.count:
        name = str(random.choice(CLASSES, p=SHARES))
        length = int(random.integers(32, 129))
        ids = corpus.window(random, name, "train", length, 0.7 if name == "chat" else 0.3).tolist()
        if tuple(ids[:32]) not in held and END_OF_TEXT not in ids:
            lines.append(json.dumps({"name": name, "ids": ids}))
    options.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
