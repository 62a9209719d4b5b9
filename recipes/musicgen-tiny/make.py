"""Makes the folder that recipes/musicgen-tiny.yaml names, from random numbers: a model that knows nothing.

    python3 recipes/musicgen-tiny/make.py [FOLDER]      default: target/musicgen-tiny

FOLDER/model: a folder as transformers saves a MusicGen, with a decoder, a T5 encoder and an EnCodec (32 kHz, 4 codebooks of 256 codes) of
few channels each, and a tokenizer of letters. Needs only the standard library.
"""

from __future__ import annotations

import json
import random
import struct
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,;:!?'\"()-"
# pad, end, unknown, the space, and letters.
PIECES = ["<pad>", "</s>", "<unk>", "▁", *LETTERS]
TEXT = {"d_model": 24, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 3}
WIDTH, HEADS, INNER, LAYERS, BOOKS, CODES = 32, 4, 64, 2, 4, 256
STRIDES, FILTERS, LATENT = (8, 5, 4, 4), 2, 8

Tensors = dict[str, tuple[list[int], bytes]]


def write(path: Path, tensors: Tensors) -> None:
    """A safetensors file of fp32 numbers."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, data in tensors.values()))


def config() -> dict[str, object]:
    text = TEXT | {
        "model_type": "t5",
        "vocab_size": len(PIECES),
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "layer_norm_epsilon": 1e-6,
        "feed_forward_proj": "relu",
        "dropout_rate": 0.1,
    }
    audio = {
        "model_type": "encodec",
        "sampling_rate": 32000,
        "audio_channels": 1,
        "target_bandwidths": [BOOKS * 50 * 8 / 1000 + 0.001],
        "codebook_size": CODES,
        "codebook_dim": LATENT,
        "hidden_size": LATENT,
        "num_filters": FILTERS,
        "num_residual_layers": 1,
        "num_lstm_layers": 1,
        "upsampling_ratios": list(STRIDES),
        "norm_type": "weight_norm",
        "normalize": False,
        "use_causal_conv": False,
        "use_conv_shortcut": False,
        "pad_mode": "reflect",
    }
    decoder = {
        "model_type": "musicgen_decoder",
        "vocab_size": CODES,
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "ffn_dim": INNER,
        "num_codebooks": BOOKS,
        "audio_channels": 1,
        "activation_function": "gelu",
        "dropout": 0.0,
        "pad_token_id": CODES,
        "bos_token_id": CODES,
    }
    return {
        "architectures": ["MusicgenForConditionalGeneration"],
        "model_type": "musicgen",
        "transformers_version": "4.57.6",
        "is_encoder_decoder": True,
        "text_encoder": text,
        "audio_encoder": audio,
        "decoder": decoder,
    }


def tokenizer() -> dict[str, object]:
    """A Unigram of letters, as T5's fast tokenizers are written."""
    space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    end = {"SpecialToken": {"id": "</s>", "type_id": 0}}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": PIECES[i], "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
            for i in range(3)
        ],
        "normalizer": None,
        "pre_tokenizer": space,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}, end],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, end, {"Sequence": {"id": "B", "type_id": 0}}, end],
            "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}},
        },
        "decoder": space,
        "model": {"type": "Unigram", "unk_id": 2, "byte_fallback": False, "vocab": [[p, 0.0 if i < 3 else -2.0] for i, p in enumerate(PIECES)]},
    }


class Maker:
    def __init__(self) -> None:
        self.rng = random.Random(0)
        self.tensors: Tensors = {}

    def add(self, name: str, shape: list[int], spread: float = 0.02, mean: float = 0.0) -> None:
        n = 1
        for axis in shape:
            n *= axis
        self.tensors[name] = (shape, struct.pack(f"<{n}f", *(self.rng.gauss(mean, spread) for _ in range(n))))

    def norm(self, name: str, width: int, bias: bool = True) -> None:
        self.add(f"{name}.weight", [width], 0.0, 1.0)
        if bias:
            self.add(f"{name}.bias", [width], 0.0)

    def decoder(self) -> None:
        self.add("enc_to_dec_proj.weight", [WIDTH, TEXT["d_model"]])
        self.add("enc_to_dec_proj.bias", [WIDTH])
        at = "decoder.model.decoder"
        for k in range(BOOKS):
            self.add(f"{at}.embed_tokens.{k}.weight", [CODES + 1, WIDTH])
            self.add(f"decoder.lm_heads.{k}.weight", [CODES, WIDTH])
        for i in range(LAYERS):
            layer = f"{at}.layers.{i}"
            for part in ("self_attn", "encoder_attn"):
                for proj in ("q", "k", "v", "out"):
                    self.add(f"{layer}.{part}.{proj}_proj.weight", [WIDTH, WIDTH])
                self.norm(f"{layer}.{part}_layer_norm", WIDTH)
            self.add(f"{layer}.fc1.weight", [INNER, WIDTH])
            self.add(f"{layer}.fc2.weight", [WIDTH, INNER])
            self.norm(f"{layer}.final_layer_norm", WIDTH)
        self.norm(f"{at}.layer_norm", WIDTH)

    def text_encoder(self) -> None:
        d, inner, ff = TEXT["d_model"], TEXT["d_kv"] * TEXT["num_heads"], TEXT["d_ff"]
        self.add("text_encoder.shared.weight", [len(PIECES), d], 1.0)
        for i in range(TEXT["num_layers"]):
            block = f"text_encoder.encoder.block.{i}"
            for proj in "qkv":
                self.add(f"{block}.layer.0.SelfAttention.{proj}.weight", [inner, d], 0.1)
            self.add(f"{block}.layer.0.SelfAttention.o.weight", [d, inner], 0.1)
            if i == 0:
                self.add(f"{block}.layer.0.SelfAttention.relative_attention_bias.weight", [32, TEXT["num_heads"]], 0.1)
            self.norm(f"{block}.layer.0.layer_norm", d, bias=False)
            self.add(f"{block}.layer.1.DenseReluDense.wi.weight", [ff, d], 0.1)
            self.add(f"{block}.layer.1.DenseReluDense.wo.weight", [d, ff], 0.1)
            self.norm(f"{block}.layer.1.layer_norm", d, bias=False)
        self.norm("text_encoder.encoder.final_layer_norm", d, bias=False)

    def conv(self, name: str, shape: list[int], out: int) -> None:
        """Of weight norm: directions, their lengths, and a bias."""
        self.add(f"{name}.conv.parametrizations.weight.original0", [shape[0], 1, 1], 0.1, 1.0)
        self.add(f"{name}.conv.parametrizations.weight.original1", shape)
        self.add(f"{name}.conv.bias", [out], 0.01)

    def residual(self, name: str, width: int) -> None:
        self.conv(f"{name}.block.1", [width // 2, width, 3], width // 2)
        self.conv(f"{name}.block.3", [width, width // 2, 1], width)

    def memory(self, name: str, width: int) -> None:
        for of in ("ih", "hh"):
            self.add(f"{name}.lstm.weight_{of}_l0", [4 * width, width], width**-0.5)
            self.add(f"{name}.lstm.bias_{of}_l0", [4 * width], 0.01)

    def codec(self) -> None:
        at, width, layer = "audio_encoder.encoder.layers", FILTERS, 1
        self.conv(f"{at}.0", [width, 1, 7], width)
        for stride in reversed(STRIDES):
            self.residual(f"{at}.{layer}", width)
            self.conv(f"{at}.{layer + 2}", [2 * width, width, 2 * stride], 2 * width)
            width, layer = 2 * width, layer + 3
        self.memory(f"{at}.{layer}", width)
        self.conv(f"{at}.{layer + 2}", [LATENT, width, 7], LATENT)
        for q in range(BOOKS):
            book = f"audio_encoder.quantizer.layers.{q}.codebook"
            self.add(f"{book}.embed", [CODES, LATENT], 1.0)
            # How it was trained, which the package's loader wants.
            self.add(f"{book}.embed_avg", [CODES, LATENT], 1.0)
            self.add(f"{book}.cluster_size", [CODES], 0.0, 1.0)
            self.add(f"{book}.inited", [1], 0.0, 1.0)
        at, layer = "audio_encoder.decoder.layers", 3
        self.conv(f"{at}.0", [width, LATENT, 7], width)
        self.memory(f"{at}.1", width)
        for stride in STRIDES:
            self.conv(f"{at}.{layer}", [width, width // 2, 2 * stride], width // 2)
            width //= 2
            self.residual(f"{at}.{layer + 1}", width)
            layer += 3
        self.conv(f"{at}.{layer}", [1, width, 7], 1)


def main() -> None:
    out = (Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "target/musicgen-tiny") / "model"
    out.mkdir(parents=True, exist_ok=True)
    maker = Maker()
    maker.decoder()
    maker.text_encoder()
    maker.codec()
    write(out / "model.safetensors", maker.tensors)
    generation = {"decoder_start_token_id": CODES, "bos_token_id": CODES, "pad_token_id": CODES}
    generation |= {"max_length": 1500, "guidance_scale": 3.0, "do_sample": True}
    for name, value in (("config.json", config()), ("generation_config.json", generation), ("tokenizer.json", tokenizer())):
        (out / name).write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
    print(f"written to {out.parent}")


if __name__ == "__main__":
    main()
