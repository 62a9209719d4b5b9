"""Random EnCodecs, weights and sounds that are in no fixture, in every spelling: `ambitus codec` against transformers and audiocraft.

    python check.py BINARY [--count 6] [--seed N] [--published]

Codes must be equal in 99.9 of 100 places and the first other one of a frame be a tie: an entry no further than the nearest by what a
change of the latents by 1e-5 of their size would make (`Codec.distances`); codebooks behind a tie code another remainder and are not counted. Decoded audio within 1e-4.
--published adds the published shape (57 million parameters) on 20 seconds.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from reference import LAYOUTS, PUBLISHED, SMALL, random_codec, save, sound
from safetensors.torch import load_file, save_file

sys.path.append(str(Path(__file__).resolve().parent.parent))
from codec_check import main, run  # noqa: E402

EQUAL, TIE, AUDIO = 0.999, 1e-5, 1e-4


def random_case(rng: random.Random) -> tuple[dict, str]:
    layout, causal = rng.choice(LAYOUTS), rng.random() < 0.3
    config = dict(
        SMALL,
        upsampling_ratios=rng.choice([SMALL["upsampling_ratios"], [8, 5, 4, 2], [4, 2], [3, 5], [7], [2, 2, 3]]),
        num_filters=rng.randint(2, 8),
        hidden_size=rng.randint(2, 16),
        codebook_size=2 ** rng.randint(1, 8),
        codebooks=rng.randint(1, 6),
        sampling_rate=rng.choice([16000, 24000, 32000, 44100]),
        kernel_size=rng.choice([7, 7, 5, 4, 1]),
        last_kernel_size=rng.choice([7, 7, 3, 6, 1]),
        residual_kernel_size=rng.choice([3, 3, 5, 1]),
        num_residual_layers=rng.choice([1, 1, 2, 3]),
        dilation_growth_rate=rng.randint(1, 3),
        compress=rng.choice([2, 2, 1]),
        num_lstm_layers=rng.choice([2, 2, 1, 3]),
        use_causal_conv=causal,
        trim_right_ratio=rng.choice([1.0, 0.5, 0.0]) if causal else 1.0,
        use_conv_shortcut=rng.random() < 0.3,
        pad_mode=rng.choice(["reflect", "reflect", "constant"]),
    )
    if layout.startswith("audiocraft") and rng.random() < 0.3:
        config["num_lstm_layers"] = 0
    return config, layout


def case(binary: str, config: dict, layout: str, samples: int, seed: int, dtype: torch.dtype) -> bool:
    codec = random_codec(config, seed, layout.startswith("audiocraft"), dtype)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        save(codec, folder / "codec", layout, dtype)
        wave = sound(np.random.default_rng(seed), samples)
        save_file({"wave": torch.from_numpy(wave)}, folder / "a.safetensors")
        args = ["--codec", str(folder / "codec")]
        took, _ = run(binary, "encode", *args, "--audio", str(folder / "a.safetensors"), "--out", str(folder / "c.safetensors"))
        codes, want = load_file(folder / "c.safetensors")["codes"], codec.encode(wave)
        assert codes.dtype == torch.int64 and codes.shape == want.shape, f"codes {codes.dtype} {list(codes.shape)}, not {list(want.shape)}"
        excess, other = codec.excess(wave, codes), codes != want
        # A frame counts up to its first other code.
        counted = other.long().cumsum(0).cumsum(0) <= 1
        equal = 1 - float(other[counted].double().mean())
        worst = float(excess[counted].max())
        # All that the codes say: the file's `samples` would cut it.
        save_file({"codes": codes}, folder / "c.safetensors")
        back, _ = run(binary, "decode", *args, "--codes", str(folder / "c.safetensors"), "--out", str(folder / "b.safetensors"))
        got, audio = load_file(folder / "b.safetensors")["wave"].numpy(), codec.decode(codes)
        assert got.shape == audio.shape, f"{len(got)} samples, not {len(audio)}"
        apart = float(np.abs(got - audio).max())
    ok = equal >= EQUAL and worst <= TIE and apart <= AUDIO
    print(
        f"{'ok ' if ok else 'BAD'} {samples:7} samples, {want.shape[1]} frames, {len(set(want.flatten().tolist()))} distinct codes, equal {100 * equal:.3f} %, "
        f"worst excess {worst:.1e}, audio {apart:.1e} of {audio.std():.2f}; encode {took:.2f} s, decode {back:.2f} s; {layout} {dtype} {config}",
        flush=True,
    )
    return ok


def draw(rng: random.Random) -> tuple[dict, str, int, int, torch.dtype]:
    config, layout = random_case(rng)
    hop = int(np.prod(config["upsampling_ratios"]))
    # From less than a frame to several windows.
    frames = rng.choice([rng.randint(0, 5), rng.randint(5, 60), rng.randint(100, 400), 40_000 // hop + rng.randint(400, 1200)])
    samples = max(1, frames * hop + rng.randint(0, hop - 1))
    return config, layout, samples, rng.randrange(2**31), rng.choice([torch.float32, torch.float16])


main(case, draw, lambda seed: [(PUBLISHED, "musicgen-g-v", 640_001, seed, torch.float32)])
