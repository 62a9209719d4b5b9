"""Random MusicGen configurations and batches that are in no fixture, through the `ambitus` binary and every plan option, against
transformers, and every fourth against audiocraft.

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
from make import make_batch, make_model, make_package
from reference import gradients, load, save_batch

sys.path.append(str(Path(__file__).resolve().parent.parent))
import sweep_sets  # noqa: E402
from sweep_sets import plan_sets, run_sets  # noqa: E402


def random_case(rng: random.Random, packaged: bool) -> tuple[dict, list[tuple[int, int]], int]:
    """Arguments of `make_model` or `make_package`, clips' tokens of text and frames, and the text's vocabulary."""
    heads = rng.choice([1, 2, 3, 4, 8])
    head_dim = rng.choice([4, 8, 16, 10])
    channels = rng.choice([1, 1, 2])
    books = channels * rng.choice([1, 2, 3, 4, 4])
    width = heads * head_dim
    decoder = dict(
        vocab_size=rng.choice([4, 16, 50, 64, 256]),
        num_codebooks=books,
        audio_channels=channels,
        hidden_size=width,
        ffn_dim=rng.choice([width, 2 * width, 4 * width]) if packaged else rng.randint(3, 150),
        num_hidden_layers=rng.randint(1, 4),
        num_attention_heads=heads,
    )
    text = dict(
        vocab_size=rng.randint(5, 200),
        d_model=width if rng.random() < 0.3 else rng.randint(3, 60),
        d_kv=rng.choice([2, 4, 8, 11]),
        d_ff=rng.randint(3, 80),
        num_layers=rng.randint(1, 3),
        num_heads=rng.randint(1, 4),
        feed_forward_proj=rng.choice(["relu", "relu", "gated-gelu"]),
    )
    half = torch.float16 if packaged else rng.choice([torch.bfloat16, torch.float16])
    model = dict(text=text, decoder=decoder, gain=rng.choice([0.5, 1.0, 1.0]), dtype=rng.choice([torch.float32, torch.float32, half]))
    if packaged:
        model |= dict(mha=rng.random() < 0.3)
        if channels == 2 or rng.random() < 0.5:
            model["delays"] = [k // channels for k in range(books)] if rng.random() < 0.5 else [0, *sorted(rng.randint(0, 6) for _ in range(books - 1))]
    else:
        decoder |= dict(dropout=rng.choice([0.0, 0.1]), max_position_embeddings=rng.choice([4, 2048]))
        model |= dict(shard=rng.choice(["5GB", "5GB", "30KB"]))
    # Products of at most 8 rows sum in another order: of so few no gradient is a mean that forgives it.
    shapes = []
    for _ in range(rng.choice([1, 2, 3, 5])):
        frames = rng.choice([rng.randint(9, 20), rng.randint(10, 60), rng.randint(50, 160)])
        shapes.append((0 if rng.random() < 0.3 else rng.choice([rng.randint(9, 20), rng.randint(15, 100)]), frames))
    if rng.random() < 0.2:
        shapes.append((rng.choice([0, 1]), 1 + rng.randint(0, 2)))
    return model, shapes, text["vocab_size"]


def run_case(binary: str, work: Path, seed: int) -> int:
    """Number of failures."""
    rng = random.Random(seed)
    packaged = seed % 4 == 3
    model, shapes, ids = random_case(rng, packaged)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    (make_package if packaged else make_model)(work / "model", seed, **model)
    clips = make_batch(seed, model["decoder"], shapes, ids=ids)
    save_batch(clips, work / "batch.safetensors")
    decoder = model["decoder"]
    delays = model.get("delays", "own")
    print(f"seed {seed}: {'audiocraft' if packaged else 'transformers'}, {decoder} text {model['text']} delays {delays} {model['dtype']} clips {shapes}", flush=True)
    sets = plan_sets(rng, decoder["num_hidden_layers"], "*.fc1,*.q_proj", [c.frames + 1 for c in clips])
    return run_sets(binary, work, work / "model", work / "batch.safetensors", gradients(load(work / "model"), clips), sets)


if __name__ == "__main__":
    sys.exit(sweep_sets.main(run_case, __doc__))
