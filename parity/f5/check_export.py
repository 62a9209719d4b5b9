"""Does the F5-TTS project load an exported checkpoint, and does it compute the same?

    python check_export.py EXPORT_DIR [--weights FILE.safetensors] [--batch BATCH.safetensors]

EXPORT_DIR holds one `*.safetensors` (or `model.safetensors`), `config.yaml`, `vocab.txt`. Checked:
1. inference: the package's loader rule (strip `ema_model.`, skip `initted` and `step`), strict;
2. training: the official trainer's rule (strict load of the whole file into ema-pytorch's EMA around CFM);
3. with `--weights` (the training run's own weights, any of the three prefixes): the same forward output, to 1e-4.
Exit code 0 when all hold.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from make import make_batch
from reference import EMA_SCALARS, PREFIX, build, forward, load_batch, transformer_state, vocab_size
from ema_pytorch import EMA
from f5_tts.model.cfm import CFM

FORWARD_TOLERANCE = 1e-4  # largest absolute difference of any predicted mel value


def exported_file(directory: Path) -> Path:
    files = sorted(directory.glob("*.safetensors"))
    named = [f for f in files if f.name == "model.safetensors"]
    if not (named or len(files) == 1):
        raise SystemExit(f"{directory}: expected one .safetensors file, found {[f.name for f in files]}")
    return (named or files)[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("export", type=Path)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--batch", type=Path)
    args = parser.parse_args()

    state = load_file(str(exported_file(args.export)))
    cfm = CFM(transformer=build(args.export), mel_spec_kwargs={})
    stripped = {n.replace(PREFIX, ""): t for n, t in state.items() if n not in EMA_SCALARS}
    cfm.load_state_dict(stripped)  # strict: raises and names what is missing or extra
    print(f"inference: strict load of {len(stripped)} tensors holds")

    trainer_view = EMA(CFM(transformer=build(args.export), mel_spec_kwargs={}), include_online_model=False)
    trainer_view.load_state_dict(state)
    print(f"training: strict load into EMA holds, initted {bool(trainer_view.initted)}, step {int(trainer_view.step)}")

    if args.weights is None:
        return 0
    trained = build(args.export)
    trained.load_state_dict(transformer_state(args.weights))
    tokens = vocab_size(args.export, "custom")
    clips = load_batch(args.batch) if args.batch else make_batch(0, tokens, [(40, 17, ""), (120, 60, ""), (25, 9, "a"), (30, 12, "at")])
    with torch.no_grad():
        worst = max((forward(cfm.transformer, c) - forward(trained, c)).abs().max().item() for c in clips)
    print(f"forward: largest difference {worst:.2e} over {len(clips)} clips (allowed {FORWARD_TOLERANCE})")
    return 0 if worst <= FORWARD_TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
