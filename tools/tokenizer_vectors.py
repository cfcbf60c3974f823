#!/usr/bin/env python3
"""Test vectors for the runtime's tokenizer and chat template, made without any of its code.

The tokenizer is built from the keys of a GGUF with the Python package `tokenizers`
(0.23.3), prompts are rendered by `transformers` (5.24). Written is one JSON document:

    encode  [text, ids, ids when special tokens are recognised]
    decode  [ids, text, text with control tokens]
    chats   {messages, tools, variables, text or error, ids}

`ids` of a chat are those of the rendered text where special tokens of the template are
recognised and those in messages are not; null where the template looks for such a token
in a message, so that this way to tell them apart says nothing.

    tools/tokenizer_vectors.py --gguf target.gguf --output vectors.json
    tools/tokenizer_vectors.py --synthetic small.gguf   # writes a GGUF to try it with
"""

import argparse
import json
import mmap
import random
import struct
import sys
from pathlib import Path

REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CONTROL, USER_DEFINED, UNUSED = 3, 4, 5
# Breaks a special token in a message apart; never part of a fuzzed text.
MARK = "\ue000"
TEMPLATE = Path(__file__).with_name("pair") / "chat_template.jinja"


# --- reading a GGUF's keys ---------------------------------------------------

SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}


class Keys:
    """The metadata of a GGUF; the package `gguf` does not know the ternary tensor types."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.at = 0
        assert self.data[:4] == b"GGUF", f"{path} is no GGUF"
        self.at = 8
        _, count = self.take("<Q"), self.take("<Q")
        self.keys = {}
        for _ in range(count):
            name = self.text()
            self.keys[name] = self.value(self.take("<I"))

    def take(self, form: str):
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def text(self) -> str:
        size = self.take("<Q")
        self.at += size
        return self.data[self.at - size : self.at].decode("utf-8")

    def value(self, kind: int):
        if kind == 8:
            return self.text()
        if kind == 9:
            inner, count = self.take("<I"), self.take("<Q")
            return [self.value(inner) for _ in range(count)]
        return self.take(SCALARS[kind])


# --- the tokenizer -----------------------------------------------------------


class Words:
    def __init__(self, keys: dict) -> None:
        from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

        assert keys["tokenizer.ggml.model"] == "gpt2"
        assert keys["tokenizer.ggml.pre"] == "qwen35"
        self.tokens = keys["tokenizer.ggml.tokens"]
        self.types = keys["tokenizer.ggml.token_type"]
        typed = list(zip(self.tokens, self.types))
        vocab = {token: i for i, (token, kind) in enumerate(typed) if kind != UNUSED}
        merges = [tuple(merge.split(" ")) for merge in keys["tokenizer.ggml.merges"]]
        self.specials = [token for token, kind in typed if kind in (CONTROL, USER_DEFINED)]

        def build():
            tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
            tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Split(Regex(REGEX), "isolated"),
                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
                ]
            )
            tokenizer.decoder = decoders.ByteLevel()
            return tokenizer

        self.plain, self.full = build(), build()
        added = [
            AddedToken(token, normalized=False, special=kind == CONTROL)
            for token, kind in typed
            if kind in (CONTROL, USER_DEFINED)
        ]
        self.full.add_tokens(added)
        assert all(self.full.token_to_id(token) == vocab[token] for token in self.specials)

    def encode(self, text: str, specials: bool) -> list[int]:
        tokenizer = self.full if specials else self.plain
        return tokenizer.encode(text, add_special_tokens=False).ids

    def broken(self, value):
        """`value` with a mark in every special token of every string."""
        if isinstance(value, str):
            for token in sorted(self.specials, key=len, reverse=True):
                value = value.replace(token, token[0] + MARK + token[1:])
            return value
        if isinstance(value, list):
            return [self.broken(item) for item in value]
        if isinstance(value, dict):
            return {self.broken(key): self.broken(item) for key, item in value.items()}
        return value

    def encode_marked(self, text: str) -> list[int]:
        """The ids of a rendered text where unbroken special tokens count."""
        ids, piece = [], ""
        while text:
            found = max((t for t in self.specials if text.startswith(t)), key=len, default=None)
            if found is None:
                piece, text = piece + text[0], text[1:]
                continue
            ids += self.encode(piece.replace(MARK, ""), False) + [self.full.token_to_id(found)]
            piece, text = "", text[len(found) :]
        return ids + self.encode(piece.replace(MARK, ""), False)


# --- texts -------------------------------------------------------------------

HAND = [
    "", " ", "a", "\n", "\r\n", "\t\t", "Hello, world!", "it's, IT'S, we'LL, they've, I'D, o'clock",
    "1234567890 3.14 1e-5 ²³ ½ Ⅷ ٣", "e\u0301a\u0308 o\u0302\u0323 \u0301x", "naïve café Zürich",
    "नमस्ते दुनिया", "สวัสดีชาวโลก", "你好，世界。日本語テキスト 한국어", "שָׁלוֹם עולם", "👩‍👩‍👧‍👦🏳️‍🌈🦀 e👍🏽",
    "a  b   c    d", "  lead", "trail   ", "a \n b", "a\n\n\n  b", "a \r\n\r\n b", "\u00a0\u2003x\u3000 y",
    "def f(x):\n    return x ** 2  # ok\n", "<div class=\"a\">&amp;</div>", "a_b-c.d/e\\f", "!!!???...\n\n",
    "\u0000\u0001\u001c\u001f\u007f\u0085", "\ufeffx\u200by\u2028z", "\ufffd\ufffe\U0010ffff", "ſ's 'ſ K'K",
    "x" * 1000, " " * 1000, " " * 999 + "x", "\n" * 500, "ab" * 300, "9" * 300,
]  # fmt: skip

ALPHABETS = [
    "abcdefghijklmnopqrstuvwxyz", "ABCXYZabcxyz'", "0123456789", " \t\n\r", " ", ".,;:!?-_/\\()[]{}<>|'\"`",
    "éüßñçøåœ", "\u0300\u0301\u0308\u0323\u20dd\u0e31\u093f", "ابتثجحخ", "абвгдежз", "你好世界語日本", "กขคงจ",
    "🦀👍🏽👩\u200d🏳\ufe0f", "\u00a0\u2003\u3000\u2028\u0085\u1680", "\x00\x01\x1b\x1c\x7f", "²½Ⅷ٣०",
]  # fmt: skip


def fuzzed(rng: random.Random, specials: list[str]) -> str:
    out = []
    for _ in range(rng.randint(1, 12)):
        kind = rng.random()
        if kind < 0.12 and specials:
            token = rng.choice(specials)
            begin = rng.choice([0, 0, 0, 1, len(token) // 2])
            out.append(token[begin : rng.choice([len(token), len(token), len(token) - 1])])
        elif kind < 0.2:
            code = rng.choice([rng.randrange(0x250), rng.randrange(0xD800), rng.randrange(0xF900, 0x110000)])
            out.append(chr(code).replace(MARK, ""))
        elif kind < 0.3:
            out.append(rng.choice(["the", " and", "'s", "'LL", " model", "import ", "return", "=="]))
        else:
            out.append("".join(rng.choices(rng.choice(ALPHABETS), k=rng.randint(1, 6))))
    return "".join(out)


# --- chats -------------------------------------------------------------------


def rendered(template: str, chat: dict) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    texts, _ = render_jinja_template(
        conversations=[chat["messages"]],
        chat_template=template,
        tools=chat["tools"] or None,
        **chat["variables"],
    )
    return texts[0]


def called(rng: random.Random, text) -> dict:
    values = [text(), rng.randrange(-5, 10**6), 2.5, True, None, [1, text()], {"k": text()}]
    arguments = {f"p{i}": rng.choice(values) for i in range(rng.randrange(3))}
    return {"type": "function", "function": {"name": "look_up", "arguments": arguments}}


def chat_of(rng: random.Random, text, with_tools: bool) -> dict:
    messages, tools = [], []
    if with_tools and rng.random() < 0.5:
        properties = {"p": {"type": "string", "description": text()}}
        function = {"name": "look_up", "description": text(), "parameters": {"properties": properties}}
        tools.append({"type": "function", "function": function})
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": text()})
    for turn in range(rng.randint(1, 3)):
        if turn:
            answer = {"role": "assistant", "content": text()}
            kind = rng.random()
            if kind < 0.4:
                answer["reasoning_content"] = text()
            elif kind < 0.7:
                answer["content"] = f"<think>\n{text()}\n</think>\n\n{text()}"
            messages.append(answer)
            if with_tools and rng.random() < 0.4:
                answer["tool_calls"] = [called(rng, text) for _ in range(rng.randint(1, 2))]
                messages += [{"role": "tool", "content": text()} for _ in answer["tool_calls"]]
        messages.append({"role": "user", "content": text()})
    variables = {"add_generation_prompt": rng.random() < 0.8}
    if rng.random() < 0.5:
        variables["enable_thinking"] = rng.random() < 0.5
    if rng.random() < 0.4:
        variables["reasoning_effort"] = rng.choice(["low", "medium", "xhigh"])
    if rng.random() < 0.3:
        variables["preserve_thinking"] = rng.random() < 0.5
    if rng.random() < 0.03:
        messages.append({"role": "robot", "content": "x"})
    if rng.random() < 0.03:
        messages = messages[:-1]
    return {"messages": messages, "tools": tools, "variables": variables}


def chat_vector(words: Words, template: str, chat: dict) -> dict:
    try:
        text = rendered(template, chat)
    except Exception as error:  # whatever the template raises
        return {**chat, "text": None, "error": str(error), "ids": None}
    broken = rendered(template, {**words.broken(chat), "variables": chat["variables"]})
    ids = words.encode_marked(broken) if broken.replace(MARK, "") == text else None
    return {**chat, "text": text, "error": None, "ids": ids}


# --- the programs ------------------------------------------------------------


def vectors(options) -> None:
    rng = random.Random(options.seed)
    keys = Keys(options.gguf).keys
    words = Words(keys)
    texts = HAND + [fuzzed(rng, words.specials) for _ in range(options.strings)]
    encode = [[text, words.encode(text, False), words.encode(text, True)] for text in texts]
    decode = []
    for _ in range(options.strings // 4):
        ids = [rng.randrange(len(words.tokens)) for _ in range(rng.randint(1, 24))]
        shown = words.full.decode(ids, skip_special_tokens=False)
        decode.append([ids, words.full.decode(ids, skip_special_tokens=True), shown])
    chats = []
    template = keys.get("tokenizer.chat_template")
    if template is not None:
        for number in range(options.chats):
            one = (lambda: "What is a model?") if number < 8 else (lambda: fuzzed(rng, words.specials))
            chats.append(chat_vector(words, template, chat_of(rng, one, "tool_calls" in template)))
    document = {"schema": 1, "vocab": len(words.tokens), "encode": encode, "decode": decode, "chats": chats}
    options.output.write_text(json.dumps(document, ensure_ascii=True), encoding="utf-8")
    told = sum(chat["ids"] is not None for chat in chats)
    print(f"{len(encode)} texts, {len(decode)} id lists, {len(chats)} chats ({told} with ids)")


def synthetic(path: Path, template: Path) -> None:
    """A GGUF of keys only, its vocabulary trained on Python's standard library."""
    from gguf import GGUFWriter
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(REGEX), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=4000, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    sources = sorted(Path(json.__file__).parent.parent.glob("*.py"))
    texts = [source.read_text(encoding="utf-8", errors="ignore") for source in sources] + HAND * 4
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    controls = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|fim_pad|>"]
    shown = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
    types = [1] * len(tokens) + [CONTROL] * len(controls) + [USER_DEFINED] * len(shown) + [UNUSED] * 6
    tokens += controls + shown
    tokens += [f"[PAD{len(tokens) + i}]" for i in range(6)]
    writer = GGUFWriter(path, "qwen35")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen35")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in model["merges"]])
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_chat_template(template.read_text(encoding="utf-8"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--synthetic", type=Path, help="write a GGUF with a small vocabulary here first")
    parser.add_argument("--template", type=Path, default=TEMPLATE, help="that of the synthetic GGUF")
    parser.add_argument("--strings", type=int, default=3000)
    parser.add_argument("--chats", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.synthetic:
        synthetic(options.synthetic, options.template)
    if options.gguf:
        if not options.output:
            sys.exit("--gguf needs --output")
        vectors(options)


if __name__ == "__main__":
    main()
