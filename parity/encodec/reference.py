"""EnCodec with random weights: transformers' EncodecModel, audiocraft's SEANet and codebooks of the same shape, and every layout that
`ambitus codec` reads."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
import yaml
from safetensors.torch import save_file
from transformers import EncodecConfig, EncodecModel

# The 32 kHz codec, but for its widths and codebooks.
SMALL = dict(
    upsampling_ratios=[8, 5, 4, 4], num_filters=2, hidden_size=8, codebook_size=32, codebooks=4, sampling_rate=32000, use_causal_conv=False,
    use_conv_shortcut=False, pad_mode="reflect",
)  # fmt: skip
PUBLISHED = dict(SMALL, num_filters=64, hidden_size=128, codebook_size=2048)

# Whose folder it is, and how weight norm is spelt: as PyTorch does from 2.1 on, as it did, or folded.
LAYOUTS = ("native-original", "native-g-v", "native-folded", "musicgen-original", "musicgen-g-v", "musicgen-folded", "audiocraft-g-v", "audiocraft-folded")


def encodec_config(config: dict) -> EncodecConfig:
    """`codebooks` in place of transformers' bandwidth."""
    config = dict(config)
    n, rate = config.pop("codebooks"), config["sampling_rate"]
    frames = -(-rate // int(np.prod(config["upsampling_ratios"])))
    # A little more than exactly as many, which rounding might make one fewer.
    kbps = (n + 0.01) * frames * int(np.log2(config["codebook_size"])) / 1000
    return EncodecConfig(target_bandwidths=[kbps], normalize=False, **config)


def audiocraft_yaml(config: dict) -> dict:
    """The sections of audiocraft's configuration for a codec of that shape, with the references that its files have."""
    c = encodec_config(dict(config, num_lstm_layers=config.get("num_lstm_layers", 2)))
    return {
        "sample_rate": c.sampling_rate,
        "channels": 1,
        "compression_model": "encodec",
        "encodec": {"autoencoder": "seanet", "quantizer": "rvq", "sample_rate": "${sample_rate}", "channels": "${channels}", "causal": c.use_causal_conv, "renormalize": False},
        "seanet": {
            "dimension": c.hidden_size, "channels": "${channels}", "causal": "${encodec.causal}", "n_filters": c.num_filters,
            "n_residual_layers": c.num_residual_layers, "ratios": c.upsampling_ratios, "activation": "ELU", "activation_params": {"alpha": 1.0},
            "norm": "weight_norm", "norm_params": {}, "kernel_size": c.kernel_size, "residual_kernel_size": c.residual_kernel_size,
            "last_kernel_size": c.last_kernel_size, "dilation_base": c.dilation_growth_rate, "pad_mode": c.pad_mode, "true_skip": not c.use_conv_shortcut,
            "compress": c.compress, "lstm": c.num_lstm_layers, "disable_norm_outer_blocks": 0,
            "decoder": {"trim_right_ratio": c.trim_right_ratio, "final_activation": None, "final_activation_params": None}, "encoder": {},
        },
        "rvq": {"n_q": config["codebooks"], "q_dropout": False, "bins": c.codebook_size, "decay": 0.99, "kmeans_init": True, "kmeans_iters": 50},
        "optim": {"epochs": 200},
    }  # fmt: skip


def audiocraft_modules() -> tuple[ModuleType, ModuleType]:
    """audiocraft's seanet and quantization, without what its packages import besides."""
    sys.modules.setdefault("flashy", ModuleType("flashy"))
    if "audiocraft" not in sys.modules:
        root = Path(importlib.util.find_spec("audiocraft").submodule_search_locations[0])
        for name, folder in (("audiocraft", root), ("audiocraft.modules", root / "modules"), ("audiocraft.quantization", root / "quantization")):
            sys.modules[name] = ModuleType(name)
            sys.modules[name].__path__ = [str(folder)]
    from audiocraft.modules import seanet
    from audiocraft.quantization import vq

    return seanet, vq


class Codec:
    """One of the two, with what they have in common."""

    def __init__(self, config: dict, audiocraft: bool) -> None:
        self.config, self.audiocraft = config, audiocraft
        if audiocraft:
            seanet, vq = audiocraft_modules()
            c = audiocraft_yaml(config)
            keys = dict(c["seanet"], channels=1, causal=c["encodec"]["causal"])
            decoder = keys.pop("decoder")
            keys.pop("encoder")
            self.module = torch.nn.Module()
            self.module.encoder = seanet.SEANetEncoder(**keys)
            self.module.decoder = seanet.SEANetDecoder(**keys, **decoder)
            self.module.quantizer = vq.ResidualVectorQuantizer(dimension=keys["dimension"], **c["rvq"])
            self.books = [layer._codebook for layer in self.module.quantizer.vq.layers]
        else:
            self.module = EncodecModel(encodec_config(config))
            self.books = [layer.codebook for layer in self.module.quantizer.layers]
        self.module.eval().requires_grad_(False)

    def state(self) -> dict:
        return {k: v.detach() for k, v in self.module.state_dict().items()}

    @torch.inference_mode()
    def latents(self, wave: np.ndarray) -> torch.Tensor:
        """[D, F]: the encoder's output, before the codebooks."""
        return self.module.encoder(torch.from_numpy(wave)[None, None])[0]

    @torch.inference_mode()
    def encode(self, wave: np.ndarray) -> torch.Tensor:
        """[C, F]."""
        x = torch.from_numpy(wave)[None, None]
        if self.audiocraft:
            return self.module.quantizer.encode(self.module.encoder(x))[0]
        return self.module.encode(x).audio_codes[0, 0]

    @torch.inference_mode()
    def decode(self, codes: torch.Tensor) -> np.ndarray:
        if self.audiocraft:
            return self.module.decoder(self.module.quantizer.decode(codes[None])).reshape(-1).numpy()
        return self.module.decode(codes[None, None], [None]).audio_values.reshape(-1).numpy()

    @torch.inference_mode()
    def distances(self, wave: np.ndarray, codes: torch.Tensor) -> list[torch.Tensor]:
        """For each codebook [F, entries]: squared distance less the nearest's, in units of what a distance of that size changes by when
        the latents do by their own size: rounding is to those, however little the codebooks before have left of them."""
        residual, out = self.latents(wave).T.double(), []
        size = residual.pow(2).sum(1).mean().sqrt()
        for book, code in zip(self.books, codes):
            embed = book.embed.double()
            d = torch.cdist(residual, embed)
            best = d.min(1, keepdim=True).values
            out.append((d**2 - best**2) / (best * size).clamp(min=1e-4 * float(size) ** 2))
            residual = residual - embed[code]
        return out

    def excess(self, wave: np.ndarray, codes: torch.Tensor) -> torch.Tensor:
        """[C, F]: how much further than the nearest each code's entry is."""
        return torch.stack([d.gather(1, c[:, None])[:, 0] for d, c in zip(self.distances(wave, codes), codes)])

    def margin(self, wave: np.ndarray, codes: torch.Tensor) -> float:
        """How much further the second nearest entry is than the nearest, at least."""
        return min(float(d.topk(2, largest=False).values[:, 1].min()) for d in self.distances(wave, codes))


def random_codec(config: dict, seed: int, audiocraft: bool = False, dtype: torch.dtype = torch.float32) -> Codec:
    """A codec whose codes vary: unit variance through the layers, biases everywhere, norms that are not the weights' own, a memory
    that remembers, entries where the latents are. Values are representable in `dtype`."""
    codec, g = Codec(config, audiocraft), torch.Generator().manual_seed(seed)
    for name, p in codec.module.named_parameters():
        x = torch.randn(p.shape, generator=g)
        if name.endswith(("original0", "weight_g")):
            # The variance of what comes out: of a transposed one, two taps of each channel go to a sample.
            up = re.search(r"decoder\.(layers|model)\.\d+\.(conv|convtr)\.", name) and p.shape[0] > 1 and ".block." not in name
            x = (0.5 if re.search(r"block\.3", name) else 0.9) * (1 + 0.1 * x) * (0.7 if up else 1.0)
        elif "bias" in name:
            x = 0.1 * x
        elif "lstm" in name:
            x = x / p.shape[1] ** 0.5
        p.data = x.to(dtype).float()
    settle(codec, g, dtype)
    return codec


@torch.inference_mode()
def settle(codec: Codec, g: torch.Generator, dtype: torch.dtype) -> None:
    """Puts entries where the latents of `sound` are and, behind the first codebook, what is left of them; and scales the last layer
    so that audio is no louder than audio is, else fp32 itself is off by 1e-4 from fp64."""
    residual = codec.latents(sound(np.random.default_rng(0), 2**15)).T
    for book in codec.books:
        size = book.embed.shape[0]
        near = residual[torch.randint(len(residual), (size,), generator=g)]
        embed = near + 0.3 * residual.std() * torch.randn(near.shape, generator=g)
        book.embed.copy_(embed.to(dtype).float())
        if hasattr(book, "inited"):
            book.inited.fill_(1.0)
        residual = residual - book.embed[torch.cdist(residual, book.embed).argmin(1)]
    codes = torch.from_numpy(np.random.default_rng(1).integers(codec.config["codebook_size"], size=(codec.config["codebooks"], 64)))
    loud, last = float(codec.decode(codes).std()), list(codec.module.decoder.children())[0][-1]
    for name, p in last.named_parameters():
        if name.endswith(("original0", "weight_g", "bias")):
            p.data = (p * (0.3 / max(loud, 0.3))).to(dtype).float()


def to_audiocraft(state: dict, ups: set[str]) -> dict:
    """transformers' names (g, v) as audiocraft's. `ups`: the decoder's transposed layers."""
    def one(name: str) -> str:
        if name.startswith("quantizer"):
            return name.replace("quantizer.layers", "quantizer.vq.layers").replace(".codebook.", "._codebook.")
        inner = ".convtr.convtr." if name.split(".conv.")[0] in ups else ".conv.conv."
        return name.replace(".layers.", ".model.").replace(".conv.", inner)

    return {one(k): v for k, v in g_v(state).items()}


def g_v(state: dict) -> dict:
    return {re.sub(r"parametrizations\.weight\.original(\d)", lambda m: f"weight_{'gv'[int(m[1])]}", k): v for k, v in state.items()}


def original(state: dict) -> dict:
    return {re.sub(r"weight_([gv])$", lambda m: f"parametrizations.weight.original{'gv'.index(m[1])}", k): v for k, v in state.items()}


def folded(state: dict) -> dict:
    """Plain weights, in fp32."""
    out = {}
    for name, v in g_v(state).items():
        if name.endswith("weight_v"):
            g = state.get(name.replace("weight_v", "weight_g"), state.get(name.replace("weight_v", "parametrizations.weight.original0")))
            out[name.replace("weight_v", "weight")] = torch._weight_norm(v, g, 0)
        elif not name.endswith("weight_g"):
            out[name] = v
    return out


def save(codec: Codec, folder: Path, layout: str, dtype: torch.dtype = torch.float32) -> None:
    """A folder in a layout. Of a model's folder only the codec is there."""
    folder.mkdir(parents=True, exist_ok=True)
    whose, spelling = layout.split("-", 1)
    state = {"original": original, "g-v": g_v, "folded": folded}[spelling](codec.state())
    state = {k: (v if spelling == "folded" else v.to(dtype)).contiguous() for k, v in state.items()}
    if whose == "audiocraft":
        config = yaml.safe_dump(audiocraft_yaml(codec.config), sort_keys=False)
        torch.save({"best_state": state, "xp.cfg": config, "version": "1.3.0", "exported": True}, folder / "compression_state_dict.bin")
        return
    saved = json.loads(codec.module.config.to_json_string(use_diff=False))
    if whose == "musicgen":
        state = {f"audio_encoder.{k}": v for k, v in state.items()}
        saved = {"architectures": ["MusicgenForConditionalGeneration"], "model_type": "musicgen", "audio_encoder": saved}
    (folder / "config.json").write_text(json.dumps(saved, indent=1) + "\n")
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def sound(rng: np.random.Generator, samples: int) -> np.ndarray:
    """Hums, silence and noise, f32 with 16 bits' values."""
    t = np.arange(samples) / 32000
    x = sum(rng.uniform(0, 0.3) * np.sin(2 * np.pi * rng.uniform(60, 5000) * t + rng.uniform(0, 6)) for _ in range(6))
    x += rng.uniform(0, 0.2) * rng.standard_normal(samples)
    x *= np.clip(2 * np.sin(2 * np.pi * rng.uniform(0.5, 3) * t + 0.5), 0, 1)
    return (np.round(np.clip(x, -1, 1) * 32767) / 32768).astype(np.float32)
