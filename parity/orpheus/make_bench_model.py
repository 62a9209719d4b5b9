"""Writes the model, the data and the batch of the side-by-side with PyTorch (`benches/peers/run.py --peer orpheus`).

    python make_bench_model.py DIR [--clips 1] [--tokens 1024]

DIR/model      Llama of 8 layers, d 512, ffn 1536, heads 8 over 4, vocabulary 8192, tied; as transformers saves it (random weights)
DIR/data       the clips as tokenised parquet (`input_ids`, `labels`, `attention_mask`)
DIR/batch.safetensors   the same clips (`ambitus gradients` and the peer read it)

Needs pyarrow beside what the other scripts need. Every token is scored, as the official script does.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pyarrow
import pyarrow.parquet
from make import LLAMA3, make_batch, make_model
from reference import save_batch

VOCAB = 8192


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--clips", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=1024, help="of each clip")
    args = parser.parse_args()

    make_model(
        args.directory / "model", seed=5, gain=0.5, vocab_size=VOCAB, hidden_size=512, intermediate_size=1536, num_hidden_layers=8,
        num_attention_heads=8, num_key_value_heads=4, rms_norm_eps=1e-5, rope_theta=500000.0, rope_scaling=dict(LLAMA3),
        max_position_embeddings=131072, tie_word_embeddings=True,
    )  # fmt: skip
    clips = make_batch(6, VOCAB, [args.tokens] * args.clips, ignored=0.0)
    for clip in clips:
        clip.labels = clip.input_ids.clone()
    ids = [clip.input_ids.tolist() for clip in clips]
    rows = {"input_ids": ids, "labels": ids, "attention_mask": [[1] * args.tokens] * len(clips)}
    data = args.directory / "data"
    data.mkdir(exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(rows), data / "clips.parquet")
    save_batch(clips, args.directory / "batch.safetensors")
    print(f"{args.directory}: model, {args.clips} clips of {args.tokens} tokens")


if __name__ == "__main__":
    main()
