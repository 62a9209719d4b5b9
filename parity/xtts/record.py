"""Writes fixtures/{base,odd}: a folder that the package loads (`config.json`, `vocab.json`, `model.pth`),
`batch.safetensors`, `expected.safetensors` with the loss, its parts and every gradient.

    python record.py

The perceiver is of 512 channels at any width, and a conditioning mel of 517 frames: so the fixtures are narrow, and their numbers
of few digits (weights of 16 bits). `generate.py --record` adds what is generated.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from make import make_batch, make_model, model_args
from reference import STOPS, TEXT_WEIGHT, Clip, gradients, load, save_batch, save_gradients

FIXTURES = Path(__file__).resolve().parent / "fixtures"
CASES = {
    # Eight groups of two channels in the conditioning encoder; codes of a clip that are not scored.
    "base": dict(args=model_args(16, 2), gain=1.3, ends=1.0),
    # Four groups of three channels, heads of three, three layers; the vocabulary's marks are elsewhere, and the configuration has
    # another's; as many codes as the table of positions has room for.
    "odd": dict(
        args=model_args(12, 4, layers=3, text=37, audio=23, max_text=10, max_codes=16, marks=(21, 20)),
        gain=1.3, start=9, stop=4, gap=True, stale=True,
    ),
}  # fmt: skip
# Of these what is generated has no near ties: of the first fixture one clip ends by itself.
SEEDS = {"base": 11, "odd": 19}
# Text ids, codes.
SHAPES = {"base": [(7, 12), (13, 5)], "odd": [(10, 14)]}
PROMPTS = {"base": [(3, 9), None]}


@torch.no_grad()
def by_definition(model, clips: list[Clip]) -> dict[str, float]:
    """The parts of the loss from the package's logits alone: what follows the rows that are scored."""
    sums, counts, seen = [0.0, 0.0], [0, 0], {}
    hooks = [head.register_forward_hook(lambda *a, head=head: seen.update({head: a[2][0]})) for head in (model.text_head, model.mel_head)]
    for clip in clips:
        t, n = len(clip.text_ids), len(clip.codes)
        model(clip.text_ids[None], torch.tensor([t]), clip.codes[None], torch.tensor([n * 1024]), cond_mels=clip.cond_mel.T[None, None])
        texts = torch.cat([clip.text_ids, torch.tensor([model.stop_text_token])])
        codes = torch.cat([clip.codes, torch.full((STOPS,), model.stop_audio_token)])
        scored = torch.ones(len(codes), dtype=torch.bool)
        if clip.prompt_codes is not None:
            scored[clip.prompt_codes[0] : clip.prompt_codes[1]] = False
        for i, (head, wanted, keep) in enumerate([(model.text_head, texts, texts > -1), (model.mel_head, codes, scored)]):
            chances = seen[head].double().log_softmax(-1)[torch.arange(len(wanted)), wanted]
            sums[i] -= chances[keep].sum().item()
            counts[i] += int(keep.sum())
    for hook in hooks:
        hook.remove()
    return {"loss.text": sums[0] / counts[0], "loss.mel": sums[1] / counts[1]}


def main() -> None:
    for name, model in CASES.items():
        directory, seed = FIXTURES / name, SEEDS[name]
        shutil.rmtree(directory, ignore_errors=True)
        make_model(directory, seed, dtype=torch.float16, coarse=True, **model)
        clips = make_batch(seed, model["args"], SHAPES[name], prompts=PROMPTS.get(name), text_stop=model.get("stop", 0))
        save_batch(clips, directory / "batch.safetensors")
        package = load(directory)
        loss, grads, parts = gradients(package, clips)
        plain = by_definition(package, clips)
        assert all(abs(parts[part] / plain[part] - 1) < 1e-6 for part in parts), (parts, plain)
        assert abs(loss / (TEXT_WEIGHT * plain["loss.text"] + plain["loss.mel"]) - 1) < 1e-6
        least = min(grads, key=lambda n: float(grads[n].norm()))
        save_gradients(loss, grads, parts, directory / "expected.safetensors")
        size = sum(f.stat().st_size for f in directory.iterdir())
        print(f"{name}: loss {loss:.7f}, {parts}, least gradient {float(grads[least].norm()):.1e} of {least}, {size} bytes")


if __name__ == "__main__":
    main()
