"""Random Llama configurations and batches that are in no fixture, through the `ambitus` binary and every plan option, against
transformers.

    python sweep.py BINARY [--count 20] [--seed N] [--keep DIR]

Each case is run with several option sets. Checked: parity of each with transformers; equal bits with recompute on and off and
at any thread count; the "reordered" tolerance between splits into micro-batches.
The seed is printed; the same seed gives the same cases.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from check import bit_equal, check, check_reordered
from make import LLAMA3, make_batch, make_model, respell
from reference import gradients, load, save_batch


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


def option_sets(rng: random.Random, model: dict, lengths: list[int]) -> list[tuple[str, list[str]]]:
    """Named sets; the first is the one that the others are compared with."""
    longest, total = max(lengths), sum(lengths)
    some = rng.randint(longest, max(longest, total))
    whole = ["--micro-batch", str(total), "--threads", "2"]
    return [
        ("none", ["--checkpoint", "none", *whole]),
        ("default", []),
        ("all", ["--checkpoint", "all", *whole]),
        ("part", ["--checkpoint", str(rng.randint(0, model["num_hidden_layers"])), *whole]),
        ("values", ["--checkpoint", f"values:{rng.randint(1, 4)}", *whole]),
        ("modules", ["--checkpoint", "*.mlp,*.q_proj", *whole]),
        ("one-thread", ["--checkpoint", "none", "--micro-batch", str(total), "--threads", "1"]),
        ("memory", ["--checkpoint", "none", "--memory", "1GiB", *whole]),
        ("longest", ["--checkpoint", "none", "--micro-batch", str(longest)]),
        ("some", ["--checkpoint", "all", "--micro-batch", str(some), "--threads", "1"]),
    ]


SAME_BITS = ("all", "part", "values", "modules", "one-thread", "memory")
REORDERED = ("default", "longest", "some")


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
    failures, outs = 0, {}
    for name, options in option_sets(rng, model, lengths):
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
