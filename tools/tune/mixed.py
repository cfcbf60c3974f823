"""Float drafters with one class of matrices taken from a ternary one: which of them costs how many tokens.

    ternarize convert model.gguf -o back/model.safetensors --format f32
    python tools/tune/mixed.py --drafter D/ --ternary back/model.safetensors -o MIXED
    drafter eval -t T.gguf -d float=D/ $(cat MIXED/arguments)

Writes a folder per class with model.safetensors and config.json, `all` included, and
`arguments`, what `drafter eval` takes to compare them.
"""

import argparse
import re
import shutil
from pathlib import Path

import tensors

CLASSES = {
    "all": r".",
    "fc": r"^fc\b",
    "kernel_projection": r"kernel_projection",
    "q,k": r"[qk]_proj",
    "v,o": r"[vo]_proj",
    "gate,up": r"(gate|up)_proj",
    "down": r"down_proj",
    "hidden_projection": r"hidden_projection",
}


def classes(names: list[str]) -> dict[str, list[str]]:
    """The matrices of each class that has some, and those of each layer."""
    layers = sorted({int(found[1]) for name in names if (found := re.search(r"layers\.(\d+)\.", name))})
    patterns = CLASSES | {f"layer {n}": rf"layers\.{n}\." for n in layers}
    chosen = {label: [name for name in names if re.search(pattern, name)] for label, pattern in patterns.items()}
    return {label: some for label, some in chosen.items() if some}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--drafter", type=Path, required=True, metavar="FOLDER", help="float drafter with its config.json")
    parser.add_argument("--ternary", type=Path, required=True, metavar="FILE", help="of `ternarize convert --format f32`")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FOLDER")
    options = parser.parse_args()
    given, ternary = tensors.File(options.drafter / "model.safetensors"), tensors.File(options.ternary)
    matrices = [name for name in given.about if len(given.shape(name)) == 2 and "codebook" not in name]
    for name in matrices:
        if name not in ternary.about or ternary.shape(name) != given.shape(name):
            raise SystemExit(f"{ternary.path}: `{name}`: expected {list(given.shape(name))} as in {given.path}")
    arguments = []
    for label, some in classes(matrices).items():
        folder = options.output / label.replace(",", "").replace(" ", "")
        folder.mkdir(parents=True, exist_ok=True)
        out = {}
        for name in given.about:
            file, kind = (ternary, "F32") if name in some else (given, given.about[name]["dtype"])
            out[name] = (kind, file.shape(name), lambda file=file, name=name: file[name])
        tensors.write(folder / "model.safetensors", out)
        shutil.copyfile(options.drafter / "config.json", folder / "config.json")
        arguments.append(f"-d {folder.name}={folder}")
    (options.output / "arguments").write_text(" ".join(arguments) + "\n")


if __name__ == "__main__":
    main()
