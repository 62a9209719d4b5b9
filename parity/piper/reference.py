"""The reference: piper1-gpl's VITS, generator and discriminators, fp32 on the CPU, nothing dropped (`eval`), its random numbers given.

Nothing here re-implements the model or its losses. The modules come from a checkout of https://github.com/OHF-Voice/piper1-gpl at b275826,
whose path is in the environment variable PIPER1; it is GPL-3, and none of it is in this repository. Only the files of `src/piper/train/vits`
that need torch and librosa alone are imported; other versions of them are refused. What the trainer does around them (Lightning, one
forward pass, then two losses) is `losses`. The compiled module `monotonic_align` is replaced by `search`, in numpy.

Clips go through one at a time. The trainer's losses of one clip are means, over its frames (kl), its phonemes (dur) and its slice (the
others), so each is weighted by the clip's share of what it is the mean of. `together` computes the padded batch as the trainer does.

In float64 the alignment is still searched in fp32, as the reference's is.
"""

from __future__ import annotations

import hashlib
import math
import os
import pathlib
import sys
import types
import warnings
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F
from torch.nn.utils import weight_norm

warnings.filterwarnings("ignore")

# SHA-256 of what is imported, the first 16 digits.
PINNED = {
    "attentions": "19c756757eef8b2b",
    "commons": "26c0fc09d67765c6",
    "losses": "8feb8836105c6315",
    "mel_processing": "86e2236d081ec129",
    "models": "a27efdfeb4ccccd2",
    "modules": "0cc35ebf9836de09",
    "transforms": "3a7f2123c58f0fa9",
}
KINK = 4e-6  # of the root mean square of a rectifier's input: some sums of fp32
NEVER = np.float32(-1e9)  # what the reference gives to a step that cannot be
DP = "model_g.dp."  # parameters whose gradients are ill-conditioned
PARTS = {"mel": "slice", "kl": "frames", "dur": "phonemes", "fm": "slice", "adv": "slice"}  # and what each is a mean over


def search(values: np.ndarray) -> tuple[np.ndarray, float]:
    """The row of each frame on the best path through `values` [T, P], and how near its nearest decision was to a tie.

    A path begins in row 0, ends in row P - 1, and from one frame to the next stays or goes one row down; a tie stays. The nearest
    decision: the difference of two sums, of the larger one. With fewer frames than rows no path fits: the reference then goes
    back from the last row by the values themselves, and does not reach row 0.
    """
    frames, rows = values.shape
    best = values.astype(np.float32)
    for t in range(1, frames):
        reached = slice(max(0, rows - frames + t), min(rows, t + 1))  # rows from which the end can be reached, and which can be reached
        stay = best[t - 1].copy()
        stay[t:] = NEVER
        come = np.concatenate([[NEVER], best[t - 1, :-1]])
        best[t, reached] += np.maximum(stay, come)[reached]
    path, row, nearest = np.zeros(frames, dtype=np.int64), rows - 1, math.inf
    for t in reversed(range(frames)):
        path[t] = row
        if t == 0 or row == 0:
            continue
        stay, come = best[t - 1, row], best[t - 1, row - 1]
        if row != t:
            nearest = min(nearest, float(abs(stay - come)) / max(float(abs(stay)), float(abs(come)), 1e-30))
        if row == t or stay < come:
            row -= 1
    return path, nearest


class Search(types.ModuleType):
    """In place of the compiled module. Remembers what it found, and of a clip for which a path is given finds that one."""

    def __init__(self) -> None:
        super().__init__("vits.monotonic_align")
        self.given: list[torch.Tensor] | None = None
        self.paths: list[torch.Tensor] = []
        self.nearest: list[float] = []

    def maximum_path(self, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """[clips, T, P] of ones and zeros."""
        found = torch.zeros_like(values)
        self.paths, self.nearest = [], []
        for i, (value, of) in enumerate(zip(values, mask)):
            frames, rows = int(of[:, 0].sum()), int(of[0].sum())
            path, nearest = search(value[:frames, :rows].float().numpy())
            path = torch.from_numpy(path) if self.given is None else self.given[i]
            found[i, torch.arange(frames), path] = 1
            self.paths.append(path)
            self.nearest.append(nearest)
        return found


def _import() -> tuple:
    if "PIPER1" not in os.environ:
        sys.exit("PIPER1: the path of a checkout of piper1-gpl at b275826")
    folder = Path(os.environ["PIPER1"]) / "src/piper/train/vits"
    for name, digest in PINNED.items():
        found = hashlib.sha256((folder / f"{name}.py").read_bytes()).hexdigest()
        assert found.startswith(digest), f"{folder / name}.py is not that of b275826"
    package = types.ModuleType("vits")  # not by way of piper/__init__, which wants onnxruntime and espeak
    package.__path__ = [str(folder)]
    package.monotonic_align = Search()
    sys.modules |= {"vits": package, "vits.monotonic_align": package.monotonic_align}
    from vits import commons, losses, mel_processing, models

    return commons, losses, mel_processing, models, package.monotonic_align


commons, vits_losses, mel_processing, models, alignment = _import()


@dataclass
class Clip:
    """One clip of a batch file. P phonemes, T frames."""

    phoneme_ids: torch.Tensor  # i64 [P]
    spec: torch.Tensor  # f32 [T, filter_length / 2 + 1]
    wave: torch.Tensor  # f32 [hop_length T]
    noise_q: torch.Tensor  # f32 [T, inter_channels]
    noise_dp: torch.Tensor  # f32 [P, 2]
    slice: torch.Tensor  # i64 [1], the first frame
    speaker: torch.Tensor | None = None  # i64 [1]

    FIELDS = ("phoneme_ids", "spec", "wave", "noise_q", "noise_dp", "slice", "speaker")

    @property
    def frames(self) -> int:
        return len(self.spec)

    @property
    def phonemes(self) -> int:
        return len(self.phoneme_ids)


def save_batch(clips: list[Clip], path: Path) -> None:
    tensors = {f"clips.{i}.{f}": getattr(c, f) for i, c in enumerate(clips) for f in Clip.FIELDS}
    save_file({name: x.contiguous() for name, x in tensors.items() if x is not None}, str(path))


def load_batch(path: Path) -> list[Clip]:
    tensors = load_file(str(path))
    count = 1 + max(int(name.split(".")[1]) for name in tensors)
    return [Clip(**{f: tensors.get(f"clips.{i}.{f}") for f in Clip.FIELDS}) for i in range(count)]


@dataclass
class Players:
    """Both of them, and the hyper-parameters of their checkpoint."""

    g: models.SynthesizerTrn
    d: models.MultiPeriodDiscriminator
    said: dict

    def named(self, player: str) -> dict[str, torch.Tensor]:
        """The parameters of `g` or `d` by their names in model.ckpt."""
        return {f"model_{player}.{n}": p for n, p in getattr(self, player).named_parameters()}

    def both(self) -> torch.nn.Module:
        """With the names of model.ckpt."""
        return torch.nn.ModuleDict({"model_g": self.g, "model_d": self.d})


def build(said: dict, shapes: dict[str, tuple[int, ...]]) -> Players:
    """As the trainer makes them of the hyper-parameters, but for the sizes that are constants there: those are of the tensors'
    shapes (the layers of the posterior encoder and of the flow, the deterministic duration predictor, the discriminators)."""
    speakers, gin = said["num_speakers"], said["gin_channels"]
    gin = 512 if speakers > 1 and gin <= 0 else gin
    spectrum, inter, hidden = said["filter_length"] // 2 + 1, said["inter_channels"], said["hidden_channels"]
    same = ("filter_channels", "n_heads", "n_layers", "kernel_size", "p_dropout", "resblock", "resblock_kernel_sizes", "resblock_dilation_sizes")
    same += ("upsample_rates", "upsample_initial_channel", "upsample_kernel_sizes", "use_sdp")
    g = models.SynthesizerTrn(
        n_vocab=shapes["model_g.enc_p.emb.weight"][0], spec_channels=spectrum, segment_size=said["segment_size"] // said["hop_length"],
        inter_channels=inter, hidden_channels=hidden, n_speakers=speakers, gin_channels=gin, **{n: said[n] for n in same},
    )  # fmt: skip
    layers = lambda under: sum(n.startswith(f"{under}.in_layers.") and n.endswith(".weight_v") for n in shapes)  # noqa: E731
    g.enc_q = models.PosteriorEncoder(spectrum, inter, hidden, 5, 1, layers("model_g.enc_q.enc"), gin_channels=gin)
    g.flow = models.ResidualCouplingBlock(inter, hidden, 5, 1, layers("model_g.flow.flows.0.enc"), gin_channels=gin)
    if not said["use_sdp"]:
        g.dp = models.DurationPredictor(hidden, shapes["model_g.dp.conv_1.weight"][0], 3, 0.5, gin_channels=gin)
    with torch.device("meta"):  # 47 million parameters that are not wanted
        d = models.MultiPeriodDiscriminator()
    for i, one in enumerate(d.discriminators):
        inputs = 1
        for name, conv in [*one.convs.named_children(), ("conv_post", one.conv_post)]:
            path = name if name == "conv_post" else f"convs.{name}"
            outputs, group, *kernel = shapes[f"model_d.discriminators.{i}.{path}.weight_v"]
            made = type(conv)(inputs, outputs, tuple(kernel), conv.stride, conv.padding, groups=inputs // group)
            setattr(one if name == "conv_post" else one.convs, name, weight_norm(made))
            inputs = outputs
    return Players(g.eval(), d.eval(), said)


def load(directory: Path, dtype: torch.dtype = torch.float32) -> Players:
    """Strict: every tensor of model.ckpt is a player's, and every tensor of the players is there."""
    with torch.serialization.safe_globals([pathlib.PosixPath]):
        checkpoint = torch.load(directory / "model.ckpt", weights_only=True)
    state = checkpoint["state_dict"]
    players = build(checkpoint["hyper_parameters"], {n: tuple(x.shape) for n, x in state.items()})
    players.both().load_state_dict(state, strict=True)
    players.both().to(dtype)
    return players


@contextmanager
def given(noise_q: torch.Tensor, noise_dp: torch.Tensor, starts: torch.Tensor):
    """The forward pass draws nothing: its normal numbers and the starts of its slices are these. In float64 the losses stay in it,
    where the reference casts to fp32."""

    def cut(z, lengths, size):
        return commons.slice_segments(z, starts, size), starts

    with ExitStack() as now:
        now.enter_context(patch.object(torch, "randn_like", lambda like: noise_q))
        now.enter_context(patch.object(torch, "randn", lambda *size: noise_dp))
        now.enter_context(patch.object(commons, "rand_slice_segments", cut))
        if noise_q.dtype == torch.float64:
            now.enter_context(patch.object(torch.Tensor, "float", lambda x: x))
        yield


def pad(rows: list[torch.Tensor]) -> torch.Tensor:
    """Clips [T, C] as one [clips, C, longest], zeros behind."""
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).transpose(1, 2)


@dataclass
class Forward:
    """What came of clips: both losses, the generator's parts, and the values between them as the reference has them."""

    g: torch.Tensor
    d: torch.Tensor
    parts: dict[str, torch.Tensor]
    paths: list[torch.Tensor]
    nearest: list[float]
    stages: dict[str, torch.Tensor]


def losses(players: Players, clips: list[Clip], paths: list[torch.Tensor] | None = None) -> Forward:
    """Of clips in one padded batch, as the trainer's step computes them. `paths`: alignments in place of those searched for."""
    said, dtype = players.said, next(players.g.parameters()).dtype
    hop, size = said["hop_length"], said["segment_size"]
    # These keep a table per upper frequency only: that of another model's rate or bands would be used.
    mel_processing.mel_basis.clear()
    ids = torch.nn.utils.rnn.pad_sequence([c.phoneme_ids for c in clips], batch_first=True)
    spec, noise_q, noise_dp = (pad([getattr(c, f) for c in clips]).to(dtype) for f in ("spec", "noise_q", "noise_dp"))
    waves = pad([c.wave[:, None] for c in clips]).to(dtype)
    starts = torch.cat([c.slice for c in clips])
    phonemes, frames = (torch.tensor([getattr(c, f) for c in clips]) for f in ("phonemes", "frames"))
    speakers = torch.cat([c.speaker for c in clips]) if said["num_speakers"] > 1 else None
    assert all(0 <= int(c.slice) <= c.frames - size // hop for c in clips)

    alignment.given, text = paths, []
    hook = players.g.enc_p.register_forward_hook(lambda *of: text.append(of[2]))
    with given(noise_q, noise_dp, starts):
        made, lengths, _, _, _, mask, inner = players.g(ids, phonemes, spec, frames, speakers)
        hook.remove()
        z, z_p, m_p, logs_p, m_q, logs_q = inner
        fft = said["filter_length"], said["mel_channels"], said["sample_rate"]
        bands = said["mel_fmin"], said["mel_fmax"]
        mel = commons.slice_segments(mel_processing.spec_to_mel_torch(spec, *fft, *bands), starts, size // hop)
        made_mel = mel_processing.mel_spectrogram_torch(made.squeeze(1), *fft, hop, said["win_length"], *bands)
        real = commons.slice_segments(waves, starts * hop, size)
        _, judged, maps_real, maps_made = players.d(real, made)
        parts = {
            "mel": said["c_mel"] * F.l1_loss(mel, made_mel),
            "kl": said["c_kl"] * vits_losses.kl_loss(z_p, logs_q, m_p, logs_p, mask),
            "dur": lengths.sum(),
            "fm": vits_losses.feature_loss(maps_real, maps_made),
            "adv": vits_losses.generator_loss(judged)[0],
        }
        loss_d = vits_losses.discriminator_loss(*players.d(real, made.detach())[:2])[0]
    stages = {
        "text.x": text[0][0], "text.m": text[0][1], "text.logs": text[0][2], "posterior.m": m_q, "posterior.logs": logs_q,
        "posterior.z": z, "flow.z_p": z_p, "prior.m": m_p, "prior.logs": logs_p, "wave.made": made, "wave.real": real,
        "mel.made": made_mel, "mel.real": mel,
    }  # fmt: skip
    for kind, maps in (("made", maps_made), ("real", maps_real)):
        stages |= {f"maps.{i}.{j}.{kind}": x for i, of in enumerate(maps) for j, x in enumerate(of)}
    return Forward(sum(parts.values()), loss_d, parts, alignment.paths, alignment.nearest, stages)


@dataclass
class Gradients:
    losses: dict[str, float]  # `loss.g`, `loss.d` and the parts
    grads: dict[str, torch.Tensor]  # of both players
    paths: list[torch.Tensor]
    nearest: float  # to a tie, of all clips


def gradients(players: Players, clips: list[Clip], paths: list[torch.Tensor] | None = None, together: bool = False) -> Gradients:
    """Losses of all clips and each player's gradient of its own. `together`: padded in one pass, not one clip at a time."""
    named = {player: players.named(player) for player in "gd"}
    grads = {n: torch.zeros_like(p) for of in named.values() for n, p in of.items()}
    sums, found, nearest = dict.fromkeys(["g", "d", *PARTS], 0.0), [], math.inf
    groups = [list(range(len(clips)))] if together else [[i] for i in range(len(clips))]
    for group in groups:
        some = [clips[i] for i in group]
        out = losses(players, some, None if paths is None else [paths[i] for i in group])
        count = lambda cs: {"slice": len(cs), "frames": sum(c.frames for c in cs), "phonemes": sum(c.phonemes for c in cs)}  # noqa: E731
        here, all_clips = count(some), count(clips)
        share = {of: here[of] / all_clips[of] for of in here}
        parts = {n: share[of] * out.parts[n] for n, of in PARTS.items()}
        wanted = {"g": sum(parts.values()), "d": share["slice"] * out.d}
        for player, loss in wanted.items():
            for name, g in zip(named[player], torch.autograd.grad(loss, list(named[player].values()))):
                grads[name] += g
        for n, x in {**parts, **wanted}.items():
            sums[n] += x.item()
        found += out.paths
        nearest = min(nearest, *out.nearest)
    return Gradients({f"loss.{n}": x for n, x in sums.items()}, grads, found, nearest)


def otherwise(players: Players, clips: list[Clip], paths: list[torch.Tensor]) -> list[Gradients]:
    """The same losses and gradients, added in other orders: without oneDNN, and padded, every clip twice; and with what is next to the kink of
    a rectifier on its other side, where another order of sums may put it."""
    with torch.backends.mkldnn.flags(enabled=False):
        plain = gradients(players, clips, paths)
    with patch.object(F, "leaky_relu", other_side):
        turned = gradients(players, clips, paths)
    return [plain, gradients(players, 2 * clips, 2 * paths, together=True), turned]


def other_side(x: torch.Tensor, slope: float = 0.01) -> torch.Tensor:
    """A leaky rectifier, but for what is within rounding of zero: that has the value and the slope of the other side."""
    near = x.abs() < KINK * x.detach().square().mean().sqrt()
    return torch.where(near ^ (x > 0), x, slope * x)


def dp_errors(exact: Gradients, found: list[Gradients]) -> dict[str, float]:
    """How far the reference in fp32 is from itself in float64 in each gradient of the duration predictor: |delta|, the largest of
    several ways to compute it, for that of one is now and then a small number by chance."""
    return {n: max((of.grads[n].double() - g).norm().item() for of in found) for n, g in exact.grads.items() if n.startswith(DP)}


def save_gradients(of: Gradients, errors: dict[str, float], path: Path) -> None:
    tensors = {n: torch.tensor([x]) for n, x in of.losses.items()}
    tensors |= {f"clips.{i}.path": p for i, p in enumerate(of.paths)}
    tensors |= {f"grad.{n}": g.contiguous() for n, g in of.grads.items()}
    save_file(tensors | {f"error.{n}": torch.tensor([x]) for n, x in errors.items()}, str(path))
