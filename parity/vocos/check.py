"""Random vocoders, weights and mel frames that are in no fixture: `ambitus codec decode --mel` against the package.

    python check.py BINARY [--count 6] [--seed N] [--published]

The sound must be within 1e-4 of its largest sample. --published adds the published shape (13.5 million parameters, normal weights
of 0.05) on 16 and on 1,500 frames.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from reference import PUBLISHED, config, decode, random_mel, random_vocoder, save
from safetensors.torch import load_file, save_file

sys.path.append(str(Path(__file__).resolve().parent.parent))
from codec_check import main, run  # noqa: E402

TOLERANCE = 1e-4


def random_case(rng: random.Random) -> dict:
    hop = rng.choice([256, 256, 100, 64, 7])
    n_fft = 2 * rng.randint(hop, 4 * hop) if rng.random() < 0.5 else 4 * hop
    return config(rng.choice([100, 80, 20]), rng.randint(1, 40), rng.randint(1, 80), rng.randint(1, 8), n_fft, hop, rng.choice(["center", "same"]))


def case(binary: str, shape: dict, frames: int, seed: int, file: str, scale: float) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        model = random_vocoder(shape, folder, seed, scale)
        save(model, folder, file)
        mel = random_mel(frames, shape["backbone"]["init_args"]["input_channels"], seed)
        save_file({"mel": torch.tensor(mel)}, folder / "mel.safetensors")
        took, said = run(binary, "decode", "--codec", folder, "--mel", folder / "mel.safetensors", "--out", folder / "wave.safetensors")
        got = load_file(folder / "wave.safetensors")["wave"].numpy()
    # One frame is an error of the package where it is centred: no sound.
    empty = frames == 1 and shape["head"]["init_args"]["padding"] == "center"
    want = np.zeros(0, np.float32) if empty else decode(model, mel)
    exact = np.zeros(0) if empty else decode(model.double(), mel.astype(np.float64))
    assert got.shape == want.shape, f"{got.shape} samples, the package has {want.shape}"
    largest = float(np.abs(want).max(initial=1e-30))
    off, own = (float(np.abs(a - b).max(initial=0.0)) / largest for a, b in ((got, want), (want, exact)))
    ok = off <= TOLERANCE
    head, backbone = shape["head"]["init_args"], shape["backbone"]["init_args"]
    print(
        f"{'ok ' if ok else 'BAD'} {frames:5} frames, off {off:.1e} of {largest:.2g} (the package from its own fp64: {own:.1e}); {took:.2f} s, "
        f"{said.strip().rsplit('; ')[-1]}; {file} {backbone} {head}",
        flush=True,
    )
    return ok


def draw(rng: random.Random) -> tuple:
    frames = rng.choice([1, 2, rng.randint(2, 60), rng.randint(60, 500), rng.randint(500, 2500)])
    file = rng.choice(["model.safetensors", "pytorch_model.bin"])
    return random_case(rng), frames, rng.randrange(2**31), file, rng.choice([0.05, 0.2])


main(case, draw, lambda seed: [(PUBLISHED, frames, seed, "pytorch_model.bin", 0.05) for frames in (16, 1500)])
