"""Random models and batches that are in no fixture, through the `ambitus` binary and every plan option, against the reference.

    python sweep.py BINARY [--count 20] [--seed N] [--keep DIR]

Each case is run with several option sets. Checked: parity of each with the package; equal bits with block checkpointing
on and off and at any thread count; the "reordered" tolerance between splits into micro-batches.
The seed is printed; the same seed gives the same cases.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from check import bit_equal, check, check_reordered
from make import make_batch, make_model
from reference import gradients, load, load_batch, save_batch


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


def option_sets(rng: random.Random, model: dict, clips: list) -> list[tuple[str, list[str]]]:
    """Named sets; the first is the one that the others are compared with."""
    longest, total = max(c[0] for c in clips), sum(c[0] for c in clips)
    some = rng.randint(longest, max(longest, total))
    return [
        ("none", ["--checkpoint", "none", "--micro-batch", str(total), "--threads", "2"]),
        ("default", []),
        ("all", ["--checkpoint", "all", "--micro-batch", str(total), "--threads", "2"]),
        ("part", ["--checkpoint", str(rng.randint(0, model["depth"])), "--micro-batch", str(total), "--threads", "2"]),
        ("one-thread", ["--checkpoint", "none", "--micro-batch", str(total), "--threads", "1"]),
        ("longest", ["--checkpoint", "none", "--micro-batch", str(longest)]),
        ("some", ["--checkpoint", "all", "--micro-batch", str(some), "--threads", "1"]),
    ]


SAME_BITS = ("all", "part", "one-thread")
REORDERED = ("default", "longest", "some")


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
    failures, outs = 0, {}
    for name, options in option_sets(rng, model, shapes):
        out = work / f"{name}.safetensors"
        started = time.monotonic()
        command = [binary, "gradients", "--model", str(directory), "--batch", str(batch), "--out", str(out), *options]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            failures += 1
            print(f"  {name:<10} FAIL exit code {done.returncode}: {' '.join(options)}\n{done.stderr.strip()[-2000:]}")
            continue
        outs[name] = out
        verdict = check(want, out)
        problems = list(verdict.wrong)
        if name in SAME_BITS and "none" in outs:
            problems += [f"bits differ from `none`: {n}" for n in bit_equal(outs["none"], out)]
        if name in REORDERED and "none" in outs:
            problems += check_reordered(outs["none"], out)
        failures += not verdict.holds or bool(problems)
        print(f"  {name:<10} {verdict.line()}  {time.monotonic() - started:.2f} s", flush=True)
        for problem in problems[:5] + ([f"... {len(problems) - 5} more"] if len(problems) > 5 else []):
            print(f"    FAIL {problem}")
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=None, help="of the first case; random when absent")
    parser.add_argument("--keep", type=Path, help="keep every case's files here")
    args = parser.parse_args()
    first = random.SystemRandom().randrange(1_000_000) if args.seed is None else args.seed
    failed = []
    with tempfile.TemporaryDirectory() as temporary:
        for seed in range(first, first + args.count):
            if run_case(args.binary, (args.keep or Path(temporary)) / str(seed), seed):
                failed.append(seed)
    print(f"{args.count - len(failed)} of {args.count} cases hold" + (f"; failed: {failed} (rerun one with --seed S --count 1)" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
