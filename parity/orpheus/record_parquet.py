"""Small data sets as pyarrow writes them: fixtures/*.parquet.

Every value that a test compares with follows from the formulas below, which the test restates.
"""

import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FOLDER = Path(__file__).parent / "fixtures"


def tone(rate, seconds, period):
    """A tone that repeats exactly: it compresses to almost nothing."""
    n = int(rate * seconds)
    return (0.3 * np.sin(2 * np.pi * (np.arange(n) % period) / period)).astype(np.float32)


def wav(samples, rate):
    data = (samples * 32767).astype("<i2").tobytes()
    head = struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + len(data), b"WAVE", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16, b"data", len(data))
    return head + data


def write(name, table, **options):
    path = FOLDER / name
    pq.write_table(table, path, **options)
    print(f"{path}: {path.stat().st_size} bytes, {pq.ParquetFile(path).num_row_groups} row groups")


def main() -> None:
    # As `datasets` writes embedded audio: bytes with a path beside them; rates differ from row to row.
    audio = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    good = [{"bytes": wav(tone(rate, 0.5, 16), rate), "path": f"{i}.wav"} for i, rate in enumerate([8000, 24000, 16000, 48000])]
    rows = [
        (good[0], "First.", "tara"),
        (good[1], "Two\nlines ", "leo"),
        ({"bytes": b"RIFF\x00\x00\x00\x00WAVE", "path": "bad.wav"}, "Broken.", "tara"),
        (None, "Nothing.", "tara"),
        ({"bytes": None, "path": "beside.wav"}, "Beside.", None),
        (good[2], "   ", "tara"),
        (good[3], "Last <laugh>.", "leo"),
    ]
    columns = {
        "audio": pa.array([r[0] for r in rows], audio),
        "text": pa.array([r[1] for r in rows]),
        "source": pa.array([r[2] for r in rows]),
    }
    write("train-00000-of-00001.parquet", pa.table(columns), row_group_size=2, compression="snappy")
    # Decoded audio, and speakers as numbers.
    array = pa.struct([("array", pa.list_(pa.float64())), ("path", pa.string()), ("sampling_rate", pa.int64())])
    samples = [{"array": tone(rate, 0.4, 16).astype(np.float64), "path": None, "sampling_rate": rate} for rate in (8000, 16000)]
    columns = {
        "text": pa.array(["One.", "Two."]),
        "audio": pa.array(samples, array),
        "speaker_id": pa.array([7, None], pa.int32()),
    }
    write("arrays.parquet", pa.table(columns), compression="zstd")
    # Tokenised rows: unequal types and lengths, padding, labels that begin late, and three that cannot be used.
    ids = [[128259, 5, 6, 7], list(range(300)), [9, 9, 128263], [1, -5], None, [4, 5], [8, 156939]]
    labels = [[128259, 5, 6, 7], [-100] * 100 + list(range(100, 300)), [9, 9, -100], [1, 2], None, [4], [8, 8]]
    mask = [[1] * 4, [1] * 300, [1, 1, 0], [1, 1], None, [1, 1], [1, 1]]
    columns = {
        "input_ids": pa.array(ids, pa.list_(pa.int32())),
        "labels": pa.array(labels, pa.list_(pa.int64())),
        "attention_mask": pa.array(mask, pa.list_(pa.int8())),
    }
    write("tokens.parquet", pa.table(columns), row_group_size=3, compression="zstd", data_page_version="2.0")
    # Only ids, more than one page, and in a compression that is not read.
    columns = {"input_ids": pa.array([[i % 7 for i in range(n)] for n in range(2, 40)], pa.list_(pa.int64()))}
    write("ids.parquet", pa.table(columns), compression="none", use_dictionary=False, data_page_size=256, write_batch_size=8)
    write("gzip.parquet", pa.table(columns), compression="gzip")


if __name__ == "__main__":
    main()
