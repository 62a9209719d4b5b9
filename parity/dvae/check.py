"""Random DVAEs, statistics and sounds that are in no fixture: `ambitus codec` against the package.

    python check.py BINARY [--count 6] [--seed N] [--published]

Codes must be equal where the nearest codeword is nearer than the second by more than 1e-4 of the square of what is encoded; decoded
frames within 1e-5 relative L2. --published adds the published shape (51.6 million parameters).
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from reference import decode, encode, margins, mel, random_dvae, save, sound, stats
from safetensors.torch import load_file, save_file

sys.path.append(str(Path(__file__).resolve().parent.parent))
from codec_check import main, run  # noqa: E402

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
        run(binary, "encode", "--codec", folder, "--audio", folder / "a.safetensors", "--out", folder / "c.safetensors")
        got = load_file(folder / "c.safetensors")["codes"][0]
        run(binary, "decode", "--codec", folder, "--codes", folder / "c.safetensors", "--out", folder / "m.safetensors")
        back = load_file(folder / "m.safetensors")["mel"].T
    want, clear = encode(model, frames), margins(model, frames) > MARGIN
    assert got.shape == want.shape, f"{got.shape} codes, the package has {want.shape}"
    wrong, near = int((got != want)[clear].sum()), int((~clear).sum())
    again = decode(model, got)
    off = float((back - again).norm() / again.norm())
    ok = wrong == 0 and off <= FRAMES
    print(f"{'ok ' if ok else 'BAD'} {sizes} {samples} samples: {len(want)} codes, {len(set(want.tolist()))} distinct, {near} near ties, {wrong} wrong; frames off {off:.1e}", flush=True)
    return ok


def draw(rng: random.Random) -> tuple:
    sizes = (rng.randint(1, 40), rng.randint(1, 60), rng.randint(1, 200), rng.randint(1, 4))
    samples = rng.choice([rng.randint(513, 3000), 1024 * rng.randint(1, 40), rng.randint(3000, 100_000), rng.randint(300_000, 900_000)])
    return sizes, samples, rng.randrange(2**31)


main(case, draw, lambda seed: [((512, 512, 1024, 3), 400_000, seed)])
