"""Makes the folder that recipes/xtts-tiny.yaml names, from random numbers: a model that knows nothing.

    python3 recipes/xtts-tiny/make.py [FOLDER]      default: target/xtts-tiny

FOLDER/model: a folder as AllTalk has it, with a decoder of few channels in model.pth, the small DVAE of parity/dvae with its statistics,
and the vocabulary of parity/xtts_text. It has no vocoder, so it does not speak. Needs only the standard library.
"""

from __future__ import annotations

import io
import json
import pickle
import random
import shutil
import struct
import sys
import types
import zipfile
from collections import OrderedDict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
LAYERS, WIDTH, HEADS, IDS = 2, 32, 4, 66
TEXT_PLACES, CODE_PLACES, LATENTS, BANDS = 404, 608, 32, 80


def stand_ins() -> tuple[object, type]:
    """What torch names in its files, for a pickle that is written without it."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")

    def rebuild(*_: object) -> None:
        raise NotImplementedError

    rebuild.__module__, rebuild.__qualname__, rebuild.__name__ = "torch._utils", "_rebuild_tensor_v2", "_rebuild_tensor_v2"
    storage = type("FloatStorage", (), {"__module__": "torch"})
    utils._rebuild_tensor_v2, torch.FloatStorage = rebuild, storage  # type: ignore[attr-defined]
    sys.modules["torch"], sys.modules["torch._utils"] = torch, utils
    return rebuild, storage


class Stored:
    """A tensor by the number of its file."""

    def __init__(self, key: int, shape: list[int]) -> None:
        self.key, self.shape = key, shape


def write(path: Path, tensors: dict[str, tuple[list[int], bytes]]) -> None:
    """A file as torch.save writes it, of {"model": tensors}."""
    rebuild, storage = stand_ins()
    stored = OrderedDict((name, Stored(key, shape)) for key, (name, (shape, _)) in enumerate(tensors.items()))

    class Reference:
        def __init__(self, key: int, elements: int) -> None:
            self.key, self.elements = key, elements

    class Pickler(pickle._Pickler):  # in Python, so that what is saved can be told
        def persistent_id(self, one: object) -> object:
            return ("storage", storage, str(one.key), "cpu", one.elements) if isinstance(one, Reference) else None

        def reducer_override(self, one: object) -> object:
            if not isinstance(one, Stored):
                return NotImplemented
            strides, n = [], 1
            for axis in reversed(one.shape):
                strides.insert(0, n)
                n *= axis
            return rebuild, (Reference(one.key, n), 0, tuple(one.shape), tuple(strides), False, OrderedDict())

    data = io.BytesIO()
    Pickler(data, protocol=2).dump({"model": stored})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as file:
        file.writestr("model/data.pkl", data.getvalue())
        file.writestr("model/byteorder", "little")
        for key, (_, numbers) in enumerate(tensors.values()):
            file.writestr(f"model/data/{key}", numbers)
        file.writestr("model/version", "3\n")


class Maker:
    def __init__(self) -> None:
        self.rng = random.Random(0)
        self.tensors: dict[str, tuple[list[int], bytes]] = {}

    def add(self, name: str, shape: list[int], spread: float = 0.02, mean: float = 0.0) -> None:
        n = 1
        for axis in shape:
            n *= axis
        self.tensors[name] = (shape, struct.pack(f"<{n}f", *(self.rng.gauss(mean, spread) for _ in range(n))))

    def layer(self, name: str, shape: list[int], bias: int) -> None:
        self.add(f"{name}.weight", shape)
        self.add(f"{name}.bias", [bias], 0.0)

    def norm(self, name: str) -> None:
        self.add(f"{name}.weight", [WIDTH], 0.0, 1.0)
        self.add(f"{name}.bias", [WIDTH], 0.0)

    def decoder(self, texts: int) -> None:
        for name, rows, places in (("text", texts, TEXT_PLACES), ("mel", IDS, CODE_PLACES)):
            self.add(f"gpt.{name}_embedding.weight", [rows, WIDTH])
            self.add(f"gpt.{name}_pos_embedding.emb.weight", [places, WIDTH])
            self.layer(f"gpt.{name}_head", [rows, WIDTH], rows)
        for i in range(LAYERS):
            at = f"gpt.gpt.h.{i}"
            self.norm(f"{at}.ln_1")
            self.norm(f"{at}.ln_2")
            for part, inner, out in (("attn.c_attn", 1, 3), ("attn.c_proj", 1, 1), ("mlp.c_fc", 1, 4), ("mlp.c_proj", 4, 1)):
                self.layer(f"{at}.{part}", [inner * WIDTH, out * WIDTH], out * WIDTH)
        self.norm("gpt.gpt.ln_f")
        self.norm("gpt.final_norm")

    def voice(self) -> None:
        at = "gpt.conditioning_encoder"
        self.layer(f"{at}.init", [WIDTH, BANDS, 1], WIDTH)
        for i in range(6):
            self.norm(f"{at}.attn.{i}.norm")
            self.layer(f"{at}.attn.{i}.qkv", [3 * WIDTH, WIDTH, 1], 3 * WIDTH)
            self.layer(f"{at}.attn.{i}.proj_out", [WIDTH, WIDTH, 1], WIDTH)
        at, inner = "gpt.conditioning_perceiver", 8 * WIDTH // 3
        self.add(f"{at}.latents", [LATENTS, WIDTH])
        self.add(f"{at}.norm.gamma", [WIDTH], 0.0, 1.0)
        for i in range(2):
            self.add(f"{at}.layers.{i}.0.to_q.weight", [512, WIDTH])
            self.add(f"{at}.layers.{i}.0.to_kv.weight", [1024, WIDTH])
            self.add(f"{at}.layers.{i}.0.to_out.weight", [WIDTH, 512])
            self.layer(f"{at}.layers.{i}.1.0", [2 * inner, WIDTH], 2 * inner)
            self.layer(f"{at}.layers.{i}.1.2", [WIDTH, inner], WIDTH)


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "target" / "xtts-tiny"
    model = folder / "model"
    model.mkdir(parents=True, exist_ok=True)
    parity = ROOT / "parity"
    for name in ("dvae/fixtures/small/dvae.pth", "dvae/fixtures/small/mel_stats.pth", "xtts_text/fixtures/vocab.json"):
        shutil.copy(parity / name, model)
    vocabulary = json.loads((model / "vocab.json").read_text(encoding="utf-8"))
    ids = [*vocabulary["model"]["vocab"].values(), *(token["id"] for token in vocabulary["added_tokens"])]
    maker = Maker()
    maker.decoder(max(ids) + 1)
    maker.voice()
    write(model / "model.pth", maker.tensors)
    args = {
        "gpt_layers": LAYERS,
        "gpt_n_model_channels": WIDTH,
        "gpt_n_heads": HEADS,
        "gpt_num_audio_tokens": IDS,
        "gpt_start_audio_token": IDS - 2,
        "gpt_stop_audio_token": IDS - 1,
    }
    (model / "config.json").write_text(json.dumps({"model": "xtts", "model_args": args}, indent=2) + "\n")
    print(f"written to {folder}")


if __name__ == "__main__":
    main()
