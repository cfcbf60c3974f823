"""The tuner's export comes back from `ternarize` to the bit, and a short run of the tuner does too.

    python tests/tune.py TARGET_DIR

TARGET_DIR has the programs `ternarize` and `drafter`. Needs numpy. Without PyTorch the
run is skipped and said so; what it exports with is tested all the same.
"""

import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
PAIR = ROOT / "tests/fixtures/pair"
TUNE = ROOT / "tools/tune"
sys.path.insert(0, str(TUNE))

import grid  # noqa: E402
import tensors  # noqa: E402

BLOCK = 256


def run(*words: object, code: int = 0) -> str:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    assert done.returncode == code, f"{words}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def matrices(file: tensors.File) -> list[str]:
    return [name for name in file.about if len(file.shape(name)) == 2 and "codebook" not in name]


def same(path: Path, expected: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
    made = grid.Ternary(path)
    for name, (codes, scales) in expected.items():
        found_codes, found_scales = made.matrix(name)
        assert np.array_equal(found_codes, codes), f"{name}: codes"
        assert np.array_equal(found_scales, scales), f"{name}: scales"


def moved(codes: np.ndarray, scales: np.ndarray, random) -> tuple[np.ndarray, np.ndarray]:
    """Other codes and scales, as tuning makes them, and some groups of nothing but zeros."""
    codes = np.where(random.random(codes.shape) < 0.2, random.integers(-1, 2, codes.shape), codes)
    codes = codes.astype(np.int8).reshape(len(codes), -1, grid.GROUP)
    codes[random.random(scales.shape) < 0.05] = 0
    scales = grid.to_grid(scales * random.uniform(0.4, 2.5, scales.shape)).astype(np.float32)
    return codes.reshape(len(codes), -1), np.where(codes.any(-1), scales, 0).astype(np.float32)


def export(ternarize: Path, folder: Path) -> None:
    """Changed codes and scales of every matrix, through f32 in the plain basis and back."""
    file = tensors.File(PAIR / "drafter/model.safetensors")
    run(ternarize, PAIR / "drafter", "--block", BLOCK, "-o", folder / "start.gguf")
    start = grid.Ternary(folder / "start.gguf")
    assert start.block == BLOCK
    random = np.random.default_rng(3)
    expected = {name: moved(*start.matrix(name), random) for name in matrices(file)}
    assert len(expected) == 20

    def values(name: str):
        if name in expected:
            return "F32", file.shape(name), lambda: grid.unrotated(name, *expected[name], BLOCK)
        return "BF16", file.shape(name), lambda: file[name]

    path = folder / "model.safetensors"
    tensors.write(path, {name: values(name) for name in file.about})
    (folder / "config.json").write_bytes((PAIR / "drafter/config.json").read_bytes())
    for name in ("norm.weight", "candidate_selector.predecessor_codebook", "layers.1.mlp_conv.base_kernel"):
        assert np.array_equal(tensors.File(path)[name], file[name]), name
    for rule in ("ternary", "optimal"):
        out = folder / f"{rule}.gguf"
        run(ternarize, path, "--rule", rule, "--block", BLOCK, "-o", out)
        same(out, expected)
    # The same file in another rotation, and the float drafter, are not ternary.
    for given, block in ((path, 128), (PAIR / "drafter", BLOCK)):
        said = run(ternarize, given, "--rule=ternary", "--block", block, "-o", folder / "no.gguf", code=3)
        assert "ternary in rotation blocks" in said, said
    try:
        grid.unrotated("far", np.ones((1, 256), np.int8), np.array([[2.0**-14, 60000.0]]), BLOCK)
        raise AssertionError("scales too far apart for f32 were exported")
    except SystemExit as error:
        assert "`far`: row 0 does not survive" in str(error)
    print("export: codes and scales of 20 matrices came back to the bit")


def cost() -> None:
    """The figures of the published drafter against those of its card."""
    published = ROOT / "tests/fixtures/published-drafter"
    said = run(sys.executable, TUNE / "tune.py", "--dry-run", "--target", "t", "--drafter", published)
    assert "1,796,997,120 weights in ternary matrices, 1,796,997,120 of them tuned" in said, said
    some = run(
        sys.executable, TUNE / "tune.py", "--dry-run", "--target", "t", "--drafter", published,
        "--only", "v_proj,o_proj",
    )  # fmt: skip
    assert f"{5 * (1024 * 5120 + 5120 * 4096):,} of them tuned" in some, some
    print("cost: " + said.splitlines()[-2])


def tuned(ternarize: Path, drafter: Path, folder: Path) -> None:
    """Two steps on nine answers, in one go and stopped between them, and of a float drafter."""
    lines = (PAIR / "prompts.jsonl").read_text().splitlines()
    (folder / "prompts.jsonl").write_text("\n".join(lines[:9]) + "\n")
    labels = folder / "labels"
    models = ("--target", PAIR / "target.gguf", "--drafter", PAIR / "drafter")
    run(drafter, "capture", *models, "--prompts", folder / "prompts.jsonl", "-n", 24, "--labels", labels)
    common = (
        *models, "--labels", labels, "--sequences", 2, "--anchors", 4, "--held", 1,
    )  # fmt: skip
    whole = ("--start", folder / "start.gguf", "--steps", 2)
    run(sys.executable, TUNE / "tune.py", *common, *whole, "-o", folder / "whole")
    run(sys.executable, TUNE / "tune.py", *common, *whole, "-o", folder / "stopped", "--stop-after", 1)
    assert not (folder / "stopped/model.safetensors").exists()
    run(sys.executable, TUNE / "tune.py", *common, *whole, "-o", folder / "stopped")
    both = [(folder / name / "model.safetensors").read_bytes() for name in ("whole", "stopped")]
    assert both[0] == both[1], "going on gave another drafter"
    # At this rate two steps move codes; at none, nothing moves.
    fast = ("--start", folder / "start.gguf", "--steps", 2, "--rate", 0.5, "--scale-rate", 0.05)
    run(sys.executable, TUNE / "tune.py", *common, *fast, "-o", folder / "fast")
    some = ("--start", folder / "start.gguf", "--steps", 2, "--only", "v_proj", "--rest-rate", 0, "--rate", 0.5)
    run(sys.executable, TUNE / "tune.py", *common, *some, "-o", folder / "some")
    start = grid.Ternary(folder / "start.gguf")
    for name in ("whole", "fast", "some"):
        said = np.load(folder / name / "codes.npz")
        names = [key.removesuffix(".codes") for key in said.files if key.endswith(".codes")]
        assert len(names) == 20
        expected = {key: (said[f"{key}.codes"], said[f"{key}.scales"]) for key in names}
        made = folder / f"{name}.gguf"
        run(ternarize, folder / name, "--rule=ternary", "--block", BLOCK, "-o", made)
        same(made, expected)
        changed = {key for key in names if not np.array_equal(expected[key][0], start.matrix(key)[0])}
        if name == "fast":
            assert len(changed) == 20, changed
        if name == "some":
            assert changed == {f"layers.{layer}.self_attn.v_proj.weight" for layer in (0, 1)}, changed
            rest = tensors.File(folder / "some/model.safetensors")["norm.weight"]
            assert np.array_equal(rest, tensors.File(PAIR / "drafter/model.safetensors")["norm.weight"])
    run(sys.executable, TUNE / "tune.py", *common, "--float", "--steps", 1, "-o", folder / "float")
    run(ternarize, folder / "float", "--block", BLOCK, "-o", folder / "float.gguf")
    history = json.loads((folder / "whole/tuning.json").read_text())["history"]
    assert [entry["step"] for entry in history] == [0, 1, 2], history
    print("tuning: what two steps made came back to the bit")


def main() -> None:
    programs = Path(sys.argv[1])
    ternarize, drafter = programs / "ternarize", programs / "drafter"
    with tempfile.TemporaryDirectory() as folder:
        export(ternarize, Path(folder))
        cost()
        if importlib.util.find_spec("torch") is None:
            print("tuning: skipped, PyTorch is not installed here")
        else:
            tuned(ternarize, drafter, Path(folder))


if __name__ == "__main__":
    main()
