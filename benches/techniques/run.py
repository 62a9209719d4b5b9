"""Every memory technique on and off, taking turns: planned and measured peak, and step time.

    cargo build --release && python3 benches/techniques/run.py [--rounds 7] [--only NAME,NAME] [--threads 2] [--dim 320]

Each round is one run of `ambitus train` without a technique and one with it, the order alternating; a run is a process of its own.
What a process touches beside its arena scatters by one or two MiB, so savings are told apart best on a wide model: `--dim 640`.
Model: benches/techniques/model (random weights); clips: recipes/quickstart/clips. Needs only the standard library.
Writes benches/results/<date>-techniques-cpu.md and prints it. Exits with 1 when a measured peak is above the planned one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))
from result import commit, load, processor, quartiles, table, write  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent.parent
MODEL = Path(__file__).resolve().parent / "model"
MIB = 1 << 20

RECIPE = {
    "data": {"dir": "recipes/quickstart/clips", "max_seconds": 10, "validation": {"share": 0}},
    "batch": {"clips": 5},
    "micro_batch": {"frames": 1300, "clips": 5},
    "updates": 3,
    "memory": "4GiB",
    "checkpoint": "none",
    "precision": "fp32",
    "sample": False,
    "save_every": 0,
    "seed": 5,
}
PER_TENSOR = {"clip_per_tensor": True}

# Name, what both sides have, what only the second has.
TECHNIQUES = [
    ("checkpoint: all", {}, {"checkpoint": "all"}),
    ("checkpoint: 4 blocks", {}, {"checkpoint": 4}),
    ("checkpoint: the 3 cheapest values", {}, {"checkpoint": "values:3"}),
    ("micro-batch of half the update", {}, {"micro_batch": {"frames": 650, "clips": 5}}),
    ("update: backward", PER_TENSOR | {"checkpoint": "all"}, {"update": "backward"}),
    ("precision: bf16-mixed", {}, {"precision": "bf16-mixed"}),
    ("precision: fp16-mixed", {}, {"precision": "fp16-mixed"}),
    ("precision: bf16-pure", {}, {"precision": "bf16-pure"}),
    ("optimizer: adamw-bf16", {}, {"optimizer": "adamw-bf16"}),
    ("optimizer: adamw-8bit", {}, {"optimizer": "adamw-8bit"}),
    ("offload: optimizer (to disk)", {}, {"offload": {"optimizer": True, "disk": "{disk}"}}),
    ("offload: ema (to disk)", {}, {"offload": {"ema": True, "disk": "{disk}"}}),
    ("offload: gradients (to disk)", {}, {"offload": {"gradients": True, "disk": "{disk}"}}),
    ("offload: parameters (to disk)", {}, {"offload": {"parameters": True, "disk": "{disk}"}}),
    ("offload: activations (to disk)", {}, {"offload": {"activations": True, "disk": "{disk}"}}),
    ("freeze: attention", {}, {"freeze": ["*.attn"]}),
    ("lora: rank 16", {}, {"lora": {"rank": 16}}),
]


@dataclass
class Measured:
    step_seconds: float
    planned: int
    measured: int
    arena: int


def model(directory: str, dim: int) -> dict:
    """The recipe's model: the one of this folder at another width, heads of 64 channels as there."""
    out = Path(directory) / "model"
    out.mkdir()
    config = (MODEL / "config.yaml").read_text()
    config = re.sub(r"\bdim: \d+", f"dim: {dim}", config, count=1)
    config = re.sub(r"\bheads: \d+", f"heads: {dim // 64}", config, count=1)
    (out / "config.yaml").write_text(config)
    (out / "vocab.txt").write_bytes((MODEL / "vocab.txt").read_bytes())
    return {"dir": str(out), "from_scratch": True}


def run(args: argparse.Namespace, keys: dict) -> Measured:
    with tempfile.TemporaryDirectory() as directory:
        recipe = Path(directory) / "recipe.yaml"
        keys = {"model": model(directory, args.dim), "threads": args.threads} | keys
        filled = json.dumps(RECIPE | keys).replace("{disk}", directory)
        recipe.write_text(filled)  # JSON is YAML
        out = Path(directory) / "run"
        done = subprocess.run([args.ambitus, "train", str(recipe), "--run-dir", str(out)], cwd=ROOT, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"exit code {done.returncode} of {keys}\n{done.stderr[-3000:]}")
        s = json.loads((out / "summary.json").read_text())
        return Measured(s["step_seconds_median"], s["peak_planned_bytes"], s["peak_rss_bytes"], s["arena_bytes_planned"])


def mib(n: float) -> str:
    return f"{n / MIB:.1f}"


def row(name: str, off: list[Measured], on: list[Measured]) -> str:
    ratios = [b.step_seconds / a.step_seconds for a, b in zip(off, on)]
    peak = lambda side: statistics.median(m.measured for m in side)
    planned = off[0].planned - on[0].planned
    measured = peak(off) - peak(on)
    off_by = f"{100 * (measured / planned - 1):+.1f} %" if planned else "-"
    cells = [name, mib(off[0].planned), mib(peak(off)), mib(on[0].planned), mib(peak(on)), mib(planned), mib(measured), off_by, quartiles(ratios, 3)]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ambitus", default=str(ROOT / "target/release/ambitus"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dim", type=int, default=320, help="width of the model, a multiple of 64")
    parser.add_argument("--only", default="")
    parser.add_argument("--name", default="techniques-cpu")
    args = parser.parse_args()
    wanted = [w for w in args.only.split(",") if w]
    lines, above, loads = [], [], []
    for name, both, with_it in TECHNIQUES:
        if wanted and not any(w in name for w in wanted):
            continue
        off: list[Measured] = []
        on: list[Measured] = []
        for i in range(args.rounds):
            turns = [lambda: off.append(run(args, both)), lambda: on.append(run(args, both | with_it))]
            for turn in turns if i % 2 == 0 else reversed(turns):
                turn()
            loads.append(os.getloadavg()[0])
        above += [name for m in off + on if m.measured > m.planned]
        lines.append(row(name, off, on))
        print(lines[-1], file=sys.stderr, flush=True)
    facts = [
        f"processor: {processor()}, {args.threads} threads; {load(loads)}",
        f"Ambitus {commit()}; `python3 benches/techniques/run.py --rounds {args.rounds} --dim {args.dim}`: {args.rounds} runs of each side, taking turns; model of width {args.dim}",
        f"recipe of both sides but for the row's key: `{json.dumps(RECIPE)}`",
        f"measured peaks above the planned one: {', '.join(above) or 'none'}",
    ]
    legend = "Peaks in MiB of the whole process, without | with. Saving: off minus on, planned and measured. Step time: with over without, median (quartiles)."
    columns = ["technique", "planned without", "measured", "planned with", "measured", "saving planned", "measured", "difference", "step time"]
    write(args.name, "Techniques on and off, on the CPU", facts, [legend], table(columns, lines))
    sys.exit(1 if above else 0)


if __name__ == "__main__":
    main()
