"""The package's HiFi-GAN generators and speaker encoder with random weights and small sizes."""

from __future__ import annotations

import torch
from TTS.encoder.models.resnet import ResNetSpeakerEncoder
from TTS.tts.layers.xtts.hifigan_decoder import HifiDecoder
from TTS.vocoder.models.hifigan_generator import HifiganGenerator

AUDIO = {"fft_size": 512, "win_length": 400, "hop_length": 160, "sample_rate": 16000, "preemphasis": 0.97, "num_mels": 64}


def randomise(model: torch.nn.Module, seed: int, dtype: torch.dtype = torch.float16) -> torch.nn.Module:
    """Every tensor random, buffers of norms as well, with about unit variance through the layers; values are representable in `dtype`."""
    g = torch.Generator().manual_seed(seed)
    fixed = ("torch_spec", "num_batches_tracked")
    for name, p in model.state_dict().items():
        if any(f in name for f in fixed):
            continue
        x = torch.randn(p.shape, generator=g)
        if name.endswith("running_var") or (p.ndim == 1 and name.endswith("weight")):
            x = 0.5 + torch.rand(p.shape, generator=g)
        elif name.endswith(("bias", "running_mean")):
            x = 0.2 * x
        elif name.endswith("original0"):
            x = (0.4 if "resblocks" in name else 1.2) * (0.7 + 0.6 * torch.rand(p.shape, generator=g))
        elif not name.endswith("original1"):
            x = x / p[0].numel() ** 0.5
        p.copy_(x.to(dtype).float())
    return model.eval().requires_grad_(False)


def generator(unit: str, dilations: list, kernels: list, rates: list, taps: list, width: int, inputs: int, voice: int, **more) -> HifiganGenerator:
    return HifiganGenerator(inputs, 1, unit, dilations, kernels, taps, width, rates, inference_padding=0, cond_channels=voice, **more)


def speaker(filters: list, layers: list, width: int) -> ResNetSpeakerEncoder:
    return ResNetSpeakerEncoder(input_dim=64, proj_dim=width, layers=layers, num_filters=filters, log_input=True, use_torch_spec=True, audio_config=AUDIO)


def decoder(width: int, inputs: int, voice: int, encoder: ResNetSpeakerEncoder) -> HifiDecoder:
    """The speech model's vocoder with fewer channels: `HifiDecoder` fixes its speaker encoder's sizes."""
    out = HifiDecoder(decoder_input_dim=inputs, d_vector_dim=voice, upsample_initial_channel_decoder=width)
    out.speaker_encoder = encoder
    return out
