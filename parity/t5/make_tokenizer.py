"""Trains a small SentencePiece Unigram model in T5's form and records what transformers makes of texts with it.

    make_tokenizer.py [FOLDER]      writes FOLDER/{spiece.model, tokenizer.json, forms.json, tokenizer_vectors.json}; default:
                                    fixtures/tokenizer

`spiece.model` is as T5's: nmt_nfkc normalisation, <pad> 0, </s> 1, <unk> 2, no begin, no bytes. `tokenizer.json` is transformers' own
conversion of it, with the hundred <extra_id_n> after its pieces. Vectors are of `text.strip()`, Python's, as Parler has it:
`ids` by `tokenizer.json`, which are those of T5TokenizerFast on `spiece.model` alone; where T5Tokenizer, which has
SentencePiece itself, makes others of `spiece.model`, `slow` has them. Folders from earlier years have a `tokenizer.json` with another
normaliser and pre-tokeniser: `forms.json` has those that transformers 3.5.1 and 4.20.1 wrote, to be put in place of this one's (with
its `precompiled_charsmap`, null here), and where one makes other ids they stand under its name.
"""

from __future__ import annotations

import io
import json
import random
import sys
from pathlib import Path

import sentencepiece
from tokenizers import Tokenizer
from transformers import T5Tokenizer, T5TokenizerFast

CORPUS = """
A female speaker delivers a slightly expressive and animated speech with a moderate speed and pitch.
The recording is of very high quality, with the speaker's voice sounding clear and very close up.
Jon's voice is monotone yet slightly fast in delivery, with a very close recording that almost has no background noise.
A man speaks slowly in a small room; his words are confined, and the audio is quite noisy.
Laura's tone is happy, and she speaks with a high-pitched voice at a fast pace.
A male speaker with a low-pitched voice talks at an average speed in a spacious, slightly echoing environment.
The speech sounds distant, and there's some background noise, but it is easy to understand.
An old woman reads a story very expressively, in a clean recording without any reverberation.
Hey, how are you doing today? I'm doing fine, thank you, and you?
The boy who cried wolf laughed, and then he sighed: it was late.
She said that they'll never find the other three, no matter how long they look for them.
One hundred and twenty-three people were waiting for the train; there were 1234 seats and 99 of them were taken.
Whether the weather be cold, or whether the weather be hot, we'll weather the weather whatever the weather.
I don't know what to say about that, but the weather there is like this in the mountains.
At 12:30 on 5 May 1999 the price was $3.14, or 2,50 euros (about 10% less than before).
"Come in!" he shouted. "Don't stand there in the rain; you'll catch a cold."
What a beautiful morning! Shall we go for a walk by the river, or would you rather stay at home?
Speech synthesis is the artificial production of human speech, and a computer used for it is called a synthesizer.
Please send your questions to support, and we will answer them within two or three working days.
The quick brown fox jumps over the lazy dog while five dozen jugs of liquor are packed in my box.
Caf\u00e9 na\u00efve r\u00e9sum\u00e9 fa\u00e7ade d\u00e9j\u00e0 vu, the ma\u00eetre d' said with a smile.
Der Mann geht \u00fcber die Stra\u00dfe und kauft f\u00fcr seine M\u00fctter sch\u00f6ne \u00c4pfel.
Les enfants ont \u00e9t\u00e9 tr\u00e8s heureux de voir la for\u00eat et l'\u00e9t\u00e9 arriver si t\u00f4t.
Ce gar\u00e7on est all\u00e9 \u00e0 la plage avec sa s\u0153ur et son fr\u00e8re.
O casa mare \u0219i frumoas\u0103 este \u00een ora\u0219ul meu, unde b\u0103iatul cite\u0219te o carte.
Yes - no - maybe... [laughs] (sighs) {coughs} *pauses* #1 & #2 @ home + away = 3/4 of it_all!
""".strip().splitlines()  # fmt: skip

TEXTS = [
    "", " ", "   \t\n ", "a", "A", ".", "I", "the", "  the", "the  ", "  the  ", "the the", "the  the", "the   the    the",
    "The recording is of very high quality.", " The recording is of very high quality. ", "the\tspeaker", "the\t\tspeaker",
    "the\nspeaker", "the\r\nspeaker\r\n", "the \n speaker", "one.two,three;four:five", "Hello , world !", "...", "....", "?!?!", "a-b--c---d",
    "don't won't they'll I'm you're he'd we've", "\u2018don\u2019t\u2019 \u201cquoted\u201d \u2013 \u2014 \u2026", "it_all under_score __init__",
    "123", "1234567890", "3.14159", "$5.00", "50%", "1/2", "12:30", "1,000,000", "2^10", "a=b+c*d", "<tag>", "</tag>", "a<b>c", "\\n \\t \\\\",
    # Words that the pieces do not have whole, or not at all.
    "antidisestablishmentarianism", "zzzzzzzzzzzz", "QWERTY", "HELLO WORLD", "hELLO wORLD", "xX" * 40, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    # The special tokens in a text.
    "</s>", "a</s>b", "a </s> b", "<pad>", "<unk>", "x<unk>y", "<extra_id_0>", "<extra_id_99> and <extra_id_100>", "a <extra_id_7>b", "</s></s>", "<s>",
    # Composed and decomposed, ligatures, widths, compatibility forms.
    "caf\u00e9", "cafe\u0301", "na\u00efve", "nai\u0308ve", "\u00c5ngstr\u00f6m", "\u212bngstro\u0308m", "o\u0302\u0323 \u1ed9", "\u0323\u0302o", "e\u0301\u0301\u0301",
    "\ufb01ne o\ufb03ce \ufb02y \ufb00 \ufb05", "\u0152uvre s\u0153ur", "stra\u00dfe \u1e9e", "\u01c4 \u01c7 \u0132", "\u00bd \u00bc \u00b2 \u00b3 \u2075 \u2081", "\u2460\u2461 \u2474 \u2167 \u2122 \u2120 \u00ae",
    "\uff21\uff22\uff23 \uff41\uff42\uff43 \uff11\uff12\uff13", "\uff01\uff1f\uff08\uff09\u3000wide", "\uff76\uff9e\uff77 \uff8a\uff9f", "\u338f \u33a1 \u3392 \u2103", "\ufe39 \u2025 \u203c \u2049", "\u210c\u2115\u211d \U0001d400\U0001d7d8",
    # Scripts of which no piece is.
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01", "\u3053\u3093\u306b\u3061\u306f \u4e16\u754c", "\uc548\ub155\ud558\uc138\uc694", "\u1112\u1161\u11ab", "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440", "the \u043c\u0438\u0440 the", "\u0645\u0631\u062d\u0628\u0627", "\u0928\u092e\u0938\u094d\u0924\u0947", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "\u0391\u03b1 \u03a9 \u00b5\u03bc", "\U0001f600", "hi \U0001f600\U0001f600 there", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\u2764\ufe0f", "\u4f60a\u597d b", "\U00020000",
    # Spaces, ends of lines and what cannot be seen.
    "a\u00a0b", "a\u2003b\u2009c\u200ad", "a\u3000b", "\u3000a\u3000", "\u00a0a\u00a0", "a\u200bb", "a\u200b b", "\u200ba\u200b", "a\u200cb\u200dc", "\u2060a\u2060b", "\ufeffa", "a\ufeffb", "soft\u00adhyphen", "a\u2028b\u2029c",
    "a\x0bb\x0cc", "a\x00b", "\x00", "a\x07b", "a\x1cb", "\x1ca\x1f", "\x1c \x1fa", "a\x7fb", "a\x85b", "\x85a\x85", "a\u180eb", "\u1680a b", "a \u0301b", "\u200e\u200fa", "a\u0300", " \u0301", "\ud7b0 \ue000 \ufffd \ufffe",
    # SentencePiece's own sign for a space.
    "\u2581", "\u2581the", "the\u2581speaker", "the \u2581 speaker", "\u2581\u2581the\u2581", "the\u2581 \u2581speaker", "_the",
    " ".join(CORPUS[:12]), "".join(CORPUS[3].split()), "a" * 1000, "the speaker " * 60, "\u4f60" * 200,
]  # fmt: skip

METASPACE = {"type": "Metaspace", "replacement": "\u2581", "add_prefix_space": True}
CHARSMAP = {"type": "Precompiled", "precompiled_charsmap": None}
SPACES = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
FORMS = {
    "3.5.1": {"normalizer": CHARSMAP, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, METASPACE]}},
    "4.20.1": {"normalizer": {"type": "Sequence", "normalizers": [CHARSMAP, SPACES]}, "pre_tokenizer": METASPACE},
}


def with_form(saved: dict, form: dict) -> Tokenizer:
    charsmap = saved["normalizer"]["normalizers"][0]["precompiled_charsmap"]
    return Tokenizer.from_str(json.dumps(saved | form).replace('"precompiled_charsmap": null', f'"precompiled_charsmap": "{charsmap}"'))


def made_up(count: int) -> list[str]:
    """Pieces of the corpus, of the texts above and of everything that is hard, in no order."""
    rng, words = random.Random(3), [w for line in CORPUS for w in line.split()]
    hard = [" ", " ", "  ", "   ", "\t", "\n", "\u00a0", "\u3000", "\u200b", "\u2581", "\u00ad", "\ufb01", "\uff21", "e\u0301", "\u0301", "\u00df", "\u4e16", "\u043c", "\U0001f600", "</s>", "<extra_id_3>", "\u2026", "\u00bd", "\x1d", "\uff0c", "1", "z", "Q"]
    return ["".join(rng.choice(hard) if rng.random() < 0.5 else rng.choice(words) for _ in range(rng.randint(1, 14))) for _ in range(count)]


def train() -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=model, model_type="unigram", vocab_size=420, normalization_rule_name="nmt_nfkc",
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, pad_piece="<pad>", eos_piece="</s>", unk_piece="<unk>",
        num_threads=1, minloglevel=2, hard_vocab_limit=False,
    )  # fmt: skip
    return model.getvalue()


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent / "fixtures" / "tokenizer"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spiece.model").write_bytes(train())
    fast = T5TokenizerFast(vocab_file=str(folder / "spiece.model"), from_slow=True)
    (folder / "tokenizer.json").write_text(fast.backend_tokenizer.to_str(pretty=False) + "\n")
    own = Tokenizer.from_file(str(folder / "tokenizer.json"))
    saved = json.loads((folder / "tokenizer.json").read_text())
    forms = {name: with_form(saved, form) for name, form in FORMS.items()}
    (folder / "forms.json").write_text(json.dumps(FORMS, indent=1) + "\n")
    slow = T5Tokenizer(vocab_file=str(folder / "spiece.model"), legacy=True)
    vectors = []
    for text in dict.fromkeys([*TEXTS, *made_up(60), *CORPUS]):
        ids = fast(text.strip()).input_ids
        assert ids == own.encode(text.strip()).ids, text
        others = {"slow": slow(text.strip()).input_ids, **{name: t.encode(text.strip()).ids for name, t in forms.items()}}
        vectors.append({"text": text, "ids": ids} | {name: o for name, o in others.items() if o != ids})
    lines = ",\n".join(json.dumps(v, ensure_ascii=True) for v in vectors)
    (folder / "tokenizer_vectors.json").write_text(f"[\n{lines}\n]\n")
    sizes = {p.name: p.stat().st_size for p in sorted(folder.iterdir())}
    differ = {name: sum(name in v for v in vectors) for name in ("slow", *FORMS)}
    print(f"{len(fast)} ids, {len(vectors)} vectors, of which others make other ids {differ}; bytes {sizes}")


if __name__ == "__main__":
    main()
