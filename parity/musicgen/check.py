"""Compares what `ambitus gradients` wrote with transformers, or of an audiocraft folder with audiocraft.

    python check.py MODELDIR BATCH.safetensors OUT.safetensors [--all]

Prints a table of the worst gradients (`--all`: of every one). Exit code 0 when everything holds, 1 when not.
"""

from __future__ import annotations

import sys
from pathlib import Path

import reference

sys.path.append(str(Path(__file__).resolve().parent.parent))
from compare import bit_equal, check, check_reordered, main  # noqa: E402, F401

if __name__ == "__main__":
    sys.exit(main(reference, __doc__))
