"""The reference: transformers' LlamaForCausalLM, one clip at a time, eager attention, fp32 on the CPU.

Nothing here re-implements the model or the loss: labels go to the model unshifted, which shifts and ignores -100 itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM


@dataclass
class Clip:
    """One clip of a batch file. T tokens."""

    input_ids: torch.Tensor  # i64 [T]
    labels: torch.Tensor  # i64 [T], -100 is not scored

    FIELDS = ("input_ids", "labels")

    @property
    def tokens(self) -> int:
        return self.input_ids.shape[0]

    @property
    def scored(self) -> int:
        return int((self.labels[1:] != -100).sum())


def save_batch(clips: list[Clip], path: Path) -> None:
    save_file({f"clips.{i}.{f}": getattr(c, f).contiguous() for i, c in enumerate(clips) for f in Clip.FIELDS}, str(path))


def load_batch(path: Path) -> list[Clip]:
    tensors = load_file(str(path))
    count = 1 + max(int(name.split(".")[1]) for name in tensors)
    return [Clip(**{f: tensors[f"clips.{i}.{f}"] for f in Clip.FIELDS}) for i in range(count)]


def load(directory: Path) -> LlamaForCausalLM:
    config = LlamaConfig.from_pretrained(directory)
    # What transformers 5 writes: 4 takes it for a key that it does not know, and would rotate by its own defaults.
    if rope := getattr(config, "rope_parameters", None):
        config.rope_theta = rope["rope_theta"]
        config.rope_scaling = None if rope["rope_type"] == "default" else {k: v for k, v in rope.items() if k != "rope_theta"}
    model = LlamaForCausalLM.from_pretrained(directory, config=config, dtype=torch.float32, attn_implementation="eager")
    return model.train()


def gradients(model: LlamaForCausalLM, clips: list[Clip]) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss over the scored tokens of all clips, and every gradient by checkpoint name; a tied head has none of its own."""
    model.zero_grad(set_to_none=True)
    scored = sum(c.scored for c in clips)
    loss = 0.0
    for clip in clips:
        if clip.scored == 0:  # a mean over nothing
            continue
        part = model(input_ids=clip.input_ids[None], labels=clip.labels[None], use_cache=False).loss * (clip.scored / scored)
        part.backward()
        loss += part.item()
    return loss, {n: torch.zeros_like(p) if p.grad is None else p.grad.detach().clone() for n, p in model.named_parameters()}


def save_gradients(loss: float, grads: dict[str, torch.Tensor], path: Path) -> None:
    save_file({"loss": torch.tensor([loss]), **{f"grad.{n}": g.contiguous() for n, g in grads.items()}}, str(path))
