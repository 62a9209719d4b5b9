"""Random Piper models as the trainers' checkpoints and voices' configurations have them, and random batches. Nothing is downloaded."""

from __future__ import annotations

import json
import math
from pathlib import Path, PosixPath

import torch
from reference import Clip, Players, build, mel_processing

LETTERS = "abcdefhijklmnopqrstuvwxyzæçðøħŋœɐɑɒɔəɛɜɪɹʃʊʌʒθˈˌː.,!?"
SCALE, PERIOD = (15, 41, 41, 41, 41, 5), 5  # kernels of the discriminators


def hyper_parameters(
    *, sample_rate: int = 22050, num_symbols: int = 24, num_speakers: int = 1, gin_channels: int = 0, use_sdp: bool = True,
    resblock: str = "2", kernels: tuple = (3, 5), dilations: tuple = ((1, 2), (2, 6)),
    rates: tuple = (4, 4), channels: int = 16, up_kernels: tuple = (8, 8),
    filter_length: int = 64, win_length: int = 64, segment_size: int = 128, mel_channels: int = 10, mel_fmin: float = 0.0, mel_fmax: float | None = None,
    inter: int = 6, hidden: int = 8, filters: int = 12, heads: int = 2, layers: int = 2, kernel: int = 3,
    c_mel: int = 45, c_kl: float = 1.0, older: bool = False, lists: bool = False,
) -> dict:  # fmt: skip
    """What `save_hyperparameters` keeps of a run. `older`: of rhasspy/piper's trainer, with the paths that released checkpoints
    have; else of piper1-gpl's. `lists`: sequences are lists, as Lightning's command line makes them of a configuration file."""
    said = {
        "batch_size": 32, "sample_rate": sample_rate, "num_symbols": num_symbols, "num_speakers": num_speakers,
        "resblock": resblock, "resblock_kernel_sizes": kernels, "resblock_dilation_sizes": dilations, "upsample_rates": rates,
        "upsample_initial_channel": channels, "upsample_kernel_sizes": up_kernels,
        "filter_length": filter_length, "hop_length": math.prod(rates), "win_length": win_length,
        "mel_channels": mel_channels, "mel_fmin": mel_fmin, "mel_fmax": mel_fmax,
        "inter_channels": inter, "hidden_channels": hidden, "filter_channels": filters, "n_heads": heads, "n_layers": layers,
        "kernel_size": kernel, "p_dropout": 0.1, "n_layers_q": 3, "use_spectral_norm": False, "gin_channels": gin_channels,
        "use_sdp": use_sdp, "segment_size": segment_size,
        "learning_rate": 2e-4, "betas": (0.8, 0.99), "eps": 1e-9, "lr_decay": 0.999875, "init_lr_ratio": 1.0, "warmup_epochs": 0,
        "c_mel": c_mel, "c_kl": c_kl, "grad_clip": None,
    }  # fmt: skip
    if older:
        folder = PosixPath("/data/voice")
        said |= {
            "dataset": [folder / "dataset.jsonl"], "dataset_dir": folder, "num_workers": 1, "seed": 1234, "num_test_examples": 5,
            "validation_split": 0.1, "max_phoneme_ids": None, "quality": "medium", "checkpoint_epochs": 1, "sample_bytes": 2, "channels": 1,
        }  # fmt: skip
    else:
        said |= {
            "use_mrd": False, "learning_rate_d": 1e-4, "betas_d": (0.5, 0.9), "lr_decay_d": 0.9999, "vocoder_warmstart_ckpt": None,
            "warmstart_ckpt": None, "mos_metric": None, "dataset": None,
        }  # fmt: skip
    as_list = lambda x: [as_list(y) for y in x] if isinstance(x, tuple) else x  # noqa: E731
    if lists:
        said = {n: as_list(x) for n, x in said.items()} | {"_instantiator": "lightning.pytorch.cli.instantiate_module"}
    return said


def shapes(
    said: dict, *, posterior: int = 16, flow: int = 4, duration: int = 16, scale: tuple = (4, 8, 8, 8, 8, 8), groups: tuple = (1, 2, 4, 4, 2, 1),
    period: tuple = (4, 6, 6, 8, 8),
) -> dict[str, tuple[int, ...]]:  # fmt: skip
    """Of the tensors that say what the hyper-parameters do not: layers of the posterior encoder and of the flow's networks, channels
    of the deterministic duration predictor, channels and groups of the discriminators."""
    made = {"model_g.enc_p.emb.weight": (said["num_symbols"],), "model_g.dp.conv_1.weight": (duration,)}
    made |= {f"model_g.enc_q.enc.in_layers.{i}.weight_v": () for i in range(posterior)}
    made |= {f"model_g.flow.flows.0.enc.in_layers.{i}.weight_v": () for i in range(flow)}
    for d in range(6):
        inputs = 1
        kernels, outputs, cut = (SCALE, scale, groups) if d == 0 else ([PERIOD] * len(period), period, [1] * len(period))
        for j, (k, n, g) in enumerate(zip(kernels, outputs, cut)):
            made[f"model_d.discriminators.{d}.convs.{j}.weight_v"] = (n, inputs // g, k, *([] if d == 0 else [1]))
            inputs = n
        made[f"model_d.discriminators.{d}.conv_post.weight_v"] = (1, inputs, 3, *([] if d == 0 else [1]))
    return made


def make_model(
    directory: Path, seed: int, said: dict, sizes: dict, *, gain: float = 1.0, spline: float = 0.5, trained: bool = False, language: str = "en-us", coarse: bool = False
) -> None:  # fmt: skip
    """Writes model.ckpt and config.json. `sizes`: arguments of `shapes`. Matrices keep the size of what they multiply (times
    `gain`), norms are around one, nothing is zero at its beginning: neither what closes the flow's layers nor what makes the
    splines (`spline`: the size of their bins' logits; larger ones make the gradients before them ill-conditioned). `trained`: the
    optimizers' states are in the checkpoint. `coarse`: values of few digits, so that a file of them packs well."""
    directory.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    players = build(said, shapes(said, **sizes))
    optimizers = [step(player) for player in (players.g, players.d)] if trained else []
    with torch.no_grad():
        for n, p in [named for player in "gd" for named in players.named(player).items()]:
            x = random_like(n, p, players, gain, spline)
            p.copy_(x.to(torch.float8_e4m3fn).float() if coarse else x)
    checkpoint = {
        "epoch": 3, "global_step": 2 * 470, "pytorch-lightning_version": "1.7.7" if "dataset_dir" in said else "2.6.0",
        "state_dict": players.both().state_dict(), "loops": {}, "callbacks": {}, "optimizer_states": [of.state_dict() for of in optimizers],
        "lr_schedulers": [torch.optim.lr_scheduler.ExponentialLR(of, 0.999875).state_dict() for of in optimizers],
        "hparams_name": "kwargs", "hyper_parameters": said,
    }  # fmt: skip
    torch.save(checkpoint, directory / "model.ckpt")
    (directory / "config.json").write_text(json.dumps(config(said, language), ensure_ascii=False, indent=2))


def step(player: torch.nn.Module) -> torch.optim.Optimizer:
    """An optimizer that has made an update."""
    made = torch.optim.AdamW(player.parameters(), lr=2e-4, betas=(0.8, 0.99), eps=1e-9)
    for p in player.parameters():
        p.grad = torch.randn_like(p)
    made.step()
    return made


def random_like(name: str, p: torch.Tensor, players: Players, gain: float, spline: float) -> torch.Tensor:
    x, leaf = torch.randn_like(p), name.rsplit(".", 1)[-1]
    if leaf in ("gamma", "weight_g"):
        x = 1 + 0.2 * x
        return x * size_of(name, players, gain) if leaf == "weight_g" else x
    if leaf in ("beta", "bias", "m", "logs"):
        return 0.2 * x
    if leaf == "weight_v":
        return x / p[0].numel() ** 0.5
    if leaf.startswith("emb_rel") or "emb" in name:
        return x if "emb_g" in name else x / p.shape[-1] ** 0.5
    small = ".post." in name or name.endswith(("enc_p.proj.weight", "enc_q.proj.weight", "conv_post.weight"))
    size = spline if ".proj." in name and "flows" in name else 0.5 if small else gain
    return size * x / p[0].numel() ** 0.5


def size_of(name: str, players: Players, gain: float) -> float:
    """Of a row of a normed weight, so that what it makes is as large as what it is made of. A row of a transposed convolution is
    what one input gives to all outputs."""
    if name.startswith("model_d.discriminators.0."):
        return 3 * gain  # most of a kernel is beyond the ends of a short slice
    if name.startswith("model_d."):
        return 1.5 * gain
    if ".ups." not in name:
        return gain
    i = int(name.split(".ups.")[1].split(".")[0])
    up = players.g.dec.ups[i]
    return gain * (up.out_channels * up.stride[0] / up.in_channels) ** 0.5


def config(said: dict, language: str) -> dict:
    """config.json as the trainers write it: nothing of the architecture. The hop length that piper1-gpl's says is its default, whatever
    the model's is; the older one's has none."""
    symbols = ["_", "^", "$", " ", *LETTERS][: said["num_symbols"]]
    speakers, older = said["num_speakers"], "dataset_dir" in said
    quality = {"quality": "medium"} if older else {}
    common = {
        "audio": {"sample_rate": said["sample_rate"]} | quality,
        "espeak": {"voice": language},
        "phoneme_type": "espeak",
        "num_symbols": said["num_symbols"],
        "num_speakers": speakers,
        "inference": {"noise_scale": 0.667, "length_scale": 1.0, "noise_w": 0.8},
        "phoneme_id_map": {symbol: [i] for i, symbol in enumerate(symbols)},
        "speaker_id_map": {f"speaker {i}": i for i in range(speakers)} if speakers > 1 else {},
    }
    if older:
        return {"dataset": "voice", "language": {"code": language}, "phoneme_map": {}, "piper_version": "1.0.0"} | common
    return common | {"hop_length": 256, "piper_version": "1.5.0"}


def make_wave(g: torch.Generator, samples: int) -> torch.Tensor:
    """Tones that come and go, and noise, of few digits."""
    at = torch.arange(samples) / samples
    draw = lambda: torch.rand(1, generator=g)  # noqa: E731
    x = 0.1 * torch.randn(samples, generator=g)
    for _ in range(3):
        x += 0.3 * torch.sin(2 * torch.pi * (draw() * 0.2 * samples * at + draw())) * torch.sin(torch.pi * (draw() + at)) ** 2
    return (x.clamp(-1, 1) * 256).round() / 256


def make_batch(seed: int, said: dict, lengths: list[tuple[int, int]]) -> list[Clip]:
    """Clips of these numbers of phonemes and frames."""
    g = torch.Generator().manual_seed(seed + 1)
    hop = said["hop_length"]
    integer = lambda below, *size: torch.randint(below, size or (1,), generator=g)  # noqa: E731
    normal = lambda *size: (torch.randn(*size, generator=g) * 64).round() / 64  # noqa: E731
    clips = []
    for phonemes, frames in lengths:
        wave = make_wave(g, frames * hop)
        spec = mel_processing.spectrogram_torch(wave[None], said["filter_length"], said["sample_rate"], hop, said["win_length"])[0].T
        assert len(spec) == frames
        clips.append(
            Clip(
                phoneme_ids=integer(said["num_symbols"], phonemes),
                spec=spec,
                wave=wave,
                noise_q=normal(frames, said["inter_channels"]),
                noise_dp=normal(phonemes, 2),
                slice=integer(frames - said["segment_size"] // hop + 1),
                speaker=integer(said["num_speakers"]) if said["num_speakers"] > 1 else None,
            )
        )
    return clips
