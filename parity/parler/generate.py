"""Generation: parler_tts' tokens and codes beside those of `ambitus generate --greedy`.

    python generate.py BINARY [--count N --seed S]     random folders and texts, through the binary
    python generate.py --record                        writes fixtures/ends and generate.safetensors of the fixtures

generate.safetensors: `clips.i.{description_ids,prompt_ids}`, `max_new` i64 [1]; `clips.i.{tokens,codes}` with --max-new of it and
`clips.i.default_{tokens,codes}` without, which is generation_config.json's max_length. `fixtures/ends` is a folder whose rows end by
themselves.

Tokens must be equal as long as the reference's two largest scores of every row that goes on differ by more than ten times the
tolerance. Every case also goes through `by_definition`, the loop in plain words, whole sequences at a time.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from make import make_batch, make_model
from record import CASES, SMALL, TEXT
from reference import Clip, inputs, load
from safetensors.torch import load_file, save_file
from sweep import random_case
from sweep_sets import generate_main  # sweep says where it is

FIXTURES = Path(__file__).resolve().parent / "fixtures"
FP32 = 1e-4  # of the largest score of a step


@dataclass
class Generated:
    tokens: torch.Tensor  # i64 [C, s], the columns after the first as the loop leaves them
    codes: torch.Tensor  # i64 [C, n], the delay undone, columns with an id that is no code left out
    margins: list[float]  # of each column: how far apart the two largest scores are, of the largest, in the row where that is least


@torch.no_grad()
def reference(model, clip: Clip, max_new: int | None) -> Generated:
    """The package's own `generate`; what its codec is given is taken from it, and the codec left out."""
    seen = {}
    sample, decode = model._sample, model.audio_encoder.decode

    def watched_sample(*args, **kwargs):
        out = sample(*args, **kwargs)
        seen.update(tokens=out.sequences.clone(), scores=out.scores)
        return out

    def watched_decode(audio_codes, **_):
        seen["codes"] = audio_codes.reshape(audio_codes.shape[-2:])
        return type("Out", (), dict(audio_values=torch.zeros(1, 1, 4)))

    model._sample, model.audio_encoder.decode = watched_sample, watched_decode
    try:
        model.eval().generate(
            **inputs(clip), do_sample=False, return_dict_in_generate=True, output_scores=True, **({} if max_new is None else {"max_new_tokens": max_new})
        )  # fmt: skip
    finally:
        model._sample, model.audio_encoder.decode = sample, decode
    tokens = seen["tokens"][:, 1:]
    codes = seen.get("codes", torch.zeros(len(tokens), 0, dtype=torch.long))
    # The package does so where any cell is a begin, an end or a pad, and else fails on an id that its codec has not.
    codes = codes[:, (codes < model.audio_encoder.config.codebook_size).all(0)]
    end, margins = model.config.decoder.eos_token_id, []
    for column, scores in enumerate(seen["scores"]):
        goes_on = ~(tokens[:, :column] == end).any(1)
        top = scores[goes_on].topk(2).values
        margins.append(float(((top[:, 0] - top[:, 1]) / scores[goes_on].masked_fill(scores[goes_on].isinf(), 0).abs().amax(1)).min()))
    return Generated(tokens, codes, margins)


@torch.no_grad()
def by_definition(model, clip: Clip, length: int, min_new: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and codes of the same loop in plain words: no cache, no processors."""
    config, size = model.config.decoder, model.audio_encoder.config.codebook_size
    count, begin, end = config.num_codebooks, config.bos_token_id, config.eos_token_id
    ids = torch.full((count, 1), begin)

    def fed() -> torch.Tensor:
        columns = torch.arange(ids.shape[1])
        out = ids.clone()
        for k in range(count):
            out[k, columns <= k] = begin
            out[k, columns >= length - (count - 1 - k)] = end
        return out

    first = 0  # of the rows that may not be followed into the end
    while ids.shape[1] < length:
        ended = (ids == end).any(1)
        if ended.all():
            break
        if ended[first] and first < count - 1:
            first += 1
        scores = model(**inputs(clip), decoder_input_ids=fed(), use_cache=False).logits[:, -1].clone()
        if ids.shape[1] - 1 < min_new:
            scores[:, end] = -torch.inf
        scores[first + 1 :, end] = -torch.inf
        ids = torch.cat([ids, torch.where(ended, end, scores.argmax(1))[:, None]], 1)
    out, width = fed(), ids.shape[1]
    if width < 2 * count - 1:  # less than the delay itself: no column is of codes alone
        return ids[:, 1:], ids[:, :0]
    codes = torch.stack([out[k, k + 1 : width - (count - 1 - k)] for k in range(count)])
    return ids[:, 1:], codes[:, (codes < size).all(0)]


def checked(model, clip: Clip, max_new: int | None) -> Generated:
    got, settings = reference(model, clip, max_new), model.generation_config
    tokens, codes = by_definition(model, clip, settings.max_length if max_new is None else max_new + 1, settings.min_new_tokens or 0)
    if min(got.margins) > 10 * FP32:
        assert torch.equal(tokens, got.tokens), "the loop in plain words has other tokens"
        assert torch.equal(codes, got.codes), "the loop in plain words has other codes"
    return got


def compare(want: Generated, got: dict, i: int) -> tuple[int, bool]:
    """The columns that were compared, and whether that is all."""
    tokens = got[f"clips.{i}.tokens"]
    for column, margin in enumerate(want.margins):
        assert column < tokens.shape[1], f"clip {i} ends after {column} columns of {len(want.margins)}"
        if not torch.equal(tokens[:, column], want.tokens[:, column]):
            # Too near to tell: from here on it is another clip.
            assert margin <= 10 * FP32, f"clip {i}, column {column}: {tokens[:, column].tolist()}, not {want.tokens[:, column].tolist()}"
            return column, False
    assert tokens.shape == want.tokens.shape, f"clip {i} goes on: {tokens.shape[1]} columns, not {want.tokens.shape[1]}"
    codes = got[f"clips.{i}.codes"]
    assert torch.equal(codes, want.codes), f"clip {i}: codes {codes.tolist()}, not {want.codes.tolist()}"
    return len(want.margins), True


def draw(seed: int, directory: Path) -> tuple[list[Clip], int | None]:
    rng = random.Random(seed)
    model, _, vocabularies = random_case(rng)
    count = model["decoder"]["num_codebooks"]
    shortest = 2 * count - 1  # columns that a delay needs, the first included
    settings = {"max_length": rng.randint(max(shortest, 3), 60), "do_sample": rng.random() < 0.5}
    if rng.random() < 0.7:
        settings["min_new_tokens"] = rng.choice([1, 5, 12])
    model |= dict(gain=rng.choice([1.4, 1.8]), bias=rng.choice([0.0, 0.8, 1.5, 2.5]), spare=rng.choice([1.0, 0.3]), generation=settings)
    make_model(directory, seed, **model)
    shapes = [(rng.choice([1, 5, 40, 140]), rng.choice([1, 7, 30]), 1) for _ in range(rng.choice([1, 3, 5]))]
    max_new = rng.choice([None, max(shortest - 1, settings.get("min_new_tokens", 1)), rng.randint(max(shortest, 12), 90)])
    return make_batch(seed, model["decoder"], shapes, **vocabularies), max_new


def save_texts(clips: list[Clip], path: Path) -> None:
    save_file({f"clips.{i}.{f}": getattr(c, f) for i, c in enumerate(clips) for f in ("description_ids", "prompt_ids")}, str(path))


def sweep(binary: str, count: int, first: int) -> None:
    compared, near, ended = 0, 0, 0
    for seed in range(first, first + count):
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            clips, max_new = draw(seed, folder / "model")
            model = load(folder / "model")
            want = [checked(model, c, max_new) for c in clips]
            save_texts(clips, folder / "batch.safetensors")
            for more in [[], ["--threads", "1"]]:
                out = folder / "out.safetensors"
                command = [binary, "generate", "--model", folder / "model", "--batch", folder / "batch.safetensors", "--out", out, "--greedy", *more]
                command += [] if max_new is None else ["--max-new", max_new]
                done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
                assert done.returncode == 0, f"seed {seed}: exit code {done.returncode}: {done.stderr[-2000:]}"
                got = load_file(str(out))
                for i, w in enumerate(want):
                    columns, whole = compare(w, got, i)
                    compared, near = compared + columns, near + (not whole)
            limit = model.generation_config.max_length - 1 if max_new is None else max_new
            ended += sum(w.tokens.shape[1] < limit for w in want)
            print(f"seed {seed}: {len(clips)} clips, {[w.tokens.shape[1] for w in want]} columns of {limit}, {[w.codes.shape[1] for w in want]} frames: ok", flush=True)
    print(f"{count} cases, {compared} columns equal, {ended} clips ended by themselves, {near} left at a near tie")


def endings(model, tokens: torch.Tensor) -> list[int | None]:
    """The column in which each row says its end."""
    rows = [(row == model.config.decoder.eos_token_id).nonzero().flatten().tolist() for row in tokens]
    return [row[0] if row else None for row in rows]


# Of the folder that ends: one end right after another; a row that waits; one codebook's end and no other's; none.
WANTED = [
    lambda e: None not in e and e[2] - e[0] == 2,
    lambda e: None not in e and e[2] - e[0] > 2,
    lambda e: e[0] is not None and None in e,
    lambda e: e == [None] * 3,
]


def record() -> None:
    directory = FIXTURES / "ends"
    shutil.rmtree(directory, ignore_errors=True)
    leaning = dict(gain=1.7, bias=0.6, spare=0.3)
    make_model(directory, 73, text=TEXT | dict(d_ff=24), decoder=SMALL, generation={"max_length": 40, "min_new_tokens": 5}, **leaning)
    for name in [*CASES, "ends"]:
        model, out = load(FIXTURES / name), {}
        max_new, decoder = (30, SMALL) if name == "ends" else (16, CASES[name]["decoder"])
        for i, shape in enumerate([(9, 6, 1), (1, 3, 1), (17, 1, 1), (6, 12, 1)]):
            for seed in range(1_000):
                clip = make_batch(seed, decoder, [(1 + seed % 20, 1 + seed % 7, 1) if name == "ends" else shape])[0]
                short = reference(model, clip, max_new)
                # No near ties in a fixture.
                if min(short.margins) < 20 * FP32 or name == "ends" and not WANTED[i](endings(model, short.tokens)):
                    continue
                short, whole = checked(model, clip, max_new), checked(model, clip, None)
                if min(whole.margins) > 20 * FP32:
                    break
            else:
                raise SystemExit(f"{name}: no clip of kind {i}")
            print(f"{name} {i}: seed {seed}, {short.tokens.shape[1]} columns of {max_new}, ends {endings(model, short.tokens)}, {short.codes.shape[1]} frames; default {whole.tokens.shape[1]} columns, {whole.codes.shape[1]} frames")
            out |= {f"clips.{i}.description_ids": clip.description_ids, f"clips.{i}.prompt_ids": clip.prompt_ids}
            out |= {f"clips.{i}.tokens": short.tokens, f"clips.{i}.codes": short.codes}
            out |= {f"clips.{i}.default_tokens": whole.tokens, f"clips.{i}.default_codes": whole.codes}
        out["max_new"] = torch.tensor([max_new])
        save_file({k: v.contiguous() for k, v in out.items()}, str(FIXTURES / name / "generate.safetensors"))


if __name__ == "__main__":
    generate_main(record, sweep, __doc__)
