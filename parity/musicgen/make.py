"""Random MusicGen folders as transformers and audiocraft save them, and random batches. Nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

import torch
import yaml
from reference import PACKAGE, TEXT, Clip, build_lm
from transformers import (
    EncodecConfig,
    GenerationConfig,
    MusicgenConfig,
    MusicgenDecoderConfig,
    MusicgenForConditionalGeneration,
    T5Config,
    T5EncoderModel,
)

END = 1  # </s> of a T5 tokenizer


def encodec(decoder: dict) -> EncodecConfig:
    """A tiny codec of the decoder's codebooks: 640 samples a frame at 32 kHz, as the published one has."""
    books = decoder["num_codebooks"] // decoder.get("audio_channels", 1)
    size = max(1 << (decoder["vocab_size"].bit_length() - 1), 2)  # a power of two
    # A little more than exactly as many, which rounding might make one fewer.
    kbps = (books + 0.01) * 50 * (size.bit_length() - 1) / 1000
    return EncodecConfig(
        target_bandwidths=[kbps], sampling_rate=32000, audio_channels=1, normalize=False, hidden_size=4, num_filters=2, upsampling_ratios=[20, 32],
        codebook_size=size, codebook_dim=4, num_lstm_layers=1, use_causal_conv=False, use_conv_shortcut=False,
    )  # fmt: skip


def t5(text: dict) -> T5Config:
    return T5Config(**{"feed_forward_proj": "relu", "dropout_rate": 0.0, "vocab_size": 50, **text})


def make_model(
    directory: Path,
    seed: int,
    *,
    text: dict,
    decoder: dict,
    gain: float = 1.0,
    dtype: torch.dtype = torch.float32,
    shard: str = "5GB",
) -> None:
    """Matrices that keep the size of what they multiply (times `gain`), norms around one, biases around zero."""
    torch.manual_seed(seed)
    special = decoder["vocab_size"]
    ids = dict(pad_token_id=special, bos_token_id=special)
    config = MusicgenConfig.from_sub_models_config(t5(text), encodec(decoder), MusicgenDecoderConfig(**{"dropout": 0.0, **ids, **decoder}))
    model = MusicgenForConditionalGeneration(config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(random_like(name, p, gain))
        for name, b in model.named_buffers():
            if name.endswith("codebook.embed"):
                b.copy_(torch.randn_like(b))
    model.generation_config = GenerationConfig(**ids, decoder_start_token_id=special, do_sample=True, guidance_scale=3.0, max_length=30)
    model.to(dtype).save_pretrained(directory, max_shard_size=shard)


def make_package(
    directory: Path,
    seed: int,
    *,
    text: dict,
    decoder: dict,
    delays: list[int] | None = None,
    gain: float = 1.0,
    dtype: torch.dtype = torch.float32,
    mha: bool = False,
) -> None:
    """audiocraft's `state_dict.bin` of the same sizes, and `t5/`. `mha`: attention is torch's own."""
    torch.manual_seed(seed)
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "lm_model": "transformer_lm", "sample_rate": 32000, "channels": decoder.get("audio_channels", 1),
        "transformer_lm": {
            "n_q": decoder["num_codebooks"], "card": decoder["vocab_size"], "dim": decoder["hidden_size"], "num_heads": decoder["num_attention_heads"],
            "num_layers": decoder["num_hidden_layers"], "hidden_scale": decoder["ffn_dim"] / decoder["hidden_size"], "dropout": 0.0, "activation": "gelu",
            "norm_first": True, "bias_ff": False, "bias_attn": False, "bias_proj": False, "past_context": None, "causal": True, "custom": False,
            "memory_efficient": not mha, "attention_as_float32": False, "layer_scale": None, "positional_embedding": "sin", "xpos": False,
            "checkpointing": "none", "norm": "layer_norm", "qk_layer_norm": False, "qk_layer_norm_cross": False, "attention_dropout": None, "kv_repeat": 1,
        },
        "codebooks_pattern": {"modeling": "delay", "delay": {"delays": delays, "flatten_first": 0, "empty_initial": 0}},
        "fuser": {"cross_attention_pos_emb": False, "cross_attention_pos_emb_scale": 1, "sum": [], "prepend": [], "cross": ["description"], "input_interpolate": []},
        "conditioners": {"description": {"model": "t5", "t5": {"name": "t5-base", "finetune": False, "word_dropout": 0.3, "normalize_text": False}}},
        "classifier_free_guidance": {"training_dropout": 0.3, "inference_coef": 3.0},
    }  # fmt: skip
    encoder = T5EncoderModel(t5(text))
    project = torch.nn.Linear(text["d_model"], decoder["hidden_size"])
    model = build_lm(config)
    state = {name: random_like(name, p, gain) for name, p in model.named_parameters()}
    state |= {TEXT + name: random_like(TEXT + name, p, gain) for name, p in project.named_parameters()}
    if mha:
        state = {name.replace("in_proj", "mha.in_proj").replace("out_proj.weight", "mha.out_proj.weight"): t for name, t in state.items()}
    with torch.no_grad():
        for name, p in encoder.named_parameters():
            p.copy_(random_like(name, p, gain))
    encoder.save_pretrained(directory / "t5")
    state = {name: tensor.detach().to(dtype).clone() for name, tensor in state.items()}
    torch.save({"best_state": state, "xp.cfg": yaml.safe_dump(config), "version": "1.3.0", "exported": True}, directory / PACKAGE)


def random_like(name: str, p: torch.Tensor, gain: float) -> torch.Tensor:
    x = torch.randn_like(p)
    if name.endswith("bias"):
        return 0.2 * x
    if "norm" in name and p.dim() == 1:
        return 1 + 0.2 * x
    if "emb" in name or "shared" in name:
        return 0.7 * x
    if name.endswith("SelfAttention.q.weight"):  # T5 does not divide its scores
        return gain / p.shape[1] * x
    return gain / max(p[0].numel(), 1) ** 0.5 * x


def make_batch(seed: int, decoder: dict, shapes: list[tuple[int, int]], *, ids: int = 50) -> list[Clip]:
    """Clips of these tokens of text, of which none is no text, and frames; texts end in </s>."""
    g = torch.Generator().manual_seed(seed + 1)
    text = lambda n: torch.cat([torch.randint(3, ids, (n - 1,), generator=g), torch.tensor([END])])  # noqa: E731
    return [
        Clip(
            text(u) if u else torch.zeros(0, dtype=torch.long),
            torch.randint(decoder["vocab_size"], (decoder["num_codebooks"], t), generator=g),
        )
        for u, t in shapes
    ]
