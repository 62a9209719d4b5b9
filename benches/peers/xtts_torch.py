"""One peer: coqui-tts' GPT of XTTS v2 trained by PyTorch on the CPU, a step whenever a line arrives on standard input.

    python xtts_torch.py MODELDIR BATCH.safetensors [--threads 2] [--attention sdpa|eager] [--fused]

Answers in JSON lines, see cpu_steps.py.

fp32, dropout 0, all clips in one batch (they must have equal lengths, so that nothing is padded but the stops). The conditioning
encoder and the perceiver are trained with the decoder, as the project does; codes and mels are given.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "parity" / "xtts"))
import torch  # noqa: E402

import reference  # noqa: E402
from cpu_steps import serve, status  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("batch", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--attention", choices=("sdpa", "eager"), default="sdpa", help="of the decoder; the others have the package's own")
    parser.add_argument("--fused", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    idle = status("VmRSS")

    model = reference.load(args.model)
    model.gpt.set_attn_implementation(args.attention)
    for module in model.modules():
        if isinstance(module, (torch.nn.Dropout, torch.nn.Dropout1d)):
            module.p = 0.0
    model.train()
    clips = reference.load_batch(args.batch)
    if len({(len(c.text_ids), len(c.codes)) for c in clips}) != 1 or any(c.prompt_codes is not None for c in clips):
        raise SystemExit(f"{args.batch}: the clips must have equal lengths and score all codes")

    def loss() -> torch.Tensor:
        text, codes = reference.losses(model, clips)
        return reference.TEXT_WEIGHT * text + codes

    package = f"coqui-tts {importlib.metadata.version('coqui-tts')} with {args.attention} attention"
    serve(model, loss, idle, args.lr, args.fused, package=package)


if __name__ == "__main__":
    main()
