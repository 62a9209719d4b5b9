"""DAC with random weights: transformers' DacModel, descript's own DAC of the same tensors, and every layout that `ambitus codec` reads."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import DacConfig, DacModel

EVEN = dict(downsampling_ratios=[2, 4, 8, 8], n_codebooks=9, codebook_dim=8, sampling_rate=44100)  # the published 44.1 kHz one, but for its widths
ODD = dict(downsampling_ratios=[2, 4, 5, 8], n_codebooks=12, codebook_dim=8, sampling_rate=16000)  # the published 16 kHz one's strides

# How weight norm is spelt, and in what folder: "native" is transformers' own, folded; the rest are Parler folders.
LAYOUTS = ("native", "parler-native", "parler-g-v", "parler-original")


def random_codec(config: dict, seed: int, dtype: torch.dtype = torch.float32) -> DacModel:
    """A codec whose codes vary: unit variance through the layers, frequencies and biases of all sizes, residual branches damped.
    Values are representable in `dtype`."""
    model = DacModel(DacConfig(**config)).eval()
    g = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        x = torch.randn(p.shape, generator=g)
        if name.endswith("alpha"):
            x = 0.5 + torch.rand(p.shape, generator=g)
        elif name.endswith("bias"):
            x = 0.2 * x
        elif "codebook" not in name:
            # A transposed one adds two taps of each channel to a sample.
            rows = 2 * p.shape[0] if "conv_t" in name else p[0].numel()
            x = (0.3 if re.search(r"res_unit\d\.conv2", name) else 1.0) * x / rows**0.5
        p.data = x.to(dtype).float()
    centre(model, dtype)
    return model


@torch.inference_mode()
def centre(model: DacModel, dtype: torch.dtype) -> None:
    """Sets the codebooks' input biases so that directions are spread around 0 for `sound`, else few codes occur, and scales what each
    codebook gives back to what was left for it; and the last layer so that audio is no louder than audio is, else fp32 itself
    is off by 1e-4 from fp64."""
    residual = model.encoder(torch.from_numpy(sound(np.random.default_rng(0), 2**16))[None, None])
    for q in model.quantizer.quantizers:
        q.in_proj.bias.data -= q.in_proj(residual).mean((0, 2))
        q.in_proj.bias.data = q.in_proj.bias.to(dtype).float()
        q.out_proj.weight.data = (q.out_proj.weight * (0.5 * residual.std() / q(residual)[0].std())).to(dtype).float()
        residual = residual - q(residual)[0]
    codes = torch.from_numpy(np.random.default_rng(1).integers(model.config.codebook_size, size=(1, model.config.n_codebooks, 64)))
    x = model.decoder.conv1(model.quantizer.from_codes(codes)[0])
    for block in model.decoder.block:
        x = block(x)
    loud, last = model.decoder.conv2(model.decoder.snake1(x)).std(), model.decoder.conv2
    for p in (last.weight, last.bias):
        p.data = (p * (0.3 / loud.clamp(min=0.3))).to(dtype).float()


def descript_names(state: dict, blocks: int) -> dict:
    """transformers' names as descript's."""
    inner = {"snake1": "0", "conv1": "1", "snake2": "2", "conv2": "3"}

    def one(name: str) -> str:
        name = re.sub(r"res_unit(\d)\.(\w+\d)\.", lambda m: f"res_unit{m[1]}.block.{inner[m[2]]}.", name)
        side, last, offset = ("encoder", "block", 0) if name.startswith("encoder") else ("decoder", "model", 2)
        if name.startswith("quantizer"):
            return name
        name = re.sub(rf"{side}\.block\.(\d+)\.", lambda m: f"{side}.{last}.{int(m[1]) + 1}.block.", name)
        name = re.sub(r"res_unit(\d)", lambda m: str(int(m[1]) - 1 + offset), name)
        if side == "encoder":
            name = name.replace("block.snake1", "block.3").replace("block.conv1", "block.4")
        else:
            name = name.replace("block.snake1", "block.0").replace("block.conv_t1", "block.1")
        for own, index in (("conv1", 0), ("snake1", blocks + 1), ("conv2", blocks + 2)):
            name = name.replace(f"{side}.{own}.", f"{side}.{last}.{index}.")
        return name

    return {one(k): v for k, v in state.items()}


def unfold(state: dict, seed: int = 0) -> dict:
    """Weight norm of the same weights: directions are rows scaled by a power of two (so they keep their 16 bits), norms are fp32."""
    g, out = torch.Generator().manual_seed(seed), {}
    for name, w in state.items():
        if not name.endswith(".weight") or "codebook" in name:
            out[name] = w
            continue
        norm = w.double().flatten(1).norm(dim=1).float().view(-1, 1, 1)
        out[name.removesuffix("weight") + "weight_g"] = norm
        out[name.removesuffix("weight") + "weight_v"] = w * 2.0 ** torch.randint(-2, 3, norm.shape, generator=g)
    return out


def parametrized(state: dict) -> dict:
    """Weight norm as PyTorch writes it from 2.1 on."""
    return {re.sub("weight_(g|v)$", lambda m: f"parametrizations.weight.original{'gv'.index(m[1])}", k): v for k, v in state.items()}


def save(model: DacModel, folder: Path, layout: str, dtype: torch.dtype = torch.float32) -> None:
    """A folder with config.json and model.safetensors. Of a Parler folder only the codec is there."""
    folder.mkdir(parents=True, exist_ok=True)
    config, state = model.config, {k: v.detach() for k, v in model.state_dict().items()}
    own = json.loads(config.to_json_string(use_diff=False))
    keys = ("encoder_hidden_size", "downsampling_ratios", "decoder_hidden_size", "upsampling_ratios", "n_codebooks", "codebook_size", "codebook_dim")
    native = {"model_type": "dac", **{k: own[k] for k in (*keys, "hidden_size", "hop_length", "sampling_rate")}}
    # The sizes of descript's own are the class' defaults there, and not in the file.
    rate = -(-config.sampling_rate // config.hop_length)
    hub = dict(num_codebooks=config.n_codebooks, codebook_size=config.codebook_size, latent_dim=config.hidden_size, model_bitrate=8, frame_rate=rate, sampling_rate=config.sampling_rate)
    if layout == "native":
        saved = {"architectures": ["DacModel"], **native, "transformers_version": "4.46.1"}
    elif layout == "parler-native":
        state = {f"audio_encoder.{k}": v for k, v in state.items()}
        saved = {"audio_encoder": native, "transformers_version": "4.46.1"}
    else:
        state = unfold(descript_names(state, len(config.downsampling_ratios)))
        # Folders from before transformers had a codec of that name call descript's `dac` as well.
        hub, version = ({"model_type": "dac", **hub}, "4.43.3") if layout == "parler-g-v" else ({"model_type": "dac_on_the_hub", **hub}, "4.46.1")
        state = state if layout == "parler-g-v" else parametrized(state)
        state = {f"audio_encoder.model.{k}": v for k, v in state.items()}
        saved = {"audio_encoder": hub, "transformers_version": version}
    if layout != "native":
        saved = {"architectures": ["ParlerTTSForConditionalGeneration"], "model_type": "parler_tts", **saved}
    wide = ("weight_g", "original0")  # norms are not rounded
    state = {k: (v if k.endswith(wide) else v.to(dtype)).contiguous() for k, v in state.items()}
    (folder / "config.json").write_text(json.dumps(saved, indent=1) + "\n")
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def descript(model: DacModel) -> torch.nn.Module:
    """descript's own class, with weight norm, of the same tensors."""
    # Its package imports an audio suite that its model does not use: stand-ins, and no package of its is initialised.
    for name in ("audiotools", "audiotools.ml"):
        sys.modules.setdefault(name, ModuleType(name))
    for name in ("AudioSignal", "STFTParams"):
        setattr(sys.modules["audiotools"], name, object)
    sys.modules["audiotools.ml"].BaseModel = torch.nn.Module
    sys.modules["audiotools"].ml = sys.modules["audiotools.ml"]
    if "dac" not in sys.modules:
        root = Path(importlib.util.find_spec("dac").submodule_search_locations[0])
        for name, folder in (("dac", root), ("dac.model", root / "model"), ("dac.nn", root / "nn")):
            sys.modules[name] = ModuleType(name)
            sys.modules[name].__path__ = [str(folder)]
    from dac.model.dac import DAC

    c = model.config
    own = DAC(
        encoder_dim=c.encoder_hidden_size, encoder_rates=c.downsampling_ratios, latent_dim=c.hidden_size, decoder_dim=c.decoder_hidden_size,
        decoder_rates=c.upsampling_ratios, n_codebooks=c.n_codebooks, codebook_size=c.codebook_size, codebook_dim=c.codebook_dim,
        sample_rate=c.sampling_rate,
    ).eval()  # fmt: skip
    own.load_state_dict(unfold(descript_names(dict(model.state_dict()), len(c.downsampling_ratios))), strict=True)
    return own


@torch.inference_mode()
def latents(model: DacModel, wave: np.ndarray) -> torch.Tensor:
    """[D, F]: the encoder's output, before the codebooks. Nothing is padded: F is what the strides make of the samples there are."""
    return model.encoder(torch.from_numpy(wave)[None, None])[0]


@torch.inference_mode()
def encode(model: DacModel, wave: np.ndarray) -> torch.Tensor:
    """[C, F]."""
    return model.encode(torch.from_numpy(wave)[None, None]).audio_codes[0]


@torch.inference_mode()
def decode(model: DacModel, codes: torch.Tensor) -> np.ndarray:
    return model.decode(audio_codes=codes[None]).audio_values.reshape(-1).numpy()


@torch.inference_mode()
def distances(model: DacModel, wave: np.ndarray, codes: torch.Tensor) -> list[torch.Tensor]:
    """For each codebook [F, entries]: squared distance of directions, relative to the nearest's (at least 0.1) and less it, given
    the codes of the codebooks before."""
    residual, out = latents(model, wave)[None], []
    for q, code in zip(model.quantizer.quantizers, codes):
        e = torch.nn.functional.normalize(q.in_proj(residual)[0].T.double())
        book = torch.nn.functional.normalize(q.codebook.weight.double())
        d = torch.cdist(e, book) ** 2
        best = d.min(1, keepdim=True).values
        out.append((d - best) / best.clamp(min=0.1))
        residual = residual - q.out_proj(q.codebook(code[None]).transpose(1, 2))
    return out


def excess(model: DacModel, wave: np.ndarray, codes: torch.Tensor) -> torch.Tensor:
    """[C, F]: how much further than the nearest each code's entry is."""
    return torch.stack([d.gather(1, c[:, None])[:, 0] for d, c in zip(distances(model, wave, codes), codes)])


def margin(model: DacModel, wave: np.ndarray, codes: torch.Tensor) -> float:
    """How much further the second nearest entry is than the nearest, at least."""
    return min(float(d.topk(2, largest=False).values[:, 1].min()) for d in distances(model, wave, codes))


def sound(rng: np.random.Generator, samples: int) -> np.ndarray:
    """Hums, silence and noise, f32 with 16 bits' values."""
    t = np.arange(samples) / 24000
    x = sum(rng.uniform(0, 0.3) * np.sin(2 * np.pi * rng.uniform(60, 5000) * t + rng.uniform(0, 6)) for _ in range(6))
    x += rng.uniform(0, 0.2) * rng.standard_normal(samples)
    x *= np.clip(2 * np.sin(2 * np.pi * rng.uniform(0.5, 3) * t + 0.5), 0, 1)
    return (np.round(np.clip(x, -1, 1) * 32767) / 32768).astype(np.float32)
