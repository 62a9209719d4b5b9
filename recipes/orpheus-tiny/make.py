"""Makes the folders that recipes/orpheus-tiny.yaml names, from random numbers: a model and a codec that know nothing.

    python3 recipes/orpheus-tiny/make.py [FOLDER]      default: target/orpheus-tiny

FOLDER/model: a Llama of 2 layers and width 32 with the vocabulary of Orpheus, in bf16, and the small tokenizer of parity/orpheus.
FOLDER/snac: the shape of SNAC at 24 kHz with few channels: the fixture of parity/snac, with codebooks of 4,096 entries.
Needs only the standard library.
"""

from __future__ import annotations

import json
import random
import struct
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
VOCABULARY, WIDTH, HEADS, KV_HEADS, INNER, LAYERS = 156940, 32, 4, 2, 64, 2
CODEBOOK = 4096

Tensors = dict[str, tuple[str, list[int], bytes]]


def write(path: Path, tensors: Tensors) -> None:
    """A safetensors file."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


def read(path: Path) -> Tensors:
    data = path.read_bytes()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    return {n: (t["dtype"], t["shape"], data[start + t["data_offsets"][0] : start + t["data_offsets"][1]]) for n, t in header.items()}


def model(out: Path, rng: random.Random) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "hidden_act": "silu",
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 128000,
        "eos_token_id": 128009,
        "torch_dtype": "bfloat16",
    }
    # Normal numbers of deviation 0.02 as bf16: one long list that the tensors take turns of, which is random enough.
    drawn = b"".join(struct.pack("<f", rng.gauss(0, 0.02))[2:] for _ in range(1 << 16))
    one = struct.pack("<f", 1.0)[2:]
    tensors: Tensors = {}

    def add(name: str, shape: list[int], norm: bool = False) -> None:
        size = 2
        for n in shape:
            size *= n
        start = 2 * rng.randrange(1 << 15)
        pieces = drawn[start:] + drawn * (size // len(drawn) + 1)
        tensors[name] = ("BF16", shape, one * (size // 2) if norm else pieces[:size])

    add("model.embed_tokens.weight", [VOCABULARY, WIDTH])
    head = WIDTH // HEADS
    for i in range(LAYERS):
        at = f"model.layers.{i}"
        for part, rows in (("q", WIDTH), ("k", KV_HEADS * head), ("v", KV_HEADS * head), ("o", WIDTH)):
            add(f"{at}.self_attn.{part}_proj.weight", [rows, WIDTH])
        add(f"{at}.mlp.gate_proj.weight", [INNER, WIDTH])
        add(f"{at}.mlp.up_proj.weight", [INNER, WIDTH])
        add(f"{at}.mlp.down_proj.weight", [WIDTH, INNER])
        add(f"{at}.input_layernorm.weight", [WIDTH], norm=True)
        add(f"{at}.post_attention_layernorm.weight", [WIDTH], norm=True)
    add("model.norm.weight", [WIDTH], norm=True)
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (out / "tokenizer.json").write_bytes((ROOT / "parity/orpheus/fixtures/tokenizer.json").read_bytes())
    write(out / "model.safetensors", tensors)


def snac(out: Path, rng: random.Random) -> None:
    fixture = ROOT / "parity/snac/fixtures/strides"
    config = json.loads((fixture / "config.json").read_text())
    tensors = read(fixture / "model.safetensors")
    for i in range(len(config["vq_strides"])):
        entries = [rng.gauss(0, 1) for _ in range(CODEBOOK * config["codebook_dim"])]
        tensors[f"quantizer.quantizers.{i}.codebook.weight"] = ("F32", [CODEBOOK, config["codebook_dim"]], struct.pack(f"<{len(entries)}f", *entries))
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(config | {"codebook_size": CODEBOOK}, indent=2) + "\n")
    write(out / "model.safetensors", tensors)


def main() -> None:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "target/orpheus-tiny"
    rng = random.Random(0)
    model(out / "model", rng)
    snac(out / "snac", rng)
    print(f"written to {out}")


if __name__ == "__main__":
    main()
