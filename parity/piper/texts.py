"""Phoneme ids of texts as piper-tts makes them, with the espeak-ng that it brings.

    texts.py record           writes fixtures/texts.json
    texts.py check BINARY     compares `ambitus tokens` on the installed espeak-ng with the package, on random texts of ten languages

fixtures/texts.json: `cases`, each with `voice`, `text`, `printed` (of the text, and of its parts between blocks of phonemes: what the package's
espeak-ng says of each clause, without marks) and `ids` as training has them, all sentences one after the other, or `sentences` as they are
spoken, where a text has a block of phonemes; `clusters` where vowels are merged.
"""

import argparse
import itertools
import json
import logging
import random
import subprocess
import tempfile
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import sentences
from piper import espeakbridge
from piper.config import PhonemeType, PiperConfig
from piper.phoneme_ids import DEFAULT_PHONEME_ID_MAP, phonemes_to_ids
from piper.phonemize_espeak import EspeakPhonemizer
from piper.voice import _PHONEME_BLOCK_PATTERN, PiperVoice

PACKAGE = "1.8.0"
MARKS = ".?!,:;"
# What a rule of clauses decides.
RULES = {
    "en-us": """Dr. Smith met Mr. J. R. R. Tolkien at 3 p.m. on Dec. 25.|The U.S.A.'s best. And e.g. this, i.e. that.|It's 3.14, or 1,000.50; that's $3.50!|
"Hi," he said. "Hello."|(Really?) Yes.)|Wait... what?! No!? Oh..|Well — yes – no - maybe -- so.|Hi… There…|a:b 10:30 a/b www.example.com/x?y=1|
One, two. three. Four|... and so it goes.|?|...|Hello. - World. ! Next.|“Curly,” she said. ‘Quotes’ too.|no stop|It was [not] {so} <bad>. "|
X.«Y». Z|The é in café: 2² = 4, ½.|soft\u00adhyphen.\u00ad Next.|no\u00a0break. \u00a0x|Hello.\u2028World|A.\u2029B|a.,B c!,d e,.F|Semi; colon: comma, end|
[[ not phonemes when training ]] so. [[[ nor ]]] this|A\nB. C.\nd|A\n\nB.\n\nC? \n \n d|tail. \n|tail.)\n""",
    "de": "Am 3. Oktober, der 2. war da. Ludwig XIV. regierte. Kap. V. Ende|Es ist 5. Und nun? 7.-10. Mai.|„Komm!“, rief er. Der Computer läuft.",
    "es": "¿Cómo estás? ¡Muy bien! Hola, ¿qué tal?|Dijo: «Vamos». Y ¡ya!",
    "fr": "Bonjour ! Ça va ? Il a dit : « Oui. »",
    "cmn": "你好，世界！你叫什么名字？我叫小明。|他说：“走吧。”北京、上海；好……",
    "ru": "Здравствуйте, как дела? — Хорошо. Это стоит 3,50 руб. И т. д.",
    "pt": "Não é João; são Maçãs. Está bem?",
    "hy": "Ո՞վ է։ Այո՛, նա է։",
    "hi": "नमस्ते। आप कैसे हैं? ठीक॥ हाँ",
    "ar": "مرحبا، كيف حالك؟ بخير؛ شكرا.",
    "ka": "გამარჯობა. როგორ ხარ? abc. def",
    "el": "Τι κάνεις; Καλά· ευχαριστώ.",
}  # fmt: skip
BLOCKS = ["[[ həlˈoʊ ]] world.", "Hello. [[ wˈɜːld ]] again. Yes", "a [[b]][[ c]] [[ d ]]", "[[e]]", "x [[ open\n]] y [z]]", "One.) [[f]]. Two."]
CLUSTERS = [["a", "ɪ"], ["o", "ʊ"], ["o", "ʊ", "ɹ"], ["ɑ", "ː", "ɹ"]]


def clauses(voice, text):
    """What the package's espeak-ng says of each clause."""
    espeakbridge.set_voice(voice)
    said = espeakbridge.get_phonemes(text)
    # A mark at the very end of a text may be left for the next one.
    espeakbridge.get_phonemes("x")
    return said


def ids(voice, text, clusters=None):
    """As `VitsDataModule` makes them."""
    made = EspeakPhonemizer().phonemize(voice, text, vowel_clusters={tuple(c) for c in clusters} if clusters else None)
    espeakbridge.get_phonemes("x")
    return list(itertools.chain(*(phonemes_to_ids(sentence, DEFAULT_PHONEME_ID_MAP) for sentence in made)))


def spoken(voice, text):
    """As `PiperVoice.synthesize` does, up to the model."""
    config = PiperConfig(256, 1, 22050, voice, DEFAULT_PHONEME_ID_MAP, PhonemeType.ESPEAK)
    speaker = PiperVoice(session=None, config=config)
    made = speaker.phonemize(text)
    espeakbridge.get_phonemes("x")
    return [speaker.phonemes_to_ids(sentence) for sentence in made if sentence]


def record():
    cases, r = [], random.Random(11)
    texts = [(voice, text.removeprefix("\n")) for voice, texts in RULES.items() for text in texts.split("|")]
    texts += [("en-us", sentences.noise(r)) for _ in range(40)]
    texts += [("en-us", "a, b " * 200), ("en-us", "word " * 180 + "e.g. more. End")]
    for voice, text in texts:
        said = [phonemes for phonemes, _, _ in clauses(voice, text)]
        cases.append({"voice": voice, "text": text, "printed": {text: said}, "ids": ids(voice, text)})
    for text in BLOCKS:
        parts = [part for part in _PHONEME_BLOCK_PATTERN.split(text) if not part.startswith("[[")]
        printed = {part: [phonemes for phonemes, _, _ in clauses("en-us", part)] for part in parts}
        cases.append({"voice": "en-us", "text": text, "printed": printed, "sentences": spoken("en-us", text)})
    text = "Our four hours, oh why."
    said = [phonemes for phonemes, _, _ in clauses("en-us", text)]
    cases.append({"voice": "en-us", "text": text, "printed": {text: said}, "ids": ids("en-us", text, CLUSTERS), "clusters": CLUSTERS})
    lines = ",\n".join(json.dumps(case, ensure_ascii=False, separators=(",", ":")) for case in cases)
    path = Path(__file__).parent / "fixtures/texts.json"
    path.write_text(f'{{"package":"{PACKAGE}","cases":[\n{lines}\n]}}\n')
    print(f"{path}: {len(cases)} texts, {path.stat().st_size} bytes")


def marks(pieces):
    """The marks after clauses and the ends of sentences, from phonemes of which some are marks as well."""
    pieces = [piece for piece in pieces if piece != "_"]
    after = zip(pieces, [*pieces[1:], ""])
    return [a for a, b in after if a == "$" or a in ".?!" and b == "$" or a in ",:;" and b == " "]


def check(binary, count, seed):
    spelling, r, wrong = {i[0]: phoneme for phoneme, i in DEFAULT_PHONEME_ID_MAP.items()}, random.Random(seed), 0
    makers = {"en-us": sentences.english} | {voice: lambda r, voice=voice: sentences.other(r, voice) for voice in sentences.OTHERS}
    makers = [*makers.items(), ("en-us", sentences.noise), ("de", sentences.noise)]
    for voice, maker in makers:
        texts = list(dict.fromkeys(text.replace("\n", " ") for text in (maker(r) for _ in range(count if voice == "en-us" else count // 3))))
        with tempfile.TemporaryDirectory() as folder:
            config = {"espeak": {"voice": voice}, "phoneme_id_map": DEFAULT_PHONEME_ID_MAP, "num_symbols": 256}
            (Path(folder) / "config.json").write_text(json.dumps(config))
            command = [binary, "tokens", "--model", folder, "--text", "-", "--json"]
            made = json.loads(subprocess.run(command, input="\n".join(texts), capture_output=True, text=True, check=True).stdout)
        assert [case["text"] for case in made] == texts
        counts = Counter()
        for case in made:
            theirs = ids(voice, case["text"])
            counts["ids"] += theirs == case["ids"]
            same = marks([spelling[i] for i in theirs]) == marks(case["pieces"])
            counts["marks"] += same
            if not same:
                print(f"{voice} {case['text']!r}\n  {''.join(spelling[i] for i in theirs)}\n  {''.join(case['pieces'])}")
        name = f"{voice} (noise)" if maker is sentences.noise else voice
        print(f"{name}: of {len(texts)} texts {counts['marks']} have the package's marks, {counts['ids']} its ids")
        wrong += len(texts) - counts["marks"]
    raise SystemExit(f"{wrong} texts have other marks" if wrong else 0)


def main():
    args = argparse.ArgumentParser()
    args.add_argument("what", choices=["record", "check"])
    args.add_argument("binary", nargs="?")
    args.add_argument("--count", type=int, default=600)
    args.add_argument("--seed", type=int, default=1)
    args = args.parse_args()
    if version("piper-tts") != PACKAGE:
        raise SystemExit(f"piper-tts is {version('piper-tts')}, not {PACKAGE}")
    logging.disable(logging.WARNING)
    EspeakPhonemizer()
    record() if args.what == "record" else check(args.binary, args.count, args.seed)


if __name__ == "__main__":
    main()
