"""Compares `ambitus tokens` with the package on random sentences that are in no fixture.

    check.py BINARY MODEL [--count N] [--seed S]     MODEL: a folder that `ambitus` knows, with the vocab.json of fixtures/

Each sentence is English or Chinese, or in one of the other languages without a digit. Those that hold a line break are left out: the command
reads a text a line. Of the other languages, and of Korean and Japanese, what is not cleaned must be refused by name.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import texts
from record import LANGUAGES, case, package
from tokenizers import Tokenizer, models, pre_tokenizers


def wide(model, cases, folder):
    """Writes the model's folder with a vocabulary of every character that the cases are cleaned to, so that ids tell all of them apart."""
    special = ["[STOP]", "[UNK]", "[SPACE]", *(f"[{language}]" for language in LANGUAGES), "[START]"]
    letters = sorted({c for case in cases for c in case["cleaned"]} - set(" "))
    made = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate([*special, *letters])}, merges=[], unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens(special)
    shutil.copy(model / "config.json", folder / "config.json")
    made.save(str(folder / "vocab.json"))
    return package()(folder / "vocab.json")


def refused(binary, model, language, text):
    """Whether the command refuses a text in the language's name; as it was cleaned it must be taken."""
    command = [binary, "tokens", "--model", model, "--text", "-", "--language", language]
    plain = subprocess.run(command, input=text, capture_output=True, text=True)
    taken = subprocess.run([*command, "--cleaned"], input="words", capture_output=True, text=True)
    return plain.returncode == 5 and NAMES[language] in plain.stderr and "--cleaned" in plain.stderr and taken.returncode == 0


NAMES = {
    "es": "Spanish", "fr": "French", "de": "German", "pt": "Portuguese", "it": "Italian", "pl": "Polish", "ar": "Arabic", "cs": "Czech",
    "ru": "Russian", "nl": "Dutch", "tr": "Turkish", "hu": "Hungarian", "hi": "Hindi", "ko": "Korean", "ja": "Japanese",
}  # fmt: skip


def main():
    args = argparse.ArgumentParser()
    args.add_argument("binary")
    args.add_argument("model", type=Path)
    args.add_argument("--count", type=int, default=1000)
    args.add_argument("--seed", type=int, default=1)
    args = args.parse_args()
    tokenizer, r, wrong, seen = package()(args.model / "vocab.json"), random.Random(args.seed), 0, 0
    for language in ["en", "zh-cn", *texts.OTHER]:
        sentence = texts.other if language in texts.OTHER else texts.sentence
        cases = [case(tokenizer, language, sentence(r, language)) for _ in range(args.count)]
        cases = [c for c in cases if "ids" in c and not set(c["text"]) & set("\n\r")]
        with tempfile.TemporaryDirectory() as folder:
            model, text = args.model, Path(folder) / "texts.txt"
            if language in texts.OTHER:
                model = Path(folder)
                own = wide(args.model, cases, model)
                cases = [case(own, language, c["text"]) for c in cases]
            text.write_text("".join(c["text"] + "\n" for c in cases), encoding="utf-8")
            command = [args.binary, "tokens", "--model", model, "--text", text, "--language", language, "--json"]
            lines = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        assert len(lines) == len(cases)
        for c, line in zip(cases, lines):
            seen += 1
            if line["ids"] != c["ids"]:
                wrong += 1
                print(json.dumps([c["text"], c["cleaned"], c["ids"], line["ids"]], ensure_ascii=False))
    for language in NAMES:
        digits = [r.choice(["1", "2024", "1,5", "3.000", "7%", "$5", "٣"]) for _ in range(3)]
        for text in ["한국어" if language == "ko" else "日本語"] if language in ("ko", "ja") else digits:
            seen += 1
            if not refused(args.binary, args.model, language, text):
                wrong += 1
                print(f"{language}: {text} is not refused as it should be")
    print(f"{seen - wrong} of {seen} texts have the package's ids, or are refused where they have none here")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
