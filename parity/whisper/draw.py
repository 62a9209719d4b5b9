"""Random Whisper models and sounds, shared by record.py and sweep.py."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import GenerationConfig, WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

RATE = 16_000


def config(**sizes) -> WhisperConfig:
    special = dict(bos_token_id=1, pad_token_id=1, eos_token_id=2, decoder_start_token_id=3)
    return WhisperConfig(dropout=0.0, **(special | sizes), suppress_tokens=None, begin_suppress_tokens=None)


def model(cfg: WhisperConfig, seed: int, dtype: torch.dtype = torch.float32) -> WhisperForConditionalGeneration:
    """Matrices that keep the size of what they multiply. Values are representable in `dtype`."""
    torch.manual_seed(seed)
    made = WhisperForConditionalGeneration(cfg).eval()
    with torch.no_grad():
        for name, p in made.named_parameters():
            x = torch.randn_like(p)
            if "norm" in name and name.endswith("weight"):
                x = 1 + 0.2 * x
            elif name.endswith("bias"):
                x = 0.2 * x
            elif "embed_tokens" in name:
                # Or each token would follow itself: the head is tied.
                x = 0.3 * x
            elif "embed" not in name:
                x = x / p[0].numel() ** 0.5
            p.copy_(x.to(dtype).float())
    return made


def save(made: WhisperForConditionalGeneration, directory: Path, dtype: torch.dtype, generation: dict | None) -> None:
    made.generation_config = GenerationConfig.from_dict(generation or {})
    made.to(dtype).save_pretrained(directory)
    if generation is None:
        (directory / "generation_config.json").unlink()
    made.float()


def sound(samples: int, seed: int) -> torch.Tensor:
    """A tone and noise, in numbers that fp16 has."""
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(samples) / RATE
    pitch = 100 + 3000 * torch.rand(1, generator=g)
    x = 0.3 * torch.sin(2 * torch.pi * pitch * t * (1 + t)) + 0.05 * torch.randn(samples, generator=g)
    return x.half()


@torch.no_grad()
def expected(made, wave: torch.Tensor, prompt: list[int], new: int, never: list[int], first: list[int]) -> dict[str, torch.Tensor]:
    """States, and greedy tokens with their logits before suppression; every step reads the whole text anew."""
    cfg = made.config
    seconds = cfg.max_source_positions // 50
    extractor = WhisperFeatureExtractor(feature_size=cfg.num_mel_bins, chunk_length=seconds)
    mel = extractor(wave.float().numpy(), sampling_rate=RATE, return_tensors="pt").input_features
    states = made.model.encoder(mel).last_hidden_state
    ids, logits = list(prompt), []
    for step in range(new):
        row = made(encoder_outputs=(states,), decoder_input_ids=torch.tensor([ids])).logits[0, -1]
        logits.append(row)
        row = row.clone()
        row[never + (first if step == 0 else [])] = -torch.inf
        ids.append(int(row.argmax()))
        if ids[-1] == cfg.eos_token_id:
            break
    logits = torch.stack(logits) if logits else torch.zeros(0, cfg.vocab_size)
    return {"states": states[0].contiguous(), "tokens": torch.tensor(ids[len(prompt):]), "logits": logits}


def write(path: Path, clips: list[dict[str, torch.Tensor]]) -> None:
    save_file({f"clips.{i}.{leaf}": x for i, clip in enumerate(clips) for leaf, x in clip.items()}, str(path))
