//! Files changed at random, cut everywhere, and made of as many things as fit.

use std::path::{Path, PathBuf};

use crate::counted::exercise;
use arbtest::arbitrary::Unstructured;

fn fixtures() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut all: Vec<PathBuf> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    all.retain(|p| p.extension().is_some_and(|e| e != "json"));
    all.sort();
    all
}

fn safetensors() -> Vec<u8> {
    let header = concat!(
        r#"{"__metadata__":{"format":"pt"},"a.b":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"#,
        r#""c":{"dtype":"I64","shape":[],"data_offsets":[24,32]},"d":{"dtype":"BF16","shape":[0,7],"data_offsets":[32,32]}}"#
    );
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend([7; 32]);
    bytes
}

/// Numbers that lengths like to be when they lie.
const LIES: [u64; 9] = [0, 1, 0x7f, 0xff, 0xffff, 0x7fff_ffff, 0xffff_ffff, i64::MAX as u64, u64::MAX];

/// Changes bytes: flips, lies, cuts, copies of one part over another.
fn mutate(u: &mut Unstructured, bytes: &mut Vec<u8>) -> arbtest::arbitrary::Result<()> {
    for _ in 0..u.int_in_range(1..=6)? {
        if bytes.is_empty() {
            return Ok(());
        }
        let at = u.choose_index(bytes.len())?;
        match u.int_in_range(0..=5)? {
            0 => bytes[at] ^= 1 << u.int_in_range(0..=7)?,
            1 => bytes[at] = u.arbitrary()?,
            2 => {
                let lie = u.choose(&LIES)?.to_le_bytes();
                let width = (*u.choose(&[1, 2, 4, 8])?).min(bytes.len() - at);
                bytes[at..at + width].copy_from_slice(&lie[..width]);
            }
            3 => bytes.truncate(at),
            4 => {
                let from = u.choose_index(bytes.len())?;
                let part = bytes[from..(from + u.int_in_range(1..=40)?).min(bytes.len())].to_vec();
                bytes.splice(at..at, part);
            }
            _ => drop(bytes.drain(at..(at + u.int_in_range(1..=40)?).min(bytes.len()))),
        }
    }
    Ok(())
}

#[test]
fn mutated_files_never_panic_nor_swell() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mutated");
    let mut originals: Vec<Vec<u8>> = fixtures().iter().map(|p| std::fs::read(p).unwrap()).collect();
    originals.push(safetensors());
    arbtest::arbtest(|u| {
        let mut bytes = u.choose(&originals)?.clone();
        mutate(u, &mut bytes)?;
        std::fs::write(&path, &bytes).unwrap();
        exercise(&path);
        Ok(())
    })
    .size_min(64)
    .size_max(256)
    .budget_ms(4000);
}

#[test]
fn every_cut_of_every_fixture_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cut");
    let mut originals: Vec<Vec<u8>> = fixtures().iter().map(|p| std::fs::read(p).unwrap()).collect();
    originals.push(safetensors());
    for original in originals {
        for len in (0..original.len()).step_by(7) {
            std::fs::write(&path, &original[..len]).unwrap();
            assert!(exercise(&path).is_some(), "{len} of {}", original.len());
        }
    }
}

#[test]
fn many_small_objects_are_bounded_by_the_file() {
    // Megabytes of the shortest descriptions there are: the worst ratio of memory to file.
    const N: usize = 150_000;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("many.safetensors");
    let entries: Vec<String> =
        (0..N).map(|i| format!(r#""{i}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#)).collect();
    let header = format!("{{{}}}", entries.join(","));
    std::fs::write(&path, [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat()).unwrap();
    let message = exercise(&path).unwrap();
    assert!(message.contains("than its size justifies"), "{message}");
}
