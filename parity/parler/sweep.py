"""Random Parler configurations and batches that are in no fixture, through the `ambitus` binary and every plan option, against
parler_tts.

    python sweep.py BINARY [--count 20] [--seed N] [--keep DIR]

Each case is run with several option sets. Checked: parity of each with the package; equal bits with recompute on and off and at
any thread count; the "reordered" tolerance between splits into micro-batches and numbers of ranks; equal bits with every sharding strategy.
The seed is printed; the same seed gives the same cases.
"""

from __future__ import annotations

import random
import shutil
import sys
from pathlib import Path

import torch
from make import make_batch, make_model
from reference import Clip, gradients, load, save_batch

sys.path.append(str(Path(__file__).resolve().parent.parent))
import sweep_sets  # noqa: E402
from sweep_sets import plan_sets, run_sets  # noqa: E402

DESCRIPTION = 4  # rows that a description's token counts, at most: micro-batches are no smaller than that
MAX_POSITIONS = 256


def random_case(rng: random.Random) -> tuple[dict, list[tuple[int, int, int]], dict]:
    """Arguments of `make_model`, clips' description tokens, prompt tokens and frames, and vocabularies of the texts."""
    kv = rng.choice([1, 1, 2, 3])
    heads = kv * rng.choice([1, 2, 4])
    head_dim = rng.choice([2, 4, 8, 16, 10])
    if not 8 <= heads * head_dim <= 96:
        head_dim = 8
    count = rng.choice([1, 2, 3, 4, 9])
    decoder = dict(
        vocab_size=rng.choice([4, 16, 64, 256]) + 4,
        num_codebooks=count,
        hidden_size=heads * head_dim,
        ffn_dim=rng.randint(3, 150),
        num_hidden_layers=rng.randint(1, 4),
        num_attention_heads=heads,
        max_position_embeddings=MAX_POSITIONS,
    )
    if rng.random() < 0.5:
        decoder["num_key_value_heads"] = kv
    if rng.random() < 0.4:
        decoder["num_cross_attention_key_value_heads"] = rng.choice([k for k in range(1, heads + 1) if heads % k == 0])
    if rng.random() < 0.4:
        decoder |= dict(rope_embeddings=True, rope_theta=rng.choice([10000.0, 100.0]))
    if rng.random() < 0.4:
        decoder["use_fused_lm_heads"] = True
    if rng.random() < 0.3:
        decoder["codebook_weights"] = [rng.choice([1, 2, 0.5, 3]) for _ in range(count)]
    text = dict(
        vocab_size=rng.randint(5, 200),
        d_model=decoder["hidden_size"] if rng.random() < 0.4 else rng.randint(3, 60),
        d_kv=rng.choice([2, 4, 8, 11]),
        d_ff=rng.randint(3, 80),
        num_layers=rng.randint(1, 3),
        num_heads=rng.randint(1, 4),
        feed_forward_proj=rng.choice(["gated-gelu", "gated-gelu", "relu"]),
    )
    prompts = rng.randint(5, 200)
    model = dict(
        text=text, decoder=decoder, prompts=prompts, prompt_cross_attention=rng.random() < 0.3, gain=rng.choice([0.5, 1.0, 1.0]),
        dtype=rng.choice([torch.float32, torch.float32, torch.bfloat16, torch.float16]), shard=rng.choice(["5GB", "5GB", "30KB"]),
    )  # fmt: skip
    # Products of at most 8 rows sum in another order: of so few no gradient is a mean that forgives it.
    shapes = []
    for _ in range(rng.choice([1, 2, 3, 5])):
        frames = rng.choice([rng.randint(9, 20), rng.randint(10, 60), rng.randint(50, 160)])
        shapes.append((rng.choice([rng.randint(9, 20), rng.randint(15, 150)]), rng.randint(9, 60), frames))
    if rng.random() < 0.2:
        shapes.append((1, 1, max(1, count - 2)))
    return model, shapes, dict(descriptions=text["vocab_size"], prompts=prompts)


def rows(clip: Clip) -> int:
    return max(clip.positions, DESCRIPTION * len(clip.description_ids))


def run_case(binary: str, work: Path, seed: int) -> int:
    """Number of failures."""
    rng = random.Random(seed)
    model, shapes, vocabularies = random_case(rng)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    directory, batch = work / "model", work / "batch.safetensors"
    make_model(directory, seed, **model)
    clips = make_batch(seed, model["decoder"], shapes, **vocabularies)
    save_batch(clips, batch)
    want = gradients(load(directory), clips)
    print(f"case {seed}: {model} clips {shapes}", flush=True)
    return run_sets(binary, work, directory, batch, want, plan_sets(rng, model["decoder"]["num_hidden_layers"], "*.fc1,*.q_proj", [rows(clip) for clip in clips]))


if __name__ == "__main__":
    sys.exit(sweep_sets.main(run_case, __doc__))
