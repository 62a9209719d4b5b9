"""Random models and batches in 16 bits: how far each gradient is from fp32's, beside the package under torch.autocast.

    python precision_sweep.py BINARY [--count 10] [--seed N]

A gradient holds within 2e-2 (relative L2, of its norm or the floor of check.py), or within 1.5 x the error of the
package's own bf16 autocast on the same model and clips. Everything is compared with the package in fp32.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import check  # noqa: F401 (puts the folder of compare on the path)
from compare import compare, split
from make import make_batch, make_model
from reference import gradients, load, load_batch, save_batch
from sweep import random_case

WITHIN, OF_AUTOCAST = 2e-2, 1.5
PRECISIONS = ("bf16-mixed", "fp16-mixed", "bf16-pure")


def errors(want: dict[str, torch.Tensor], got: dict[str, torch.Tensor]) -> dict[str, float]:
    rows, wrong = compare(want, got, 1.0)
    if wrong:
        raise SystemExit("\n".join(wrong))
    return {row.name: row.ratio for row in rows}


def run_case(binary: str, work: Path, seed: int) -> int:
    """Number of gradients that hold neither bound."""
    model, shapes = random_case(random.Random(seed))
    directory, batch = work / "model", work / "batch.safetensors"
    make_model(directory, seed, **model)
    save_batch(make_batch(seed, model["vocab_size"], shapes), batch)
    package, clips = load(directory), load_batch(batch)
    _, want = gradients(package, clips)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, under_autocast = gradients(package, clips)
    autocast = errors(want, {n: g.float() for n, g in under_autocast.items()})
    print(f"case {seed}: {model} clips {shapes}\n  autocast    worst {max(autocast.values()):.4f}", flush=True)
    failures = 0
    for precision in PRECISIONS:
        out = work / f"{precision}.safetensors"
        command = [binary, "gradients", "--model", str(directory), "--batch", str(batch), "--out", str(out), "--precision", precision]
        subprocess.run(command, check=True, capture_output=True)
        ours = errors(want, split(out)[1])
        outside = {n: e for n, e in ours.items() if e > max(WITHIN, OF_AUTOCAST * autocast[n])}
        above = sum(e > WITHIN for e in ours.values())
        print(f"  {precision}  worst {max(ours.values()):.4f}, {above} of {len(ours)} above {WITHIN}, {len(outside)} outside both bounds", flush=True)
        for name, error in sorted(outside.items(), key=lambda x: -x[1])[:4]:
            print(f"    FAIL {name}: {error:.4f}, autocast {autocast[name]:.4f}")
        failures += len(outside)
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--seed", type=int, default=None, help="of the first case; random when absent")
    args = parser.parse_args()
    first = random.SystemRandom().randrange(1_000_000) if args.seed is None else args.seed
    failed = []
    for seed in range(first, first + args.count):
        with tempfile.TemporaryDirectory() as work:
            if run_case(args.binary, Path(work), seed):
                failed.append(seed)
    print(f"{args.count - len(failed)} of {args.count} cases hold" + (f"; failed: {failed}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
