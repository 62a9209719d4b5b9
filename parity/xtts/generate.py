"""Generation: coqui-tts' codes and latents beside those of `ambitus generate --greedy`.

    python generate.py BINARY [--count N --seed S]     random folders, texts and mels, through the binary
    python generate.py --record                        writes generate.safetensors of the fixtures

generate.safetensors, of the texts and mels of batch.safetensors: `clips.i.codes` i64 [n] and `clips.i.latents` f32 [n, D] with
--max-new of `max_new` i64 [1], and `clips.i.default_codes` without, which is until the stop or the table's end.

The reference is `GPT.generate` (greedy, one beam, no penalty) of each text alone, whose prompt is ids that are not read and the code that
begins audio, and the package's second pass over what it wrote, with `return_latent`. Codes must be equal as long as the reference's
two largest logits differ by more than ten times the tolerance; latents as far as codes are.
"""

from __future__ import annotations

import random
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from make import make_batch, make_mel, make_model
from record import CASES
from reference import SAMPLES_PER_CODE, Clip, load, load_batch
from safetensors.torch import load_file, save_file
from sweep import random_case
from sweep_sets import generate_main  # sweep says where it is

FIXTURES = Path(__file__).resolve().parent / "fixtures"
FP32 = 1e-4  # of the largest logit of a step, and of all latents of a clip


@dataclass
class Generated:
    codes: torch.Tensor  # i64 [n], the stop among them
    latents: torch.Tensor  # f32 [n, D]
    margins: list[float]  # of each code: how far apart the two largest logits are, of the largest
    ended: bool


@torch.no_grad()
def reference(model, clip: Clip, max_new: int | None) -> Generated:
    """`model`: after `init_gpt_for_inference`. Greedy codes do not depend on how many follow: they are cut to `max_new`."""
    text = clip.text_ids[None]
    latents = model.get_style_emb(clip.cond_mel.T[None]).transpose(1, 2)
    codes, out = model.generate(
        latents, text, do_sample=False, num_beams=1, repetition_penalty=1.0, return_dict_in_generate=True, output_logits=True
    )  # fmt: skip
    codes = codes[:, :max_new]
    length = torch.tensor([codes.shape[1] * SAMPLES_PER_CODE])
    rows = model(text, torch.tensor([len(clip.text_ids)]), codes, length, cond_latents=latents, return_latent=True)
    assert rows.shape[1] == codes.shape[1]
    # The rows that chose the codes are those of the second pass.
    again = model.mel_head(rows[0]).argmax(-1)
    margins = []
    for step, logits in enumerate(out.logits[: codes.shape[1]]):
        top = logits[0].topk(2).values
        margins.append(float((top[0] - top[1]) / logits[0].abs().max()))
        assert margins[-1] <= 10 * FP32 or again[step] == codes[0, step]
    return Generated(codes[0], rows[0], margins, bool(codes[0, -1] == model.stop_audio_token))


def loaded(directory: Path):
    model = load(directory)
    model.init_gpt_for_inference(kv_cache=True)
    return model.eval()


def compare(want: Generated, got: dict, i: int) -> tuple[int, float]:
    """The codes that were compared, and how far their latents are."""
    codes, latents = got[f"clips.{i}.codes"], got[f"clips.{i}.latents"]
    assert len(codes) == len(latents), f"clip {i}: {len(codes)} codes, {len(latents)} latents"
    same = len(want.codes)
    for step, margin in enumerate(want.margins):
        assert step < len(codes), f"clip {i} ends after {step} codes of {len(want.codes)}"
        if codes[step] != want.codes[step]:
            # Too near to tell: from here on it is another clip, and the state that chose is still the same.
            assert margin <= 10 * FP32, f"clip {i}, code {step}: {int(codes[step])}, not {int(want.codes[step])}"
            same = step + 1
            break
    else:
        assert len(codes) == len(want.codes), f"clip {i} goes on: {len(codes)} codes, not {len(want.codes)}"
    off = float((latents[:same] - want.latents[:same]).norm() / want.latents[:same].norm())
    assert off <= FP32, f"clip {i}: latents are off by {off:.1e}"
    return same, off


def draw(seed: int, directory: Path) -> tuple[list[Clip], int | None]:
    rng = random.Random(seed)
    model = random_case(rng) | dict(gain=rng.choice([1.0, 1.4, 1.8]), ends=rng.choice([0.0, 0.5, 1.0, 2.0]))
    make_model(directory, seed, **model)
    most = model["args"]["gpt_max_text_tokens"]
    shapes = [(rng.randint(1, most), 1) for _ in range(rng.randint(1, 4))]
    clips = make_batch(seed, model["args"], shapes, text_stop=model.get("stop", 0))
    g = torch.Generator().manual_seed(seed)
    for clip in clips:
        # The last piece of a voice is shorter.
        clip.cond_mel = rng.choice([clip.cond_mel, make_mel(g, rng.randint(29, 516))])
    return clips, rng.choice([None, 1, rng.randint(2, 40)])


def save_prompts(clips: list[Clip], path: Path) -> None:
    save_file({f"clips.{i}.{f}": getattr(c, f).contiguous() for i, c in enumerate(clips) for f in ("text_ids", "cond_mel")}, str(path))


def sweep(binary: str, count: int, first: int) -> None:
    compared, near, ended, worst = 0, 0, 0, 0.0
    for seed in range(first, first + count):
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            clips, max_new = draw(seed, folder / "model")
            model = loaded(folder / "model")
            want = [reference(model, c, max_new) for c in clips]
            save_prompts(clips, folder / "batch.safetensors")
            for more in [[], ["--threads", "1"], ["--sequences", "2"]]:
                out = folder / "out.safetensors"
                command = [binary, "generate", "--model", folder / "model", "--batch", folder / "batch.safetensors", "--out", out, "--greedy", *more]
                command += [] if max_new is None else ["--max-new", max_new]
                done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
                assert done.returncode == 0, f"seed {seed}: exit code {done.returncode}: {done.stderr[-2000:]}"
                got = load_file(str(out))
                assert len(got) == 2 * len(clips), f"seed {seed}: {sorted(got)}"
                for i, w in enumerate(want):
                    same, off = compare(w, got, i)
                    compared, near, worst = compared + same, near + (same < len(w.codes)), max(worst, off)
            ended += sum(w.ended for w in want)
            print(f"seed {seed}: {len(clips)} clips, {[len(w.codes) for w in want]} codes, max-new {max_new}: ok", flush=True)
    print(f"{count} cases, {compared} codes equal, {ended} clips ended by themselves, {near} left at a near tie; latents off by {worst:.1e} at most")


def record() -> None:
    max_new = 6
    for name in CASES:
        model, out = loaded(FIXTURES / name), {"max_new": torch.tensor([max_new])}
        for i, clip in enumerate(load_batch(FIXTURES / name / "batch.safetensors")):
            short, whole = reference(model, clip, max_new), reference(model, clip, None)
            least = min(whole.margins)
            assert least > 20 * FP32, f"{name} {i}: a near tie ({least:.1e}): make the fixture of another seed"
            print(f"{name} {i}: {short.codes.tolist()}, whole {len(whole.codes)}, ended {whole.ended}, least margin {least:.1e}")
            out |= {f"clips.{i}.codes": short.codes, f"clips.{i}.latents": short.latents, f"clips.{i}.default_codes": whole.codes}
        save_file({k: v.contiguous() for k, v in out.items()}, str(FIXTURES / name / "generate.safetensors"))


if __name__ == "__main__":
    generate_main(record, sweep, __doc__)
