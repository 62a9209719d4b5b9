"""Trains a tiny vocab.json in the released one's form and records what coqui-tts makes of texts.

    record.py [FOLDER]       writes FOLDER/{vocab.json, vectors.json}; default: fixtures/
    record.py --cases N SEED  prints N random cases as JSON lines: {language, text, cleaned, ids}, or {language, text, error}
"""

import contextlib
import io
import json
import logging
import random
import sys
from pathlib import Path

import texts
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

logging.disable(logging.CRITICAL)
LANGUAGES = "en es fr de it pt pl tr ru nl cs ar zh-cn hu ko ja hi".split()
CORPUS = """the boy who cried wolf laughed, and then he sighed: it was late. she said that they will never find the other three.
one hundred and twenty-three people were waiting for the train; twenty dollars, fifteen cents, one thousand, two hundred and first.
ni3hao3,shi4jie4!wo3men5zai4yin2hang2li3,you3wu3shi2ming2shi4bing1,bai3fen1zhi1liu4dian3.""".splitlines()


def package():
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        from TTS.tts.layers.xtts.tokenizer import VoiceBpeTokenizer
    return VoiceBpeTokenizer


def vocab(path):
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["[STOP]", "[UNK]", "[SPACE]", *(f"[{language}]" for language in LANGUAGES), "[START]"]
    letters = sorted(set("".join(chr(c) for c in range(0x21, 0x7F)) + "áâãäåçèéêëíïñóöúüſı，。ΩσςабвгджийклмнопрстуЯ"))
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=special, initial_alphabet=letters, show_progress=False)
    tokenizer.train_from_iterator(CORPUS * 8, trainer)
    tokenizer.save(str(path))


def case(tokenizer, language, text):
    try:
        cleaned = tokenizer.preprocess_text(text, language.split("-")[0])
        return {"language": language, "text": text, "cleaned": cleaned, "ids": tokenizer.encode(text, language)}
    except Exception as e:
        return {"language": language, "text": text, "error": f"{type(e).__name__}: {e}"}


def main():
    here = Path(__file__).parent / "fixtures"
    if sys.argv[1:2] == ["--cases"]:
        tokenizer, r = package()(here / "vocab.json"), random.Random(int(sys.argv[3]))
        for i in range(int(sys.argv[2])):
            language = ["en", "zh-cn"][i % 2]
            print(json.dumps(case(tokenizer, language, texts.sentence(r, language)), ensure_ascii=False))
        return
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else here
    folder.mkdir(parents=True, exist_ok=True)
    vocab(folder / "vocab.json")
    tokenizer, r = package()(folder / "vocab.json"), random.Random(18)
    cases = [case(tokenizer, language, text) for language, text in texts.OTHER.items() if not any(c.isdigit() for c in text)]
    cases += [case(tokenizer, language, texts.sentence(r, language)) for _ in range(40) for language in ["en", "zh-cn"]]
    lines = ",\n".join(json.dumps(c, ensure_ascii=False) for c in cases)
    (folder / "vectors.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
