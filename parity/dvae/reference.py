"""The package's DiscreteVAE with random weights and small sizes, its mel front end, and the folder that `ambitus codec` reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from TTS.tts.layers.xtts.dvae import DiscreteVAE, dvae_wav_to_mel

RATE = 22050


def random_dvae(frames: torch.Tensor, hidden: int, dim: int, codes: int, blocks: int, seed: int, dtype: torch.dtype = torch.float32) -> DiscreteVAE:
    """A DVAE whose codes vary: unit variance through the layers, residual branches damped, codewords spread as what it makes of
    `frames` [bands, M]. Values are representable in `dtype`."""
    model = DiscreteVAE(
        channels=len(frames), normalization=None, positional_dims=1, num_tokens=codes, codebook_dim=dim, hidden_dim=hidden, num_resnet_blocks=blocks,
        kernel_size=3, num_layers=2, use_transposed_convs=False,
    ).eval().requires_grad_(False)
    g = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        x = torch.randn(p.shape, generator=g)
        if name.endswith("bias"):
            x = 0.2 * x
        else:
            x = x * (0.5 if ".net.4." in name else 1.4) / p[0].numel() ** 0.5
        p.data = x.to(dtype).float()
    latents = model.encoder(frames[None])[0]
    embed = latents.mean(1, keepdim=True) + latents.std(1, keepdim=True) * torch.randn(model.codebook.embed.shape, generator=g)
    model.codebook.embed = embed.to(dtype).float()
    return model


def sound(rng: np.random.Generator, samples: int) -> np.ndarray:
    t = np.arange(samples) / RATE
    x = sum(rng.uniform(0.02, 0.2) * np.sin(2 * np.pi * rng.uniform(60, 7000) * t * (1 + rng.uniform(0, 0.3) * t) + rng.uniform(0, 6)) for _ in range(12))
    x = x * (0.6 + 0.4 * np.sin(2 * np.pi * rng.uniform(1, 4) * t)) + 0.01 * rng.standard_normal(samples)
    return (x / max(1.0, np.abs(x).max())).astype(np.float32)


def stats(bands: int, seed: int) -> torch.Tensor:
    return -(2 + 4 * torch.rand(bands, generator=torch.Generator().manual_seed(seed + 2)))


def mel(wave: np.ndarray, norms: torch.Tensor) -> torch.Tensor:
    """[bands, frames]; the package's front end has 80 bands."""
    return dvae_wav_to_mel(torch.from_numpy(wave)[None], mel_norms=norms)[0]


def encode(model: DiscreteVAE, mel: torch.Tensor) -> torch.Tensor:
    return model.get_codebook_indices(mel[None])[0]


def decode(model: DiscreteVAE, codes: torch.Tensor) -> torch.Tensor:
    return model.decode(codes[None])[0][0]


def margins(model: DiscreteVAE, mel: torch.Tensor) -> torch.Tensor:
    """The distance of the nearest codeword from the second, over the square of what is encoded, of every code."""
    x = model.encoder(mel[None])[0].T
    e = model.codebook.embed
    if e.shape[1] == 1:
        return torch.ones(len(x))
    d = (x * x).sum(1, keepdim=True) - 2 * x @ e + (e * e).sum(0)
    two = d.topk(2, largest=False).values
    return (two[:, 1] - two[:, 0]) / (x * x).sum(1)


def save(model: DiscreteVAE, norms: torch.Tensor, folder: Path, dtype: torch.dtype = torch.float32) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    state = model.state_dict()
    torch.save({k: v.to(dtype) if v.is_floating_point() and not k.startswith("discrete_loss") else v for k, v in state.items()}, folder / "dvae.pth")
    torch.save(norms, folder / "mel_stats.pth")
