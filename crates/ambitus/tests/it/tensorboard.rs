//! `tensorboard/` of a run's folder: whole after kills and damage, and its curves are the log's.

use crate::common;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const SHORT: &str =
    "updates: 6\nbatch: {clips: 3}\nmicro_batch: 200\nsave_every: 2\nvalidate_every: 2\nthreads: 2";

/// Fields of a message that have bytes, or bits of 32; others are passed over.
fn fields(mut bytes: &[u8]) -> Vec<(u64, &[u8])> {
    let varint = |bytes: &mut &[u8]| {
        let end = bytes.iter().position(|b| *b < 128).expect("an end");
        let value = bytes[..=end].iter().rev().fold(0, |n, b| n << 7 | u64::from(b & 127));
        *bytes = &bytes[end + 1..];
        value
    };
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let len = match key & 7 {
            0 => {
                varint(&mut bytes);
                continue;
            }
            1 => 8,
            5 => 4,
            _ => varint(&mut bytes) as usize,
        };
        let (field, rest) = bytes.split_at(len);
        all.push((key >> 3, field));
        bytes = rest;
    }
    all
}

fn of<'a>(message: &[(u64, &'a [u8])], field: u64) -> impl Iterator<Item = &'a [u8]> {
    message.iter().filter(move |(n, _)| *n == field).map(|(_, bytes)| *bytes)
}

fn sum(bytes: &[u8]) -> [u8; 4] {
    let crc = bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ ((crc & 1) * 0x82F6_3B78))
    });
    (!crc).rotate_right(15).wrapping_add(0xA282_EAD8).to_le_bytes()
}

fn file(run: &Path) -> PathBuf {
    let files: Vec<_> = fs::read_dir(run.join("tensorboard")).expect("a folder").flatten().collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files[0].path()
}

/// The tags of a run's events in their order, each with the number that it has, if any. Every record must be whole.
fn events(run: &Path) -> Vec<(String, Option<f32>)> {
    let bytes = fs::read(file(run)).expect("a file");
    let (mut rest, mut all) = (&*bytes, Vec::new());
    while !rest.is_empty() {
        let len = u64::from_le_bytes(rest[..8].try_into().expect("8 bytes")) as usize;
        let (data, after) = rest[12..].split_at(len);
        assert!(rest[8..12] == sum(&rest[..8]) && after[..4] == sum(data), "a record is damaged");
        for value in of(&fields(data), 5).flat_map(fields).collect::<Vec<_>>().iter().map(|(_, v)| fields(v))
        {
            let tag = of(&value, 1).next().expect("a tag");
            let number = of(&value, 2).next().map(|b| f32::from_le_bytes(b.try_into().expect("4 bytes")));
            all.push((String::from_utf8_lossy(tag).into_owned(), number));
        }
        rest = &after[4..];
    }
    all
}

/// The losses of a log.
fn losses(run: &Path) -> Vec<f32> {
    let log = fs::read_to_string(run.join("metrics.jsonl")).expect("a log");
    let loss = |line: &str| serde_json::from_str::<serde_json::Value>(line).expect("JSON")["loss"].as_f64();
    log.lines().map(|line| loss(line).expect("a loss") as f32).collect()
}

#[test]
fn events_are_whole_and_the_logs_over_kills_and_damage() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path();
    common::voice(dir, 9);
    let whole = dir.join("whole");
    common::ok(
        dir,
        &["train", &common::recipe(dir, "whole", SHORT).display().to_string(), "--memory", "1GiB"],
    );
    let want = events(&whole);
    let curve = |events: &[(String, Option<f32>)], tag: &str| -> Vec<f32> {
        events.iter().filter(|(t, _)| t == tag).filter_map(|(_, number)| *number).collect()
    };
    assert_eq!(curve(&want, "train/loss"), losses(&whole));
    assert_eq!([curve(&want, "validation/raw").len(), curve(&want, "validation/ema").len()], [4, 3]);
    let mut of_tag: BTreeMap<&str, usize> = BTreeMap::new();
    want.iter().for_each(|(tag, _)| *of_tag.entry(tag).or_default() += 1);
    for once in ["recipe", "plan", "mel", "audio/true", "audio/base", "audio/tuned"] {
        assert_eq!(of_tag.get(once), Some(&1), "{once} of {of_tag:?}");
    }
    for part in ["experiment", "session_start_info", "session_end_info"] {
        assert_eq!(of_tag.get(&*format!("_hparams_/{part}")), Some(&1), "{of_tag:?}");
    }

    let cut = dir.join("cut");
    common::kill_and_resume(dir, &common::recipe(dir, "cut", SHORT), "1GiB", &cut);
    let tags =
        |events: &[(String, Option<f32>)]| events.iter().map(|(tag, _)| tag.clone()).collect::<Vec<_>>();
    let same = |run: &Path| {
        let found = events(run);
        assert_eq!(tags(&found), tags(&want));
        for tag in ["train/loss", "train/grad_norm", "validation/raw", "validation/ema"] {
            assert_eq!(curve(&found, tag), curve(&want, tag), "{tag}");
        }
    };
    same(&cut);

    // A tail that a kill has torn, in a run that was killed after update 4.
    let good = fs::read(file(&whole)).expect("a file");
    for damaged in [&good[..good.len() - 9], &[&good[..], b"torn"].concat()] {
        fs::remove_file(whole.join("summary.json")).expect("a summary");
        fs::remove_dir_all(whole.join("checkpoints/step-6")).expect("a checkpoint");
        fs::write(file(&whole), damaged).expect("a file");
        common::ok(dir, &["resume", "whole"]);
        same(&whole);
    }
    // A bit of the third update: what the log and the notes have is there.
    let mut flipped = good.clone();
    let tag = b"train/fill";
    let third =
        good.windows(tag.len()).enumerate().filter(|(_, found)| found == tag).nth(2).expect("a tag").0;
    flipped[third] ^= 1;
    fs::write(file(&whole), flipped).expect("a file");
    let said = common::said(dir, &["resume", "whole"]).1;
    assert!(said.contains("the numbers of updates 3 to 6 are taken from the log"), "{said}");
    let found = events(&whole);
    assert_eq!(curve(&found, "train/loss"), losses(&whole));
    for tag in ["validation/raw", "validation/ema"] {
        assert_eq!(curve(&found, tag), curve(&want, tag), "{tag}");
    }
}
