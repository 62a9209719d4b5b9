"""Makes a small Whisper that hears espeak-ng's words, and data sets of which it is known what is wrong, to measure `prepare --check` with.

    python make.py model OUT                    OUT/model, trained in some minutes on one core; then once more with --go-on
    python make.py data OUT --seed N            OUT/N: 200 clips: 20 texts with a wrong word, 20 swapped, 20 cut; OUT/N.json says which
    ambitus prepare --data OUT/N --check OUT/model --json > found.json
    python make.py count OUT --seed N found.json    of the 60, how many are among the 60 most doubtful

Needs espeak-ng, and the packages of parity/whisper. The model's folder has the form of transformers, with a vocabulary of bytes and its words.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import subprocess
import sys
import time
import wave
from pathlib import Path

import numpy as np
import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "whisper"))
import draw  # noqa: E402
from package import NAMES, byte_chars, tokenizer_json  # noqa: E402

WORDS = """apple river seven garden window paper yellow music doctor mountain bread school orange winter kitchen silver
bottle animal summer table number forest market letter dinner pocket island hammer""".split()
RATE = 16_000
HOP = 160
POSITIONS = 150
VOICES = ["en-us", "en-us+m3", "en-us+f2"]
MEASURED = dict(clips=200, each=20)


def speak(text: str, rng: random.Random) -> np.ndarray:
    """Samples of a text at 16 kHz, with a moment before and after."""
    with_options = ["-v", rng.choice(VOICES), "-s", str(rng.randint(170, 200)), "-p", str(rng.randint(40, 60))]
    out = subprocess.run(["espeak-ng", *with_options, "--stdout", text], capture_output=True, check=True).stdout
    sound = np.frombuffer(out[44:], dtype=np.int16).astype(np.float32) / 32768
    # espeak-ng's own ends are long.
    loud = np.flatnonzero(np.abs(sound) > 0.01)
    sound = sound[loud[0] : loud[-1]]
    at = np.arange(0, len(sound) - 1, 22_050 / RATE)
    sound = np.interp(at, np.arange(len(sound)), sound).astype(np.float32)
    lead, tail = rng.uniform(0.08, 0.25), rng.uniform(0.1, 0.25)
    sound = np.pad(sound, (int(lead * RATE), int(tail * RATE)))
    return sound + 0.001 * np.random.default_rng(rng.getrandbits(32)).standard_normal(len(sound), dtype=np.float32)


def sentence(rng: random.Random, words: int) -> str:
    return " ".join(rng.sample(WORDS, words))


def spoken(rng: random.Random, words: int) -> tuple[np.ndarray, str]:
    while True:
        text = sentence(rng, words)
        sound = speak(text, rng)
        if len(sound) <= 2 * POSITIONS * HOP:
            return sound, text


def vocabulary() -> tuple[dict[bytes, int], list[tuple[bytes, bytes]]]:
    """Bytes, and every word with the space before it, by letters that are added to it."""
    chars = byte_chars()
    ranks = {bytes([b]): i for i, b in enumerate(sorted(range(256), key=lambda b: chars[b]))}
    merges = []
    for word in WORDS:
        word = b" " + word.encode()
        for end in range(2, len(word) + 1):
            if word[:end] not in ranks:
                merges.append((word[: end - 1], word[end - 1 : end]))
                ranks[word[:end]] = len(ranks)
    return ranks, merges


def mels(sounds: list[np.ndarray]) -> torch.Tensor:
    import whisper

    made = []
    for sound in sounds:
        padded = torch.zeros(2 * POSITIONS * HOP)
        padded[: len(sound)] = torch.from_numpy(sound)
        made.append(whisper.log_mel_spectrogram(padded))
    return torch.stack(made)


def model(out: Path, steps: int, clips: int, goes_on: bool) -> None:
    rng = random.Random(int(goes_on))
    torch.manual_seed(0)
    ranks, merges = vocabulary()
    special = {name: len(ranks) + i for i, name in enumerate(NAMES)}
    stamps = len(ranks) + len(NAMES)
    config = WhisperConfig(
        vocab_size=stamps + 1501, num_mel_bins=80, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, max_source_positions=POSITIONS, max_target_positions=24,
        decoder_start_token_id=special["startoftranscript"], eos_token_id=special["endoftext"], bos_token_id=special["endoftext"],
        pad_token_id=special["endoftext"], suppress_tokens=None, begin_suppress_tokens=None, dropout=0.0,
    )
    net = WhisperForConditionalGeneration.from_pretrained(out / "model", torch_dtype=torch.float32) if goes_on else WhisperForConditionalGeneration(config)
    start = time.time()
    made = [spoken(rng, 1 + i % 5) for i in range(clips)]
    print(f"{clips} clips in {time.time() - start:.0f} s", flush=True)
    features = mels([sound for sound, _ in made])
    begin = [special[name] for name in ["startoftranscript", "en", "transcribe", "notimestamps"]]
    ids = [[*begin, *(ranks[b" " + word.encode()] for word in text.split()), special["endoftext"]] for _, text in made]
    # Where words are is learned by the encoder first, from a second loss, whose head is thrown away.
    head = torch.nn.Linear(config.d_model, len(WORDS) + 1)
    places = {ranks[b" " + word.encode()]: 1 + i for i, word in enumerate(WORDS)}
    optimizer = torch.optim.AdamW([*net.parameters(), *head.parameters()], lr=1e-3, weight_decay=0.01)
    start = time.time()
    for step in range(1, steps + 1):
        gone = step / steps
        for group in optimizer.param_groups:
            group["lr"] = 1.5e-3 * min(1.0, step / 100) * (1.0 if gone < 0.6 else max(0.02, (1 - gone) / 0.4))
        longest = 2 if gone < 0.1 and not goes_on else 5
        batch = rng.choices([i for i in range(clips) if len(ids[i]) <= 5 + longest], k=16)
        width = max(len(ids[i]) for i in batch)
        given = torch.full((len(batch), width), special["endoftext"])
        want = torch.full((len(batch), width), -100)
        for row, i in enumerate(batch):
            given[row, : len(ids[i])] = torch.tensor(ids[i])
            want[row, len(begin) - 1 : len(ids[i]) - 1] = torch.tensor(ids[i][len(begin) :])
        # A model that has only learned these clips by heart is sure of what it mishears.
        shown = features[batch].roll(rng.randint(-6, 6), -1) + 0.1 * torch.randn(len(batch), *features.shape[1:])
        shown[:, rng.randrange(72) :][:, :8] = shown.mean()
        made_of = net(input_features=shown, decoder_input_ids=given)
        loss = torch.nn.functional.cross_entropy(made_of.logits.flatten(0, 1), want.flatten(), ignore_index=-100, label_smoothing=0.05)
        said = [[places[id] for id in ids[i] if id in places] for i in batch]
        heard = head(made_of.encoder_last_hidden_state).log_softmax(-1).transpose(0, 1)
        flat = torch.tensor([place for of in said for place in of])
        lengths = torch.tensor([len(of) for of in said])
        second = torch.nn.functional.ctc_loss(heard, flat, torch.full((len(batch),), POSITIONS), lengths)
        optimizer.zero_grad()
        (loss + 0.5 * second).backward()
        torch.nn.utils.clip_grad_norm_([*net.parameters(), *head.parameters()], 1.0)
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}, {time.time() - start:.0f} s, loss {loss.item():.3f}, second {second.item():.3f}", flush=True)
            if step % 500 == 0:
                save(net, out / "model", ranks, merges, special)
    save(net, out / "model", ranks, merges, special)


def save(net: WhisperForConditionalGeneration, folder: Path, ranks: dict, merges: list, special: dict[str, int]) -> None:
    generation = dict(eos_token_id=special["endoftext"], is_multilingual=True, alignment_heads=[[1, 0], [1, 1]])
    draw.save(copy.deepcopy(net), folder, torch.bfloat16, generation)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(ranks, merges), ensure_ascii=False, separators=(",", ":")))


def data(out: Path, seed: int) -> None:
    rng = random.Random(1000 + seed)
    folder = out / str(seed)
    (folder / "wavs").mkdir(parents=True, exist_ok=True)
    made = [spoken(rng, rng.randint(3, 5)) for _ in range(MEASURED["clips"])]
    texts = [text for _, text in made]
    order = rng.sample(range(len(made)), 3 * MEASURED["each"])
    wrong, swapped, cut = (order[i :: 3] for i in range(3))
    for i in wrong:
        words = texts[i].split()
        at = rng.randrange(len(words))
        words[at] = rng.choice([word for word in WORDS if word not in words])
        texts[i] = " ".join(words)
    for a, b in zip(swapped[::2], swapped[1::2]):
        texts[a], texts[b] = texts[b], texts[a]
    for i in cut:
        words = texts[i].split()
        texts[i] = " ".join(words[1:] if rng.random() < 0.5 else words[:-1])
    lines = []
    for i, ((sound, _), text) in enumerate(zip(made, texts)):
        with wave.open(str(folder / "wavs" / f"{i:03}.wav"), "wb") as file:
            file.setparams((1, 2, RATE, 0, "NONE", ""))
            file.writeframes((sound.clip(-1, 1) * 32767).astype(np.int16).tobytes())
        lines.append(f"wavs/{i:03}.wav|{text}")
    (folder / "metadata.csv").write_text("audio_file|text\n" + "\n".join(lines) + "\n")
    kinds = {f"wavs/{i:03}.wav": kind for kind, of in dict(wrong=wrong, swapped=swapped, cut=cut).items() for i in of}
    (out / f"{seed}.json").write_text(json.dumps(kinds))


def count(out: Path, seed: int, found: Path) -> None:
    kinds = json.loads((out / f"{seed}.json").read_text())
    most = [clip["name"] for clip in json.loads(found.read_text())["clips"]][: len(kinds)]
    hit = {kind: sum(kinds.get(name) == kind for name in most) for kind in sorted(set(kinds.values()))}
    print(f"seed {seed}: {sum(hit.values())} of {len(kinds)}: {hit}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["model", "data", "count"])
    parser.add_argument("out", type=Path)
    parser.add_argument("found", type=Path, nargs="?")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--go-on", action="store_true", help="train OUT/model further, on other clips")
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--clips", type=int, default=1500)
    args = parser.parse_intermixed_args()
    if args.what == "model":
        torch.set_num_threads(1)
        model(args.out, args.steps, args.clips, args.go_on)
    elif args.what == "data":
        data(args.out, args.seed)
    else:
        count(args.out, args.seed, args.found)


if __name__ == "__main__":
    main()
