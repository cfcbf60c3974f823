"""Prompts of the pair's training text, for calibrating and tuning its drafter.

    python training_prompts.py --work DIR --count 3000 -o prompts.jsonl

32 to 128 tokens of modules that target and drafter were trained on. The held-out
prompts that drafters are measured on come from other modules; none of them begins
as one of these does.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from config import END_OF_TEXT
from data import CLASSES, SHARES, Corpus


def training_prompts(corpus: Corpus, held: list[list[int]], count: int, seed: int) -> list[dict]:
    """The same prompts each time."""
    beginnings = {tuple(ids[:32]) for ids in held}
    random = np.random.default_rng(seed)
    out = []
    while len(out) < count:
        name = str(random.choice(CLASSES, p=SHARES))
        length = int(random.integers(32, 129))
        ids = corpus.window(random, name, "train", length, 0.7 if name == "chat" else 0.3).tolist()
        if tuple(ids[:32]) not in beginnings and END_OF_TEXT not in ids:
            out.append({"name": name, "ids": ids})
    return out


def lines(prompts: list[dict]) -> str:
    return "".join(json.dumps(prompt) + "\n" for prompt in prompts)


def main() -> None:
    from tokenizers import Tokenizer

    from evaluate import held_prompts

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder of prepare.py")
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    corpus = Corpus(options.work)
    tokenizer = Tokenizer.from_file(str(options.work / "tokenizer.json"))
    held = [one["prompt"] for one in held_prompts(corpus, tokenizer, 32)]
    options.output.write_text(lines(training_prompts(corpus, held, options.count, options.seed)))


if __name__ == "__main__":
    main()
