"""How far codes of a segment that is encoded alone are from those of the same frames within the whole sound: random EnCodecs, transformers.

    python segments.py [--seed N] [--published]

A segment begins with an empty memory and with reflected ends. For each codebook: codes that are equal, in per cent, of the frames from the
segment's start on (0-4, 5-19, 20-49, ...) and of its last five, and of all. A codebook behind another code codes another remainder, so
the first codebook says what the latents do.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from reference import PUBLISHED, SMALL, random_codec, sound

PARTS = ((0, 5), (5, 20), (20, 50), (50, 100), (100, 250), (250, 1495), (1495, 1500))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--published", action="store_true")
    args = parser.parse_args()
    config = dict(PUBLISHED) if args.published else dict(SMALL, num_filters=8, hidden_size=32, codebook_size=256)
    codec, hop, frames = random_codec(config, args.seed), 640, 1500
    wave = sound(np.random.default_rng(args.seed), 3 * frames * hop)
    whole = codec.encode(wave)
    starts = (frames // 2, frames)
    same = torch.stack([codec.encode(wave[s * hop : (s + frames) * hop]) == whole[:, s : s + frames] for s in starts])
    latents, alone = codec.latents(wave), codec.latents(wave[starts[0] * hop : (starts[0] + frames) * hop])
    apart = (latents[:, starts[0] : starts[0] + frames] - alone).norm(dim=0) / latents.norm(dim=0).mean()
    print(f"{len(starts)} segments of {frames} frames, seed {args.seed}, {config}")
    for low, high in PARTS:
        part = same[:, :, low:high].double().mean((0, 2)) * 100
        print(f"frames {low:4}-{high - 1:4}: equal {', '.join(f'{x:.1f}' for x in part)} %; latents apart by {float(apart[low:high].max()):.1e} of their size at most")
    print(f"all: equal {', '.join(f'{x:.2f}' for x in same.double().mean((0, 2)) * 100)} %")


main()
