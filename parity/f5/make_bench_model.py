"""Writes the model, clips and batch of the side-by-side with PyTorch.

    python make_bench_model.py DIR [--clips 4] [--frames 256]

DIR/model      DiT v1, dim 512, depth 8, heads 8, ff_mult 2, text_dim 256, 4 text convolutions, vocabulary 256 (random weights)
DIR/data       the clips as 24 kHz WAV with same-name .txt, each exactly `frames` mel frames; one more, `held_out`
DIR/batch.safetensors   the same clips' mels by the package, with noise, times and spans (`ambitus gradients` and the peer read it)
"""

from __future__ import annotations

import argparse
from pathlib import Path

import soundfile
import torch

from make import make_clip, make_model, vocab
from reference import save_batch
from f5_tts.model.modules import get_vocos_mel_spectrogram

RATE, HOP, VOCAB = 24_000, 256, 256
TEXTS = ["Four clips of equal length, read by nobody at all.", "The same frames for both, and no padding anywhere.", "A hum with a slow vibrato stands in for a voice.", "Nothing here is learned, it is only timed."]


def voice(samples: int, pitch: float) -> torch.Tensor:
    """A buzzing tone with vibrato, a slow envelope and some noise; [samples], peak about 0.5."""
    t = torch.arange(samples, dtype=torch.float64) / RATE
    phase = torch.cumsum(2 * torch.pi * pitch * (1 + 0.03 * torch.sin(2 * torch.pi * 5 * t)) / RATE, 0)
    tone = sum(torch.sin(k * phase) / k for k in range(1, 12))
    envelope = 0.6 + 0.4 * torch.sin(2 * torch.pi * 3 * t)
    wave = tone * envelope + 0.02 * torch.randn(samples, dtype=torch.float64)
    return (0.5 * wave / wave.abs().max()).float()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--clips", type=int, default=4)
    parser.add_argument("--frames", type=int, default=256)
    args = parser.parse_args()

    make_model(
        args.directory / "model", seed=5, variant="v1", vocab_size=VOCAB, tokenizer="char",
        dim=512, depth=8, heads=8, ff_mult=2, text_dim=256, conv_layers=4,
    )  # fmt: skip
    data = args.directory / "data"
    data.mkdir(exist_ok=True)
    ids = {token: i for i, token in enumerate(vocab(VOCAB))}
    torch.manual_seed(6)
    clips = []
    for i in range(args.clips + 1):
        name, text = f"clip{i}" if i < args.clips else "held_out", TEXTS[i % len(TEXTS)]
        soundfile.write(data / f"{name}.wav", voice((args.frames - 1) * HOP, 110 + 17 * i).numpy(), RATE, subtype="PCM_16")
        (data / f"{name}.txt").write_text(text + "\n", encoding="utf-8")
        if i == args.clips:
            continue
        wave, _ = soundfile.read(data / f"{name}.wav", dtype="float32")
        clip = make_clip(args.frames, 1, VOCAB)
        clip.mel = get_vocos_mel_spectrogram(torch.from_numpy(wave)[None])[0].T.contiguous()
        clip.text = torch.tensor([ids[c] for c in text])
        assert clip.frames == args.frames
        clips.append(clip)
    save_batch(clips, args.directory / "batch.safetensors")
    print(f"{args.directory}: model, {len(clips)} clips of {args.frames} frames")


if __name__ == "__main__":
    main()
