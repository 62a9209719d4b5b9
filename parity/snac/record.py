"""Records what the package makes of two small codecs, for `crates/ambitus/tests/it/codec.rs`.

    VENV/bin/pip install --no-deps snac==1.2.1 einops==0.8.2 huggingface_hub
    VENV/bin/python record.py

`fixtures/strides`: the published strides with few channels, safetensors. `fixtures/dense`: odd strides, dense convolutions,
no noise blocks, weight norm in its old spelling, pytorch_model.bin. Weights are random, of 16 bits. expected.safetensors:
codes.i; audio, every STEP-th sample of what the package decodes from them. The sound that they are of is `signal`, which
the test makes again: integers only.
"""

from pathlib import Path

import numpy as np
import torch
from reference import PUBLISHED, as_float, decode, encode, excess, random_codec, save
from safetensors.torch import save_file

STEP = 17


def signal(samples: int) -> np.ndarray:
    """Two triangle waves of slowly rising pitch and a little noise (a linear congruential generator), 16 bits."""
    out, state = np.zeros(samples, dtype=np.int64), 12345
    for t in range(samples):
        state = (state * 1103515245 + 12345) % 2**31
        a, b = (t * (40 + t // 900)) % 4096, (t * 171) % 4096
        out[t] = 4 * abs(a - 2048) + 2 * abs(b - 2048) - 6144 + state // 2**20
    return out.astype(np.int16)


CASES = {
    "strides": (dict(PUBLISHED, encoder_dim=1, decoder_dim=16, codebook_size=64), 39_000, "model.safetensors", False),
    "dense": (
        dict(
            PUBLISHED,
            encoder_dim=3,
            encoder_rates=[2, 3],
            decoder_dim=10,
            decoder_rates=[3, 2],
            codebook_size=32,
            codebook_dim=4,
            vq_strides=[2, 1],
            noise=False,
            depthwise=False,
        ),
        1_001,
        "pytorch_model.bin",
        True,
    ),
}

for name, (config, samples, file, old) in CASES.items():
    model = random_codec(config, 20_261_122, torch.float16)
    folder = Path(__file__).parent / "fixtures" / name
    save(model, config, folder, file, old, torch.float16)
    x = as_float(signal(samples))
    codes = encode(model, x)
    for i, c in enumerate(codes):
        # No near ties in a fixture: the second nearest entry is further off than rounding can move it.
        others = [excess(model, x, [*codes[:i], (c + k) % config["codebook_size"]])[i] for k in range(1, config["codebook_size"])]
        margin = min(e.min() for e in others)
        print(f"{name} layer {i}: {len(c)} codes, {len(set(c.tolist()))} distinct, margin {margin:.1e}")
        assert margin > 1e-4
    y = decode(model, codes)
    print(f"{name}: {len(y)} samples, deviation {y.std():.2f}")
    out = {f"codes.{i}": torch.tensor(c, dtype=torch.int32) for i, c in enumerate(codes)}
    save_file(out | {"audio": torch.tensor(y[::STEP].copy())}, folder / "expected.safetensors")
