"""Random models and batches that are in no fixture, through the `ambitus` binary and every plan option, against the reference.

    python sweep.py BINARY [--count 20] [--seed N] [--keep DIR]

Each case is run with several option sets. Checked: parity of each with the package; equal bits with block checkpointing
on and off and at any thread count; the "reordered" tolerance between splits into micro-batches and numbers of ranks; equal bits with every sharding strategy.
The seed is printed; the same seed gives the same cases.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from make import make_batch, make_model
from reference import gradients, load, load_batch, save_batch

sys.path.append(str(Path(__file__).resolve().parent.parent))
import sweep_sets  # noqa: E402
from sweep_sets import plan_sets, run_sets  # noqa: E402


def random_case(rng: random.Random) -> tuple[dict, list[tuple[int, int, str]]]:
    """Arguments of `make_model` (without the seed) and the clips of one case."""
    variant = rng.choice(["v1", "v0"])
    released = rng.random() < 0.5  # half of the cases keep to shapes a release could have: 64-wide heads that fill the model
    heads = rng.choice([1, 2, 3])
    arch = (
        dict(dim=64 * heads, heads=heads)
        if released
        else dict(dim=16 * rng.randint(1, 6), heads=heads, dim_head=2 * rng.randint(2, 20))
    )
    arch |= dict(
        depth=rng.randint(1, 4),
        ff_mult=rng.choice([1, 2, 2, 4]),
        text_dim=2 * rng.randint(3, 40),
        conv_layers=rng.choice([1, 2, 2, 4]),
    )
    if not released and rng.random() < 0.2:
        arch["conv_layers"] = 0
    if variant == "v1":
        arch["qk_norm"] = "rms_norm" if not released and rng.random() < 0.3 else None
    model = dict(variant=variant, vocab_size=rng.randint(5, 120), tokenizer=rng.choice(["custom", "char", "pinyin"]), spread=rng.choice([0.02, 0.02, 0.1]), **arch)
    clips = []
    for _ in range(rng.choice([1, 1, 2, 3, 5])):
        frames = rng.choice([rng.randint(2, 12), rng.randint(10, 60), rng.randint(50, 200)])
        tokens = rng.randint(1, max(2, frames // 2)) if rng.random() < 0.85 else frames + rng.randint(0, 9)
        clips.append((frames, tokens, rng.choices(["", "a", "at", "t"], [4, 3, 2, 1])[0]))
    return model, clips


def run_case(binary: str, work: Path, seed: int) -> int:
    """Number of failures."""
    rng = random.Random(seed)
    model, shapes = random_case(rng)
    work.mkdir(parents=True, exist_ok=True)
    directory, batch = work / "model", work / "batch.safetensors"
    make_model(directory, seed, **model)
    save_batch(make_batch(seed, model["vocab_size"], shapes), batch)
    want = gradients(load(directory), load_batch(batch))
    print(f"case {seed}: {model} clips {shapes}", flush=True)
    return run_sets(binary, work, directory, batch, want, plan_sets(rng, model["depth"], "*.to_q,*.to_out.0", [c[0] for c in shapes]))


if __name__ == "__main__":
    sys.exit(sweep_sets.main(run_case, __doc__))
