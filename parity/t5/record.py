"""Writes fixtures/{relu,gated}: a folder of transformers' T5EncoderModel and `expected.safetensors`, what it makes of texts.

    python record.py

`texts.i.ids` i64 [U] and `texts.i.states` f32 [U, d], the last hidden state of a text alone. The longest text has tokens in
every bucket of relative positions, the last ones (from a distance of 91 on) on both sides.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import T5Config, T5EncoderModel

FIXTURES = Path(__file__).resolve().parent / "fixtures"
CASES = {
    # As t5-base has it, the file in fp32.
    "relu": (dict(vocab_size=40, d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=3, feed_forward_proj="relu"), torch.float32),
    # As flan-t5 has it, the file in bf16.
    "gated": (dict(vocab_size=50, d_model=24, d_kv=8, d_ff=48, num_layers=2, num_heads=2, feed_forward_proj="gated-gelu"), torch.bfloat16),
}
LENGTHS = [140, 1, 9, 33]
END = 1


def random_encoder(config: dict, seed: int, dtype: torch.dtype = torch.float32) -> T5EncoderModel:
    """Matrices that keep the size of what they multiply; queries smaller, for T5 does not divide its scores. Values are
    representable in `dtype`."""
    torch.manual_seed(seed)
    model = T5EncoderModel(T5Config(dropout_rate=0.0, **config)).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            x = torch.randn_like(p)
            if "norm" in name:
                x = 1 + 0.2 * x
            elif not ("shared" in name or "bias" in name):
                x = x / p.shape[1] ** (1.0 if name.endswith("SelfAttention.q.weight") else 0.5)
            p.copy_(x.to(dtype).float())
    return model


@torch.no_grad()
def main() -> None:
    for seed, (name, (config, dtype)) in enumerate(CASES.items()):
        directory = FIXTURES / name
        shutil.rmtree(directory, ignore_errors=True)
        model = random_encoder(config, seed, dtype)
        model.to(dtype).save_pretrained(directory)
        again, info = T5EncoderModel.from_pretrained(directory, torch_dtype=torch.float32, output_loading_info=True)
        assert not any(info.values()), info
        g = torch.Generator().manual_seed(seed + 10)
        out = {}
        for i, n in enumerate(LENGTHS):
            ids = torch.cat([torch.randint(2, config["vocab_size"], (n - 1,), generator=g), torch.tensor([END])])
            states = again.eval()(input_ids=ids[None]).last_hidden_state[0]
            out |= {f"texts.{i}.ids": ids, f"texts.{i}.states": states.contiguous()}
        table = again.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight
        for bucket in range(table.shape[0]):
            # Bucket 16 is a distance of zero to the right, which no pair of tokens has.
            kept = table[bucket].clone()
            table[bucket] += 1
            moved = (again(input_ids=out["texts.0.ids"][None]).last_hidden_state[0] - out["texts.0.states"]).abs().max()
            assert (moved > 1e-3) == (bucket != 16), f"bucket {bucket} moves the states by {moved}"
            table[bucket] = kept
        save_file(out, str(directory / "expected.safetensors"))
        size = sum(f.stat().st_size for f in directory.iterdir())
        print(f"{name}: states up to {max(float(v.abs().max()) for k, v in out.items() if k.endswith('states')):.2f}, {size} bytes")


if __name__ == "__main__":
    main()
