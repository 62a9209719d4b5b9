"""How far gradients in bf16-mixed are from fp32's, beside the reference's own autocast, over many drawn batches: of one batch a norm's
vector of 16 elements is one draw, and the ratio of two such errors may be anything.

    python autocast_draws.py f5|orpheus BINARY [--count 16]

Prints for each fixture the root of the mean square of both errors, of every gradient and of all together. Exit code 1 where one is
above 1.5 times autocast's.
"""

from __future__ import annotations

import argparse
import importlib
import math
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import torch

from compare import split

HERE = Path(__file__).resolve().parent
MOST = 1.5
# What `make_batch` of each family draws: tokens of clips; frames, tokens and dropped inputs.
SHAPES = {"orpheus": [17, 9, 25], "f5": [(31, 12, ""), (50, 20, ""), (18, 7, "")]}


def squares(want: dict[str, torch.Tensor], got: dict[str, torch.Tensor]) -> dict[str, float]:
    """Squares of relative errors, by name; `all`: of all gradients together."""
    error = {n: (got[n].double() - g.double()).square().sum().item() for n, g in want.items()}
    norm = {n: g.double().square().sum().item() for n, g in want.items()}
    each = {n: error[n] / norm[n] for n in want if norm[n] > 0}
    return each | {"all": sum(error.values()) / sum(norm.values())}


def vocabulary(family: str, directory: Path, model: torch.nn.Module) -> int:
    return model.config.vocab_size if family == "orpheus" else len((directory / "vocab.txt").read_text().splitlines())


def ours(binary: str, directory: Path, work: Path) -> dict[str, torch.Tensor]:
    args = [binary, "gradients", "--model", directory, "--batch", work / "batch.safetensors", "--out", work / "out.safetensors"]
    subprocess.run([*args, "--precision", "bf16-mixed"], check=True, capture_output=True)
    return split(work / "out.safetensors")[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", choices=SHAPES)
    parser.add_argument("binary")
    parser.add_argument("--count", type=int, default=16)
    args = parser.parse_args()
    sys.path.insert(0, str(HERE / args.family))
    reference, make = (importlib.import_module(name) for name in ("reference", "make"))
    worst = 0.0
    for directory in sorted((HERE / args.family / "fixtures").iterdir()):
        if not (directory / "expected.safetensors").exists():
            continue
        name, model = directory.name, reference.load(directory)
        own, autocast = defaultdict(float), defaultdict(float)
        for seed in range(args.count):
            clips = make.make_batch(1000 + seed, vocabulary(args.family, directory, model), SHAPES[args.family])
            want = reference.gradients(model, clips)[1]
            with torch.autocast("cpu", dtype=torch.bfloat16):
                got = {n: g.float() for n, g in reference.gradients(model, clips)[1].items()}
            with tempfile.TemporaryDirectory() as work:
                reference.save_batch(clips, Path(work) / "batch.safetensors")
                mine = ours(args.binary, directory, Path(work))
            for sums, errors in ((own, squares(want, mine)), (autocast, squares(want, got))):
                for key, square in errors.items():
                    sums[key] += square
        for key in own:
            ratio = math.sqrt(own[key] / autocast[key])
            worst = max(worst, ratio)
            print(f"{name}: {key}: {math.sqrt(own[key] / args.count):.2%}, {ratio:.2f} times autocast's")
    print(f"worst: {worst:.2f}, {MOST} allowed")
    return int(worst > MOST)


if __name__ == "__main__":
    sys.exit(main())
