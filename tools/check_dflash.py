"""Loads a converted drafter into the reference model class of the `dflash` package.

    pip install torch transformers dflash==0.1.0 safetensors
    ternarize convert model.q4nx -o drafter/model.safetensors
    python tools/check_dflash.py drafter

The folder holds the safetensors that `ternarize convert` wrote and the
config.json beside it. The class must find every tensor it has and leave none
over, whichever way the codebooks are spelled, and hold the file's values.
"""

import sys
from pathlib import Path

import torch
from dflash.model import DFlash2DraftModel
from safetensors.torch import load_file


def main(folder: str) -> None:
    # The class maps the published spelling of the codebooks to its own.
    model, found = DFlash2DraftModel.from_pretrained(
        folder, dtype=torch.bfloat16, output_loading_info=True
    )
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not found[problem], f"{problem}: {sorted(found[problem])}"
    weights = load_file(Path(folder) / "model.safetensors")
    parameters = dict(model.named_parameters())
    assert len(parameters) == len(weights), (len(parameters), len(weights))
    for name, value in weights.items():
        held = parameters[name if name in parameters else f"{name}.weight"]
        assert torch.equal(held.data, value.to(held.dtype)), f"{name} differs"
    print(f"{folder}: {len(weights)} tensors, all found and equal in DFlash2DraftModel")


if __name__ == "__main__":
    main(sys.argv[1])
