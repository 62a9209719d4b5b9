"""Random DACs, weights and sounds that are in no fixture, in every spelling: `ambitus codec` against transformers.

    python check.py BINARY [--count 6] [--seed N] [--published]

Codes must be equal in 99.9 of 100 places and every other be a tie: an entry no more than 1e-5 further (relative, squared
distance) than the nearest. Decoded audio within 1e-4. --published adds the published shape (77 million parameters) on 5 seconds.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from reference import EVEN, LAYOUTS, ODD, decode, encode, excess, random_codec, save, sound
from safetensors.torch import load_file, save_file

sys.path.append(str(Path(__file__).resolve().parent.parent))
from codec_check import main, run  # noqa: E402

EQUAL, TIE, AUDIO = 0.999, 1e-5, 1e-4
PUBLISHED = dict(EVEN, encoder_hidden_size=64, decoder_hidden_size=1536, codebook_size=1024)


def random_case(rng: random.Random) -> tuple[dict, str]:
    """A configuration and a layout. descript's names carry no strides and widths: they are read from the tensors."""
    base, layout = rng.choice([EVEN, ODD]), rng.choice(LAYOUTS)
    rates = rng.choice([base["downsampling_ratios"], [2, 4], [3, 5], [8, 8], [2, 2, 2], [7]])
    dim = 8 if layout.startswith("parler-g") or layout.startswith("parler-o") else rng.choice([2, 8, 11])
    return dict(
        base,
        downsampling_ratios=rates,
        encoder_hidden_size=rng.randint(1, 8),
        decoder_hidden_size=rng.randint(1, 6) * 2 ** len(rates),
        n_codebooks=rng.choice([1, 4, 9]),
        # Directions of few channels lie close: of two channels, a hundred entries are near ties that rounding decides.
        codebook_size=2 ** rng.randint(1, 10 if dim > 2 else 5),
        codebook_dim=dim,
    ), layout


def case(binary: str, config: dict, layout: str, frames: int, seed: int, dtype: torch.dtype) -> bool:
    model, hop = random_codec(config, seed, dtype), int(np.prod(config["downsampling_ratios"]))
    samples = max(1, frames * hop + random.Random(seed).randint(0, hop - 1))
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        save(model, folder / "codec", layout, dtype)
        wave = sound(np.random.default_rng(seed), samples)
        save_file({"wave": torch.from_numpy(wave)}, folder / "a.safetensors")
        codec = ["--codec", folder / "codec"]
        took, _ = run(binary, "encode", *codec, "--audio", folder / "a.safetensors", "--out", folder / "c.safetensors")
        codes, want = load_file(folder / "c.safetensors")["codes"], encode(model, wave)
        assert codes.dtype == torch.int64 and codes.shape == want.shape, f"codes {codes.dtype} {list(codes.shape)}, not {list(want.shape)}"
        equal = float((codes == want).double().mean())
        worst = float(excess(model, wave, codes).max())
        back, _ = run(binary, "decode", *codec, "--codes", folder / "c.safetensors", "--out", folder / "b.safetensors")
        got, audio = load_file(folder / "b.safetensors")["wave"].numpy(), decode(model, codes)
        assert got.shape == audio.shape, f"{len(got)} samples, not {len(audio)}"
        apart = float(np.abs(got - audio).max())
    ok = equal >= EQUAL and worst <= TIE and apart <= AUDIO
    print(
        f"{'ok ' if ok else 'BAD'} {samples:7} samples, {want.shape[1]} frames, {len(set(want.flatten().tolist()))} distinct codes, equal {100 * equal:.3f} %, "
        f"worst excess {worst:.1e}, audio {apart:.1e} of {audio.std():.2f}; encode {took:.2f} s, decode {back:.2f} s; {layout} {dtype} {config}",
        flush=True,
    )
    return ok


def draw(rng: random.Random) -> tuple:
    config, layout = random_case(rng)
    # From one frame to several windows.
    frames = rng.choice([rng.randint(1, 5), rng.randint(5, 60), rng.randint(100, 250)])
    return config, layout, frames, rng.randrange(2**31), rng.choice([torch.float32, torch.float16])


main(case, draw, lambda seed: [(PUBLISHED, "parler-g-v", 430, seed, torch.float32)])
