"""Records what the package makes of small generators and of a small speaker encoder, for the tests of `ambitus-families`.

    VENV/bin/pip install coqui-tts==0.28.0 transformers==4.57.6
    VENV/bin/python record.py

All weights are random, of 16 bits. fixtures/NAME.pth: a state dict; fixtures/NAME.safetensors: what goes in and comes out.

    single    ResBlock2 in the shape of a small VITS decoder, its last convolution with a bias, a voice at its input:
              `frames` [T, C], `voice` [V], `audio` [n]
    decoder   `{"model": {...}}` with the speech model's vocoder (ResBlock1, its own interpolations and strides) and a
              speaker encoder under `hifigan_decoder.`: `latents` [N, D], `voice`, `audio.SPEED`, every eleventh sample
              at each speed; `wave` at 16 kHz, `embedding`
"""

from pathlib import Path

import numpy as np
import torch
from reference import decoder, generator, randomise, speaker
from safetensors.torch import save_file

HERE = Path(__file__).parent / "fixtures"
HALF = torch.float16
# At 0.93 there are as many rows as before, at 4 as many frames at 24 kHz as at 22.05: torch then leaves them as they are.
SPEEDS = [1.0, 1.25, 0.8, 0.93, 4.0]


def half(state: dict) -> dict:
    return {k: v.to(HALF) if v.is_floating_point() else v for k, v in state.items()}


@torch.no_grad()
def single() -> None:
    model = randomise(generator("2", [[1, 2], [2, 6], [3, 12]], [3, 5, 7], [8, 8, 4], [16, 16, 8], 16, 6, 5), 1)
    g = torch.Generator().manual_seed(2)
    frames, voice = torch.randn(20, 6, generator=g), torch.randn(5, generator=g)
    audio = model(frames.T[None], g=voice[None, :, None])[0, 0]
    print("single", audio.shape, float(audio.std()), float(audio.abs().max()))
    torch.save(half(model.state_dict()), HERE / "single.pth")
    save_file({"frames": frames, "voice": voice, "audio": audio}, HERE / "single.safetensors")


def sound(model, latents: torch.Tensor, voice: torch.Tensor, speed: float) -> torch.Tensor:
    """As `Xtts.inference` makes it."""
    length_scale = 1.0 / max(speed, 0.05)
    if length_scale != 1.0:
        latents = torch.nn.functional.interpolate(latents.transpose(1, 2), scale_factor=length_scale, mode="linear").transpose(1, 2)
    return model(latents, g=voice)[0, 0, ::11].clone()


@torch.no_grad()
def whole() -> None:
    model = randomise(decoder(16, 12, 10, speaker([8, 8, 16, 8], [2, 1, 1, 1], 10)), 3)
    g = torch.Generator().manual_seed(4)
    latents, voice = torch.randn(9, 12, generator=g), torch.nn.functional.normalize(torch.randn(10, generator=g), dim=0)
    audio = {f"audio.{speed}": sound(model, latents[None], voice[None, :, None], speed) for speed in SPEEDS}
    t = np.arange(5001) / 16000
    wave = 0.3 * np.sin(2 * np.pi * 180 * t * (1 + t)) + 0.2 * np.sin(2 * np.pi * 1700 * t) + 0.02 * np.random.default_rng(5).standard_normal(len(t))
    wave = torch.from_numpy(wave.astype(np.float32))
    embedding = model.speaker_encoder(wave[None].clone(), l2_norm=True)[0]
    print("decoder", {name: (len(x), float(x.std()), float(x.abs().max())) for name, x in audio.items()}, embedding)
    torch.save({"model": {f"hifigan_decoder.{k}": v for k, v in half(model.state_dict()).items()}}, HERE / "decoder.pth")
    save_file({"latents": latents, "voice": voice, "wave": wave, "embedding": embedding, **audio}, HERE / "decoder.safetensors")


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    single()
    whole()
