"""Writes tiny checkpoints in the forms in which XTTS's are passed around, for the tests of ambitus-store, and checks what it wrote.

    make_fixtures.py            writes released.pth, trainer.pth and speakers.pth to crates/ambitus-store/tests/fixtures/
    make_fixtures.py --check    loads written.pth of that folder, which the Rust writer made, as coqui-tts loads checkpoints

`released.pth` has its configuration as a pickled object of the package's own classes, with objects of others inside.
"""

import datetime
import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from TTS.tts.configs.xtts_config import XttsConfig
from TTS.tts.layers.xtts.trainer.gpt_trainer import GPTArgs, GPTTrainerConfig
from TTS.tts.models.xtts import XttsArgs, XttsAudioConfig

OUT = Path(__file__).resolve().parents[2] / "crates/ambitus-store/tests/fixtures"


def tensors(prefix=""):
    weights = {
        "gpt.text_embedding.weight": torch.arange(12.0).view(4, 3),
        "gpt.gpt.h.0.attn.c_attn.weight": torch.arange(6.0).view(3, 2).t(),
        "hifigan_decoder.speaker_encoder.bn.num_batches_tracked": torch.tensor(7),
    }
    return {prefix + name: tensor for name, tensor in weights.items()} | {"mel_stats": torch.full((5,), 0.5)}


def make():
    torch.manual_seed(1)
    shared = tensors()["mel_stats"]
    config = XttsConfig(audio=XttsAudioConfig(), model_args=XttsArgs(gpt_layers=2))
    # What only the classes' own program understands: a path, a state that is a tensor, a set, and the object in itself.
    config.languages = ["en", "zh-cn"]
    config.paths = [Path("a/b"), {1, 2}, datetime.date(2023, 12, 1), np.float64(0.25), b"bytes", shared, config]
    torch.save({"config": config, "model": tensors() | {"mel_stats": shared}}, OUT / "released.pth")

    weight = torch.nn.Parameter(torch.ones(2, 2))
    adam = torch.optim.AdamW([weight])
    weight.sum().backward()
    adam.step()
    losses = defaultdict(float, train_loss=np.float32(1.5), eval_loss=2.5)
    trainer = {
        "config": GPTTrainerConfig(model_args=GPTArgs(gpt_layers=2)).to_dict() | {"max_audio_len": float("inf")},
        "model": tensors("xtts.") | {"xtts.dvae.codebook.embed": torch.ones(2, 3)},
        "optimizer": [adam.state_dict()],
        "scheduler": None,
        "scaler": None,
        "step": 12,
        "epoch": 3,
        "date": "December 01, 2023",
        "model_loss": losses,
    }
    torch.save(trainer, OUT / "trainer.pth")
    speakers = {"Claribel Dervla": {"gpt_cond_latent": torch.ones(1, 2, 3), "speaker_embedding": torch.ones(1, 4, 1)}}
    torch.save(speakers, OUT / "speakers.pth")


def check():
    found = torch.load(OUT / "written.pth", weights_only=True)
    assert list(found) == ["config", "model", "step", "scaler", "model_loss"], list(found)
    assert found["config"] == {"languages": ["en", "zh-cn"], "big": 1 << 40, "deep": {"flag": True, "rate": 0.25}}
    assert found["step"] == 12 and found["scaler"] is None and found["model_loss"] == -0.5
    want = {
        "b": torch.arange(6.0).view(2, 3),
        "a": torch.tensor(7),
        "half": torch.tensor([1.5, -2.0]).half(),
        "brain": torch.tensor([1.5, -2.0]).bfloat16(),
        "empty": torch.zeros(0, 3),
        "flag": torch.tensor([True]),
    }
    assert list(found["model"]) == list(want), list(found["model"])
    for name, tensor in want.items():
        got = found["model"][name]
        assert got.dtype == tensor.dtype and got.shape == tensor.shape and torch.equal(got, tensor), name
    model = torch.nn.ParameterDict({"b": torch.zeros(2, 3)})
    model.load_state_dict({"b": found["model"]["b"]}, strict=True)
    print(json.dumps({"written.pth": "loaded by torch " + torch.__version__}))


if __name__ == "__main__":
    check() if sys.argv[1:] == ["--check"] else make()
