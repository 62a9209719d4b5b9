"""Writes fixtures/{base,projected,rope,fused,crossed}: a folder as the project saves it, `batch.safetensors`,
`expected.safetensors` with loss and every gradient, `states.safetensors` with the text encoder's states.

    python record.py
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from make import make_batch, make_model
from reference import Clip, gradients, inputs, labels, load, save_batch, save_gradients, states
from safetensors.torch import save_file

FIXTURES = Path(__file__).resolve().parent / "fixtures"
TEXT = dict(d_model=24, d_kv=8, d_ff=48, num_layers=2, num_heads=3)
DECODER = dict(vocab_size=20, num_codebooks=3, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=64, max_position_embeddings=64)
SMALL = DECODER | dict(hidden_size=16, ffn_dim=24)
CASES = {
    # Mini's kind: the text encoder is as wide as the decoder.
    "base": dict(text=TEXT | dict(d_model=32), decoder=DECODER),
    # Large's kind: a projection between them.
    "projected": dict(text=TEXT, decoder=DECODER),
    # Rotated positions, and fewer keys than queries.
    "rope": dict(text=TEXT | dict(d_model=16, d_ff=24), decoder=SMALL | dict(rope_embeddings=True, num_key_value_heads=2, num_cross_attention_key_value_heads=1)),
    # One matrix of heads, codebooks of unequal weight, four of them; bf16 in the file, the table of positions as well.
    "fused": dict(text=TEXT | dict(d_ff=24), decoder=SMALL | dict(use_fused_lm_heads=True, num_codebooks=4, codebook_weights=[3, 1, 2, 0.5]), dtype=torch.bfloat16),
    # The prompt is read through cross attention; fewer cross keys; fp16 in the file.
    "crossed": dict(text=TEXT | dict(d_model=16, d_ff=24), decoder=SMALL | dict(num_cross_attention_key_value_heads=2), prompt_cross_attention=True, dtype=torch.float16),
}
# Description tokens, prompt tokens, frames.
SHAPES = {
    "base": [(7, 5, 9), (12, 3, 4)],
    "projected": [(9, 4, 11), (5, 8, 2), (14, 1, 6)],
    "rope": [(6, 7, 10), (11, 2, 5)],
    "fused": [(8, 6, 9), (3, 3, 2)],
    "crossed": [(6, 9, 8), (10, 2, 3), (1, 4, 12)],
}


@torch.no_grad()
def by_definition(model, clips: list[Clip]) -> float:
    """The loss from the package's logits alone: codebook k's codes, then one end, are chosen at positions k to k + T."""
    config = model.config.decoder
    count, weights = config.num_codebooks, config.codebook_weights or [1] * config.num_codebooks
    total = [0.0] * count
    for clip in clips:
        rows = labels(model, clip.codes)[0].T
        given = torch.cat([torch.full((count, 1), config.bos_token_id), rows[:, :-1]], 1)
        logits = model(**inputs(clip), decoder_input_ids=given, use_cache=False).logits[:, -rows.shape[1] :].double()
        for k in range(count):
            wanted = torch.cat([clip.codes[k], torch.tensor([config.eos_token_id])])
            chances = logits[k, k : k + clip.scored].log_softmax(-1)
            total[k] -= chances[torch.arange(clip.scored), wanted].sum().item()
    scored = sum(c.scored for c in clips)
    return sum(w * t for w, t in zip(weights, total)) / sum(weights) / scored


def main() -> None:
    for seed, (name, config) in enumerate(CASES.items()):
        directory = FIXTURES / name
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        make_model(directory, seed, generation={"max_length": 24, "min_new_tokens": 4}, **config)
        clips = make_batch(seed, config["decoder"], SHAPES[name])
        save_batch(clips, directory / "batch.safetensors")
        model = load(directory)
        loss, grads = gradients(model, clips)
        assert abs(loss / by_definition(model, clips) - 1) < 1e-6
        save_gradients(loss, grads, directory / "expected.safetensors")
        save_file({f"clips.{i}.states": states(model, c) for i, c in enumerate(clips)}, str(directory / "states.safetensors"))
        size = sum(f.stat().st_size for f in directory.iterdir())
        print(f"{name}: loss {loss:.7f}, {size} bytes")


if __name__ == "__main__":
    main()
