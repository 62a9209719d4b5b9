"""One peer: transformers' MusicGen trained by PyTorch on the CPU, a step whenever a line arrives on standard input.

    python musicgen_torch.py MODELDIR BATCH.safetensors [--threads 2] [--attention sdpa|eager] [--fused]

Answers in JSON lines, see cpu_steps.py.

fp32, dropout 0, all clips in one batch (they must have equal lengths, so that nothing is padded and no mask is needed). The states of
texts are computed once, before the first step: the text encoder is frozen.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "parity" / "musicgen"))
import torch  # noqa: E402
import transformers  # noqa: E402
from transformers.modeling_outputs import BaseModelOutput  # noqa: E402

import reference  # noqa: E402
from cpu_steps import serve, status  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("batch", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--attention", choices=("sdpa", "eager"), default="sdpa")
    parser.add_argument("--fused", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    idle = status("VmRSS")

    loaded = reference.Transformers(args.model)
    model = loaded.model
    model.decoder.set_attn_implementation(args.attention)
    clips = reference.load_batch(args.batch)
    if len({(c.frames, len(c.text_ids)) for c in clips}) != 1:
        raise SystemExit(f"{args.batch}: the clips must have equal lengths")
    states = torch.stack([loaded.states(c) for c in clips])  # [B, U, D]
    labels = loaded.labels(clips)  # [B, T, K]

    def loss() -> torch.Tensor:
        return model(encoder_outputs=BaseModelOutput(last_hidden_state=states), labels=labels, use_cache=False).loss

    package = f"transformers {transformers.__version__} with {args.attention} attention"
    serve(model, loss, idle, args.lr, args.fused, package=package)


if __name__ == "__main__":
    main()
