"""Records the committed fixtures: tiny models with a batch, the reference's predictions, loss and gradients.

    python record.py [--debug DIR]     DIR gets each clip's intermediate activations (not committed)
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors.torch import save_file

from make import make_batch, make_model
from reference import forward, gradients, load, save_batch, save_gradients

HERE = Path(__file__).parent / "fixtures"
CASES = {
    # The two released variants: unequal clips, each kind of dropped condition, text from short to longer than the clip.
    "v1": dict(
        seed=11, variant="v1", vocab_size=24, dim=32, depth=2, heads=2, dim_head=16, ff_mult=2, text_dim=20, conv_layers=2, qk_norm=None,
        clips=[(17, 9, ""), (23, 5, "a"), (11, 6, "at")],
    ),
    "v0": dict(
        seed=12, variant="v0", tokenizer="char", vocab_size=19, dim=32, depth=1, heads=2, dim_head=16, ff_mult=2, text_dim=16, conv_layers=1,
        clips=[(14, 6, ""), (9, 12, "at"), (12, 3, "t")],
    ),
    # Options of the package that no release uses; attention narrower than the model, no text convolutions.
    "options": dict(
        seed=13, variant="v1", vocab_size=12, dim=16, depth=3, heads=3, dim_head=4, ff_mult=3, text_dim=10, conv_layers=0,
        qk_norm="rms_norm", long_skip_connection=True,
        clips=[(13, 4, ""), (7, 2, "a")],
    ),
}  # fmt: skip


def activations(model, clip) -> dict[str, torch.Tensor]:
    """What each stage hands to the next, for finding the first stage that differs."""
    seen: dict[str, torch.Tensor] = {}

    def hook(name):
        return lambda _module, _inputs, output: seen.__setitem__(name, (output if torch.is_tensor(output) else output[0]).detach().clone())

    stages = {"time": model.time_embed, "text": model.text_embed, "input": model.input_embed, "norm_out": model.norm_out}
    stages["input.proj"], stages["input.conv_pos"] = model.input_embed.proj, model.input_embed.conv_pos_embed
    for i, block in enumerate(getattr(model.text_embed, "text_blocks", [])):
        stages[f"text.block.{i}"] = block
    for i, block in enumerate(model.transformer_blocks):
        stages.update({f"block.{i}.normed": block.attn_norm, f"block.{i}.attn": block.attn, f"block.{i}.ff": block.ff, f"block.{i}": block})
    handles = [module.register_forward_hook(hook(name)) for name, module in stages.items()]
    with torch.no_grad():
        seen["pred"] = forward(model, clip)
    for handle in handles:
        handle.remove()
    return {name: tensor.contiguous() for name, tensor in seen.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--debug", type=Path)
    debug = parser.parse_args().debug
    for name, case in CASES.items():
        case, directory = dict(case), HERE / name
        shapes, seed = case.pop("clips"), case.pop("seed")
        make_model(directory, seed, **case)
        clips = make_batch(seed, case["vocab_size"], shapes)
        save_batch(clips, directory / "batch.safetensors")
        model = load(directory)
        with torch.no_grad():
            predictions = [forward(model, c) for c in clips]
            for clip, alone in zip(clips, predictions):  # the trainer passes an all-true mask at batch 1: it must change nothing
                assert torch.equal(alone, forward(model, clip, mask=torch.ones(1, clip.frames, dtype=torch.bool)))
        save_file({f"clips.{i}.pred": p for i, p in enumerate(predictions)}, str(directory / "forward.safetensors"))
        loss, grads = gradients(model, clips)
        save_gradients(loss, grads, directory / "expected.safetensors")
        if debug:
            (debug / name).mkdir(parents=True, exist_ok=True)
            for i, clip in enumerate(clips):
                save_file(activations(model, clip), str(debug / name / f"clip{i}.safetensors"))
        size = sum(f.stat().st_size for f in directory.iterdir())
        print(f"{name}: loss {loss:.8f}, {len(grads)} gradients, {sum(g.numel() for g in grads.values())} parameters, {size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
