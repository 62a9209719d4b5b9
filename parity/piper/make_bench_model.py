"""Writes the model, clips and batch of the side-by-side with PyTorch (`benches/peers/run.py --peer piper`).

    PIPER1=/path/to/piper1-gpl python make_bench_model.py DIR [--clips 8] [--frames 188] [--phonemes 100]

DIR/model      a voice as the published ones of low quality (16 kHz, 256 symbols, stochastic durations) at half their widths, the
               discriminators' too; random weights, no optimizer's state
DIR/data       the clips as 16 kHz WAV, each of `frames` frames (three seconds), and metadata.csv with `phonemes` ids of each
DIR/batch.safetensors   the same clips with spectrograms, noise and slices (`ambitus gradients` and the peer read it)
"""

from __future__ import annotations

import argparse
import wave
from pathlib import Path

import torch
from make import hyper_parameters, make_batch, make_model
from reference import Clip, save_batch

RATE, WIDTH = 16000, 96
# Groups are those of the published discriminator: half as many channels in each.
SIZES = dict(scale=(8, 32, 128, 512, 512, 512), groups=(1, 4, 16, 64, 256, 1), period=(16, 64, 256, 512, 512))


def low() -> dict:
    """Hyper-parameters of a voice of low quality at half its widths."""
    return hyper_parameters(
        sample_rate=RATE, num_symbols=256, kernels=(3, 5, 7), dilations=((1, 2), (2, 6), (3, 12)), rates=(8, 8, 4), channels=128, up_kernels=(16, 16, 8),
        filter_length=1024, win_length=1024, segment_size=8192, mel_channels=80, inter=WIDTH, hidden=WIDTH, filters=4 * WIDTH, heads=2, layers=6,
    )  # fmt: skip


def write_clip(data: Path, i: int, clip: Clip) -> str:
    """Writes the sound, whose digits 16 bits hold; returns its line of the metadata."""
    values = (clip.wave * 32768).clamp(max=32767).to(torch.int16)
    with wave.open(str(data / f"clip{i}.wav"), "wb") as file:
        file.setparams((1, 2, RATE, len(values), "NONE", ""))
        file.writeframes(values.numpy().astype("<i2").tobytes())
    return f"clip{i}.wav|clip {i}|{' '.join(map(str, clip.phoneme_ids.tolist()))}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--clips", type=int, default=8)
    parser.add_argument("--frames", type=int, default=188)
    parser.add_argument("--phonemes", type=int, default=100)
    args = parser.parse_args()

    said, data = low(), args.directory / "data"
    data.mkdir(parents=True, exist_ok=True)
    make_model(args.directory / "model", 5, said, SIZES, gain=0.5)
    clips = make_batch(5, said, [(args.phonemes, args.frames)] * args.clips)
    (data / "metadata.csv").write_text("".join(write_clip(data, i, c) for i, c in enumerate(clips)), encoding="utf-8")
    save_batch(clips, args.directory / "batch.safetensors")
    print(f"{args.directory}: model, {len(clips)} clips of {args.frames} frames ({args.frames * said['hop_length'] / RATE:.3f} s) and {args.phonemes} phonemes")


if __name__ == "__main__":
    main()
