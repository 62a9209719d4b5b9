"""Compares `ambitus tokens` with the package on random sentences that are in no fixture.

    check.py BINARY MODEL [--count N] [--seed S]     MODEL: a folder that `ambitus` knows, with the vocab.json of fixtures/

Each sentence is English or Chinese. Those that hold a line break are left out: the command reads a text a line.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import texts
from record import case, package


def main():
    args = argparse.ArgumentParser()
    args.add_argument("binary")
    args.add_argument("model", type=Path)
    args.add_argument("--count", type=int, default=1000)
    args.add_argument("--seed", type=int, default=1)
    args = args.parse_args()
    tokenizer, r, wrong, seen = package()(args.model / "vocab.json"), random.Random(args.seed), 0, 0
    for language in ["en", "zh-cn"]:
        cases = [case(tokenizer, language, texts.sentence(r, language)) for _ in range(args.count)]
        cases = [c for c in cases if "ids" in c and not set(c["text"]) & set("\n\r")]
        with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
            file.write("".join(c["text"] + "\n" for c in cases))
            file.flush()
            command = [args.binary, "tokens", "--model", args.model, "--text", file.name, "--language", language, "--json"]
            lines = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        assert len(lines) == len(cases)
        for c, line in zip(cases, lines):
            seen += 1
            if line["ids"] != c["ids"]:
                wrong += 1
                print(json.dumps([c["text"], c["cleaned"], c["ids"], line["ids"]], ensure_ascii=False))
    print(f"{seen - wrong} of {seen} texts have the package's ids")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
