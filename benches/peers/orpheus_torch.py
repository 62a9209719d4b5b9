"""One peer: transformers' LlamaForCausalLM trained by PyTorch on the CPU, a step whenever a line arrives on standard input.

    python orpheus_torch.py MODELDIR BATCH.safetensors [--threads 2] [--fused]

Answers in JSON lines, see cpu_steps.py. fp32, eager PyTorch with scaled_dot_product_attention (transformers' default), no
checkpointing, no padding: the clips must have equal length and are one batch.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file

from cpu_steps import serve, status


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("batch", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--fused", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    from transformers import LlamaForCausalLM  # the lazy import counts as idle, not as the step's memory

    idle = status("VmRSS")
    model = LlamaForCausalLM.from_pretrained(args.model, torch_dtype=torch.float32).train()
    model.config.use_cache = False
    tensors = load_file(str(args.batch))
    clips = range(sum(name.endswith(".input_ids") for name in tensors))
    if len({len(tensors[f"clips.{i}.input_ids"]) for i in clips}) != 1:
        raise SystemExit(f"{args.batch}: the clips must have equal length")
    ids, labels = (torch.stack([tensors[f"clips.{i}.{part}"] for i in clips]) for part in ("input_ids", "labels"))
    serve(model, lambda: model(input_ids=ids, labels=labels).loss, idle, args.lr, args.fused, package=f"transformers {transformers.__version__}")


if __name__ == "__main__":
    main()
