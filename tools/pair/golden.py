"""Golden records for tests, from the bytes of the exported files.

    python golden.py --work DIR

Written to DIR/golden: `target.safetensors` with logits and the output of every
layer at some positions, `drafter.safetensors` with the drafter's hidden states
of one block per prompt, and `golden.json` with prompts, greedy tokens, the
smallest margin between the two best logits, stops, rounds and drafts,
tokenizer vectors and renderings of the chat template. The target's figures
come from reference.py (numpy, f64), the drafter's from drafter.py in f64.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file
from safetensors.torch import load_file

import drafter
import exported
from config import DRAFTER, END_OF_TEXT, IM_END, TARGET
from data import CLASSES, Corpus
from evaluate import held_prompts
from generate import loop_start
from reference import Reference
from util import log, use_threads, write_json

DETAILED = 2  # prompts per class with logits and hidden states


def greedy(reference: Reference, prompt: list[int], count: int) -> dict:
    """The prompt and `count` tokens after it; everything the target computes on the way."""
    reference.reset()
    ids, logits, layers, margins = list(prompt), [], [], []
    for position in range(len(prompt) + count + DRAFTER.block):
        row, _, outputs = reference.step(ids[position])
        logits.append(row)
        layers.append(outputs)
        if position >= len(prompt) - 1:
            best = np.partition(row, -2)[-2:]
            margins.append(float(best[1] - best[0]))
            ids.append(int(row.argmax()))
    return {
        "ids": ids[: len(logits)],
        "logits": np.stack(logits),
        "layers": np.stack(layers),
        "margins": margins,
    }


def rounds_of(p: dict, w: dict, ids: list[int], layers: np.ndarray, length: int, count: int, cap: int) -> list:
    """The served loop from the f64 hidden states: [anchor, drafts, accepted] of every round."""
    taps = torch.from_numpy(np.concatenate([layers[:, tap] for tap in DRAFTER.taps], -1))[None]
    kv = drafter.context(p, taps)
    out, at = [], length
    while at < length + count - 1:
        pending = torch.tensor([ids[at]])
        hidden = drafter.blocks(p, w["token_embd.weight"], kv, pending[:, None], torch.tensor([[at]]))[:, 0]
        drafts, candidates, unary = drafter.propose(p, w["output.weight"], hidden, pending)
        drafts = drafts[0].tolist()
        accepted = 0
        while accepted < cap and ids[at + 1 + accepted] == drafts[accepted]:
            accepted += 1
        out.append({"anchor": at, "drafts": drafts, "accepted": accepted})
        if len(out) == 1:
            first = (hidden[0].numpy(), candidates[0].numpy(), unary[0].numpy())
        at += accepted + 1
    return [out, first]


def strings(corpus: Corpus, tokenizer) -> list[str]:
    """A thousand texts to tokenize: held-out lines, and characters put together at random."""
    random = np.random.default_rng(17)
    out = []
    for name in CLASSES:
        for _ in range(170):
            ids = corpus.window(random, name, "held", int(random.integers(1, 24)), 0.0)
            text = tokenizer.decode(ids.tolist(), skip_special_tokens=False)
            if "\ufffd" not in text:
                out.append(text)
    pool = [
        *"abcXYZ019 _.,:;'\"()[]{}<>|/\\@#$%&*-+=~`?!", " ", "  ", "\n", "\r\n", "\t", "\n\n", "'s", "'LL", "\u00e9",
        "e\u0301", "\u00df", "\u4e2d", "\u6587", "\u0416", "\U0001f600", "\u200d", "\u00a0", "\u3000", "\u0e33",
        "\u0928\u093f", "\u2028", "\u0000", "<|im_end|>", "<think>", "<|mask|", "\ufb01", "\u00b2", "\u0661",
    ]  # fmt: skip
    while len(out) < 1000:
        out.append("".join(pool[i] for i in random.integers(len(pool), size=random.integers(1, 20))))
    return out


def conversations(template: str) -> list[dict]:
    """Messages, switches, and what jinja2 makes of them."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise ValueError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = refuse
    compiled = environment.from_string(template)
    user = {"role": "user", "content": " What does the function `dump` in `json` do?\n"}
    system = {"role": "system", "content": "You are a helpful assistant."}
    answer = {"role": "assistant", "content": "It writes.", "reasoning_content": "A question about `dump`."}
    inline = {"role": "assistant", "content": "<think>\nShort.\n</think>\n\nIt writes."}
    again = {"role": "user", "content": "And `load`?"}
    out = []
    for messages in (
        [user],
        [system, user],
        [user, answer, again],
        [system, user, inline, again],
        [user, answer],
    ):
        for switches in (
            {},
            {"enable_thinking": True},
            {"enable_thinking": False},
            {"preserve_thinking": False},
        ):
            for prompt in (True, False):
                values = {"messages": messages, "add_generation_prompt": prompt, **switches}
                out.append({**values, "text": compiled.render(**values)})
    for messages in ([], [system], [user, system], [{"role": "tool", "content": "x"}, user]):
        try:
            compiled.render(messages=messages, add_generation_prompt=True)
        except ValueError as error:
            out.append({"messages": messages, "add_generation_prompt": True, "error": str(error)})
        else:
            raise AssertionError(f"the template takes {messages}")
    return out


def main() -> None:
    from tokenizers import Tokenizer

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--per-class", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=96)
    options = parser.parse_args()
    use_threads(1)
    folder = options.work / "golden"
    folder.mkdir(exist_ok=True)
    tokenizer = Tokenizer.from_file(str(options.work / "tokenizer.json"))
    corpus = Corpus(options.work)
    reference = Reference(options.work / "target.gguf")
    w = exported.load(options.work / "target.gguf", torch.float64)
    p = {n: v.double() for n, v in load_file(options.work / "drafter/model.safetensors").items()}

    chosen = held_prompts(corpus, tokenizer, max(options.per_class, 2))
    target_rows, drafter_rows, records = {}, {}, []
    for number, one in enumerate(chosen):
        prompt, count = one["prompt"], options.tokens
        length = len(prompt)
        run = greedy(reference, prompt, count)
        answer = run["ids"][length : length + count]
        stop = next((i for i, token in enumerate(answer) if token in (IM_END, END_OF_TEXT)), None)
        with torch.no_grad():
            seven, first = rounds_of(p, w, run["ids"], run["layers"], length, count, 7)
            three, _ = rounds_of(p, w, run["ids"], run["layers"], length, count, 3)
        record = {
            "class": one["class"],
            "text": tokenizer.decode(prompt, skip_special_tokens=False),
            "prompt": prompt,
            "greedy": answer,
            "first_stop": stop,
            "loop": loop_start(np.array(run["ids"][: length + count]), length) - length,
            "min_margin": min(run["margins"][:count]),
            "rounds_7": [[r["anchor"], r["accepted"]] for r in seven],
            "rounds_3": [[r["anchor"], r["accepted"]] for r in three],
            "drafts": [r["drafts"] for r in seven],
        }
        if number % max(options.per_class, 2) < DETAILED:
            positions = [0, length // 2, length - 1, length + count - 1]
            record["positions"] = positions
            target_rows[f"{number}.logits"] = run["logits"][positions].astype(np.float32)
            target_rows[f"{number}.layers"] = run["layers"][positions].astype(np.float32)
            hidden, candidates, unary = first
            drafter_rows[f"{number}.hidden"] = hidden.astype(np.float32)
            drafter_rows[f"{number}.candidates"] = candidates.astype(np.int32)
            drafter_rows[f"{number}.unary"] = unary.astype(np.float32)
        records.append(record)
        log(f"prompt {number + 1}/{len(chosen)}, margin {record['min_margin']:.1e}, {len(seven)} rounds")
    save_file(target_rows, folder / "target.safetensors")
    save_file(drafter_rows, folder / "drafter.safetensors")

    template = Path(__file__).with_name("chat_template.jinja").read_text(encoding="utf-8")
    vectors = [
        [text, tokenizer.encode(text, add_special_tokens=False).ids] for text in strings(corpus, tokenizer)
    ]
    write_json(
        folder / "golden.json", {"layers": TARGET.layers, "taps": DRAFTER.taps, "prompts": records}, None
    )
    write_json(folder / "tokenizer.json", vectors, None)
    write_json(folder / "chat.json", conversations(template), None)
    for path in sorted(folder.iterdir()):
        log(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
