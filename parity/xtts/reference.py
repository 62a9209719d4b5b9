"""The reference: coqui-tts' GPT of XTTS v2, one clip at a time, fp32 on the CPU, nothing dropped (`eval`).

Nothing here re-implements the model or its losses. `GPT.forward` of one clip of t text ids and n codes (its `wav_lengths` are 1024 n,
so that it counts n codes) pads the text with its stop, twice in the targets, and the codes with five stops; its masks leave t + 1 text
and n + 4 code targets, and it returns the mean over each. A mean times its count is the sum over the clip, and the sums over all clips
are divided by all counts. Of the code rows the padding is behind all that is scored; of the text rows the stop's is no key.

A prompt's codes are left out by the package too: it sets the targets [from, to) to -1, of the last clip of a batch (here the only one),
in units of 256 samples where it means codes; so it is given 256 times the codes. Its mask of the conditioning is of no effect.
"""

from __future__ import annotations

import json
import logging
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

logging.disable(logging.WARNING)
warnings.filterwarnings("ignore")

from tokenizers import Tokenizer  # noqa: E402
from TTS.tts.layers.xtts.gpt import GPT  # noqa: E402

FRAMES, BANDS = 517, 80  # of a conditioning mel: six seconds
SAMPLES_PER_CODE = 1024
UNIT = 256  # of the package's `cond_idxs`
STOPS = 4  # that are scored behind a clip's codes
TEXT_WEIGHT = 0.01


@dataclass
class Clip:
    """One clip of a batch file. t text ids, n codes."""

    text_ids: torch.Tensor  # i64 [t], without start and stop
    codes: torch.Tensor  # i64 [n], without start and stop
    cond_mel: torch.Tensor  # f32 [517, 80], logarithms divided by the statistics
    prompt_codes: torch.Tensor | None = None  # i64 [2]: codes [from, to) that are not scored

    FIELDS = ("text_ids", "codes", "cond_mel", "prompt_codes")

    @property
    def scored(self) -> tuple[int, int]:
        """Targets: text and its stop, codes and their stops."""
        left_out = 0 if self.prompt_codes is None else int(self.prompt_codes[1] - self.prompt_codes[0])
        return len(self.text_ids) + 1, len(self.codes) + STOPS - left_out

    @property
    def rows(self) -> int:
        """Of the decoder: 32 of the prompt, the text and the codes, each behind its start, three stops."""
        return 32 + len(self.text_ids) + 1 + len(self.codes) + STOPS


def save_batch(clips: list[Clip], path: Path) -> None:
    tensors = {f"clips.{i}.{f}": getattr(c, f) for i, c in enumerate(clips) for f in Clip.FIELDS}
    save_file({name: x.contiguous() for name, x in tensors.items() if x is not None}, str(path))


def load_batch(path: Path) -> list[Clip]:
    tensors = load_file(str(path))
    count = 1 + max(int(name.split(".")[1]) for name in tensors)
    return [Clip(**{f: tensors.get(f"clips.{i}.{f}") for f in Clip.FIELDS}) for i in range(count)]


def load(directory: Path, weights: bool = True) -> GPT:
    """As `Xtts.init_models` makes it: what vocab.json says of ids goes before config.json. Strict: every tensor of model.pth under
    `gpt.` is the model's, and every tensor of the model is there."""
    args = json.loads((directory / "config.json").read_text())["model_args"]
    words = Tokenizer.from_file(str(directory / "vocab.json"))
    model = GPT(
        layers=args["gpt_layers"],
        model_dim=args["gpt_n_model_channels"],
        heads=args["gpt_n_heads"],
        number_text_tokens=max(words.get_vocab().values()) + 1,
        start_text_token=words.token_to_id("[START]"),
        stop_text_token=words.token_to_id("[STOP]"),
        max_text_tokens=args["gpt_max_text_tokens"],
        max_mel_tokens=args["gpt_max_audio_tokens"],
        max_prompt_tokens=args["gpt_max_prompt_tokens"],
        num_audio_tokens=args["gpt_num_audio_tokens"],
        start_audio_token=args["gpt_start_audio_token"],
        stop_audio_token=args["gpt_stop_audio_token"],
        use_perceiver_resampler=True,
        code_stride_len=SAMPLES_PER_CODE,
    )
    if weights:
        state = torch.load(directory / "model.pth", weights_only=True)["model"]
        model.load_state_dict({n.removeprefix("gpt."): x.float() for n, x in state.items() if n.startswith("gpt.")}, strict=True)
    return model.eval()


def losses(model: GPT, clips: list[Clip]) -> tuple[torch.Tensor, torch.Tensor]:
    """The package's two means, of text and of codes, of clips of one length each."""
    n = len(clips[0].codes)
    prompt = clips[0].prompt_codes
    assert prompt is None or len(clips) == 1
    text, codes, _ = model(
        torch.stack([c.text_ids for c in clips]),
        torch.tensor([len(c.text_ids) for c in clips]),
        torch.stack([c.codes for c in clips]),
        torch.tensor([n * SAMPLES_PER_CODE] * len(clips)),
        cond_mels=torch.stack([c.cond_mel.T[None] for c in clips]),
        cond_idxs=None if prompt is None else UNIT * prompt[None],
    )
    return text, codes


def gradients(model: GPT, clips: list[Clip]) -> tuple[float, dict[str, torch.Tensor], dict[str, float]]:
    """The loss over the scored targets of all clips, every gradient by its name in model.pth, and the two parts of the loss."""
    model.zero_grad(set_to_none=True)
    of_text, of_codes = (sum(c.scored[i] for c in clips) for i in range(2))
    parts = {"loss.text": 0.0, "loss.mel": 0.0}
    for clip in clips:
        text, codes = losses(model, [clip])
        text, codes = text * (clip.scored[0] / of_text), codes * (clip.scored[1] / of_codes)
        (TEXT_WEIGHT * text + codes).backward()
        parts["loss.text"] += text.item()
        parts["loss.mel"] += codes.item()
    loss = TEXT_WEIGHT * parts["loss.text"] + parts["loss.mel"]
    return loss, {f"gpt.{n}": p.grad.detach().clone() for n, p in model.named_parameters()}, parts


def save_gradients(loss: float, grads: dict[str, torch.Tensor], parts: dict[str, float], path: Path) -> None:
    scalars = {n: torch.tensor([x]) for n, x in {"loss": loss, **parts}.items()}
    save_file({**scalars, **{f"grad.{n}": g.contiguous() for n, g in grads.items()}}, str(path))
