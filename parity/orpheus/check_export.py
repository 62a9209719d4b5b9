"""Does transformers load an exported checkpoint, and does it compute the same?

    python check_export.py EXPORT BINARY [--clips CACHE/CLIP.tokens ...]

EXPORT is the export folder of a run, BINARY the `ambitus` command. Checked:
1. `LlamaForCausalLM.from_pretrained` in fp32 with no key missing, unexpected or of another shape, the vocabulary as the file has it;
2. transformers' own loss of clips is that of `BINARY gradients`, to 1e-5. The clips: prepared files of the run's cache
   (`--clips`), or one of random ids;
3. a further `save_pretrained` writes the names that the export has.
Exit code 0 when all hold.
"""

from __future__ import annotations

import argparse
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from reference import Clip, save_batch
from safetensors import safe_open
from transformers import LlamaForCausalLM

LOSS_TOLERANCE = 1e-5  # relative
HEADER = 8 + 32 + 4 * 4 + 8 + 4 + 4  # crates/ambitus-data/src/speech/token_clip.rs


def prepared(path: Path) -> tuple[str, Clip]:
    """Name, ids and labels of a prepared file."""
    data = path.read_bytes()
    if data[:8] != b"ambtokn1":
        raise SystemExit(f"{path}: is not a prepared token clip")
    tokens, name = struct.unpack_from("<2I", data, 40)
    ids = struct.unpack_from(f"<{tokens}I", data, HEADER + name)
    labels = struct.unpack_from(f"<{tokens}i", data, HEADER + name + 4 * tokens)
    return data[HEADER : HEADER + name].decode(), Clip(torch.tensor(ids), torch.tensor(labels))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("export", type=Path)
    parser.add_argument("binary", type=Path)
    parser.add_argument("--clips", type=Path, nargs="+", default=[])
    args = parser.parse_args()

    model, info = LlamaForCausalLM.from_pretrained(args.export, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    wrong = {what: keys for what, keys in info.items() if keys}
    if wrong:
        print(f"from_pretrained: {wrong}")
        return 1
    with safe_open(args.export / "model.safetensors", "pt") as file:
        names, rows = set(file.keys()), file.get_slice("model.embed_tokens.weight").get_shape()[0]
    vocabulary = model.get_input_embeddings().weight.shape[0]
    print(f"from_pretrained: {len(names)} tensors, none missing or unexpected; vocabulary {vocabulary}")
    if rows != vocabulary:
        return 1

    ids = torch.randint(vocabulary, (64,), generator=torch.Generator().manual_seed(0))
    clips = [prepared(path) for path in args.clips] or [("random ids", Clip(ids, ids.clone()))]
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        batch, out, saved = (Path(folder) / name for name in ("batch.safetensors", "out.safetensors", "saved"))
        for name, clip in clips:
            save_batch([clip], batch)
            subprocess.run([args.binary, "gradients", "--model", args.export, "--batch", batch, "--out", out], check=True)
            with safe_open(out, "pt") as file:
                ours = file.get_tensor("loss").item()
            with torch.no_grad():
                theirs = model(input_ids=clip.input_ids[None], labels=clip.labels[None], use_cache=False).loss.item()
            print(f"{name}: {clip.tokens} tokens, loss {ours:.6f}, transformers {theirs:.6f}")
            worst = max(worst, abs(ours / theirs - 1))
        model.save_pretrained(saved)
        with safe_open(saved / "model.safetensors", "pt") as file:
            again = set(file.keys())
    print(f"loss: largest difference {worst:.1e} (allowed {LOSS_TOLERANCE}); saved again: {'the same names' if again == names else again ^ names}")
    return 0 if worst <= LOSS_TOLERANCE and again == names else 1


if __name__ == "__main__":
    sys.exit(main())
