"""Writes fixtures/{80,128}: a folder of transformers' WhisperForConditionalGeneration and `generate.safetensors`, what it makes of clips.

    python record.py

`clips.i.wave` f16 [n], `clips.i.prompt` i64 [p], and `clips.i.states`, `.tokens` and `.logits` as `ambitus generate` writes them;
`clips.0.mel` [frames, bands] of its first 3000 samples is openai-whisper's.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
import whisper

import draw

FIXTURES = Path(__file__).resolve().parent / "fixtures"
NEW = 12
SIZES = dict(
    vocab_size=60, d_model=8, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=2,
    encoder_ffn_dim=24, decoder_ffn_dim=32, max_source_positions=50, max_target_positions=20,
)
CASES = {
    # Without generation_config.json: nothing is suppressed.
    "80": (dict(num_mel_bins=80), torch.float32, None),
    "128": (dict(num_mel_bins=128), torch.bfloat16, dict(eos_token_id=2, suppress_tokens=list(range(5, 30)), begin_suppress_tokens=[2, 40])),
}
# A whole window, a part of one, and all but nothing.
CLIPS = {"80": [(16_000, [3]), (1, [4, 3, 5])], "128": [(5_000, [3, 7, 9, 11]), (3_000, [3])]}


def main() -> None:
    for seed, (name, (sizes, dtype, generation)) in enumerate(CASES.items()):
        directory = FIXTURES / name
        shutil.rmtree(directory, ignore_errors=True)
        made = draw.model(draw.config(**SIZES, **sizes), seed, dtype)
        draw.save(made, directory, dtype, generation)
        lists = generation or {}
        clips = []
        for i, (samples, prompt) in enumerate(CLIPS[name]):
            wave = draw.sound(samples, 10 * seed + i)
            want = draw.expected(made, wave, prompt, NEW, lists.get("suppress_tokens", []), lists.get("begin_suppress_tokens", []))
            print(name, i, want["tokens"].tolist())
            clips.append({"wave": wave, "prompt": torch.tensor(prompt), **want})
        mel = whisper.log_mel_spectrogram(clips[0]["wave"].float()[:3000], made.config.num_mel_bins)
        clips[0]["mel"] = mel.T.contiguous()
        draw.write(directory / "generate.safetensors", clips)


if __name__ == "__main__":
    main()
