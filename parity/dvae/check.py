"""Random DVAEs, statistics and sounds that are in no fixture: `ambitus codec` against the package.

    python check.py BINARY [--count 6] [--seed N] [--published]

Codes must be equal where the nearest codeword is nearer than the second by more than 1e-4 of the square of what is encoded; decoded
frames within 1e-5 relative L2. --published adds the published shape (51.6 million parameters).
"""

from __future__ import annotations

import argparse
import random
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import torch
from reference import decode, encode, margins, mel, random_dvae, save, sound, stats
from safetensors.torch import load_file, save_file

MARGIN, FRAMES = 1e-4, 1e-5


@torch.no_grad()
def case(binary: str, sizes: tuple, samples: int, seed: int) -> bool:
    norms, wave = stats(80, seed), sound(np.random.default_rng(seed), samples)
    frames = mel(wave, norms)
    model = random_dvae(mel(sound(np.random.default_rng(seed + 1), 60_000), norms), *sizes, seed)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        save(model, norms, folder)
        save_file({"wave": torch.from_numpy(wave)}, folder / "a.safetensors")

        def run(*args: str) -> None:
            subprocess.run([binary, "codec", args[0], "--codec", folder, *args[1:]], check=True, stderr=subprocess.DEVNULL, cwd=folder)

        run("encode", "--audio", "a.safetensors", "--out", "c.safetensors")
        got = load_file(folder / "c.safetensors")["codes"][0]
        run("decode", "--codes", "c.safetensors", "--out", "m.safetensors")
        back = load_file(folder / "m.safetensors")["mel"].T
    want, clear = encode(model, frames), margins(model, frames) > MARGIN
    assert got.shape == want.shape, f"{got.shape} codes, the package has {want.shape}"
    wrong, near = int((got != want)[clear].sum()), int((~clear).sum())
    again = decode(model, got)
    off = float((back - again).norm() / again.norm())
    ok = wrong == 0 and off <= FRAMES
    print(f"{'ok ' if ok else 'BAD'} {sizes} {samples} samples: {len(want)} codes, {len(set(want.tolist()))} distinct, {near} near ties, {wrong} wrong; frames off {off:.1e}", flush=True)
    return ok


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("binary", type=lambda path: str(Path(path).resolve()))
    parser.add_argument("--count", type=int, default=6)
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    parser.add_argument("--published", action="store_true")
    args = parser.parse_args()
    print("seed", args.seed)
    rng, ok = random.Random(args.seed), True
    for _ in range(args.count):
        sizes = (rng.randint(1, 40), rng.randint(1, 60), rng.randint(1, 200), rng.randint(1, 4))
        samples = rng.choice([rng.randint(513, 3000), 1024 * rng.randint(1, 40), rng.randint(3000, 100_000), rng.randint(300_000, 900_000)])
        ok &= case(args.binary, sizes, samples, rng.randrange(2**31))
    if args.published:
        ok &= case(args.binary, (512, 512, 1024, 3), 400_000, args.seed)
    raise SystemExit(0 if ok else 1)


main()
