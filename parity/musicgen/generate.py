"""Generation: transformers' codes, and those that audiocraft's model leads to, beside those of `ambitus generate --greedy`.

    python generate.py BINARY [--count N --seed S]     random folders and texts, through the binary
    python generate.py --record                        writes generate.safetensors of the fixtures

generate.safetensors: `clips.i.text_ids`, `max_new` i64 [1], `guidance` f32 [1]; `clips.i.plain` and `clips.i.guided`, the codes without and
with --cfg of it.

Every case goes through `by_definition`, the loop in plain words, whole sequences at a time, which transformers' own `generate` must equal.
Codes must be equal as long as the two largest logits of every codebook that is read differ by more than ten times the tolerance.
"""

from __future__ import annotations

import random
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from make import make_batch, make_model, make_package
from record import CASES
from reference import Clip, load
from safetensors.torch import load_file, save_file
from sweep import random_case
from sweep_sets import generate_main  # sweep says where it is

FIXTURES = Path(__file__).resolve().parent / "fixtures"
FP32 = 1e-4  # of the largest logit of a step
GUIDANCE, NEW = 3.0, 16


@dataclass
class Generated:
    codes: torch.Tensor  # i64 [K, n]
    margins: torch.Tensor  # [K, n]: how far apart the two largest logits are, of the largest


@torch.no_grad()
def by_definition(model, clip: Clip, special: int, new: int, guidance: float) -> Generated:
    """The loop: no cache, no processors. Column j of codebook k is that of frame j - 1 - d_k."""
    delays = torch.tensor(model.delays)
    count, frames = len(delays), new - int(delays.max())
    ids, margins = torch.full((count, 1), special), []
    bare = Clip(clip.text_ids[:0], clip.codes)
    for _ in range(new):
        frame = torch.arange(ids.shape[1])[None] - 1 - delays[:, None]
        fed = torch.where((frame >= 0) & (frame < frames), ids, special)
        logits = model.logits(clip, fed)
        if guidance != 1 and len(clip.text_ids):
            without = model.logits(bare, fed)
            logits = without + (logits - without) * guidance
        top = logits.topk(2).values
        margins.append((top[:, 0] - top[:, 1]) / logits.abs().amax(1))
        ids = torch.cat([ids, logits.argmax(1)[:, None]], 1)
    pick = lambda rows: torch.stack([rows[k, late : late + frames] for k, late in enumerate(model.delays)])  # noqa: E731
    return Generated(pick(ids[:, 1:]), pick(torch.stack(margins, 1)))


def checked(model, clip: Clip, special: int, new: int, guidance: float) -> Generated:
    want = by_definition(model, clip, special, new, guidance)
    codes = model.generate(clip, new, guidance)
    if codes is not None and want.margins.min() > 10 * FP32:
        assert torch.equal(codes, want.codes), "transformers has other codes than the loop in plain words"
    return want


def compare(model, want: Generated, codes: torch.Tensor, i: int) -> tuple[int, bool]:
    """The codes that were compared, and whether that is all."""
    assert codes.shape == want.codes.shape, f"clip {i}: {list(codes.shape)}, not {list(want.codes.shape)}"
    wrong = (codes != want.codes).nonzero().tolist()
    if not wrong:
        return codes.numel(), True
    k, t = min(wrong, key=lambda at: at[1] + model.delays[at[0]])
    # Too near to tell: from here on it is another piece.
    assert want.margins[k, t] <= 10 * FP32, f"clip {i}, codebook {k}, frame {t}: {codes[k, t]}, not {want.codes[k, t]}"
    return codes.shape[0] * t, False


def draw(seed: int, directory: Path) -> tuple[list[Clip], int, int, float]:
    rng = random.Random(seed)
    packaged = seed % 4 == 3
    model, _, ids = random_case(rng, packaged)
    model |= dict(gain=rng.choice([1.4, 1.8]))
    (make_package if packaged else make_model)(directory, seed, **model)
    shapes = [(rng.choice([0, 1, 5, 40]), 1) for _ in range(rng.choice([1, 3, 5]))]
    delays = load(directory).delays
    new = max(1, 2 * max(delays)) + rng.choice([0, 1, rng.randint(2, 50)])
    return make_batch(seed, model["decoder"], shapes, ids=ids), model["decoder"]["vocab_size"], new, rng.choice([1.0, 3.0, 1.5])


def run(binary: str, model: Path, batch: Path, out: Path, options: list) -> dict[str, torch.Tensor]:
    command = [binary, "generate", "--model", model, "--batch", batch, "--out", out, "--greedy", *options]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-2000:]}"
    return load_file(str(out))


def sweep(binary: str, count: int, first: int) -> None:
    compared, near = 0, 0
    for seed in range(first, first + count):
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            clips, special, new, guidance = draw(seed, folder / "model")
            model = load(folder / "model")
            want = [checked(model, c, special, new, guidance) for c in clips]
            save_file({f"clips.{i}.text_ids": c.text_ids for i, c in enumerate(clips)}, str(folder / "batch.safetensors"))
            for more in [[], ["--threads", "1"], ["--sequences", "2"]]:
                options = ["--max-new", new, *more] + ([] if guidance == 1 else ["--cfg", guidance])
                got = run(binary, folder / "model", folder / "batch.safetensors", folder / "out.safetensors", options)
                assert set(got) == {f"clips.{i}.codes" for i in range(len(clips))}, set(got)
                for i, w in enumerate(want):
                    codes, whole = compare(model, w, got[f"clips.{i}.codes"], i)
                    compared, near = compared + codes, near + (not whole)
            print(f"seed {seed}: {len(clips)} clips, {new} columns, guidance {guidance}: ok", flush=True)
    print(f"{count} cases, {compared} codes equal, {near} left at a near tie")


def record() -> None:
    for name, config in CASES.items():
        model, out = load(FIXTURES / name), {}
        special = config["decoder"]["vocab_size"]
        for i, tokens in enumerate([9, 0, 5]):
            for seed in range(50 if tokens else 1):
                clip = make_batch(seed, config["decoder"], [(tokens, 1)])[0]
                plain, guided = (checked(model, clip, special, NEW, x) for x in (1.0, GUIDANCE))
                # No near ties in a fixture.
                if min(plain.margins.min(), guided.margins.min()) > 20 * FP32:
                    break
            else:
                raise SystemExit(f"{name}: no clip of kind {i}")
            print(f"{name} {i}: seed {seed}, {plain.codes.unique().numel()} codes, {(plain.codes != guided.codes).sum()} others when guided")
            out |= {f"clips.{i}.text_ids": clip.text_ids, f"clips.{i}.plain": plain.codes, f"clips.{i}.guided": guided.codes}
        out |= {"max_new": torch.tensor([NEW]), "guidance": torch.tensor([GUIDANCE])}
        save_file({k: v.contiguous() for k, v in out.items()}, str(FIXTURES / name / "generate.safetensors"))


if __name__ == "__main__":
    generate_main(record, sweep, __doc__)
