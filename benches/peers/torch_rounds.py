"""What the plain-PyTorch peers (`f5_plain_torch.py`, `llama_plain_torch.py`) share: options, one training step, timing, JSON.

A peer hands `run` a function that builds its step. Run once, it warms up, times `--steps` steps and prints one JSON line. With
`--serve` it builds, warms up and prints `ready`; then each line `go` on standard input runs one round of `--steps` steps and prints
that round's JSON line, until the input ends. Between rounds the process is silent, so that a tool can alternate it with another.

A round lies between two `torch.cuda.synchronize()` calls with nothing in between that waits for the card. A step's time is from CUDA
events at its two ends (`perf_counter` on the CPU); `wall_ms` is the round's wall time over its steps and should be close to their
mean. `max_memory_*` are PyTorch's, for the round alone. `device_used` is the whole card's (`mem_get_info`: total less free) at the
round's end: it holds the context and the allocator's cache, and other processes too if any are alive.

fp32 means fp32: TF32 is off for matrix products and for convolutions (where PyTorch has it on by default); `--tf32` turns both on.
bf16 and fp16 are autocast over fp32 weights, fp16 with a GradScaler, as Accelerate does it for the F5-TTS trainer.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

try:
    import torch
except ImportError:
    raise SystemExit(f"PyTorch is missing for {sys.executable}: install torch (for --device cuda, a build for the card's CUDA version)")

WARM_UP_STEPS = 3
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def parser(description: str) -> argparse.ArgumentParser:
    """The options both peers have."""
    p = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    p.add_argument("--precision", choices=tuple(DTYPES), default="bf16")
    p.add_argument("--tf32", action="store_true", help="let fp32 use TF32")
    p.add_argument("--steps", type=int, default=10, help="of one round")
    p.add_argument("--serve", action="store_true", help="print `ready`, then one round per line `go` on standard input")
    p.add_argument("--compile", action="store_true", help="torch.compile the model")
    p.add_argument("--lr", type=float, default=1e-5)
    p.add_argument("--seed", type=int, default=0)
    return p


def prepare(args: argparse.Namespace) -> None:
    if args.steps < 1:
        raise SystemExit("--steps must be at least 1")
    if args.device == "cuda" and not torch.cuda.is_available():
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
        raise SystemExit(f"--device cuda: torch {torch.__version__} ({built}) finds no card; install a CUDA build that the driver supports, or use --device cpu")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = args.tf32
    random.seed(args.seed)
    torch.manual_seed(args.seed)


def compiled(args: argparse.Namespace, model: torch.nn.Module) -> torch.nn.Module:
    return torch.compile(model, dynamic=False) if args.compile else model


class Step:
    """One training step: `loss()` under autocast, backward, clip to norm 1, fused AdamW, and every `ema_every` steps (0: never) EMA."""

    def __init__(self, args: argparse.Namespace, model: torch.nn.Module, loss: Callable[[], torch.Tensor], ema_every: int = 0) -> None:
        self.loss, self.ema_every, self.count = loss, ema_every, 0
        self.autocast = dict(device_type=args.device, dtype=DTYPES[args.precision], enabled=args.precision != "fp32")
        self.parameters = list(model.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, lr=args.lr, fused=args.device == "cuda")
        self.scaler = torch.amp.GradScaler(args.device, enabled=args.precision == "fp16")
        self.averages = [p.detach().clone() for p in self.parameters] if ema_every else []

    def __call__(self) -> torch.Tensor:
        with torch.autocast(**self.autocast):
            loss = self.loss()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.count += 1
        if self.ema_every and self.count % self.ema_every == 0:
            with torch.no_grad():
                torch._foreach_lerp_(self.averages, self.parameters, 1 - 0.9999)
        return loss.detach()


def timed(device: str, step: Step, steps: int) -> tuple[list[float], float, float]:
    """Milliseconds of each step and of the whole round, and the last loss."""
    if device == "cpu":
        marks = [time.perf_counter()]
        for _ in range(steps):
            loss = step()
            marks.append(time.perf_counter())
        each = [(b - a) * 1e3 for a, b in itertools.pairwise(marks)]
        return each, sum(each), loss.item()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    start = time.perf_counter()
    events[0].record()
    for event in events[1:]:
        loss = step()
        event.record()
    torch.cuda.synchronize()
    wall = (time.perf_counter() - start) * 1e3
    return [a.elapsed_time(b) for a, b in itertools.pairwise(events)], wall, loss.item()


def agree(case: str, wanted: dict[str, torch.Tensor], got: dict[str, torch.Tensor], within: float = 1e-5) -> None:
    """For the peers' `--check`: every tensor differs by at most `within` of its largest value."""
    assert wanted.keys() == got.keys(), wanted.keys() ^ got.keys()
    errors = {name: ((got[name] - w).abs().max() / w.abs().max()).item() for name, w in wanted.items()}
    most = max(errors, key=lambda name: errors[name] if errors[name] == errors[name] else math.inf)
    print(f"{case}: {len(errors)} tensors, largest relative difference {errors[most]:.1e} ({most})")
    if not errors[most] <= within:
        raise SystemExit(f"{case}: {most} differs by more than {within:.0e}")


def processor() -> str:
    try:
        return next(line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"


def round_row(args: argparse.Namespace, script: str, shape: dict, step: Step) -> dict:
    each, wall, loss = timed(args.device, step, args.steps)
    low, middle, high = statistics.quantiles(each, n=4, method="inclusive") if len(each) > 1 else each * 3
    row = {
        "script": script,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "card": processor(),
        "precision": args.precision,
        "tf32": args.tf32,
        "compile": args.compile,
        "shape": shape,
        "steps": args.steps,
        "step_ms": [round(v, 4) for v in (middle, low, high)],
        "wall_ms": round(wall / args.steps, 4),
        "loss": loss if math.isfinite(loss) else None,  # NaN is no JSON
        "max_memory_allocated": None,
        "max_memory_reserved": None,
        "device_used": None,
    }
    if args.device == "cuda":
        free, total = torch.cuda.mem_get_info()
        row |= {
            "card": torch.cuda.get_device_name(),
            "max_memory_allocated": torch.cuda.max_memory_allocated(),
            "max_memory_reserved": torch.cuda.max_memory_reserved(),
            "device_used": total - free,
        }
    return row


def run(args: argparse.Namespace, script: str, build: Callable[[argparse.Namespace], tuple[Step, dict]]) -> None:
    """Builds (`build` returns the step and the JSON line's `shape`), warms up, then runs once or serves."""
    prepare(args)
    try:
        step, shape = build(args)
        for _ in range(WARM_UP_STEPS):
            step()
        if not args.serve:
            print(json.dumps(round_row(args, script, shape, step)), flush=True)
            return
        if args.device == "cuda":
            torch.cuda.synchronize()
        print("ready", flush=True)
        for line in sys.stdin:
            if line.strip() == "go":
                print(json.dumps(round_row(args, script, shape, step)), flush=True)
            elif line.strip():
                print(f"unknown request {line.strip()!r}: only `go` is one", file=sys.stderr, flush=True)
    except torch.cuda.OutOfMemoryError as error:
        raise SystemExit(f"{script}: the card's memory does not hold this step: {error}")
