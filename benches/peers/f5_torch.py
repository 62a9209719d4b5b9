"""One peer: the F5-TTS package's DiT trained by PyTorch on the CPU, a step whenever a line arrives on standard input.

    python f5_torch.py MODELDIR BATCH.safetensors [--threads 2] [--mask] [--fused]

Answers in JSON lines, see cpu_steps.py.

fp32, dropout 0, no EMA, all clips in one batch (they must have equal length, so that nothing is padded).
The trainer passes an all-true mask for such a batch; by default it is left out here, which changes no number and saves PyTorch some
work (`--mask` puts it back). `--fused` takes the fused AdamW kernel, as the package's trainer does.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "parity" / "f5"))
import torch  # noqa: E402

import reference  # noqa: E402
from cpu_steps import serve, status  # noqa: E402


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

    def loss() -> torch.Tensor:
        tt = t[:, None, None]
        cond = torch.where(span[..., None], torch.zeros_like(x1), x1)
        predicted = model(x=(1 - tt) * x0 + tt * x1, cond=cond, text=text, time=t, mask=mask)
        return torch.nn.functional.mse_loss(predicted, x1 - x0, reduction="none")[span].mean()

    serve(model, loss, idle, args.lr, args.fused, package=f"f5-tts {importlib.metadata.version('f5-tts')}")


if __name__ == "__main__":
    main()
