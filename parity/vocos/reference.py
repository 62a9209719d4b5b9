"""The package's vocoder with random weights, in both layouts that `ambitus codec` reads."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import torch
import yaml
from safetensors.torch import save_file
from vocos.pretrained import Vocos

PUBLISHED = {
    "feature_extractor": {
        "class_path": "vocos.feature_extractors.MelSpectrogramFeatures",
        "init_args": {"sample_rate": 24000, "n_fft": 1024, "hop_length": 256, "n_mels": 100, "padding": "center"},
    },
    "backbone": {
        "class_path": "vocos.models.VocosBackbone",
        "init_args": {"input_channels": 100, "dim": 512, "intermediate_dim": 1536, "num_layers": 8},
    },
    "head": {
        "class_path": "vocos.heads.ISTFTHead",
        "init_args": {"dim": 512, "n_fft": 1024, "hop_length": 256, "padding": "center"},
    },
}


def config(mels: int, dim: int, inner: int, layers: int, n_fft: int, hop: int, padding: str) -> dict:
    """The published configuration with other sizes."""
    out = copy.deepcopy(PUBLISHED)
    out["feature_extractor"]["init_args"].update(n_fft=n_fft, hop_length=hop, n_mels=mels, padding=padding)
    out["backbone"]["init_args"].update(input_channels=mels, dim=dim, intermediate_dim=inner, num_layers=layers)
    out["head"]["init_args"].update(dim=dim, n_fft=n_fft, hop_length=hop, padding=padding)
    return out


def random_vocoder(config: dict, folder: Path, seed: int, scale: float = 0.05, dtype: torch.dtype = torch.float32) -> Vocos:
    """A vocoder all of whose parameters are drawn, so that none is hidden by its initial value; those of norms around 1.
    Values are representable in `dtype`. Writes the folder's config.yaml."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    model = Vocos.from_hparams(str(folder / "config.yaml")).eval()
    g = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        x = scale * torch.randn(p.shape, generator=g)
        if name.endswith(("norm.weight", "gamma")):
            x = 1 + x
        p.data = x.to(dtype).float()
    return model


def save(model: Vocos, folder: Path, file: str, dtype: torch.dtype = torch.float32) -> None:
    """Writes the folder's weights; the window of the inverse transform, which is not drawn, stays fp32."""
    state = {k: v.detach().to(torch.float32 if k == "head.istft.window" else dtype).contiguous() for k, v in model.state_dict().items()}
    if file == "model.safetensors":
        save_file(state, folder / file)
    else:
        torch.save(state, folder / file)


def random_mel(frames: int, channels: int, seed: int) -> np.ndarray:
    """[frames, channels], of the size of log-mels."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((frames, channels)) * 2 - 3).astype(np.float32)


@torch.inference_mode()
def decode(model: Vocos, mel: np.ndarray) -> np.ndarray:
    return model.decode(torch.from_numpy(mel).T[None])[0].numpy()
