"""The package's codec with random weights, in every layout that `ambitus codec` reads."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import soundfile
import torch
from safetensors.torch import save_file
from snac import SNAC
from snac.layers import NoiseBlock

# The package draws noise where it decodes: here the blocks add nothing, as in `ambitus codec decode` without --noise.
NoiseBlock.forward = lambda self, x: x

PUBLISHED = dict(
    sampling_rate=24000,
    encoder_dim=48,
    encoder_rates=[2, 4, 8, 8],
    decoder_dim=1024,
    decoder_rates=[8, 8, 4, 2],
    attn_window_size=None,
    codebook_size=4096,
    codebook_dim=8,
    vq_strides=[4, 2, 1],
    noise=True,
    depthwise=True,
)


def random_codec(config: dict, seed: int, dtype: torch.dtype = torch.float32) -> SNAC:
    """A codec whose codes vary: unit variance through the layers, frequencies and biases of all sizes. Values are
    representable in `dtype`."""
    model = SNAC(**config).eval()
    g = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        x = torch.randn(p.shape, generator=g)
        if name.endswith("alpha"):
            x = 0.3 + 2 * x.abs()
        elif name.endswith("bias"):
            x = 0.2 * x
        elif name.endswith("original0"):
            # The norm of a row of unit gain, within a factor of about two; residual branches are damped.
            gain = 0.3 if ".block.3." in name and re.search(r"block\.\d\.block\.3\.", name) else 1.0
            x = gain * torch.exp(0.3 * x)
        p.data = x.to(dtype).float()
    centre(model, dtype)
    return model


def fresh_codec(config: dict, seed: int) -> SNAC:
    """A codec as the package's constructor leaves it."""
    torch.manual_seed(seed)
    return SNAC(**config).eval()


@torch.inference_mode()
def centre(model: SNAC, dtype: torch.dtype) -> None:
    """Sets the codebooks' input biases so that directions are spread around 0 for `sound`, else few codes occur; and the
    last layer's gain so that audio is no louder than audio is, else the package itself is off by 1e-4 from its own fp64."""
    ints = sound(np.random.default_rng(0), 2**17)
    residual = model.encoder(model.preprocess(torch.from_numpy(as_float(ints))[None, None]))
    for q in model.quantizer.quantizers:
        z = torch.nn.functional.avg_pool1d(residual, q.stride, q.stride) if q.stride > 1 else residual
        q.in_proj.bias.data -= q.in_proj(z).mean((0, 2))
        q.in_proj.bias.data = q.in_proj.bias.to(dtype).float()
        residual = residual - q(residual)[0]
    rng, last = np.random.default_rng(1), model.decoder.model[-2]
    codes = [torch.from_numpy(rng.integers(q.codebook_size, size=(1, 16 * model.vq_strides[0] // q.stride))) for q in model.quantizer.quantizers]
    loud = model.decoder.model[:-1](model.quantizer.from_codes(codes)).std()
    for p in (last.parametrizations.weight.original0, last.bias):
        p.data = (p * (0.3 / loud.clamp(min=0.3))).to(dtype).float()


def old_spelling(state: dict) -> dict:
    """Weight norm as PyTorch wrote it before 2.1."""
    for new, old in (("parametrizations.weight.original0", "weight_g"), ("parametrizations.weight.original1", "weight_v")):
        state = {k.replace(new, old): v for k, v in state.items()}
    return state


def save(model: SNAC, config: dict, folder: Path, file: str, old: bool, dtype: torch.dtype = torch.float32) -> None:
    """A folder with config.json and model.safetensors or pytorch_model.bin."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    state = {k: v.detach().to(dtype).contiguous() for k, v in model.state_dict().items()}
    state = old_spelling(state) if old else state
    if file == "model.safetensors":
        save_file(state, folder / file)
    else:
        torch.save(state, folder / file)


def frame(config: dict) -> int:
    return int(np.prod(config["encoder_rates"])) * config["vq_strides"][0]


@torch.inference_mode()
def encode(model: SNAC, samples: np.ndarray) -> list[np.ndarray]:
    return [c[0].numpy() for c in model.encode(torch.from_numpy(samples)[None, None])]


@torch.inference_mode()
def decode(model: SNAC, codes: list) -> np.ndarray:
    return model.decode([torch.tensor(c)[None] for c in codes])[0, 0].numpy()


@torch.inference_mode()
def excess(model: SNAC, samples: np.ndarray, codes: list) -> list[np.ndarray]:
    """How much further than the nearest entry each code's entry is, relative to the nearest's squared distance (at least
    0.1: directions are of length 1), for each codebook, given the codes of those before."""
    x = model.preprocess(torch.from_numpy(samples)[None, None])
    residual = model.encoder(x)
    out = []
    for q, code in zip(model.quantizer.quantizers, codes):
        code = torch.tensor(code)
        z = torch.nn.functional.avg_pool1d(residual, q.stride, q.stride) if q.stride > 1 else residual
        e = torch.nn.functional.normalize(q.in_proj(z)[0].T.double())
        book = torch.nn.functional.normalize(q.codebook.weight.double())
        d = torch.cdist(e, book) ** 2
        best = d.min(1).values
        out.append(((d.gather(1, code[:, None])[:, 0] - best) / best.clamp(min=0.1)).numpy())
        residual = residual - q.out_proj(q.decode_code(code[None])).repeat_interleave(q.stride, dim=-1)
    return out


def sound(rng: np.random.Generator, samples: int) -> np.ndarray:
    """Hums, silence and noise, in 16 bits as a wav file has them."""
    t = np.arange(samples) / 24000
    x = sum(rng.uniform(0, 0.3) * np.sin(2 * np.pi * rng.uniform(60, 5000) * t + rng.uniform(0, 6)) for _ in range(6))
    x += rng.uniform(0, 0.2) * rng.standard_normal(samples)
    x *= np.clip(2 * np.sin(2 * np.pi * rng.uniform(0.5, 3) * t), 0, 1)
    return np.round(np.clip(x, -1, 1) * 32767).astype(np.int16)


def write_wav(path: Path, samples: np.ndarray) -> None:
    soundfile.write(path, samples, 24000, subtype="PCM_16")


def as_float(samples: np.ndarray) -> np.ndarray:
    return samples.astype(np.float32) / 32768
