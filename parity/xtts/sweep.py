"""Random XTTS configurations and batches that are in no fixture, through the `ambitus` binary and every plan option, against
coqui-tts.

    python sweep.py BINARY [--count 20] [--seed N] [--keep DIR]

Each case is run with several option sets. Checked: parity of each with the package, the parts of the loss included; equal bits with
recompute on and off and at any thread count; the "reordered" tolerance between splits into micro-batches and numbers of ranks; equal
bits with every sharding strategy of those drawn. The seed is printed; the same seed gives the same cases.
"""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from make import make_batch, make_model, model_args
from reference import Clip, gradients, load, save_batch

sys.path.append(str(Path(__file__).resolve().parent.parent))
import sweep_sets  # noqa: E402
from sweep_sets import Set, plan_sets, rank_sets, run_sets  # noqa: E402

# Widths that the conditioning encoder's norms cut into 4, 8, 16 and 32 groups; heads, with odd sizes among them. Of 8 channels a group
# is one: a bias before its norm has no gradient then, and what both sides have of it is rounding of 517 frames.
WIDTHS = {12: [2, 4, 12], 16: [1, 4], 20: [4], 24: [2, 8], 32: [4], 36: [4], 40: [8, 5], 48: [4, 16], 60: [4], 64: [4, 2], 72: [8], 96: [6], 100: [4], 128: [8]}


def random_case(rng: random.Random) -> dict:
    """Arguments of `make_model`."""
    dim = rng.choice(list(WIDTHS))
    text, audio = rng.randint(9, 150), rng.choice([rng.randint(6, 40), rng.randint(40, 300)])
    args = model_args(
        dim, rng.choice(WIDTHS[dim]), rng.randint(1, 4), text, audio,
        max_text=rng.randint(12, 60), max_codes=rng.randint(14, 90),
        marks=tuple(rng.sample(range(2, audio), 2)) if rng.random() < 0.3 else None,
    )  # fmt: skip
    model = dict(args=args, gap=rng.random() < 0.3 and text > 12, stale=rng.random() < 0.3, gain=rng.choice([0.5, 1.0, 1.0]))
    if rng.random() < 0.5:
        model["start"], model["stop"] = rng.sample(range(text - 3), 2)
    return model | dict(dtype=rng.choice([torch.float32, torch.float32, torch.bfloat16, torch.float16]))


def random_clips(rng: random.Random, seed: int, model: dict) -> list[Clip]:
    # Products of at most 8 rows sum in another order: of so few no gradient is a mean that forgives it.
    args, shapes, prompts = model["args"], [], []
    most_text, most_codes = args["gpt_max_text_tokens"], args["gpt_max_audio_tokens"] - 2
    for _ in range(rng.randint(1, 4)):
        t, n = rng.choice([most_text, rng.randint(9, most_text)]), rng.choice([most_codes, rng.randint(9, most_codes)])
        shapes.append((t, n))
        prompts.append(tuple(sorted((rng.randint(0, n), rng.randint(0, n)))) if rng.random() < 0.3 else None)
    if rng.random() < 0.2:
        shapes.append((1, 1))
        prompts.append(None)
    return make_batch(seed, args, shapes, prompts=prompts, text_stop=model.get("stop", 0))


def some_ranks(rng: random.Random) -> Callable[[str, int], list[Set]]:
    """Full sharding at a drawn number of ranks, and two other strategies: every conditioning mel makes a run long."""

    def sets(like: str, micro_batch: int) -> list[Set]:
        count = rng.choice([2, 3, 4])
        of_count = [s for s in rank_sets(like, micro_batch) if s.name.startswith(f"{count}-")]
        full = [s for s in of_count if s.name == f"{count}-full"]
        return full + rng.sample([s for s in of_count if s not in full], 2)

    return sets


def run_case(binary: str, work: Path, seed: int) -> int:
    """Number of failures."""
    rng = random.Random(seed)
    model = random_case(rng)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    directory, batch = work / "model", work / "batch.safetensors"
    make_model(directory, seed, **model)
    clips = random_clips(rng, seed, model)
    save_batch(clips, batch)
    want = gradients(load(directory), clips)
    shapes = [(len(c.text_ids), len(c.codes), *([] if c.prompt_codes is None else c.prompt_codes.tolist())) for c in clips]
    print(f"case {seed}: {model} clips {shapes}", flush=True)
    return run_sets(binary, work, directory, batch, want, plan_sets(rng, model["args"]["gpt_layers"], "*.c_fc,*.to_kv", [clip.rows for clip in clips], some_ranks(rng)))


if __name__ == "__main__":
    sys.exit(sweep_sets.main(run_case, __doc__))
