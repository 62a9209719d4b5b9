"""Random Llama configurations and batches that are in no fixture, through the `ambitus` binary and every plan option, against
transformers.

    python sweep.py BINARY [--count 20] [--seed N] [--keep DIR]

Each case is run with several option sets. Checked: parity of each with transformers; equal bits with recompute on and off and
at any thread count; the "reordered" tolerance between splits into micro-batches and numbers of ranks; equal bits with every sharding strategy.
The seed is printed; the same seed gives the same cases.
"""

from __future__ import annotations

import random
import shutil
import sys
from pathlib import Path

import torch
from make import LLAMA3, make_batch, make_model, respell
from reference import gradients, load, save_batch

sys.path.append(str(Path(__file__).resolve().parent.parent))
import sweep_sets  # noqa: E402
from sweep_sets import plan_sets, run_sets  # noqa: E402


def random_case(rng: random.Random) -> tuple[dict, list[int], int]:
    """Arguments of `make_model`, lengths of clips, and the spelling of RoPE."""
    kv = rng.choice([1, 1, 2, 3])
    heads = kv * rng.choice([1, 2, 3, 4])
    head_dim = rng.choice([2, 4, 6, 8, 16, 20])
    config = dict(
        vocab_size=rng.randint(5, 300),
        hidden_size=heads * head_dim if rng.random() < 0.5 else rng.randint(3, 80),
        intermediate_size=rng.randint(3, 150),
        num_hidden_layers=rng.randint(1, 4),
        num_attention_heads=heads,
        num_key_value_heads=kv,
        rms_norm_eps=rng.choice([1e-5, 1e-6, 1e-2]),
        rope_theta=rng.choice([10000.0, 500000.0, 100.0]),
        tie_word_embeddings=rng.random() < 0.6,
        max_position_embeddings=131072,
    )
    config["head_dim"] = head_dim
    if rng.random() < 0.7:
        original = rng.choice([8192, 512, 64])
        config["rope_scaling"] = {**LLAMA3, "factor": rng.choice([8.0, 32.0, 1.5]), "high_freq_factor": rng.choice([4.0, 2.0]), "original_max_position_embeddings": original}
    config |= dict(gain=rng.choice([0.5, 1.0, 1.0]), dtype=rng.choice([torch.float32, torch.float32, torch.bfloat16, torch.float16]))
    config["shard"] = rng.choice(["5GB", "5GB", "20KB"])
    config["head_copy"] = config["tie_word_embeddings"] and config["shard"] == "5GB" and rng.random() < 0.5
    # Products of at most 8 rows sum in another order: of so few tokens no gradient is a mean that forgives it.
    lengths = [rng.choice([rng.randint(9, 20), rng.randint(10, 60), rng.randint(50, 200)]) for _ in range(rng.choice([1, 2, 3, 5]))]
    if rng.random() < 0.2:
        lengths.append(1)
    return config, lengths, rng.choice([4, 5])


def run_case(binary: str, work: Path, seed: int) -> int:
    """Number of failures."""
    rng = random.Random(seed)
    model, lengths, spelling = random_case(rng)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    directory, batch = work / "model", work / "batch.safetensors"
    make_model(directory, seed, **model)
    clips = make_batch(seed, model["vocab_size"], lengths)
    save_batch(clips, batch)
    want = gradients(load(directory), clips)
    if spelling == 5:
        respell(directory)
    print(f"case {seed}: {model} spelling {spelling} clips {lengths}", flush=True)
    return run_sets(binary, work, directory, batch, want, plan_sets(rng, model["num_hidden_layers"], "*.mlp,*.q_proj", lengths))


if __name__ == "__main__":
    sys.exit(sweep_sets.main(run_case, __doc__))
