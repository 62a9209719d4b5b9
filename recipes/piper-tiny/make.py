"""Makes the folder that recipes/piper-tiny.yaml names: a voice that knows nothing.

    python3 recipes/piper-tiny/make.py [FOLDER]      default: target/piper-tiny

FOLDER/model: the recorded voice of parity/piper, of few channels, whose texts are read as phonemes letter by letter, so that espeak-ng is
not needed. Needs only the standard library.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "target" / "piper-tiny"
    model, voice = folder / "model", ROOT / "parity" / "piper" / "fixtures" / "base"
    model.mkdir(parents=True, exist_ok=True)
    shutil.copy(voice / "model.ckpt", model)
    config = json.loads((voice / "config.json").read_text(encoding="utf-8")) | {"phoneme_type": "text"}
    (model / "config.json").write_text(json.dumps(config, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    print(f"written to {folder}")


if __name__ == "__main__":
    main()
