"""Random Llama folders as transformers saves them, and random batches. Nothing is downloaded."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from reference import Clip
from transformers import LlamaConfig, LlamaForCausalLM

LLAMA3 = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def make_model(directory: Path, seed: int, *, gain: float = 1.0, dtype: torch.dtype = torch.float32, shard: str = "5GB", head_copy: bool = False, **config) -> None:
    """Matrices that keep the size of what they multiply (times `gain`), so that no gradient vanishes and none explodes; norms
    around one. `head_copy`: a tied folder that holds the head as well, as the released Orpheus files seem to."""
    torch.manual_seed(seed)
    cfg = LlamaConfig(**config)
    model = LlamaForCausalLM(cfg)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(1 + 0.2 * torch.randn_like(p) if "norm" in name else gain / p.shape[1] ** 0.5 * torch.randn_like(p))
    model.to(dtype).save_pretrained(directory, max_shard_size=shard)
    if head_copy:
        from safetensors.torch import load_file, save_file

        path = directory / "model.safetensors"
        tensors = load_file(str(path))
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        save_file(tensors, str(path), metadata={"format": "pt"})


def respell(directory: Path) -> None:
    """RoPE in config.json as transformers 5 writes it. transformers 4 reads such a file without error and without scaling: take
    reference values before."""
    path = directory / "config.json"
    saved = json.loads(path.read_text())
    rope = saved.pop("rope_scaling", None) or {"rope_type": "default"}
    saved["rope_parameters"] = {**rope, "rope_theta": saved.pop("rope_theta")}
    path.write_text(json.dumps(saved, indent=2) + "\n")


def make_batch(seed: int, vocab: int, lengths: list[int], ignored: float = 0.25) -> list[Clip]:
    """Clips of these lengths: a run at the front and a share of the rest are not scored; of the second clip, the end."""
    g = torch.Generator().manual_seed(seed + 1)
    clips = []
    for i, n in enumerate(lengths):
        ids = torch.randint(vocab, (n,), generator=g)
        labels = ids.clone()
        labels[torch.rand(n, generator=g) < ignored] = -100
        if i == 1:
            labels[n - n // 4 :] = -100
        clips.append(Clip(ids, labels))
    return clips
