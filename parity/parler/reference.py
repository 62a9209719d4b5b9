"""The reference: parler_tts' ParlerTTSForConditionalGeneration, one clip at a time, eager attention, fp32 on the CPU.

Nothing here re-implements the model or the loss: the delayed labels come from the package's `build_delay_pattern_mask` as its
training script makes them, and the model shifts and masks them itself.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch
from safetensors.torch import load_file, save_file



class NoCodec(torch.nn.Module):
    """Stands in for descript's codec, which needs half an audio suite. Folders made here have transformers' own `dac` instead."""

    def __init__(self, **_):
        super().__init__()


for _name in ("dac", "dac.model"):
    sys.modules.setdefault(_name, ModuleType(_name))
sys.modules["dac.model"].DAC = NoCodec

from parler_tts import ParlerTTSForConditionalGeneration, build_delay_pattern_mask  # noqa: E402
from transformers.utils.logging import disable_progress_bar, set_verbosity_error  # noqa: E402

logging.getLogger("parler_tts").setLevel(logging.ERROR)
disable_progress_bar()
set_verbosity_error()


@dataclass
class Clip:
    """One clip of a batch file. U description tokens, P prompt tokens, C codebooks, T frames."""

    description_ids: torch.Tensor  # i64 [U], with its </s>
    prompt_ids: torch.Tensor  # i64 [P], with its </s>
    codes: torch.Tensor  # i64 [C, T], below the codec's codebook_size

    FIELDS = ("description_ids", "prompt_ids", "codes")

    @property
    def frames(self) -> int:
        return self.codes.shape[1]

    @property
    def scored(self) -> int:
        """Targets of each codebook: its codes and one end."""
        return self.frames + 1

    @property
    def positions(self) -> int:
        """Of the decoder: the prompt, and the delayed codes with their ends."""
        return len(self.prompt_ids) + self.frames + self.codes.shape[0]


def save_batch(clips: list[Clip], path: Path) -> None:
    save_file({f"clips.{i}.{f}": getattr(c, f).contiguous() for i, c in enumerate(clips) for f in Clip.FIELDS}, str(path))


def load_batch(path: Path) -> list[Clip]:
    tensors = load_file(str(path))
    count = 1 + max(int(name.split(".")[1]) for name in tensors)
    return [Clip(**{f: tensors[f"clips.{i}.{f}"] for f in Clip.FIELDS}) for i in range(count)]


def load(directory: Path, attention: str = "eager") -> ParlerTTSForConditionalGeneration:
    """Strict: no key is missing, unexpected or of another shape (of descript's codec nothing is read)."""
    kinds = {"decoder": attention, "text_encoder": "eager"}
    model, info = ParlerTTSForConditionalGeneration.from_pretrained(
        directory, torch_dtype=torch.float32, attn_implementation=kinds, output_loading_info=True
    )
    if isinstance(getattr(model.audio_encoder, "model", None), NoCodec):
        info["unexpected_keys"] = [k for k in info["unexpected_keys"] if not k.startswith("audio_encoder.model.")]
    wrong = {what: keys for what, keys in info.items() if keys}
    assert not wrong, f"{directory}: {wrong}"
    model.freeze_encoders()
    # `ambitus gradients` drops nothing, whatever a folder says.
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        elif isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0
    return model.train()


def labels(model: ParlerTTSForConditionalGeneration, codes: torch.Tensor) -> torch.Tensor:
    """[1, T + C, C]: the column of begins first, row k moved k to the right, ends after it; without the first column."""
    config = model.config.decoder
    count, frames = codes.shape
    rows = torch.cat([torch.full((count, 1), config.bos_token_id), codes], 1)[None]
    _, mask = build_delay_pattern_mask(rows, config.bos_token_id, config.eos_token_id, frames + 1 + count, count)
    rows = torch.where(mask == -1, config.eos_token_id, mask)
    return rows[:, 1:].T[None]


def inputs(clip: Clip) -> dict[str, torch.Tensor]:
    description, prompt = clip.description_ids[None], clip.prompt_ids[None]
    return dict(
        input_ids=description,
        attention_mask=torch.ones_like(description),
        prompt_input_ids=prompt,
        prompt_attention_mask=torch.ones_like(prompt),
    )


def trained(name: str) -> bool:
    return not name.startswith(("text_encoder.", "audio_encoder.")) and not name.endswith("embed_positions.weights")


def gradients(model: ParlerTTSForConditionalGeneration, clips: list[Clip]) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss over the scored targets of all clips, a mean over codebooks by their weights, and every gradient by checkpoint name."""
    model.zero_grad(set_to_none=True)
    scored = sum(c.scored for c in clips)
    loss = 0.0
    for clip in clips:
        part = model(**inputs(clip), labels=labels(model, clip.codes), loss_reduction="sum", use_cache=False).loss / scored
        part.backward()
        loss += part.item()
    named = {n: p for n, p in model.named_parameters() if trained(n)}
    return loss, {n: torch.zeros_like(p) if p.grad is None else p.grad.detach().clone() for n, p in named.items()}


@torch.no_grad()
def states(model: ParlerTTSForConditionalGeneration, clip: Clip) -> torch.Tensor:
    """[U, d] of the text encoder, before any projection."""
    return model.text_encoder(input_ids=clip.description_ids[None]).last_hidden_state[0]


def save_gradients(loss: float, grads: dict[str, torch.Tensor], path: Path) -> None:
    save_file({"loss": torch.tensor([loss]), **{f"grad.{n}": g.contiguous() for n, g in grads.items()}}, str(path))
