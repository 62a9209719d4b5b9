"""Sequences of the official preprocessing from drawn codes, after make_tokenizer.py: fixtures/sequences.json.

The functions below restate the data preparation of canopyai/Orpheus-TTS's finetuning notebook as axolotl's and Unsloth's
published copies of it have it (they agree); formula by formula, not a copy.
"""

import json
import random
from pathlib import Path

from tokenizers import Tokenizer

FOLDER = Path(__file__).parent / "fixtures"
BASE = 128256
TEXT_END, SPEECH_START, SPEECH_END = 128009, BASE + 1, BASE + 2
HUMAN_START, HUMAN_END, AI_START, AI_END = BASE + 3, BASE + 4, BASE + 5, BASE + 6
AUDIO = BASE + 10


def flatten(layers):
    out = []
    for i in range(len(layers[0])):
        out.append(layers[0][i] + AUDIO)
        out.append(layers[1][2 * i] + AUDIO + 4096)
        out.append(layers[2][4 * i] + AUDIO + 2 * 4096)
        out.append(layers[2][4 * i + 1] + AUDIO + 3 * 4096)
        out.append(layers[1][2 * i + 1] + AUDIO + 4 * 4096)
        out.append(layers[2][4 * i + 2] + AUDIO + 5 * 4096)
        out.append(layers[2][4 * i + 3] + AUDIO + 6 * 4096)
    return out


def without_duplicates(ids):
    result = ids[:7]
    for i in range(7, len(ids), 7):
        if ids[i] != result[-7]:
            result.extend(ids[i : i + 7])
    return result


def main() -> None:
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    rng = random.Random(5)
    cases = []
    for frames, coarse, voice, text in [
        (1, 4096, None, "The boy laughed."),
        (6, 2, "tara", "Well <laugh> that's 12:30."),
        (9, 3, "leo", "one\ntwo"),
    ]:
        # Few coarse codes, so that frames repeat; the finer ones differ, which must not matter.
        layers = [[rng.randrange(coarse if k == 0 else 4096) for _ in range(frames << k)] for k in range(3)]
        prompt = f"{voice}: {text}" if voice else text
        text_ids = tokenizer.encode(prompt, add_special_tokens=True).ids + [TEXT_END]
        audio = without_duplicates(flatten(layers))
        ids = [HUMAN_START, *text_ids, HUMAN_END, AI_START, SPEECH_START, *audio, SPEECH_END, AI_END]
        cases.append({"layers": layers, "voice": voice, "text": text, "audio": len(audio), "ids": ids})
    lines = ",\n".join(json.dumps(c) for c in cases)
    (FOLDER / "sequences.json").write_text(f"[\n{lines}\n]\n")
    print([(len(c["layers"][0]), c["audio"] // 7, len(c["ids"])) for c in cases])


if __name__ == "__main__":
    main()
