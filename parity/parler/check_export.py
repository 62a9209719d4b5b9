"""Does parler_tts load an exported checkpoint, and does it compute the same?

    python check_export.py EXPORT BINARY [--batch BATCH.safetensors]

EXPORT is the export folder of a run, BINARY the `ambitus` command. Checked:
1. `ParlerTTSForConditionalGeneration.from_pretrained` in fp32 with no key missing, unexpected or of another shape;
2. the package's own loss of clips is that of `BINARY gradients`, to 1e-5. The clips: those of a batch file, or two of random ids;
3. a further `save_pretrained` writes the names that the export has, of what is not a codec with descript's names.
Exit code 0 when all hold.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from make import make_batch
from reference import gradients, load, load_batch, save_batch
from safetensors import safe_open

LOSS_TOLERANCE = 1e-5  # relative


def names(directory: Path) -> set[str]:
    found = set()
    for path in directory.glob("model*.safetensors"):
        with safe_open(path, "pt") as file:
            found |= set(file.keys())
    return {n for n in found if not n.startswith("audio_encoder.model.")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("export", type=Path)
    parser.add_argument("binary", type=Path)
    parser.add_argument("--batch", type=Path)
    args = parser.parse_args()

    model = load(args.export)
    print(f"from_pretrained: {len(names(args.export))} tensors, none missing or unexpected")
    decoder, codes = model.config.decoder, model.config.audio_encoder.codebook_size
    shape = dict(vocab_size=codes + 4, num_codebooks=decoder.num_codebooks)
    clips = load_batch(args.batch) if args.batch else make_batch(
        0, shape, [(12, 9, 30), (5, 14, 12)], descriptions=model.config.text_encoder.vocab_size, prompts=model.config.vocab_size
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        batch, out, saved = (Path(folder) / name for name in ("batch.safetensors", "out.safetensors", "saved"))
        save_batch(clips, batch)
        subprocess.run([args.binary, "gradients", "--model", args.export, "--batch", batch, "--out", out], check=True)
        with safe_open(out, "pt") as file:
            ours = file.get_tensor("loss").item()
        theirs, _ = gradients(model, clips)
        apart = abs(ours / theirs - 1)
        print(f"{len(clips)} clips: loss {ours:.6f}, parler_tts {theirs:.6f}, apart {apart:.1e} (allowed {LOSS_TOLERANCE})")
        model.save_pretrained(saved)
        again = names(saved) == names(args.export)
    print(f"saved again: {'the same names' if again else 'other names'}")
    return 0 if apart <= LOSS_TOLERANCE and again else 1


if __name__ == "__main__":
    sys.exit(main())
