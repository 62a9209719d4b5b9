"""Runs the `ambitus` binary with sets of options on random cases and compares; shared by the families' sweep.py.

A set is a name, options, and what it must equal: the bits of another set, or that set within the "reordered" tolerance.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from compare import bit_equal, check, check_reordered


@dataclass
class Set:
    name: str
    options: list[str]
    same_bits: str | None = None
    reordered: str | None = None


def rank_sets(like: str, micro_batch: int) -> list[Set]:
    """Every strategy at every number of ranks, and units of one module and of the whole model: each like one rank, and all of
    one number with the same bits."""
    sets = []
    for ranks in (1, 2, 3, 4, 8):
        strategies = ["full", "grad_op", "none"] + [f"{kind}:{k}" for k in range(2, ranks) if ranks % k == 0 for kind in ("hybrid", "hybrid_grad_op")]
        for strategy in strategies:
            options = ["--ranks", str(ranks), "--sharding", strategy, "--micro-batch", str(micro_batch)]
            first = None if strategy == "full" else f"{ranks}-full"
            sets.append(Set(f"{ranks}-{strategy}", options, same_bits=first, reordered=like))
        for units in ("1", "1000000000"):
            options = ["--ranks", str(ranks), "--units", units, "--micro-batch", str(micro_batch)]
            sets.append(Set(f"{ranks}-{units}", options, same_bits=f"{ranks}-full", reordered=like))
    return sets


def plan_sets(rng: random.Random, layers: int, modules: str, rows: list[int], ranks: Callable[[str, int], list[Set]] = rank_sets) -> list[Set]:
    """What every family is held to: recomputing, threads, a budget, splits into micro-batches, ranks. `rows`: of each clip."""
    longest, total = max(rows), sum(rows)
    some = rng.randint(longest, total)
    whole = ["--micro-batch", str(total), "--threads", "2"]
    return [
        Set("none", ["--checkpoint", "none", *whole]),
        Set("default", [], reordered="none"),
        Set("all", ["--checkpoint", "all", *whole], same_bits="none"),
        Set("part", ["--checkpoint", str(rng.randint(0, layers)), *whole], same_bits="none"),
        Set("values", ["--checkpoint", f"values:{rng.randint(1, 4)}", *whole], same_bits="none"),
        Set("modules", ["--checkpoint", modules, *whole], same_bits="none"),
        Set("one-thread", ["--checkpoint", "none", "--micro-batch", str(total), "--threads", "1"], same_bits="none"),
        Set("memory", ["--checkpoint", "none", "--memory", "1GiB", *whole], same_bits="none"),
        Set("longest", ["--checkpoint", "none", "--micro-batch", str(longest)], reordered="none"),
        Set("some", ["--checkpoint", "all", "--micro-batch", str(some), "--threads", "1"], reordered="none"),
        *ranks("none", some),
    ]


def run_sets(binary: str, work: Path, model: Path, batch: Path, want, sets: list[Set], judge=check, reordered=check_reordered) -> int:
    """Number of failures. `want`: the reference's loss and gradients, or what else `judge` takes beside an output."""
    failures, outs = 0, {}
    for s in sets:
        out = work / f"{s.name}.safetensors"
        started = time.monotonic()
        command = [binary, "gradients", "--model", str(model), "--batch", str(batch), "--out", str(out), *s.options]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            failures += 1
            print(f"  {s.name:<10} FAIL exit code {done.returncode}: {' '.join(s.options)}\n{done.stderr.strip()[-2000:]}")
            continue
        outs[s.name] = out
        verdict = judge(want, out)
        problems = list(verdict.wrong)
        if s.same_bits in outs:
            problems += [f"bits differ from `{s.same_bits}`: {n}" for n in bit_equal(outs[s.same_bits], out)]
        if s.reordered in outs:
            problems += reordered(outs[s.reordered], out)
        failures += not verdict.holds or bool(problems)
        print(f"  {s.name:<10} {verdict.line()}  {time.monotonic() - started:.2f} s", flush=True)
        for problem in problems[:5] + ([f"... {len(problems) - 5} more"] if len(problems) > 5 else []):
            print(f"    FAIL {problem}")
    return failures


def generate_main(record: Callable[[], None], sweep: Callable[[str, int, int], None], description: str | None) -> None:
    """The command line of a family's generate.py: writes fixtures, tries a binary on random models, or both."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", nargs="?")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.record:
        record()
    if args.binary:
        sweep(args.binary, args.count, args.seed)


def main(run_case: Callable[[str, Path, int], int], description: str) -> int:
    """The command line of a family's sweep. `run_case` gives the number of failures of a binary, in a folder, with a seed."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
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
