"""Records how far the reference's own bf16 autocast is from its fp32, for each fixture of a family: fixtures/NAME/autocast.json.

    python autocast.py f5|orpheus

`all` is the error of all gradients together, `gradients` that of each: |delta| over max(|g|, the floor of compare.py).
"""

from __future__ import annotations

import importlib
import json
import math
import sys
from pathlib import Path

import torch

from compare import compare

HERE = Path(__file__).resolve().parent


def main() -> None:
    family = HERE / sys.argv[1]
    sys.path.insert(0, str(family))
    reference = importlib.import_module("reference")
    for directory in sorted((family / "fixtures").iterdir()):
        if not (directory / "expected.safetensors").exists():
            continue
        model, clips = reference.load(directory), reference.load_batch(directory / "batch.safetensors")
        _, want = reference.gradients(model, clips)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            _, got = reference.gradients(model, clips)
        rows, wrong = compare(want, {n: g.float() for n, g in got.items()}, 1.0)
        assert not wrong, wrong
        square = lambda tensors: sum(t.double().square().sum().item() for t in tensors)  # noqa: E731
        together = math.sqrt(square(got[n] - want[n] for n in want) / square(want.values()))
        errors = {f"grad.{r.name}": float(f"{r.ratio:.4g}") for r in sorted(rows, key=lambda r: r.name)}
        record = {"all": float(f"{together:.4g}"), "gradients": errors}
        (directory / "autocast.json").write_text(json.dumps(record, indent=1) + "\n")
        print(f"{directory.name}: all {together:.4%}, worst {rows[0].ratio:.4f} at {rows[0].name}")


if __name__ == "__main__":
    main()
