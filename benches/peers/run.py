"""Ambitus and PyTorch, taking turns on the same machine: ratios of step time and of peak memory above the idle process.

    python run.py --python PEER_PYTHON --bench DIR --ours "target/release/ambitus train RECIPE --run-dir {out} ..." [--rounds 10]

DIR is what parity/PEER/make_bench_model.py wrote, RECIPE is PEER.yaml beside this file, with `--model {model} --data {data} --run-dir {out}
--threads {threads}`; --peer names PEER: f5, orpheus, parler, xtts, musicgen or piper. PEER_PYTHON is an interpreter with what parity/README.md
says of it.
The command given as --ours trains the same clips for a few updates into the run folder {out} ({model}, {data} and {threads} are
filled in too) and must leave `summary.json` there with `step_seconds_median` and `peak_rss_bytes`. Without --ours only the peer is measured.
Each round is one run of ours and `--steps` steps of the peer; the side that goes first alternates. Needs only the standard library.
Writes benches/results/<date>-<name>.md and prints it.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))
from peer import Peer  # noqa: E402
from result import commit, load, processor, table, write  # noqa: E402

HERE = Path(__file__).resolve().parent
WARM_UP_STEPS = 3  # allocator and thread pool settle; PyTorch's resident size grows over its first steps
GIB = 1 << 30


@dataclass
class Measured:
    """One side of one round."""

    step_seconds: float
    peak_bytes: int
    idle_bytes: int

    @property
    def above_idle(self) -> int:
        return self.peak_bytes - self.idle_bytes


class Steps:
    """The peer's training steps, with the processor's time of each."""

    def __init__(self, args: argparse.Namespace) -> None:
        bench = [args.bench / "model", args.bench / "batch.safetensors"]
        self.peer = Peer([args.python, HERE / f"{args.peer}_torch.py", *bench, "--threads", args.threads, *args.peer_options.split()])
        for _ in range(WARM_UP_STEPS):
            self.peer.ask("step")
        self.cpu_seconds: list[float] = []

    def measure(self, steps: int) -> Measured:
        rows = [self.peer.ask("step") for _ in range(steps)]
        self.cpu_seconds += [r["cpu_seconds"] for r in rows]
        return Measured(statistics.median(r["step_seconds"] for r in rows), max(r["peak_rss_bytes"] for r in rows), rows[0]["idle_rss_bytes"])


def idle_bytes(program: str) -> int:
    """High-water mark of our process when it only starts and prints its version."""
    pid = os.posix_spawnp(program, [program, "--version"], os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)])
    _, state, usage = os.wait4(pid, 0)
    if state != 0:
        raise SystemExit(f"{program} --version failed")
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def ours(template: str, args: argparse.Namespace) -> Measured:
    """One run of the command; its run folder's summary has the numbers."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "run"
        filled = template.format(out=out, model=args.bench / "model", data=args.bench / "data", threads=args.threads)
        command = shlex.split(filled)
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"exit code {done.returncode} of: {filled}\n{done.stderr[-3000:]}")
        summary = json.loads((out / "summary.json").read_text())
    return Measured(summary["step_seconds_median"], summary["peak_rss_bytes"], idle_bytes(command[0]))


def row(name: str, values: list[float], form: str) -> str:
    low, high = min(values), max(values)
    quarter = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [low, low, high]
    cells = (statistics.median(values), quarter[0], quarter[2], low, high)
    return f"| {name} | " + " | ".join(form.format(v) for v in cells) + " |"


def report(args: argparse.Namespace, steps: Steps, theirs: list[Measured], own: list[Measured], loads: list[float]) -> None:
    facts = [
        f"processor: {processor()}; both sides {args.threads} threads; {load(loads)}",
        f"PyTorch {steps.peer.about['torch']}, Python {steps.peer.about['python']}, {steps.peer.about['package']}, {steps.peer.about['parameters']:,} parameters; options: {args.peer_options or 'none'}",
        f"Ambitus {commit()}: `{args.ours}`" if own else "Ambitus: not run",
        f"{len(theirs)} rounds of {args.steps} PyTorch steps{' and one run of ours, taking turns' if own else ''}; fp32, dropout 0, no EMA",
        f"CPU seconds (all threads) of one PyTorch step: median {statistics.median(steps.cpu_seconds):.3f}; per thread {statistics.median(steps.cpu_seconds) / args.threads:.3f}",
    ]
    rows = [
        row("PyTorch step, s", [m.step_seconds for m in theirs], "{:.3f}"),
        row("PyTorch peak above idle, GiB", [m.above_idle / GIB for m in theirs], "{:.3f}"),
    ]
    if own:
        rows += [
            row("Ambitus step, s", [m.step_seconds for m in own], "{:.3f}"),
            row("Ambitus peak above idle, GiB", [m.above_idle / GIB for m in own], "{:.3f}"),
            row("**step, ours / theirs**", [a.step_seconds / b.step_seconds for a, b in zip(own, theirs)], "{:.3f}"),
            row("**peak above idle, ours / theirs**", [a.above_idle / b.above_idle for a, b in zip(own, theirs)], "{:.3f}"),
        ]
    idle = f"Idle: PyTorch {theirs[0].idle_bytes / GIB:.3f} GiB after its imports" + (f", Ambitus {own[0].idle_bytes / GIB:.3f} GiB" if own else "") + "."
    columns = ["", "median", "lower quartile", "upper quartile", "least", "most"]
    title = f"{args.name}: {'Ambitus against ' if own else ''}PyTorch"
    write(args.name, title, facts, table(columns, rows), [idle])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--peer", choices=("f5", "orpheus", "parler", "xtts", "musicgen", "piper"), default="f5")
    parser.add_argument("--bench", type=Path, required=True)
    parser.add_argument("--ours")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=3, help="PyTorch steps per round; their median counts")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--name", help="of the result file; PEER-peers without")
    parser.add_argument("--peer-options", default="", help='passed to the peer, for example "--fused"')
    args = parser.parse_args()
    args.name = args.name or f"{args.peer}-peers"

    steps = Steps(args)
    theirs: list[Measured] = []
    own: list[Measured] = []
    loads = []
    for i in range(args.rounds):
        turns = [lambda: theirs.append(steps.measure(args.steps))]
        if args.ours:
            turns.append(lambda: own.append(ours(args.ours, args)))
        for turn in turns if i % 2 == 0 else reversed(turns):
            turn()
        loads.append(os.getloadavg()[0])
        seconds = f"PyTorch {theirs[-1].step_seconds:.3f} s" + (f", ours {own[-1].step_seconds:.3f} s" if own else "")
        print(f"round {i + 1}/{args.rounds}: {seconds}, load {loads[-1]:.1f}", file=sys.stderr, flush=True)
    steps.peer.close()
    report(args, steps, theirs, own, loads)


if __name__ == "__main__":
    main()
