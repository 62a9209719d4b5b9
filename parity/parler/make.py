"""Random Parler folders as the project saves them, and random batches. Nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

import torch
from reference import Clip, ParlerTTSForConditionalGeneration
from parler_tts import ParlerTTSConfig, ParlerTTSDecoderConfig
from transformers import DacConfig, GenerationConfig, T5Config

END = 1  # </s> of a T5 tokenizer


def make_model(
    directory: Path,
    seed: int,
    *,
    text: dict,
    decoder: dict,
    prompts: int = 60,
    prompt_cross_attention: bool = False,
    gain: float = 1.0,
    bias: float = 0.0,
    spare: float = 1.0,
    generation: dict | None = None,
    audio: dict | None = None,
    dtype: torch.dtype = torch.float32,
    shard: str = "5GB",
) -> None:
    """Matrices that keep the size of what they multiply (times `gain`), norms around one, biases around zero. The codes are the
    decoder's vocabulary up to its end: eos, then bos, then two ids of no meaning. `bias` leans the heads' rows of the end towards the
    last norm's bias, so that clips end by themselves; `spare` is the size of the heads' rows of the ids after it. `prompts`: rows of
    the prompts' vocabulary. `audio`: what differs of the codec."""
    torch.manual_seed(seed)
    tiny = dict(encoder_hidden_size=1, decoder_hidden_size=4, downsampling_ratios=[2, 2], codebook_dim=2)
    audio = tiny | dict(codebook_size=decoder["vocab_size"] - 4) | (audio or {})
    codes = audio["codebook_size"]
    special = dict(pad_token_id=codes, eos_token_id=codes, bos_token_id=codes + 1)
    config = ParlerTTSConfig.from_sub_models_config(
        T5Config(**{"feed_forward_proj": "gated-gelu", "dropout_rate": 0.0, "vocab_size": 50, **text}),
        DacConfig(**audio, n_codebooks=decoder["num_codebooks"], sampling_rate=44100),
        ParlerTTSDecoderConfig(**special, dropout=0.0, **decoder),
        vocab_size=prompts, prompt_cross_attention=prompt_cross_attention, pad_token_id=codes, decoder_start_token_id=codes + 1,
    )  # fmt: skip
    model = ParlerTTSForConditionalGeneration(config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if not name.endswith("embed_positions.weights"):
                p.copy_(random_like(name, p, gain))
        if bias or spare != 1:
            lean(model, bias, spare)
    model.generation_config = GenerationConfig(
        **special, decoder_start_token_id=codes + 1, **{"max_length": 40, "do_sample": True, **(generation or {})}
    )
    model.to(dtype).save_pretrained(directory, max_shard_size=shard)


def random_like(name: str, p: torch.Tensor, gain: float) -> torch.Tensor:
    x = torch.randn_like(p)
    if name.endswith("alpha"):
        return 0.5 + torch.rand_like(p)
    if name.endswith("bias"):
        return 0.2 * x
    if "norm" in name:
        return 1 + 0.2 * x
    if "embed" in name or "shared" in name or "codebook" in name:
        return 0.7 * x
    if name.endswith("SelfAttention.q.weight"):  # T5 does not divide its scores
        return gain / p.shape[1] * x
    return gain / p[0].numel() ** 0.5 * x


def lean(model: ParlerTTSForConditionalGeneration, bias: float, spare: float) -> None:
    norm, heads = model.decoder.model.decoder.layer_norm, model.decoder.lm_heads
    end, vocab = model.config.decoder.eos_token_id, model.config.decoder.vocab_size
    weights = heads.weight.split(vocab) if isinstance(heads, torch.nn.Linear) else [h.weight for h in heads]
    for weight in weights:
        weight[end] += bias * norm.bias / norm.bias.norm()
        weight[end + 1 :] *= spare


def make_batch(seed: int, decoder: dict, shapes: list[tuple[int, int, int]], *, descriptions: int = 50, prompts: int = 60) -> list[Clip]:
    """Clips of these description tokens, prompt tokens and frames; both texts end in </s>."""
    g = torch.Generator().manual_seed(seed + 1)
    text = lambda rows, n: torch.cat([torch.randint(3, rows, (n - 1,), generator=g), torch.tensor([END])])  # noqa: E731
    return [
        Clip(text(descriptions, u), text(prompts, p), torch.randint(decoder["vocab_size"] - 4, (decoder["num_codebooks"], t), generator=g))
        for u, p, t in shapes
    ]
