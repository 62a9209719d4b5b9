"""Random XTTS folders of what `ambitus gradients` and `ambitus generate` read, and random batches. Nothing is downloaded."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from reference import BANDS, FRAMES, Clip, load
from tokenizers import Tokenizer, models, pre_tokenizers

SPECIAL = ["[STOP]", "[UNK]", "[SPACE]", "[en]", "[START]"]
LETTERS = "abcdefghijklmnopqrstuvwxyz.,!?'-"


def make_model(
    directory: Path,
    seed: int,
    *,
    args: dict,
    start: int | None = None,
    stop: int = 0,
    gap: bool = False,
    stale: bool = False,
    gain: float = 1.0,
    ends: float = 0.0,
    dtype: torch.dtype = torch.float32,
    coarse: bool = False,
) -> None:
    """`args`: `model_args` of config.json. Matrices keep the size of what they multiply (times `gain`; at most, of conditioning), norms are around one, biases
    around zero, nothing is zero at its beginning. `start` and `stop`: ids of the text's marks in vocab.json, the last and the first
    where not said. `gap`: an id is no piece. `stale`: the configuration speaks of another vocabulary, which is passed over, as the
    package does. `ends`: what the code that ends audio has more in the bias of its head. `coarse`: values of four digits, so that a file
    of them packs well."""
    directory.mkdir(parents=True, exist_ok=True)
    text = args["gpt_number_text_tokens"]
    make_tokenizer(text, text - 1 if start is None else start, stop, gap).save(str(directory / "vocab.json"))
    said = {"gpt_number_text_tokens": text + 7, "gpt_start_text_token": 1, "gpt_stop_text_token": 2} if stale else {}
    common = {"gpt_max_prompt_tokens": 70, "gpt_code_stride_len": 1024, "gpt_use_perceiver_resampler": True}
    config = {
        "model": "xtts",
        "model_args": {**common, "gpt_start_text_token": None, "gpt_stop_text_token": None, **args, **said},
        "audio": {"sample_rate": 22050, "output_sample_rate": 24000},
    }
    (directory / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    torch.manual_seed(seed)
    model = load(directory, weights=False)
    # Of a larger gain the conditioning encoder amplifies rounding: the package's fp32 is then 1e-3 off fp64.
    of = lambda name: min(gain, 1.0) if name.startswith("conditioning_") else gain  # noqa: E731
    state = {name: random_like(name, p, of(name)) for name, p in model.state_dict().items()}
    state["mel_head.bias"][args["gpt_stop_audio_token"]] += ends
    if coarse:
        state = {name: x.to(torch.float8_e4m3fn).float() for name, x in state.items()}
    state = {f"gpt.{name}": x.to(dtype) for name, x in state.items()}
    state["mel_stats"] = -(2 + 4 * torch.rand(BANDS)).to(dtype)
    torch.save({"model": state}, directory / "model.pth")


def make_tokenizer(size: int, start: int, stop: int, gap: bool = False) -> Tokenizer:
    """BPE without merges whose largest id is `size` - 1."""
    assert size >= 8 and start != stop
    others = [piece for piece in SPECIAL if piece not in ("[START]", "[STOP]")]
    others += [LETTERS[i] if i < len(LETTERS) else chr(0x4E00 + i) for i in range(size)]
    ids = {start: "[START]", stop: "[STOP]"}
    for id in range(size):
        if id not in ids and not (gap and id == size - 3):
            ids[id] = others.pop(0)
    made = Tokenizer(models.BPE(vocab={piece: id for id, piece in sorted(ids.items())}, merges=[], unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens(SPECIAL)
    return made


def random_like(name: str, p: torch.Tensor, gain: float) -> torch.Tensor:
    x = torch.randn_like(p)
    leaf, norm = name.rsplit(".", 1)[-1], "norm" in name or ".ln_" in name
    if leaf == "bias":
        return 0.2 * x
    if norm:
        return 1 + 0.2 * x
    if "embedding" in name or leaf == "latents":
        return 0.7 * x
    inputs = p.shape[0] if ".c_" in name else p[0].numel()  # GPT-2's are [in, out]
    return gain / inputs**0.5 * x


def make_mel(g: torch.Generator, frames: int = FRAMES) -> torch.Tensor:
    """[frames, 80] of few digits, so that a file of it packs well: louder and softer frames, higher and lower bands."""
    x = torch.randn(frames, BANDS, generator=g) + torch.randn(frames, 1, generator=g) / 2 + torch.randn(BANDS, generator=g) / 2
    return (2 * x).round() / 4


def make_batch(seed: int, args: dict, shapes: list[tuple[int, int]], *, prompts: list | None = None, text_stop: int = 0) -> list[Clip]:
    """Clips of these text ids and codes. `prompts`: of each clip, the codes [from, to) that are left out, or None."""
    g = torch.Generator().manual_seed(seed + 1)
    special = {args["gpt_start_audio_token"], args["gpt_stop_audio_token"]}
    codes = torch.tensor([code for code in range(args["gpt_num_audio_tokens"]) if code not in special])
    texts = torch.tensor([id for id in range(args["gpt_number_text_tokens"]) if id != text_stop])
    pick = lambda of, n: of[torch.randint(len(of), (n,), generator=g)]  # noqa: E731
    ranges = prompts or [None] * len(shapes)
    return [
        Clip(pick(texts, t), pick(codes, n), make_mel(g), None if r is None else torch.tensor(r))
        for (t, n), r in zip(shapes, ranges)
    ]


def model_args(dim: int, heads: int, layers: int = 2, text: int = 40, audio: int = 30, max_text: int = 20, max_codes: int = 24, marks: tuple | None = None) -> dict:
    """`model_args` of config.json. `marks`: the codes that begin and end audio, the last two where not said."""
    start, stop = marks or (audio - 2, audio - 1)
    return {
        "gpt_layers": layers,
        "gpt_n_model_channels": dim,
        "gpt_n_heads": heads,
        "gpt_max_text_tokens": max_text,
        "gpt_max_audio_tokens": max_codes,
        "gpt_number_text_tokens": text,
        "gpt_num_audio_tokens": audio,
        "gpt_start_audio_token": start,
        "gpt_stop_audio_token": stop,
    }
