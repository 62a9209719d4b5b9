"""One peer: transformers' `generate` on the CPU, and the bandwidth of the memory, a turn whenever a line arrives on standard input.

    python decode_torch.py MODELDIR BATCH.safetensors [--threads 2] [--new 256]

`generate N` answers {"seconds", "tokens"} of the first N prompts, greedy and with a KV cache, fp32, as one batch; `bandwidth` answers
{"bytes_per_second"} of the best of five sums over 256 MB of floats. The first line is {"torch", "transformers", "python", "parameters"}.
The prompts must have equal length.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file

MEGABYTES = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("batch", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--new", type=int, default=256)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = transformers.LlamaForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    tensors = load_file(str(args.batch))
    names = range(sum(name.endswith(".input_ids") for name in tensors))
    prompts = torch.stack([tensors[f"clips.{i}.input_ids"] for i in names])
    many = torch.ones(MEGABYTES * 10**6 // 4)

    def bandwidth() -> dict:
        taken = []
        for _ in range(5):
            start = time.perf_counter()
            many.sum()
            taken.append(time.perf_counter() - start)
        return {"bytes_per_second": 4 * many.numel() / min(taken)}

    @torch.inference_mode()
    def generate(n: int) -> dict:
        ids = prompts[:n]
        options = dict(do_sample=False, use_cache=True, min_new_tokens=None, max_new_tokens=args.new, eos_token_id=None, pad_token_id=0)
        start = time.perf_counter()
        out = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
        seconds = time.perf_counter() - start
        assert out.shape[1] == ids.shape[1] + args.new, "a sequence ended early"
        return {"seconds": seconds, "tokens": out[:, ids.shape[1] :].tolist()}

    parameters = sum(p.numel() for p in model.parameters())
    about = {"torch": torch.__version__, "transformers": transformers.__version__, "python": platform.python_version(), "parameters": parameters}
    print(json.dumps(about), flush=True)
    for line in sys.stdin:
        what, *n = line.split()
        print(json.dumps(bandwidth() if what == "bandwidth" else generate(int(n[0]))), flush=True)


if __name__ == "__main__":
    main()
