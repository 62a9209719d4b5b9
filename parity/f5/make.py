"""Random models in the released layout and random batches."""

from __future__ import annotations

import random
import string
from pathlib import Path

import torch
import yaml
from safetensors.torch import save_file

from reference import MEL_CHANNELS, PREFIX, Clip, build

VARIANTS = {
    "v1": {"text_mask_padding": True, "pe_attn_head": None},
    "v0": {"text_mask_padding": False, "pe_attn_head": 1},
}
MEL_SPEC = {
    "target_sample_rate": 24000,
    "n_mel_channels": MEL_CHANNELS,
    "hop_length": 256,
    "win_length": 1024,
    "n_fft": 1024,
    "mel_spec_type": "vocos",
}


def vocab(size: int) -> list[str]:
    """`size` distinct tokens: a space first, then printable characters, then made-up syllables."""
    tokens = [" "] + [c for c in string.printable if c not in string.whitespace]
    return (tokens + [f"{a}{b}{n}" for n in range(1, 5) for a in string.ascii_lowercase for b in string.ascii_lowercase])[:size]


def write_config(directory: Path, name: str, variant: str, vocab_tokens: list[str], arch: dict, tokenizer: str = "custom") -> None:
    directory.mkdir(parents=True, exist_ok=True)
    model = {
        "name": name,
        "tokenizer": tokenizer,
        "tokenizer_path": "vocab.txt" if tokenizer == "custom" else None,
        "backbone": "DiT",
        "arch": {**arch, **VARIANTS[variant]},
        "mel_spec": MEL_SPEC,
    }
    (directory / "config.yaml").write_text(yaml.safe_dump({"model": model}, sort_keys=False), encoding="utf-8")
    (directory / "vocab.txt").write_text("".join(t + "\n" for t in vocab_tokens), encoding="utf-8")


def make_model(directory: Path, seed: int, variant: str, vocab_size: int, spread: float = 0.02, tokenizer: str = "custom", **arch) -> None:
    """Writes a model folder. The package's own initialisation, then: all-zero tensors become N(0, spread), because a
    fresh F5 model predicts 0 and only its last layer has a gradient; all-one tensors get N(0, 0.1) added, so that a
    forgotten scale shows."""
    write_config(directory, f"tiny-{variant}", variant, vocab(vocab_size), arch, tokenizer)
    torch.manual_seed(seed)
    model = build(directory)
    with torch.no_grad():
        for p in model.parameters():
            if not p.any():
                p.normal_(std=spread)
            elif (p == 1).all():
                p.add_(torch.randn_like(p), alpha=0.1)
    state = {f"{PREFIX}transformer.{n}": t.contiguous() for n, t in model.state_dict().items()}
    save_file({**state, "initted": torch.tensor(True), "step": torch.tensor(1_000)}, str(directory / "model.safetensors"))


def make_clip(frames: int, tokens: int, vocab_size: int, drop: str = "", span: tuple[int, int] | None = None) -> Clip:
    """Draws from torch's and Python's global generators. `drop` holds the letters a (audio) and t (text)."""
    if span is None:
        length = int(random.uniform(0.7, 1.0) * frames)
        start = int(random.random() * (frames - length))
        span = (start, start + length)
    mask = torch.zeros(frames, dtype=torch.uint8)
    mask[span[0] : span[1]] = 1
    level = torch.randn(frames, 1) + torch.linspace(0, -3, MEL_CHANNELS)  # log-mels fall with frequency
    return Clip(
        mel=(level + torch.randn(frames, MEL_CHANNELS)).float(),
        x0=torch.randn(frames, MEL_CHANNELS),
        time=torch.rand(1),
        text=torch.randint(0, vocab_size, (tokens,), dtype=torch.int64),
        span=mask,
        drop_audio=torch.tensor([int("a" in drop)], dtype=torch.uint8),
        drop_text=torch.tensor([int("t" in drop)], dtype=torch.uint8),
    )


def make_batch(seed: int, vocab_size: int, shapes: list[tuple[int, int, str]]) -> list[Clip]:
    """One clip per (frames, tokens, drop letters)."""
    torch.manual_seed(seed)
    random.seed(seed)
    return [make_clip(frames, tokens, vocab_size, drop) for frames, tokens, drop in shapes]
