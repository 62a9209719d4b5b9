"""Writes fixtures/heard: a folder as transformers writes it, with a vocabulary of bytes, a sound, and what openai-whisper hears in it.

    python package.py

`expected.json`: `transcribe` has `whisper.transcribe` of the sound at temperature 0 with word times; `forced` has words with times of
`find_alignment` and the sum of each word's log-probabilities among all tokens, of the same text in the first window.
The package's tokenizer is replaced by one of the same form over the small vocabulary; its model has the folder's weights.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from unittest import mock

import numpy as np
import tiktoken
import torch
import whisper
from transformers import WhisperForConditionalGeneration
from whisper.model import ModelDimensions, Whisper
from whisper.timing import find_alignment
from whisper.tokenizer import Tokenizer

import draw

HERE = Path(__file__).resolve().parent
FOLDER = HERE / "fixtures" / "heard"
SECONDS = 37
LANGUAGES = ["en", "zh", "de"]
NAMES = ["endoftext", "startoftranscript", *LANGUAGES, "translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps"]
WORDS = [" t", "he", " the", "in", " a", "er", " s", " w", "on", " m", "at", "or", " b", " f", "ou", "en", " h", "nd", " and"]


def byte_chars() -> dict[int, str]:
    """GPT-2's characters of bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}


def vocabulary() -> tuple[dict[bytes, int], list[tuple[bytes, bytes]]]:
    chars = byte_chars()
    ranks = {bytes([b]): i for i, b in enumerate(sorted(range(256), key=lambda b: chars[b]))}
    merges = []
    for word in WORDS:
        word = word.encode()
        # Of two known parts.
        cut = next(i for i in range(1, len(word)) if word[:i] in ranks and word[i:] in ranks)
        merges.append((word[:cut], word[cut:]))
        ranks[word] = len(ranks)
    return ranks, merges


def tokenizer_json(ranks: dict[bytes, int], merges: list[tuple[bytes, bytes]]) -> dict:
    chars = byte_chars()
    spell = lambda word: "".join(chars[b] for b in word)
    flags = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    added = [dict(id=len(ranks) + i, content=f"<|{name}|>", **flags) for i, name in enumerate(NAMES)]
    level = dict(add_prefix_space=False, trim_offsets=True, use_regex=True)
    model = dict(
        type="BPE", dropout=None, unk_token=None, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False, byte_fallback=False,
        vocab={spell(word): i for word, i in ranks.items()}, merges=[f"{spell(a)} {spell(b)}" for a, b in merges],
    )
    return dict(
        version="1.0", truncation=None, padding=None, added_tokens=added, normalizer=None, pre_tokenizer=dict(type="ByteLevel", **level),
        post_processor=None, decoder=dict(type="ByteLevel", **level), model=model,
    )


def renamed(name: str) -> str | None:
    if name == "proj_out.weight":
        return None
    name = name.removeprefix("model.").replace("layers.", "blocks.").replace("embed_positions.weight", "positional_embedding")
    for of, to in [
        ("self_attn_layer_norm", "attn_ln"), ("encoder_attn_layer_norm", "cross_attn_ln"), ("final_layer_norm", "mlp_ln"),
        ("self_attn.", "attn."), ("encoder_attn.", "cross_attn."), ("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value"),
        ("out_proj", "out"), ("fc1", "mlp.0"), ("fc2", "mlp.2"), ("embed_tokens", "token_embedding"),
    ]:
        name = name.replace(of, to)
    return name.replace("encoder.layer_norm", "encoder.ln_post").replace("decoder.layer_norm", "decoder.ln")


def package_model(made: WhisperForConditionalGeneration, heads: list) -> Whisper:
    c = made.config
    of = lambda positions, heads, layers: (positions, c.d_model, heads, layers)
    model = Whisper(
        ModelDimensions(
            c.num_mel_bins, *of(c.max_source_positions, c.encoder_attention_heads, c.encoder_layers), c.vocab_size,
            *of(c.max_target_positions, c.decoder_attention_heads, c.decoder_layers),
        )
    ).eval()
    model.load_state_dict({renamed(k): v for k, v in made.state_dict().items() if renamed(k)}, strict=True)
    mask = torch.zeros(c.decoder_layers, c.decoder_attention_heads, dtype=torch.bool)
    for layer, head in heads:
        mask[layer, head] = True
    model.register_buffer("alignment_heads", mask.to_sparse(), persistent=False)
    return model


def tokenizer(ranks: dict[bytes, int], language: str) -> Tokenizer:
    names = [f"<|{name}|>" for name in NAMES] + [f"<|{i * 0.02:.2f}|>" for i in range(1501)]
    pattern = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
    encoding = tiktoken.Encoding(
        "small", pat_str=pattern, mergeable_ranks=ranks, special_tokens={name: len(ranks) + i for i, name in enumerate(names)}
    )
    return Tokenizer(encoding, num_languages=len(LANGUAGES), language=language, task="transcribe")


def sound() -> np.ndarray:
    """16-bit samples of tones that come and go, and some noise, which tests make again."""
    state, out = 12_345, []
    for t in range(SECONDS * draw.RATE):
        state = (state * 1_103_515_245 + 12_345) % (1 << 31)
        a = t * (40 + t // 900 % 300) % 4096
        tone = 8 * abs(a - 2048) - 8192 if t // 20_000 % 3 < 2 else 0
        out.append(tone + (state >> 20) - 1024)
    return np.array(out, dtype=np.int16)


@torch.no_grad()
def heard(made: WhisperForConditionalGeneration, ranks: dict[bytes, int], heads: list, audio: np.ndarray) -> dict:
    model = package_model(made, heads)
    get = lambda *_, language=None, **__: tokenizer(ranks, language or "en")
    with (
        mock.patch.object(Whisper, "is_multilingual", True), mock.patch.object(Whisper, "num_languages", len(LANGUAGES)),
        mock.patch("whisper.transcribe.get_tokenizer", get), mock.patch("whisper.decoding.get_tokenizer", get),
    ):
        wave = torch.from_numpy(audio.astype(np.float32) / 32768)
        whole = whisper.transcribe(model, wave, temperature=0.0, word_timestamps=True, verbose=None, fp16=False)
        language = whole["language"]
        own = tokenizer(ranks, "en")
        text = " the men and, (women) on the hill."
        clip = wave[: 7 * draw.RATE]
        mel = whisper.log_mel_spectrogram(whisper.pad_or_trim(clip), model.dims.n_mels)
        ids = own.encode(text)
        words = find_alignment(model, own, ids, mel, 700)
        every = [*own.sot_sequence, own.no_timestamps, *ids, own.eot]
        logprobs = model(mel[None], torch.tensor([every])).log_softmax(-1)[0]
        n = len(own.sot_sequence)
        each = [float(logprobs[n + i, id]) for i, id in enumerate([*ids, own.eot])]
        sums, at = [], 0
        for word in words:
            sums.append(sum(each[at : at + len(word.tokens)]))
            at += len(word.tokens)
    forced = [dict(word=w.word, start=float(w.start), end=float(w.end), logprob=s) for w, s in zip(words, sums)]
    keep = lambda s: {k: s[k] for k in ["start", "end", "text", "avg_logprob", "compression_ratio", "no_speech_prob"]} | {
        "words": [{k: (float(w[k]) if k != "word" else w[k]) for k in ["word", "start", "end"]} for w in s["words"]]
    }
    return dict(
        language=language, text=whole["text"], segments=[keep(s) for s in whole["segments"]],
        forced=dict(text=text.strip(), seconds=7, words=forced, end_logprob=each[-1]),
    )


def small(seed: int) -> tuple[WhisperForConditionalGeneration, dict[bytes, int], list]:
    ranks, merges = vocabulary()
    first = len(ranks)
    cfg = draw.config(
        vocab_size=first + len(NAMES) + 1501, d_model=8, num_mel_bins=80, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_source_positions=1500, max_target_positions=448,
        eos_token_id=first, pad_token_id=first, bos_token_id=first, decoder_start_token_id=first + 1,
    )
    made = draw.model(cfg, seed, torch.bfloat16)
    with torch.no_grad():
        # Looks that differ from state to state, and texts that end.
        for layer in made.model.decoder.layers:
            for part in [layer.encoder_attn.q_proj.weight, layer.encoder_attn.k_proj.weight]:
                p = (3 * part).bfloat16().float()
                part.copy_(p)
    return made, ranks, [[1, 0], [1, 1], [0, 1]]


def main() -> None:
    made, ranks, heads = small(SEED)
    shutil.rmtree(FOLDER, ignore_errors=True)
    first = len(ranks)
    draw.save(made, FOLDER, torch.bfloat16, dict(alignment_heads=heads, is_multilingual=True, eos_token_id=first))
    (FOLDER / "tokenizer.json").write_text(json.dumps(tokenizer_json(*vocabulary()), ensure_ascii=False, separators=(",", ":")))
    audio = sound()
    expected = heard(made, ranks, heads, audio)
    print(json.dumps(expected, indent=1)[:3000])
    (FOLDER / "expected.json").write_text(json.dumps(expected, ensure_ascii=False))


SEED = 2

if __name__ == "__main__":
    main()
