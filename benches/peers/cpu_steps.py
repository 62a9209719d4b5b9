"""What the peers of `run.py` share: a training step whenever a line arrives on standard input, measured, as JSON lines.

First {"ready": true, versions...}; then, per input line, one step: {"step_seconds", "cpu_seconds", "loss", "peak_rss_bytes",
"idle_rss_bytes"}. An empty input ends it. cpu_seconds (of all threads) tells a slow step from a machine busy with something else.
Idle is the process after its imports, before the model exists. The peak is the step's own high-water mark: it is reset before each
step, so loading does not count.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch


def status(field: str) -> int:
    """VmRSS or VmHWM of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"no {field} in /proc/self/status")


def reset_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass  # then the mark includes loading, which is lower than a step


def answer(step: Callable[[], torch.Tensor], parameters: int, idle: int, **about: object) -> None:
    """Runs `step`, which gives its loss, whenever it is asked to."""
    say = lambda **row: print(json.dumps(row), flush=True)  # noqa: E731
    say(ready=True, torch=torch.__version__, python=platform.python_version(), threads=torch.get_num_threads(), parameters=parameters, **about)
    for line in sys.stdin:
        if not line.strip():
            break
        reset_peak()
        start, cpu = time.perf_counter(), time.process_time()
        value = step().item()
        say(
            step_seconds=time.perf_counter() - start,
            cpu_seconds=time.process_time() - cpu,
            loss=value,
            peak_rss_bytes=status("VmHWM"),
            idle_rss_bytes=idle,
        )


def serve(model: torch.nn.Module, loss: Callable[[], torch.Tensor], idle: int, lr: float, fused: bool, **about: object) -> None:
    """Steps of zero gradients, forward, backward, clip to norm 1, AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=fused)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        value = loss()
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return value

    answer(step, sum(p.numel() for p in model.parameters() if p.requires_grad), idle, **about)
