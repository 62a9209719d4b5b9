"""Random codecs, weights and sounds that are in no fixture: `ambitus codec` against the package.

    python check.py BINARY [--count 6] [--seed N] [--published]

Codes must be equal in 99.9 of 100 places and every other be a tie: an entry no more than 1e-5 further (relative, squared
distance) than the nearest. Decoded audio within 1e-4, which includes the wav file's 16 bits. --published adds the published
shape (20 million parameters) on 20 seconds.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from pathlib import Path

import numpy as np
import soundfile
from reference import PUBLISHED, as_float, decode, encode, excess, frame, fresh_codec, random_codec, save, sound, write_wav

sys.path.append(str(Path(__file__).resolve().parent.parent))
from codec_check import main, run  # noqa: E402

EQUAL, TIE, AUDIO = 0.999, 1e-5, 1e-4


def random_case(rng: random.Random) -> dict:
    rates = rng.choice([[2, 4, 8, 8], [2, 4, 8, 8], [3, 3, 7, 7], [2, 3], [4, 5, 2], [8, 8], [2, 2, 2, 2, 2], [5], [6, 10]])
    encoder_dim = rng.randint(1, 12)
    return dict(
        PUBLISHED,
        encoder_dim=encoder_dim,
        encoder_rates=rates,
        decoder_dim=rng.randint(1, 12) * 2 ** len(rates) + rng.choice([0, 0, 1, 3]),
        decoder_rates=rng.sample(rates, len(rates)) if rng.random() < 0.3 else rates[::-1],
        codebook_size=rng.choice([1, 7, 100, 1024, 4096]),
        codebook_dim=rng.choice([1, 4, 8, 8, 11]),
        vq_strides=rng.choice([[4, 2, 1], [4, 2, 1], [8, 4, 2, 1], [1], [2, 2], [6, 3, 2, 1]]),
        noise=rng.random() < 0.7,
        depthwise=rng.random() < 0.7,
    )


def case(binary: str, config: dict, samples: int, seed: int, file: str, old: bool, fresh: bool) -> bool:
    model = (fresh_codec if fresh else random_codec)(config, seed)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        save(model, config, folder, file, old)
        ints = sound(np.random.default_rng(seed), samples)
        write_wav(folder / "a.wav", ints)
        codec = ["--codec", folder]
        took, _ = run(binary, "encode", *codec, "--audio", folder / "a.wav", "--out", folder / "c.json")
        got = json.loads((folder / "c.json").read_text())
        assert got["sample_rate"] == 24000 and got["samples"] == samples
        x = as_float(ints)
        want, layers = encode(model, x), got["codes"]
        assert [len(c) for c in layers] == [len(c) for c in want], "lengths differ"
        pairs = [(a, b) for c, d in zip(layers, want) for a, b in zip(c, d.tolist())]
        equal = sum(a == b for a, b in pairs) / len(pairs)
        worst = max(float(e.max()) for e in excess(model, x, layers))
        back, _ = run(binary, "decode", *codec, "--codes", folder / "c.json", "--out", folder / "b.wav")
        y, rate = soundfile.read(folder / "b.wav", dtype="float32")
        z = decode(model, layers)[:samples]
        assert rate == 24000 and len(y) == samples, f"{len(y)} samples at {rate} Hz"
        audio = float(np.abs(y - z).max())
    ok = equal >= EQUAL and worst <= TIE and audio <= AUDIO
    seconds = samples / 24000
    print(
        f"{'ok ' if ok else 'BAD'} {seconds:6.2f} s, frame {frame(config):5}, {len(pairs)} codes ({len(set(pairs))} distinct), equal "
        f"{100 * equal:.3f} %, worst excess {worst:.1e}, audio {audio:.1e} of {z.std():.2f}; encode {took:.2f} s, decode {back:.2f} s; "
        f"{file}{' old' if old else ''}{' fresh' if fresh else ''} {config}",
        flush=True,
    )
    return ok


def draw(rng: random.Random) -> tuple:
    config = random_case(rng)
    # From less than a frame to several windows of about three seconds.
    samples = rng.choice([rng.randint(1, 3000), rng.randint(3000, 70_000), rng.randint(70_000, 400_000)])
    file = rng.choice(["model.safetensors", "pytorch_model.bin"])
    return config, samples, rng.randrange(2**31), file, rng.random() < 0.5, rng.random() < 0.3


main(case, draw, lambda seed: [(PUBLISHED, 480_000, seed, "pytorch_model.bin", False, False)])
