"""One peer: piper1-gpl's generator and discriminators trained by PyTorch on the CPU, a step whenever a line arrives on standard input.

    PIPER1=/path/to/piper1-gpl python piper_torch.py MODELDIR BATCH.safetensors [--threads 2] [--fused]

Answers in JSON lines, see cpu_steps.py; the loss is the generator's.

fp32, dropout 0, all clips in one batch (they must have equal lengths, so that nothing is padded). A step is that of the project's trainer
(`training_step` of its `lightning.py`), without Lightning: one forward pass of the generator, both losses, then each player's backward pass and
update by its own AdamW. Noise and slices are drawn by PyTorch. The project's compiled search of the alignment is replaced by `search`.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "parity" / "piper"))
import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import reference  # noqa: E402
from cpu_steps import answer, status  # noqa: E402
from reference import commons, mel_processing, vits_losses  # noqa: E402


def search(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The best paths through `values` [clips, T, P], as ones and zeros: all clips and phonemes of a frame at once. Nothing is masked."""
    clips, frames, rows = values.shape
    given = np.ascontiguousarray(values.detach().numpy().transpose(1, 0, 2))
    best = np.full((frames, clips, rows + 1), -np.inf, dtype=np.float32)  # the first column comes before the first row
    best[0, :, 1] = given[0, :, 0]
    for t in range(1, frames):
        np.maximum(best[t - 1, :, 1:], best[t - 1, :, :-1], out=best[t, :, 1:])
        best[t, :, 1:] += given[t]
    went = (best[:-1, :, 1:] < best[:-1, :, :-1]).astype(np.int64)  # on from the row before; a tie stays
    found, each = np.zeros((clips, frames, rows), dtype=np.float32), np.arange(clips)
    row = np.full(clips, rows - 1)
    for t in reversed(range(frames)):
        found[each, t, row] = 1
        if t > 0:
            row -= went[t - 1, each, row]
    return torch.from_numpy(found)


def search_seconds(clips: list[reference.Clip]) -> float:
    """Of one search of these clips: checked beside that of the parity scripts, then the least of several."""
    values = torch.randn(len(clips), clips[0].frames, clips[0].phonemes, generator=torch.Generator().manual_seed(0))
    assert torch.equal(search(values, torch.ones_like(values)), reference.alignment.maximum_path(values, torch.ones_like(values)))
    marks = [time.perf_counter()]
    for _ in range(10):
        search(values, torch.ones_like(values))
        marks.append(time.perf_counter())
    return min(np.diff(marks))


class Batch:
    """All clips, as the trainer collates them."""

    def __init__(self, clips: list[reference.Clip]) -> None:
        self.ids = torch.stack([c.phoneme_ids for c in clips])  # [B, P]
        self.phonemes = torch.tensor([c.phonemes for c in clips])
        self.spec = torch.stack([c.spec.T for c in clips]).contiguous()  # [B, bins, T]
        self.frames = torch.tensor([c.frames for c in clips])
        self.waves = torch.stack([c.wave for c in clips])[:, None]  # [B, 1, hop T]


def losses(players: reference.Players, batch: Batch) -> dict[str, torch.Tensor]:
    """The loss of each player, `g` and `d`, of one forward pass, and the parts of the first."""
    said = players.said
    hop, size = said["hop_length"], said["segment_size"]
    fft, bands = (said["filter_length"], said["mel_channels"], said["sample_rate"]), (said["mel_fmin"], said["mel_fmax"])
    made, lengths, _, starts, _, mask, inner = players.g(batch.ids, batch.phonemes, batch.spec, batch.frames, None)
    _, z_p, m_p, logs_p, _, logs_q = inner
    mel = commons.slice_segments(mel_processing.spec_to_mel_torch(batch.spec, *fft, *bands), starts, size // hop)
    made_mel = mel_processing.mel_spectrogram_torch(made.squeeze(1), *fft, hop, said["win_length"], *bands)
    real = commons.slice_segments(batch.waves, starts * hop, size)
    _, judged, maps_real, maps_made = players.d(real, made)
    parts = {
        "mel": said["c_mel"] * F.l1_loss(mel, made_mel),
        "kl": said["c_kl"] * vits_losses.kl_loss(z_p, logs_q, m_p, logs_p, mask),
        "dur": lengths.sum(),
        "fm": vits_losses.feature_loss(maps_real, maps_made),
        "adv": vits_losses.generator_loss(judged)[0],
    }
    apart = vits_losses.discriminator_loss(*players.d(real, made.detach())[:2])[0]
    return parts | {"g": sum(parts.values()), "d": apart}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("batch", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--fused", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    idle = status("VmRSS")

    players = reference.load(args.model)
    clips = reference.load_batch(args.batch)
    if len({(c.frames, c.phonemes) for c in clips}) != 1 or any(c.speaker is not None for c in clips):
        raise SystemExit(f"{args.batch}: the clips must have equal lengths and one speaker")
    seconds, batch = search_seconds(clips), Batch(clips)
    reference.alignment.maximum_path = search
    del clips
    said = players.said
    rates = {"g": (said["learning_rate"], said["betas"]), "d": (said["learning_rate_d"], said["betas_d"])}
    adamw = {p: torch.optim.AdamW(getattr(players, p).parameters(), lr=lr, betas=tuple(betas), eps=said["eps"], fused=args.fused) for p, (lr, betas) in rates.items()}

    def step() -> torch.Tensor:
        found = losses(players, batch)
        for player, optimizer in adamw.items():
            optimizer.zero_grad()
            found[player].backward()
            optimizer.step()
        return found["g"].detach()

    package = f"piper1-gpl at b275826, its alignment searched in numpy ({1000 * seconds:.1f} ms)"
    answer(step, sum(p.numel() for p in players.both().parameters()), idle, package=package)


if __name__ == "__main__":
    main()
