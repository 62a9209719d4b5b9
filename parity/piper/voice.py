"""Voices as ONNX files beside piper1-gpl's modules: random voices of all options, in onnxruntime and in the package.

    PIPER1=/path/to/piper1-gpl python voice.py make DIR [--count 12] [--seed N] [--published]
    AMBITUS_VOICES=DIR cargo test -p ambitus-families voices_are_written
    PIPER1=/path/to/piper1-gpl python voice.py check DIR [--package]

`make` writes folders with model.ckpt and config.json; `--published` adds voices of the published sizes, whose values are random as well.
`check` takes each folder under DIR that also has voice.onnx and voice.onnx.json, whoever wrote them. It wants onnxruntime and onnx,
`--package` also piper-tts 1.8.0.

Checked, against `SynthesizerTrn.infer` of the checkpoint: samples and their number without noise, for texts of one id and more, at
several paces; of texts of unequal length in one batch; and with noise, which both are given: in the file the two nodes that draw it are made
inputs for that. As it is, the file must run with noise, and two runs must differ. onnx's own checker must take it. The package must load and speak
with it, samples of each id included.

A duration is rounded up, so a text is left out where one is next to a whole number.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import random
import sys
import time
from contextlib import contextmanager
from pathlib import Path, PosixPath
from unittest.mock import patch

import numpy as np
import torch
from make import LETTERS, hyper_parameters, make_model
from reference import Players, load

TOLERANCE = 1e-4  # of samples between -1 and 1; some 1e-6 are seen
NEAR = 2e-5  # of a duration: next to a whole number
SMALL = dict(scale=(2, 4, 4, 4, 4, 4), groups=(1, 2, 2, 4, 2, 1), period=(2, 3, 4, 4, 4))
MEDIUM = dict(
    num_symbols=256, kernels=(3, 5, 7), dilations=((1, 2), (2, 6), (3, 12)), rates=(8, 8, 4), channels=256, up_kernels=(16, 16, 8),
    filter_length=1024, win_length=1024, segment_size=8192, mel_channels=80, inter=192, hidden=192, filters=768, layers=6,
)  # fmt: skip
HIGH = MEDIUM | dict(
    resblock="1", kernels=(3, 7, 11), dilations=((1, 3, 5),) * 3, rates=(8, 8, 2, 2), channels=512, up_kernels=(16, 16, 4, 4)
)  # fmt: skip
PUBLISHED = {"medium": MEDIUM, "high": HIGH, "speakers": MEDIUM | dict(num_speakers=904, gin_channels=512)}


def random_case(rng: random.Random, nth: int) -> tuple[dict, dict]:
    """Arguments of `hyper_parameters` and of `shapes`. Every fourth has several speakers and the splines, and so on."""
    rates = rng.choice([(4, 4), (8, 2), (2, 2, 4), (5, 2), (2, 3, 2), (2, 2, 2, 2), (16,), (3, 8)])
    double = rng.random() < 0.5
    kinds = rng.randint(1, 3)
    heads = rng.choice([1, 2, 3])
    speakers = 1 if nth % 2 == 0 else rng.choice([2, 5])
    hop = math.prod(rates)
    given = dict(
        sample_rate=rng.choice([16000, 22050]), num_symbols=4 + len(LETTERS) if rng.random() < 0.5 else rng.randint(12, 40),
        num_speakers=speakers, gin_channels=0 if speakers == 1 else rng.choice([3, 8, 16]), use_sdp=nth % 4 < 2 or rng.random() < 0.3,
        resblock="1" if double else "2", kernels=tuple(rng.choice([1, 3, 5, 7, 11]) for _ in range(kinds)),
        dilations=tuple(tuple(rng.randint(1, 5) for _ in range(3 if double else 2)) for _ in range(kinds)),
        rates=rates, channels=rng.choice([16, 24, 32]), up_kernels=tuple(r + 2 * rng.randint(0, 4) for r in rates),
        filter_length=4 * hop, win_length=4 * hop, segment_size=8 * hop,
        inter=2 * rng.randint(1, 6), hidden=heads * rng.choice([4, 5, 8]), filters=rng.randint(6, 20), heads=heads, layers=rng.randint(1, 4),
        kernel=rng.choice([1, 2, 3, 4, 5]), older=rng.random() < 0.5, lists=rng.random() < 0.5,
    )  # fmt: skip
    given["num_symbols"] = max(given["num_symbols"], 8)
    return given, SMALL | dict(flow=rng.randint(1, 4), posterior=rng.randint(1, 4), duration=rng.randint(4, 20))


def spoken(directory: Path, seed: int) -> None:
    """Makes the checkpoint one that speaks: durations are of a few frames each and differ, and samples fill a part of their range."""
    with torch.serialization.safe_globals([PosixPath]):
        checkpoint = torch.load(directory / "model.ckpt", weights_only=True)
    state = checkpoint["state_dict"]
    players = load(directory)
    with torch.no_grad():
        logarithms = infer(players, texts(players, [300], seed), [0.667, 1e-4, 1.0])[1].log() - math.log(1e-4)
    by = min(0.7 / max(float(logarithms.std()), 0.1), 4 / max(float(logarithms.max() - logarithms.min()), 0.1))
    more = 1.0 - by * logarithms.mean()
    if "model_g.dp.flows.0.m" in state:  # (z - m) e^-logs
        state["model_g.dp.flows.0.logs"][0] -= math.log(by)
        state["model_g.dp.flows.0.m"][0] -= more * state["model_g.dp.flows.0.logs"][0].exp()
    else:
        state["model_g.dp.proj.weight"] *= by
        state["model_g.dp.proj.bias"] *= by
        state["model_g.dp.proj.bias"] += more
    torch.save(checkpoint, directory / "model.ckpt")
    players, sums = load(directory), []
    hook = players.g.dec.conv_post.register_forward_hook(lambda *of: sums.append(of[2]))
    with torch.no_grad():
        infer(players, texts(players, [30], seed), [0.667, 1.0, 0.8])
    hook.remove()
    state["model_g.dec.conv_post.weight"] *= 0.5 / sums[0].std()
    torch.save(checkpoint, directory / "model.ckpt")


def make(under: Path, count: int, seed: int, published: bool) -> None:
    rng = random.Random(seed)
    cases = {f"{i:02}": random_case(rng, i) for i in range(count)}
    cases |= {name: (given, SMALL) for name, given in PUBLISHED.items()} if published else {}
    for i, (name, (given, sizes)) in enumerate(cases.items()):
        make_model(under / name, seed + i, hyper_parameters(**given), sizes, spline=rng.choice([1.0, 3.0, 6.0]))
        spoken(under / name, seed + i)
        if published and name in PUBLISHED:
            print(f"{name}: {(under / name / 'model.ckpt').stat().st_size >> 20} MiB", flush=True)
    print(f"{len(cases)} voices, seed {seed}")


def texts(players: Players, lengths: list[int], seed: int) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randint(players.g.n_vocab, (n,), generator=g) for n in lengths]


class Noise:
    """In place of torch's random numbers: drawn here, and kept. `dp` [B, 2, T] of durations, `prior` [B, C, F] of frames."""

    def __init__(self, seed: int) -> None:
        self.g, self.dp, self.prior = torch.Generator().manual_seed(seed), None, None

    def randn(self, *size: int) -> torch.Tensor:
        self.dp = torch.empty(size).normal_(generator=self.g)
        return self.dp

    def randn_like(self, like: torch.Tensor) -> torch.Tensor:
        self.prior = torch.empty(like.shape).normal_(generator=self.g)
        return self.prior


@contextmanager
def drawing(noise: Noise):
    with patch.object(torch, "randn", noise.randn), patch.object(torch, "randn_like", noise.randn_like):
        yield


def infer(players: Players, ids: list[torch.Tensor], scales: list[float], speaker: int = 0) -> tuple[np.ndarray, torch.Tensor]:
    """Samples [B, n] of texts in one batch, and how many frames each id lasts before that is rounded up, [B, 1, T]."""
    durations, exp = [], torch.exp

    def seen(x: torch.Tensor) -> torch.Tensor:
        if x.dim() == 3 and x.shape[1] == 1:  # of the logarithms of durations: the first of this shape
            durations.append(exp(x) * scales[1])
        return exp(x)

    padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
    lengths = torch.tensor([len(x) for x in ids])
    who = torch.full((len(ids),), speaker) if players.g.n_speakers > 1 else None
    with torch.no_grad(), patch.object(torch, "exp", seen):
        out = players.g.infer(padded, lengths, sid=who, noise_scale=scales[0], length_scale=scales[1], noise_scale_w=scales[2])
    return out[0][:, 0].numpy(), durations[0]


def is_clear(durations: torch.Tensor, ids: list[torch.Tensor]) -> bool:
    """No duration is next to a whole number."""
    own = torch.cat([row[0, : len(x)] for row, x in zip(durations, ids)])
    return bool(((own - own.round()).abs() > NEAR * own.clamp(min=1)).all())


def feed(ids: list[torch.Tensor], scales: list[float], speaker: int | None) -> dict[str, np.ndarray]:
    padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True).numpy()
    of = {"input": padded, "input_lengths": np.array([len(x) for x in ids]), "scales": np.array(scales, dtype=np.float32)}
    return of if speaker is None else of | {"sid": np.array([speaker])}


class Voice:
    """A file in onnxruntime. `given`: noise is an input."""

    def __init__(self, path: Path) -> None:
        import onnx
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 2  # warnings are shown
        start = lambda of: onnxruntime.InferenceSession(of, options, providers=["CPUExecutionProvider"])  # noqa: E731
        self.session = start(str(path))
        model = onnx.load(str(path))
        onnx.checker.check_model(model, full_check=True)
        self.noise = {}
        for node in [n for n in model.graph.node if n.op_type == "RandomNormalLike"]:
            self.noise["dp" if node.name.startswith("/dp/") else "prior"] = node.output[0]
            model.graph.input.append(onnx.helper.make_tensor_value_info(node.output[0], onnx.TensorProto.FLOAT, [None] * 3))
            model.graph.node.remove(node)
        self.given = start(model.SerializeToString())

    def run(self, of: dict[str, np.ndarray], noise: Noise | None = None) -> np.ndarray:
        """Samples [B, n]."""
        if noise is None:
            out = self.session.run(None, of)[0]
        else:
            out = self.given.run(None, of | {name: getattr(noise, kind).numpy() for kind, name in self.noise.items()})[0]
        assert out.ndim == 4 and out.shape[1:3] == (1, 1) and out.dtype == np.float32, out.shape
        return out[:, 0, 0]


class Check:
    """Of a folder."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.players, self.voice = directory, load(directory), Voice(directory / "voice.onnx")
        self.speakers = self.players.g.n_speakers
        self.hop = math.prod(self.players.g.upsample_rates)
        self.worst, self.compared, self.left_out, self.largest, self.wrong = 0.0, 0, 0, 0.0, []
        self.durations: set[int] = set()

    def compare(self, ids: list[torch.Tensor], scales: list[float], speaker: int | None = None, noise: Noise | None = None) -> None:
        with drawing(noise or Noise(0)):
            want, durations = infer(self.players, ids, scales, speaker or 0)
        if not is_clear(durations, ids):
            self.left_out += 1
            return
        got = self.voice.run(feed(ids, scales, speaker), noise)
        self.compared += 1
        what = f"{[len(x) for x in ids]} ids, scales {scales}, speaker {speaker}, {'noise' if noise else 'no noise'}"
        if got.shape != want.shape:
            self.wrong.append(f"{what}: {got.shape}, not {want.shape}")
            return
        difference = float(np.abs(got - want).max())
        if not difference <= TOLERANCE:
            self.wrong.append(f"{what}: off by {difference:.1e}")
        self.worst, self.largest = max(self.worst, difference), max(self.largest, float(np.abs(want).max()))
        self.durations |= set(durations.ceil().flatten().int().tolist())

    def all(self, seed: int) -> None:
        for i, speaker in enumerate([None] if self.speakers == 1 else [0, self.speakers - 1]):
            for j, length in enumerate([1, 2, 4, 5, 9, 30, 61]):
                for pace in (0.5, 1.0, 1.7):
                    self.compare(texts(self.players, [length], seed + j), [0, pace, 0], speaker)
            for j, scales in enumerate([[0.667, 1.0, 0.8], [1.0, 1.3, 0.0], [0.0, 0.8, 1.0], [0.3, 0.2, 2.5]]):
                self.compare(texts(self.players, [23], seed + j), scales, speaker, Noise(seed + i + j))
            self.compare(texts(self.players, [17, 3, 8], seed), [0, 1.0, 0], speaker)
            self.compare(texts(self.players, [2, 25], seed), [0.667, 1.2, 0.8], speaker, Noise(seed + i))
            self.drawn(texts(self.players, [20], seed), speaker)
        # A pace of nothing leaves one frame.
        speaker = None if self.speakers == 1 else 0
        assert self.voice.run(feed(texts(self.players, [5], seed), [0.667, 0.0, 0.8], speaker)).shape == (1, self.hop)

    def drawn(self, ids: list[torch.Tensor], speaker: int | None) -> None:
        """Two runs with noise of the file's own."""
        both = [self.voice.run(feed(ids, [0.667, 1.0, 0.8], speaker)) for _ in range(2)]
        for out in both:
            if not (np.isfinite(out).all() and out.shape[1] % self.hop == 0 and out.shape[1] > 0):
                self.wrong.append(f"with noise: {out.shape}")
        if both[0].shape == both[1].shape and np.array_equal(*both):
            self.wrong.append("two runs with noise are the same")

    def package(self) -> None:
        """The package's voice: ids and samples of a sentence as it speaks them, and the samples of each id."""
        from piper import PiperVoice, SynthesisConfig

        logging.disable(logging.WARNING)  # of symbols that a small voice does not have
        voice = PiperVoice.load(self.directory / "voice.onnx", include_alignments=True)
        said = json.loads((self.directory / "voice.onnx.json").read_text())
        speaker = None if self.speakers == 1 else self.speakers - 1
        quiet = SynthesisConfig(speaker_id=speaker, noise_scale=0, noise_w_scale=0, normalize_audio=False)
        assert voice.config.sample_rate == said["audio"]["sample_rate"] and voice.config.hop_length == self.hop
        chunks = list(voice.synthesize("Hello world. How are you, friend?", quiet, include_alignments=True))
        assert len(chunks) == 2
        for chunk in chunks:
            ids = [torch.tensor(chunk.phoneme_ids)]
            with drawing(Noise(0)):
                want, durations = infer(self.players, ids, [0, 1.0, 0], speaker or 0)
            if not is_clear(durations, ids):
                continue
            got = chunk.audio_float_array
            if got.shape != want[0].shape or not np.abs(got - want[0]).max() <= TOLERANCE:
                self.wrong.append(f"in the package: {got.shape}, wanted {want[0].shape}")
            assert chunk.phoneme_id_samples.tolist() == (durations.ceil().flatten() * self.hop).int().tolist()
        assert all(c.audio_int16_bytes for c in PiperVoice.load(self.directory / "voice.onnx").synthesize("Hello."))

    def speed(self, seed: int) -> str:
        ids, speaker = texts(self.players, [150], seed), None if self.speakers == 1 else 0
        times = []
        for _ in range(3):
            begin = time.perf_counter()
            out = self.voice.run(feed(ids, [0.667, 1.0, 0.8], speaker))
            times.append(time.perf_counter() - begin)
        return f"{out.shape[1]} samples in {min(times):.2f} s"


def check(under: Path, seed: int, package: bool) -> None:
    folders = sorted(d for d in under.iterdir() if (d / "model.ckpt").is_file())
    failed, worst = 0, 0.0
    assert folders, f"no voices in {under}"
    for directory in folders:
        of = Check(directory)
        of.all(seed)
        if package:
            of.package()
        said, kind = of.players.said, "splines" if of.players.said["use_sdp"] else "plain"
        failed += bool(of.wrong)
        worst = max(worst, of.worst)
        print(
            f"{'FAIL' if of.wrong else 'ok  '} {directory.name}: {kind}, {of.speakers} speakers, resblock {said['resblock']}, rates {said['upsample_rates']}; "
            f"{of.compared} compared, off by {of.worst:.1e} of at most {of.largest:.2f}, durations {min(of.durations)} to {max(of.durations)}, "
            f"{of.left_out} left out; {of.speed(seed)}",
            flush=True,
        )
        for line in of.wrong:
            print("     ", line)
    print(f"{len(folders) - failed} of {len(folders)} hold, samples off by {worst:.1e} at most")
    sys.exit(failed > 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["make", "check"])
    parser.add_argument("voices", type=Path)
    parser.add_argument("--count", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--published", action="store_true")
    parser.add_argument("--package", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.what == "make":
        make(args.voices, args.count, args.seed, args.published)
    else:
        check(args.voices, args.seed, args.package)


if __name__ == "__main__":
    main()
