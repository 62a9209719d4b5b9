"""One peer: the F5-TTS package's DiT trained by PyTorch on the CPU, a step whenever a line arrives on standard input.

    python f5_torch.py MODELDIR BATCH.safetensors [--threads 2] [--mask] [--fused]

Answers in JSON lines. First {"ready": true, versions...}; then, per input line, one full training step (zero gradients, forward,
backward, clip to norm 1, AdamW): {"step_seconds", "cpu_seconds", "loss", "peak_rss_bytes",
"idle_rss_bytes"}. An empty input ends it. cpu_seconds (of all threads) tells a slow step from a machine busy with something else.

fp32, dropout 0, no EMA, all clips in one batch (they must have equal length, so that nothing is padded). Idle is the process after
its imports, before the model exists. The peak is the step's own high-water mark: it is reset before each step, so loading does not count.
The trainer passes an all-true mask for such a batch; by default it is left out here, which changes no number and saves PyTorch some
work (`--mask` puts it back). `--fused` takes the fused AdamW kernel, as the package's trainer does.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "parity" / "f5"))
import torch  # noqa: E402

import reference  # noqa: E402


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("batch", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--mask", action="store_true")
    parser.add_argument("--fused", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    idle = status("VmRSS")

    model = reference.load(args.model).train()
    clips = reference.load_batch(args.batch)
    if len({c.frames for c in clips}) != 1 or any(c.drop_audio.item() or c.drop_text.item() for c in clips):
        raise SystemExit(f"{args.batch}: the clips must have equal length and no dropped conditions")
    x1, x0 = torch.stack([c.mel for c in clips]), torch.stack([c.x0 for c in clips])  # [B, N, 100]
    t, span = torch.cat([c.time for c in clips]), torch.stack([c.span.bool() for c in clips])  # [B], [B, N]
    text = torch.nn.utils.rnn.pad_sequence([c.text for c in clips], batch_first=True, padding_value=-1)
    mask = torch.ones(span.shape, dtype=torch.bool) if args.mask else None
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=args.fused)
    say = lambda **row: print(json.dumps(row), flush=True)  # noqa: E731
    say(ready=True, f5_tts=importlib.metadata.version("f5-tts"), torch=torch.__version__, python=platform.python_version(), threads=args.threads, parameters=sum(p.numel() for p in model.parameters()))

    for line in sys.stdin:
        if not line.strip():
            break
        reset_peak()
        start, cpu = time.perf_counter(), time.process_time()
        optimizer.zero_grad(set_to_none=True)
        tt = t[:, None, None]
        cond = torch.where(span[..., None], torch.zeros_like(x1), x1)
        predicted = model(x=(1 - tt) * x0 + tt * x1, cond=cond, text=text, time=t, mask=mask)
        loss = torch.nn.functional.mse_loss(predicted, x1 - x0, reduction="none")[span].mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        value = loss.item()
        say(
            step_seconds=time.perf_counter() - start,
            cpu_seconds=time.process_time() - cpu,
            loss=value,
            peak_rss_bytes=status("VmHWM"),
            idle_rss_bytes=idle,
        )


if __name__ == "__main__":
    main()
