"""The reference: F5-TTS's own DiT, one clip at a time, in fp32 on the CPU.

Nothing here re-implements the model. The installed package's `DiT` is built from a model folder's own
`config.yaml`, loaded strictly, and run on stored noise, times, spans and drops, so no random numbers are involved.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from dataclasses import dataclass
from pathlib import Path

import torch
import yaml
from safetensors.torch import load_file, save_file

MEL_CHANNELS = 100
PREFIX = "ema_model."
EMA_SCALARS = ("initted", "step")


def open_package() -> None:
    """Makes `f5_tts.model.*` importable without the trainer's dependencies (its `__init__` imports wandb, accelerate, ...)."""
    if "f5_tts" in sys.modules:
        return
    spec = importlib.util.find_spec("f5_tts")
    if spec is None:
        raise SystemExit("f5-tts is not installed: see parity/README.md")
    root = Path(next(iter(spec.submodule_search_locations)))
    for name in ("f5_tts", "f5_tts.model", "f5_tts.model.backbones"):
        module = types.ModuleType(name)
        module.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = module


open_package()
from f5_tts.model.backbones.dit import DiT  # noqa: E402


@dataclass
class Clip:
    """One clip of a batch file. N frames, Nt text tokens."""

    mel: torch.Tensor  # f32 [N, 100]
    x0: torch.Tensor  # f32 [N, 100], the noise
    time: torch.Tensor  # f32 [1]
    text: torch.Tensor  # i64 [Nt], vocab.txt line numbers from 0
    span: torch.Tensor  # u8 [N], 1 = predicted
    drop_audio: torch.Tensor  # u8 [1]
    drop_text: torch.Tensor  # u8 [1]

    FIELDS = ("mel", "x0", "time", "text", "span", "drop_audio", "drop_text")

    @property
    def frames(self) -> int:
        return self.mel.shape[0]


def save_batch(clips: list[Clip], path: Path) -> None:
    save_file({f"clips.{i}.{f}": getattr(c, f).contiguous() for i, c in enumerate(clips) for f in Clip.FIELDS}, str(path))


def load_batch(path: Path) -> list[Clip]:
    tensors = load_file(str(path))
    count = 1 + max(int(name.split(".")[1]) for name in tensors)
    return [Clip(**{f: tensors[f"clips.{i}.{f}"] for f in Clip.FIELDS}) for i in range(count)]


def vocab_size(directory: Path, tokenizer: str) -> int:
    """As `get_tokenizer`: the number of distinct lines; `byte` needs no file."""
    if tokenizer == "byte":
        return 256
    with open(directory / "vocab.txt", encoding="utf-8") as f:
        return len({line[:-1] for line in f})


def build(directory: Path, dropout: float = 0.0) -> DiT:
    """The package's DiT with the shape of `config.yaml`, freshly initialised."""
    config = yaml.safe_load((directory / "config.yaml").read_text(encoding="utf-8"))["model"]
    if config["backbone"] != "DiT":
        raise SystemExit(f"{directory}: backbone {config['backbone']} is not DiT")
    arch = {**config["arch"], "dropout": dropout}
    return DiT(**arch, text_num_embeds=vocab_size(directory, config["tokenizer"]), mel_dim=config["mel_spec"]["n_mel_channels"])


def transformer_state(path: Path) -> dict[str, torch.Tensor]:
    """The DiT's tensors of a released or raw checkpoint, without prefixes and EMA scalars."""
    state = {}
    for name, tensor in load_file(str(path)).items():
        if name in EMA_SCALARS:
            continue
        for prefix in (PREFIX, "_orig_mod.", "transformer."):
            name = name.removeprefix(prefix)
        state[name] = tensor
    return state


def load(directory: Path) -> DiT:
    model = build(directory)
    model.load_state_dict(transformer_state(directory / "model.safetensors"), strict=True)
    return model


def forward(model: DiT, clip: Clip, mask: torch.Tensor | None = None) -> torch.Tensor:
    """The prediction [N, 100] for one clip."""
    t, x1 = clip.time.view(1, 1, 1), clip.mel[None]
    phi = (1 - t) * clip.x0[None] + t * x1
    cond = torch.where(clip.span.bool()[None, :, None], torch.zeros_like(x1), x1)
    return model(
        x=phi,
        cond=cond,
        text=clip.text[None],
        time=clip.time,
        mask=mask,
        drop_audio_cond=bool(clip.drop_audio.item()),
        drop_text=bool(clip.drop_text.item()),
    )[0]


def squared_error(model: DiT, clip: Clip) -> torch.Tensor:
    """Sum of squared errors over the span's frames and all channels."""
    error = forward(model, clip) - (clip.mel - clip.x0)
    return error[clip.span.bool()].square().sum()


def gradients(model: DiT, clips: list[Clip]) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss of the whole batch and every gradient, named as in the checkpoint. A parameter that nothing reaches has gradient 0."""
    model.zero_grad(set_to_none=True)
    normaliser = MEL_CHANNELS * sum(int(c.span.sum()) for c in clips)
    loss = 0.0
    for clip in clips:
        part = squared_error(model, clip) / normaliser
        part.backward()
        loss += part.item()
    named = model.named_parameters()
    return loss, {f"transformer.{n}": torch.zeros_like(p) if p.grad is None else p.grad.detach().clone() for n, p in named}


def save_gradients(loss: float, grads: dict[str, torch.Tensor], path: Path) -> None:
    save_file({"loss": torch.tensor([loss]), **{f"grad.{n}": g.contiguous() for n, g in grads.items()}}, str(path))
