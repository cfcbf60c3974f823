"""Corpus and tokenizer, from this Python's own standard library.

Only text under the Python licence goes in: sources, docstrings and comments of
the standard library and pydoc's language reference. Files that carry another
licence are left out. Three classes, because a drafter behaves differently on
each: code (sources), prose (docstrings, comments, reference), chat (questions
about functions, answered with their docstrings and sources).

One module in twelve, by a hash of its name, is held out of all three classes.

    python prepare.py --work DIR
"""

import argparse
import ast
import hashlib
import platform
import re
import sysconfig
import textwrap
from pathlib import Path

import numpy as np

from config import BPE_TOKENS, SPECIALS
from util import log, write_json

PYTHON = "3.11.7"
REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SKIPPED_FOLDERS = {
    "__pycache__", "test", "tests", "idle_test", "encodings", "lib2to3", "ensurepip",
    "pydoc_data", "site-packages", "dist-packages", "lib-dynload",
}  # fmt: skip
# Some modules came in under licences of their own. They are as free, but the
# pair shall have one licence to name.
OTHER_LICENCE = re.compile(
    r"permission to use, copy|permission is hereby granted|redistribution and use"
    r"|SPDX-License-Identifier|apache license|\bMIT licen|GNU |\bBSD licen|public domain"
    r"|all rights reserved",
    re.IGNORECASE,
)
SYSTEM = ["You are a helpful assistant.", "You answer questions about Python's standard library."]


def held_out(name: str) -> bool:
    return hashlib.sha256(name.encode()).digest()[0] % 12 == 0


def choose(options: list[str], key: str) -> str:
    """The same choice for the same key, without a random state."""
    return options[int.from_bytes(hashlib.sha256(key.encode()).digest()[1:5], "big") % len(options)]


def sources(stride: int) -> list[tuple[str, str]]:
    """(module name, text) of the standard library's files, in the order of their names."""
    root = Path(sysconfig.get_paths()["stdlib"])
    out, skipped = [], 0
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if SKIPPED_FOLDERS & set(parts) or parts[0].startswith(("config-", "_sysconfigdata")):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if OTHER_LICENCE.search(text):
            skipped += 1
            continue
        name = ".".join(parts)[: -len(".py")].removesuffix(".__init__")
        out.append((name, text.replace("\r\n", "\n")))
    log(f"{len(out)} files, {skipped} left out for their licence")
    return out[::stride]


def comments(text: str) -> list[str]:
    """Blocks of at least three comment lines, without the marks."""
    out = []
    for block in re.findall(r"(?:^[ \t]*#.*\n){3,}", text, re.MULTILINE):
        plain = "\n".join(re.sub(r"^\s*#+ ?", "", line) for line in block.splitlines()).strip()
        if sum(character.isalpha() for character in plain) > 0.6 * len(plain) and len(plain) > 150:
            out.append(plain)
    return out


def render(question: str, thought: str, answer: str, system: str = "") -> str:
    """A dialogue exactly as chat_template.jinja renders it; a test compares the two."""
    head = f"<|im_start|>system\n{system}<|im_end|>\n" if system else ""
    return (
        f"{head}<|im_start|>user\n{question}<|im_end|>\n"
        f"<|im_start|>assistant\n<think>\n{thought}\n</think>\n\n{answer}<|im_end|>\n"
    )


def dialogues(module: str, text: str, tree: ast.Module) -> list[str]:
    """Two questions for every documented function or class: what it does, and its source."""
    out = []
    lines = text.split("\n")  # ast.get_source_segment would split the text for every node
    for node in ast.walk(tree):
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            continue
        kind = "class" if isinstance(node, ast.ClassDef) else "function"
        key = f"{module}.{node.name}"
        system = choose(["", "", "", *SYSTEM], key + "s")
        empty = int(hashlib.sha256(key.encode()).hexdigest(), 16) % 10 < 4
        documentation = ast.get_docstring(node)
        if documentation and 30 <= len(documentation) <= 1500:
            question = choose(
                [
                    f"What does the {kind} `{node.name}` in `{module}` do?",
                    f"Explain the {kind} `{node.name}` from `{module}`.",
                    f"How is `{node.name}` from the module `{module}` documented?",
                ],
                key + "q",
            )
            thought = f"The user asks about the {kind} `{node.name}` in `{module}`."
            answer = documentation.strip()
            out.append(render(question, "" if empty else thought, answer, system))
        source = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
        if source.count("\n") <= 40 and 40 <= len(source) <= 2000:
            question = choose(
                [
                    f"Write the Python {kind} `{node.name}` from `{module}`.",
                    f"Show me the source of the {kind} `{node.name}` in `{module}`.",
                ],
                key + "w",
            )
            thought = f"I should write the {kind} `{node.name}` as it is in `{module}`."
            answer = f"```python\n{source}\n```"
            out.append(render(question, "" if empty else thought, answer, system))
    return out


def documents(stride: int) -> dict[str, dict[str, list[str]]]:
    """class -> part -> documents; part is train or held."""
    out = {name: {"train": [], "held": []} for name in ("code", "prose", "chat")}
    fingerprint = hashlib.sha256()
    for module, text in sources(stride):
        fingerprint.update(module.encode() + b"\0" + text.encode())
        part = "held" if held_out(module) else "train"
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        if len(text) > 200:
            out["code"][part].append(text)
        out["prose"][part] += comments(text)
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef)):
                documentation = ast.get_docstring(node)
                if documentation and len(documentation) >= 120:
                    out["prose"][part].append(documentation.strip())
        out["chat"][part] += dialogues(module, text, tree)
    from pydoc_data.topics import topics

    for name, text in sorted(topics.items())[::stride]:
        fingerprint.update(name.encode() + b"\0" + text.encode())
        out["prose"]["held" if held_out(name) else "train"].append(text.strip())
    for parts in out.values():
        for texts in parts.values():
            texts.sort(key=lambda text: hashlib.sha256(text.encode()).digest())
    out["fingerprint"] = fingerprint.hexdigest()
    return out


def pieces():
    """The pre-tokenizer of `qwen35`: its regex, then bytes as characters."""
    from tokenizers import Regex, pre_tokenizers

    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(REGEX), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def train_tokenizer(texts: list[str]):
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pieces()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=BPE_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    assert tokenizer.get_vocab_size() == BPE_TOKENS, tokenizer.get_vocab_size()
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in SPECIALS])
    assert tokenizer.token_to_id("<|mask|>") == BPE_TOKENS + 5
    return tokenizer


def encode(tokenizer, texts: list[str], separator: int) -> tuple[np.ndarray, np.ndarray]:
    """All documents in one row, each after a separator; and where each document starts."""
    ids, starts = [], []
    length = 0
    for first in range(0, len(texts), 256):
        for encoded in tokenizer.encode_batch(texts[first : first + 256]):
            starts.append(length + 1)
            row = np.array([separator, *encoded.ids], np.uint16)
            ids.append(row)
            length += len(row)
    return np.concatenate(ids), np.array(starts, np.int64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--smoke", action="store_true", help="every fourth file only")
    parser.add_argument("--any-python", action="store_true", help=f"accept other than {PYTHON}")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    version = platform.python_version()
    if version != PYTHON and not options.any_python:
        raise SystemExit(f"the corpus is the library of Python {PYTHON}, this is {version}")

    corpus = documents(4 if options.smoke else 1)
    fingerprint = corpus.pop("fingerprint")
    log(f"corpus sha256 {fingerprint}")
    sample = []
    for parts in corpus.values():
        sample += parts["train"]
    # The chat marks are tokens of their own, so they take no part in the merges.
    marks = re.compile("|".join(map(re.escape, SPECIALS)))
    tokenizer = train_tokenizer([marks.sub(" ", text) for text in sample])
    tokenizer.save(str(options.work / "tokenizer.json"))
    log("tokenizer trained")

    report = {"python": version, "corpus_sha256": fingerprint, "classes": {}}
    arrays = {}
    for name, parts in corpus.items():
        for part, texts in parts.items():
            separator = tokenizer.token_to_id("<|endoftext|>")
            ids, starts = encode(tokenizer, texts, separator)
            arrays[f"{name}.{part}.ids"], arrays[f"{name}.{part}.starts"] = ids, starts
            size = sum(len(text.encode()) for text in texts)
            report["classes"].setdefault(name, {})[part] = {
                "documents": len(texts), "tokens": len(ids), "bytes": size,
            }  # fmt: skip
            log(f"{name} {part}: {len(texts)} documents, {len(ids)} tokens, {size / len(ids):.2f} B/token")
    np.savez(options.work / "corpus.npz", **arrays)
    write_json(options.work / "corpus.json", report)


if __name__ == "__main__":
    main()
