"""Does PEFT load an exported adapter over its base, and does it compute what the merged export does?

    python check_adapter.py BASE ADAPTER MERGED

BASE is the folder that was trained on, ADAPTER what `ambitus export RUN --adapter` wrote, MERGED what `ambitus export RUN --dtype fp32` did. Checked:
1. `PeftModel.from_pretrained` takes every tensor of the adapter and leaves none of its own as it was drawn;
2. its logits of random ids are the merged export's, to 1e-5 of the largest, and not the base's;
3. so are those of `merge_and_unload()`.
Exit code 0 when all hold. Run with peft 0.21.2 (accelerate and psutil beside it) and transformers 4.57.6.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path

import peft
import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

TOLERANCE = 1e-5


def base(folder: Path) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


@torch.no_grad()
def logits(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return model(input_ids=ids, use_cache=False).logits.float()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path)
    parser.add_argument("adapter", type=Path)
    parser.add_argument("merged", type=Path)
    args = parser.parse_args()

    plain, merged = base(args.base), base(args.merged)
    ids = torch.randint(plain.config.vocab_size, (2, 40), generator=torch.Generator().manual_seed(0))
    before, want = logits(plain, ids), logits(merged, ids)
    size = want.abs().max()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model = PeftModel.from_pretrained(plain, args.adapter).eval()
    problems = [f"PEFT says: {w.message}" for w in said if "key" in str(w.message)]
    file, loaded = load_file(args.adapter / "adapter_model.safetensors"), get_peft_model_state_dict(model, save_embedding_layers=False)
    problems += [f"only one of file and model has {name}" for name in sorted(file.keys() ^ loaded.keys())]
    problems += [f"{name} is not the file's" for name in file.keys() & loaded.keys() if not torch.equal(file[name], loaded[name].float())]
    apart = (logits(model, ids) - want).abs().max() / size
    alone = (logits(model.merge_and_unload(), ids) - want).abs().max() / size
    moved = (before - want).abs().max() / size
    print(f"peft {peft.__version__}: {len(file)} tensors; logits against the merged export {apart:.1e}, merged by PEFT {alone:.1e} (allowed {TOLERANCE}); the base's {moved:.1e}")
    if not max(apart, alone) <= TOLERANCE:
        problems.append("the logits differ")
    if not moved > 100 * TOLERANCE:
        problems.append("the adapter changes too little to say anything: train with a larger rate")
    for problem in problems:
        print(f"FAIL {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
