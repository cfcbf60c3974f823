"""The pair against engines that others wrote: llama.cpp and ferrox.

    python check_other_engines.py --work DIR [--engine llama.cpp|ferrox]... [--wide FILE]

llama.cpp (the `xllamacpp` package) runs the un-rotated F32 twin, alone and with
the float drafter, and tokenizes the golden strings. ferrox (a program, named by
--ferrox) runs the PTQ1_0 twin, whose weights are rotated and ternary, and with
--wide the PTQ1_0 twin of a PQ2_0 target in blocks of 1024, such as
`cargo xtask synth-target --shape small -o FILE` writes. Both are f32 engines: a
token may differ from the f64 reference only where the two best logits are
closer than TIE. The exit code is 1 on any disagreement.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

import numpy as np

import drafter_gguf
import gguf_file
from config import DRAFTER, END_OF_TEXT, IM_END
from reference import Reference

TIE = 1e-3
CONTEXT = 512
WIDE_PROMPT = "def widest(rows):\n    return max("
WIDE_TOKENS = 32


class Truth:
    """The f64 reference of one file, for what the golden records do not hold."""

    def __init__(self, path: Path) -> None:
        self.path, self.reference = path, None

    def greedy(self, prompt: list[int], count: int) -> tuple[list[int], list[float]]:
        """`count` tokens after the prompt, and for each the gap between the two best logits."""
        if self.reference is None:
            self.reference = Reference(self.path)
        self.reference.reset()
        for token in prompt:
            logits, _, _ = self.reference.step(token)
        tokens, margins = [], []
        for number in range(count):
            second, first = np.partition(logits, -2)[-2:]
            tokens.append(int(logits.argmax()))
            margins.append(float(first - second))
            if number + 1 < count:
                logits, _, _ = self.reference.step(tokens[-1])
        return tokens, margins


class Tally:
    """Counts the tokens that agree and explains those that do not."""

    def __init__(self, name: str, truth: Truth) -> None:
        self.name, self.truth = name, truth
        self.runs = self.equal = self.ties = 0
        self.wrong: list[str] = []

    def add(self, label: str, prompt: list[int], expected: list[int], n_equal: int, complete: bool) -> None:
        """`n_equal` tokens from the start are the expected ones; `complete`: and nothing else came."""
        self.runs += 1
        self.equal += n_equal
        if complete:
            return
        if n_equal < len(expected):
            _, (margin,) = self.truth.greedy(prompt + expected[:n_equal], 1)
            if margin < TIE:
                self.ties += 1
                return
            self.wrong.append(f"{label}: another token at {n_equal}, where the margin is {margin:.1e}")
        else:
            self.wrong.append(f"{label}: more than {n_equal} tokens")

    def add_tokens(self, label: str, prompt: list[int], expected: list[int], theirs: list[int]) -> None:
        n_equal = 0
        while n_equal < min(len(expected), len(theirs)) and expected[n_equal] == theirs[n_equal]:
            n_equal += 1
        if n_equal == len(theirs) < len(expected):
            self.runs += 1
            self.equal += n_equal
            self.wrong.append(f"{label}: only {n_equal} of {len(expected)} tokens")
        else:
            self.add(label, prompt, expected, n_equal, theirs == expected)

    def report(self) -> bool:
        ties = f", {self.ties} ended early at a margin below {TIE:g}" if self.ties else ""
        print(f"{self.name}: {self.runs} texts, {self.equal} tokens agree{ties}, {len(self.wrong)} wrong")
        for line in self.wrong[:5]:
            print(f"    {line}")
        return not self.wrong


# --- llama.cpp ----------------------------------------------------------------


class Llama:
    """A llama.cpp server in this process, f32 throughout, asked over the loopback device."""

    def __init__(self, target: Path, drafter: Path | None = None) -> None:
        import xllamacpp

        f32 = xllamacpp.ggml_type.GGML_TYPE_F32
        params = xllamacpp.CommonParams()
        params.model.path = str(target)
        params.n_ctx, params.n_parallel, params.warmup, params.verbosity = CONTEXT, 1, False, -1
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
        # An f16 cache moves logits by 1e-3, flash attention by more.
        params.cache_type_k = params.cache_type_v = f32
        params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        if drafter:
            kinds = xllamacpp.common_speculative_type
            params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_DFLASH]
            draft = params.speculative.draft
            draft.mparams.path = str(drafter)
            draft.n_max, draft.n_min, draft.p_min = DRAFTER.block - 1, 0, 0.0
            draft.cache_type_k = draft.cache_type_v = f32
            draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = 1
        self.server = xllamacpp.Server(params)
        self.opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def post(self, path: str, body: dict) -> dict:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(
            self.server.listening_address + path, json.dumps(body).encode(), headers
        )
        with self.opener.open(request) as answer:
            return json.load(answer)

    def tokenize(self, text: str) -> list[int]:
        return self.post("/tokenize", {"content": text, "add_special": False, "parse_special": True})["tokens"]

    def greedy(self, prompt: list[int], count: int) -> tuple[list[int], int, int]:
        """`count` tokens, asked on after every stop; drafted and accepted tokens."""
        tokens, drafted, accepted = [], 0, 0
        while len(tokens) < count:
            answer = self.post(
                "/completion",
                {
                    "prompt": prompt + tokens, "n_predict": count - len(tokens), "temperature": 0,
                    "return_tokens": True, "cache_prompt": False,
                },
            )  # fmt: skip
            assert len(answer["tokens"]) == answer["tokens_predicted"] > 0, "the answer lacks tokens"
            tokens += answer["tokens"]
            drafted += answer["timings"].get("draft_n", 0)
            accepted += answer["timings"].get("draft_n_accepted", 0)
        return tokens, drafted, accepted


def walked(record: dict, count: int) -> tuple[int, int]:
    """Drafted and accepted tokens of the golden rounds, shortened at the end as llama.cpp does.

    It drafts no token past the last one that is asked for.
    """
    drafted = accepted = 0
    end = len(record["prompt"]) + count
    for anchor, n_accepted in record["rounds_7"]:
        allowed = min(DRAFTER.block - 1, end - anchor - 2)
        drafted += max(allowed, 0)
        accepted += max(min(n_accepted, allowed), 0)
    return drafted, accepted


def check_llama(work: Path, scratch: Path, records: list[dict]) -> bool:
    import xllamacpp

    print(f"llama.cpp: xllamacpp {xllamacpp.__version__}")
    drafter_gguf.write(work, scratch / "drafter-f32.gguf")
    truth = Truth(work / "target.gguf")
    alone = Tally("llama.cpp, target alone", truth)
    drafting = Tally("llama.cpp, with drafter", truth)

    server = Llama(work / "target-f32.gguf")
    vectors = json.loads((work / "golden/tokenizer.json").read_text(encoding="utf-8"))
    other = [text for text, ids in vectors if server.tokenize(text) != ids]
    print(f"llama.cpp, tokenizer: {len(vectors)} strings, {len(other)} differ")
    for text in other[:5]:
        print(f"    {text!r}")
    plain = [server.greedy(r["prompt"], len(r["greedy"]))[0] for r in records]
    del server

    server = Llama(work / "target-f32.gguf", scratch / "drafter-f32.gguf")
    drafted = accepted = counted = same_counts = same = 0
    ours = np.zeros(2, int)
    theirs = np.zeros(2, int)
    for number, (record, tokens) in enumerate(zip(records, plain, strict=True)):
        label, count = f"prompt {number}", len(record["greedy"])
        alone.add_tokens(label, record["prompt"], record["greedy"], tokens)
        again, *counts = server.greedy(record["prompt"], count)
        drafting.add_tokens(label, record["prompt"], record["greedy"], again)
        same += again == tokens
        drafted, accepted = drafted + counts[0], accepted + counts[1]
        if again == record["greedy"] and not {IM_END, END_OF_TEXT} & set(again):
            golden = walked(record, count)
            counted += 1
            same_counts += tuple(counts) == golden
            ours += golden
            theirs += counts
    del server
    fine = [alone.report(), drafting.report(), not other]
    print(f"    {same} of {len(records)} texts the same with and without, {accepted} of {drafted} drafts accepted")
    print(
        f"    {counted} texts without a stop: {theirs[1]} of {theirs[0]} accepted, "
        f"golden {ours[1]} of {ours[0]}, the same for {same_counts} of them"
    )
    # Rounding may turn a draft in one text or another; a wrong drafter turns some in most.
    return all(fine) and counted - same_counts <= counted // 10


# --- ferrox -------------------------------------------------------------------


def byte_of() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


BYTE_OF = byte_of()


class Ferrox:
    """The program on one file. It prints text token by token, invalid UTF-8 as U+FFFD."""

    def __init__(self, program: str, model: Path, scratch: Path) -> None:
        self.program, self.model, self.scratch = program, model, scratch
        keys = gguf_file.Reader(model).keys
        self.tokens, self.eos = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.eos_token_id"]

    def call(self, *arguments: str) -> str:
        done = subprocess.run([self.program, *arguments], capture_output=True, timeout=1800)
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip()
            raise RuntimeError(f"ferrox exits with {done.returncode} on {self.model.name}: {said}")
        return done.stdout.decode("utf-8")

    def piece(self, token: int) -> str:
        held = bytes(BYTE_OF[c] for c in self.tokens[token] if c in BYTE_OF)
        return held.decode("utf-8", errors="replace")

    def text(self, prompt: str, count: int) -> str:
        file = self.scratch / "prompt.txt"
        file.write_bytes(prompt.encode("utf-8"))
        # Its repeat penalty is on unless told otherwise.
        answer = self.call(
            "run", "-m", str(self.model), "-f", str(file), "-n", str(count), "-c", str(CONTEXT), "-t", "1",
            "--temp", "0", "--repeat-penalty", "1.0", "--no-cnv", "--ignore-eos", "--no-escape", "--device", "cpu",
        )  # fmt: skip
        return answer.removesuffix("\n")

    def ids(self, prompt: str) -> tuple[int, list[int]]:
        """The length of the prompt in tokens, and the ids of the first tokens (24, or up to a stop)."""
        lines = self.call("verify", "-m", str(self.model), "--backend", "cpu", "--prompt", prompt, "--emit")
        said = dict(line.split(" ", 1) for line in lines.splitlines() if line.startswith("FERROX_VERIFY"))
        length, tokens = said["FERROX_VERIFY_PROMPT_LEN"], said["FERROX_VERIFY_TOKENS"]
        return int(length), [int(token) for token in tokens.split()]

    def check(
        self, tally: Tally, ids: Tally, label: str, text: str, prompt: list[int], expected: list[int]
    ) -> None:
        said = self.text(text, len(expected))
        at = n_equal = 0
        for piece in map(self.piece, expected):
            if not said.startswith(piece, at):
                break
            at, n_equal = at + len(piece), n_equal + 1
        tally.add(label, prompt, expected, n_equal, n_equal == len(expected) and at == len(said))
        length, tokens = self.ids(text)
        if length != len(prompt):
            ids.wrong.append(f"{label}: the prompt is {length} tokens instead of {len(prompt)}")
        wanted = expected[: max(len(tokens), 1)]
        if self.eos in wanted:
            wanted = wanted[: wanted.index(self.eos) + 1]
        ids.add_tokens(label, prompt, wanted, tokens[: len(expected)])


def check_ferrox(work: Path, scratch: Path, records: list[dict], program: str) -> bool:
    from tokenizers import Tokenizer

    engine = Ferrox(program, work / "target-ptq1.gguf", scratch)
    truth = Truth(work / "target.gguf")
    tally, ids = (Tally(f"ferrox, PTQ1_0 twin, {kind}", truth) for kind in ("text", "ids"))
    tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))
    for number, record in enumerate(records):
        prompt, expected = record["prompt"], record["greedy"]
        # It takes text only; a prompt cut out of a longer one may tokenize to other ids.
        as_text = tokenizer.encode(record["text"], add_special_tokens=False).ids
        if as_text != prompt:
            prompt, expected = as_text, truth.greedy(as_text, len(expected))[0]
        engine.check(tally, ids, f"prompt {number}", record["text"], prompt, expected)
    return all([tally.report(), ids.report()])


def check_wide(file: Path, scratch: Path, program: str) -> bool:
    """A target in blocks of 1024, which the pair's widths do not allow."""
    twin = scratch / "wide-ptq1.gguf"
    gguf_file.transcode_to_ptq1_0(file, twin)
    engine = Ferrox(program, twin, scratch)
    keys = gguf_file.Reader(file).keys
    assert keys["prism.hadamard.block_size"] == 1024 and not keys["tokenizer.ggml.merges"]
    id_of = {BYTE_OF[token]: i for i, token in enumerate(engine.tokens) if token in BYTE_OF}
    prompt = [id_of[byte] for byte in WIDE_PROMPT.encode()]
    truth = Truth(file)
    expected, margins = truth.greedy(prompt, WIDE_TOKENS)
    record = {"text": WIDE_PROMPT, "prompt": prompt, "greedy": expected, "margins": margins}
    (scratch / "wide.json").write_text(json.dumps(record) + "\n", encoding="utf-8")
    tally, ids = (Tally(f"ferrox, blocks of 1024, {kind}", truth) for kind in ("text", "ids"))
    engine.check(tally, ids, file.name, WIDE_PROMPT, prompt, expected)
    print(f"smallest margin of the wide target: {min(margins):.1e}")
    return all([tally.report(), ids.report()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--engine", action="append", choices=["llama.cpp", "ferrox"], help="default: both")
    parser.add_argument("--ferrox", default="ferrox", help="the program; default: the one on the PATH")
    parser.add_argument("--wide", type=Path, help="a PQ2_0 target in blocks of 1024, for ferrox")
    parser.add_argument("--keep", type=Path, help="leaves the files made for the engines in this folder")
    options = parser.parse_args()
    engines = options.engine or ["llama.cpp", "ferrox"]
    if "ferrox" in engines and not shutil.which(options.ferrox):
        sys.exit(f"`{options.ferrox}` not found; see requirements-engines.txt, or choose --engine llama.cpp")
    golden = json.loads((options.work / "golden/golden.json").read_text(encoding="utf-8"))["prompts"]
    fine = []
    with tempfile.TemporaryDirectory() as temporary:
        scratch = options.keep or Path(temporary)
        scratch.mkdir(parents=True, exist_ok=True)
        if "llama.cpp" in engines:
            fine.append(check_llama(options.work, scratch, golden))
        if "ferrox" in engines:
            version = subprocess.run([options.ferrox, "--version"], capture_output=True, text=True, check=True)
            print(f"ferrox: {version.stdout.strip()}")
            fine.append(check_ferrox(options.work, scratch, golden, options.ferrox))
            if options.wide:
                fine.append(check_wide(options.wide, scratch, options.ferrox))
    print("the engines agree" if all(fine) else "DISAGREEMENT")
    sys.exit(0 if all(fine) else 1)


if __name__ == "__main__":
    main()
