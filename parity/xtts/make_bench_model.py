"""Writes the model, clips and batch of the side-by-side with PyTorch (`benches/peers/run.py --peer xtts`).

    python make_bench_model.py DIR [--clips 4] [--codes 130]

DIR/model      decoder of 10 layers, d 512, 8 heads, 1,026 codes (random weights), with a DVAE of the published layers and codes that is
               narrow otherwise, and a vocabulary of letters
DIR/data       the clips as 22.05 kHz WAV with same-name .txt, each exactly `codes` codes long (six seconds) and of 80 text ids
DIR/batch.safetensors   the same clips' ids, with codes by the package's DVAE and the mel of their first six seconds (`ambitus gradients`
               and the peer read it)
"""

from __future__ import annotations

import argparse
import importlib.util
import wave
from pathlib import Path

import numpy as np
import torch
from make import make_model, model_args
from reference import FRAMES, SAMPLES_PER_CODE, Clip, save_batch
from TTS.tts.layers.xtts.tokenizer import VoiceBpeTokenizer
from TTS.tts.models.xtts import wav_to_mel_cloning

_spec = importlib.util.spec_from_file_location("dvae_reference", Path(__file__).resolve().parents[1] / "dvae" / "reference.py")
dvae = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(dvae)

RATE, HOP, TEXT_IDS = dvae.RATE, 256, 80
CONDITIONING = dict(n_fft=2048, hop_length=HOP, win_length=1024, power=2, normalized=False, sample_rate=RATE, f_min=0, f_max=8000, n_mels=80)
# With the mark of their language, 80 ids of letters and spaces.
TEXTS = [
    "four clips of equal length are read by nobody at all, at an even and quiet hum.",
    "what is said here is not heard there, for the clips are noise and nothing else.",
    "a long and slow line of letters that fills just as many places as the other do.",
    "the last of these texts is as long as the first one, and it ends with a period.",
]


def noise(path: Path, samples: int, seed: int) -> np.ndarray:
    """Writes a sound; returns it as it is read, [samples]."""
    values = (dvae.sound(np.random.default_rng(seed), samples) * 30_000).astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, RATE, samples, "NONE", ""))
        file.writeframes(values.tobytes())
    return values.astype(np.float32) / 32768


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--clips", type=int, default=4)
    parser.add_argument("--codes", type=int, default=130)
    args = parser.parse_args()

    folder, data = args.directory / "model", args.directory / "data"
    data.mkdir(parents=True, exist_ok=True)
    make_model(folder, seed=5, gain=0.5, args=model_args(512, 8, layers=10, text=64, audio=1026, max_text=402, max_codes=605))
    # The statistics that the model divides conditioning mels by are those of the DVAE's folder, as in the released one.
    checkpoint = torch.load(folder / "model.pth", weights_only=True)
    norms = checkpoint["model"]["mel_stats"]
    samples = args.codes * SAMPLES_PER_CODE
    model = dvae.random_dvae(dvae.mel(dvae.sound(np.random.default_rng(9), samples), norms), 16, 16, 1024, 3, seed=5)
    dvae.save(model, norms, folder)

    words, clips = VoiceBpeTokenizer(vocab_file=str(folder / "vocab.json")), []
    for i in range(args.clips):
        text = TEXTS[i % len(TEXTS)]
        sound = noise(data / f"clip{i}.wav", samples, i)
        (data / f"clip{i}.txt").write_text(text + "\n", encoding="utf-8")
        # The DVAE makes a code more than the audio has; the package's decoder does not read it.
        codes = dvae.encode(model, dvae.mel(sound, norms))[: args.codes]
        piece = torch.from_numpy(sound[: (FRAMES - 1) * HOP])[None]
        mel = wav_to_mel_cloning(piece, mel_norms=norms, **CONDITIONING)[0].T
        ids = torch.tensor(words.encode(text, "en"))
        assert 1 not in ids, f"{text}: a letter that is not in the vocabulary"
        assert (len(ids), len(codes), len(mel)) == (TEXT_IDS, args.codes, FRAMES), (text, len(ids), len(codes), len(mel))
        clips.append(Clip(ids, codes, mel))
    save_batch(clips, args.directory / "batch.safetensors")
    distinct = len(set(torch.cat([c.codes for c in clips]).tolist()))
    print(f"{args.directory}: model, {len(clips)} clips of {args.codes} codes ({distinct} distinct) and {TEXT_IDS} text ids")


if __name__ == "__main__":
    main()
