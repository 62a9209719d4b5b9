"""Trains a small byte-level BPE in Llama 3's form and records what it makes of texts.

    make_tokenizer.py [FOLDER]      writes FOLDER/{tokenizer.json, tokenizer_vectors.json}; default: fixtures/

The pre-tokenizer's expression, `ignore_merges` and the post-processor are those of Llama 3's tokenizer.json; the special
tokens have their ids there (128000, ...), with a gap between them and the few hundred trained ones. Vectors are made by
`tokenizers` and must equal those of `transformers`.
"""

import json
import sys
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
from tokenizers import decoders, processors
from transformers import PreTrainedTokenizerFast

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CORPUS = """
The boy who cried wolf laughed, and then he sighed: it was late. She said that they'll never find the other three.
tara: I don't know what to say about that. leo: Well, that's what the weather there is like in the mountains!
One hundred and twenty-three people were waiting for the train; there were 1234 seats and 99 of them were taken.
Whether the weather be cold, or whether the weather be hot, we'll weather the weather whatever the weather.
""" * 4
SPECIAL = {
    "<|begin_of_text|>": 128000,
    "<|end_of_text|>": 128001,
    "<|eot_id|>": 128009,
    **{f"<custom_token_{n}>": 128256 + n for n in [*range(11), 28681]},
}
TEXTS = [
    "a",
    "The boy who cried wolf laughed.",
    "tara: The boy <laugh> sighed <sigh>, then <giggle>laughed</giggle>.",
    "leo: It's 12:30; they'll've 1234567 seats, 3.14 and 1,000.",
    "one\ntwo\r\n\r\n  three\n\n",
    "  two  spaces   and\ttabs \t ",
    "Ünïcödé, naïve café, Straße ﬁne",
    "你好，世界！我很好。",
    "Привет мир — «тест»… ½ ² ① Ⅷ",
    "emoji 😀👩‍👩‍👧 and e\u0301 combining",
    "arabic ١٢٣٤ العربية and hindi हिन्दी १२३",
    "I'M DON'T we'Re '\u017f \u212a",
    "zero\u200bwidth\u00a0nbsp\u3000wide\u2028line",
    "a:b : c:: d<|x|> </laugh>>",
    "tara: ",
]


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "fixtures"
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS.splitlines(), trainer)
    data = json.loads(tokenizer.to_str())
    data["model"]["ignore_merges"] = True
    # In the vocabulary, so that their ids stay what they are.
    data["model"]["vocab"].update(SPECIAL)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    data["added_tokens"] = [{"id": id, "content": token, **flags} for token, id in SPECIAL.items()]
    tokenizer = Tokenizer.from_str(json.dumps(data))
    begin = "<|begin_of_text|>"
    template = processors.TemplateProcessing(
        single=f"{begin} $A", pair=f"{begin} $A {begin} $B", special_tokens=[(begin, SPECIAL[begin])]
    )
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    path = folder / "tokenizer.json"
    path.write_text(tokenizer.to_str(pretty=False))

    tokenizer = Tokenizer.from_file(str(path))
    fast = PreTrainedTokenizerFast(tokenizer_file=str(path))
    vectors = []
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        assert ids == fast(text)["input_ids"], text
        assert tokenizer.decode(ids) == text, text
        vectors.append({"text": text, "ids": ids})
    lines = ",\n".join(json.dumps(v, ensure_ascii=True) for v in vectors)
    (folder / "tokenizer_vectors.json").write_text(f"[\n{lines}\n]\n")
    print(f"{path}: {path.stat().st_size} bytes, {len(vectors)} vectors")


if __name__ == "__main__":
    main()
