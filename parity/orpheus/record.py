"""Writes fixtures/{tied,untied,sharded}: a folder as transformers saves it, `batch.safetensors`, and `expected.safetensors`
with loss and every gradient.

    python record.py
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from make import LLAMA3, make_batch, make_model, respell
from reference import gradients, load, save_batch, save_gradients

FIXTURES = Path(__file__).resolve().parent / "fixtures"
CASES = {
    # Orpheus' kind: tied, grouped queries, llama3 frequencies; head_dim is not hidden / heads.
    "tied": dict(vocab_size=32, hidden_size=20, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8, rms_norm_eps=1e-5, rope_theta=500000.0, rope_scaling=LLAMA3, tie_word_embeddings=True, head_copy=True),
    # A head of its own, plain frequencies, a key head for every head; bf16 in the file.
    "untied": dict(vocab_size=37, hidden_size=16, intermediate_size=20, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, rope_theta=10000.0, tie_word_embeddings=False, dtype=torch.bfloat16),
    # Shards, the spelling of transformers 5, and frequencies of which each of the three bands has some.
    "sharded": dict(vocab_size=33, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1, head_dim=8, rope_theta=1000.0, rope_scaling={**LLAMA3, "factor": 8.0, "original_max_position_embeddings": 128}, tie_word_embeddings=True, shard="6KB", dtype=torch.float16),
}
LENGTHS = {"tied": [9, 17, 1, 4], "untied": [5, 12], "sharded": [21, 8, 3]}


def main() -> None:
    for seed, (name, config) in enumerate(CASES.items()):
        directory = FIXTURES / name
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        make_model(directory, seed, **config)
        (directory / "generation_config.json").unlink(missing_ok=True)
        clips = make_batch(seed, config["vocab_size"], LENGTHS[name])
        save_batch(clips, directory / "batch.safetensors")
        loss, grads = gradients(load(directory), clips)
        save_gradients(loss, grads, directory / "expected.safetensors")
        if name == "sharded":
            respell(directory)
        size = sum(f.stat().st_size for f in directory.iterdir())
        print(f"{name}: loss {loss:.7f}, {size} bytes")


if __name__ == "__main__":
    main()
