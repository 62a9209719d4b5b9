"""What the checks of codecs and vocoders share: their command line, and the binary on files. See snac/check.py."""

from __future__ import annotations

import argparse
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path


def run(binary: str, *args: object) -> tuple[float, str]:
    """Runs `ambitus codec`; the seconds that it took, and what it said."""
    start = time.time()
    ran = subprocess.run([binary, "codec", *map(str, args)], capture_output=True, text=True)
    if ran.returncode != 0:
        raise SystemExit(f"{args}: exit code {ran.returncode}: {ran.stderr}")
    return time.time() - start, ran.stderr


def main(case: Callable[..., bool], draw: Callable[[random.Random], tuple], published: Callable[[int], list[tuple]]) -> None:
    """Tries `case(BINARY, *what)`, which says whether it holds, on what is drawn, and with --published on that of a seed too."""
    parser = argparse.ArgumentParser()
    parser.add_argument("binary", type=lambda path: str(Path(path).resolve()))
    parser.add_argument("--count", type=int, default=6)
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    parser.add_argument("--published", action="store_true")
    args = parser.parse_args()
    print("seed", args.seed)
    rng, ok = random.Random(args.seed), True
    for _ in range(args.count):
        ok &= case(args.binary, *draw(rng))
    for what in published(args.seed) if args.published else []:
        ok &= case(args.binary, *what)
    raise SystemExit(0 if ok else 1)
