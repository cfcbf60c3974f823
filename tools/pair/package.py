"""Puts the fixture together: DIR/fixture with target, drafter, golden records and model card.

    python package.py --work DIR

The card's figures come from the records that the other scripts wrote, so that
it cannot say anything else than what was measured.
"""

import argparse
import hashlib
import json
import shutil
from pathlib import Path
from string import Template

from tokenizers import Tokenizer

from config import DRAFTER, TARGET, VOCAB
from data import CLASSES, Corpus
from evaluate import held_prompts
from training_prompts import lines as training_lines
from training_prompts import training_prompts
from util import log


def record(work: Path, name: str) -> dict:
    return json.loads((work / name).read_text(encoding="utf-8"))


def rates_table(evaluation: dict) -> str:
    rows = [
        "| drafter | drafts | " + " | ".join((*CLASSES, "all", "all, before loops", "all, until stop")) + " |"
    ]
    rows.append("|---" * 8 + "|")
    for arm, caps in evaluation["arms"].items():
        for cap in ("drafts_3", "drafts_7"):
            rates = caps[cap]["rates"]
            cells = [f"{rates[name]['per_round']:.3f}" for name in (*CLASSES, "all")]
            cells += [f"{rates['all']['before_loops']:.3f}", f"{rates['all']['until_stop']:.3f}"]
            rows.append(f"| {arm} | {cap[-1]} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def losses_table(evaluation: dict) -> str:
    rows = ["| rounding | drafts | change | 95 % interval |", "|---|---|---|---|"]
    for arm, caps in evaluation["arms"].items():
        for cap in ("drafts_3", "drafts_7"):
            if "against_float" in caps[cap]:
                c = caps[cap]["against_float"]
                rows.append(f"| {arm} | {cap[-1]} | {c['change']:+.1%} | {c['low']:+.1%} to {c['high']:+.1%} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True)
    options = parser.parse_args()
    work, folder = options.work, options.work / "fixture"
    if folder.exists():
        shutil.rmtree(folder)
    (folder / "drafter").mkdir(parents=True)
    shutil.copyfile(work / "target.gguf", folder / "target.gguf")
    for name in ("model.safetensors", "config.json"):
        shutil.copyfile(work / "drafter" / name, folder / "drafter" / name)
    shutil.copytree(work / "golden", folder / "golden")
    evaluation = record(work, "evaluation.json")
    tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))
    prompts = held_prompts(Corpus(work), tokenizer, evaluation["prompts"] // len(CLASSES))
    lines = [json.dumps({"class": one["class"], "ids": one["prompt"]}) + "\n" for one in prompts]
    (folder / "prompts.jsonl").write_text("".join(lines), encoding="utf-8")
    training = training_prompts(Corpus(work), [one["prompt"] for one in prompts], 60, 77)
    (folder / "training-prompts.jsonl").write_text(training_lines(training), encoding="utf-8")

    corpus, target, drafter = (record(work, f"{n}.json") for n in ("corpus", "target", "drafter"))
    generated = record(work, "generate.json")
    held = target["history"][-1]
    tokens = {n: corpus["classes"][n]["train"]["tokens"] for n in CLASSES}
    files = ["target.gguf", "drafter/model.safetensors", "drafter/config.json"]
    sums = [f"{hashlib.sha256((folder / f).read_bytes()).hexdigest()}  {f}" for f in files]
    values = {
        "python": corpus["python"],
        "corpus_sha256": corpus["corpus_sha256"],
        "corpus_tokens": ", ".join(f"{n} {count:,}" for n, count in tokens.items()),
        "target_steps": f"{target['steps']:,}",
        "target_tokens": f"{target['tokens'] / 1e6:.1f} million",
        "held_out": ", ".join(f"{n} {held[n]:.2f}" for n in CLASSES),
        "drafter_steps": f"{drafter['steps']:,}",
        "sequences": f"{generated['sequences']:,}",
        "rates": rates_table(evaluation),
        "losses": losses_table(evaluation),
        "looping": ", ".join(f"{n} {count}" for n, count in evaluation["looping"].items()),
        "prompts": evaluation["prompts"],
        "budget": evaluation["budget"],
        "layers": TARGET.layers,
        "vocabulary": VOCAB,
        "taps": ", ".join(map(str, DRAFTER.taps)),
        "top_k": DRAFTER.top_k,
        "sums": "\n".join(sums),
    }
    template = Template(Path(__file__).with_name("card.md.template").read_text(encoding="utf-8"))
    (folder / "README.md").write_text(template.substitute(values), encoding="utf-8")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    log(f"{folder}: {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
