use super::*;
use crate::tensorboard::tests::data_of;
use std::fs;
use std::path::{Path, PathBuf};

fn message(bytes: &[u8], tail: u64) -> Message {
    Message { bytes: bytes.to_vec(), tail }
}

/// Resumes a file, in which every record's first byte is its step.
fn resume(path: &Path, most: u64) -> (Records, Option<u64>) {
    let file = fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap();
    let step = |head: &[u8]| head.first().map(|step| u64::from(*step)).filter(|step| *step <= most);
    let mut last = None;
    let records = Records::resume(file, &step, &mut |step| last = Some(step)).unwrap();
    (records, last)
}

fn of_three(folder: &Path) -> PathBuf {
    let path = folder.join("records");
    let (mut records, last) = resume(&path, 9);
    assert_eq!(last, None);
    for (step, text) in [(1, "one"), (2, ""), (3, "three")] {
        records.append(&message(&[&[step], text.as_bytes()].concat(), 0), &mut io::empty()).unwrap();
    }
    path
}

/// Values of RFC 3720, B.4, and the usual one.
#[test]
fn checksums_are_castagnolis() {
    let rising: Vec<u8> = (0..32).collect();
    let known: [(&[u8], u32); 4] = [
        (b"123456789", 0xE306_9283),
        (&[0; 32], 0x8A91_36AA),
        (&[0xFF; 32], 0x62A8_AB43),
        (&rising, 0x46DD_794E),
    ];
    for (bytes, sum) in known {
        let mut crc = Crc::new();
        bytes.chunks(5).for_each(|piece| crc.add(piece));
        assert_eq!(!crc.0, sum);
        let masked = sum.rotate_right(15).wrapping_add(0xA282_EAD8);
        assert_eq!(crc.masked(), masked.to_le_bytes());
    }
}

#[test]
fn a_tail_of_any_length_is_as_if_it_were_in_the_message() {
    let folder = tempfile::tempdir().unwrap();
    for bytes in [0, 1, PIECE - 5, PIECE, PIECE + 1, 5 * PIECE] {
        let tail: Vec<u8> = (0..bytes).map(|i| (i * i) as u8).collect();
        let whole = [b"\x01head", &*tail].concat();
        let [streamed, at_once] = ["a", "b"].map(|name| folder.path().join(format!("{name}{bytes}")));
        // What follows in the file is not the tail's.
        let mut longer = Read::chain(&*tail, &b"more"[..]);
        resume(&streamed, 9).0.append(&message(b"\x01head", bytes as u64), &mut longer).unwrap();
        resume(&at_once, 9).0.append(&message(&whole, 0), &mut io::empty()).unwrap();
        let file = fs::read(&streamed).unwrap();
        assert!(file == fs::read(at_once).unwrap() && data_of(&file) == [whole]);
        assert_eq!(resume(&streamed, 9).1, Some(1));
        assert_eq!(fs::read(&streamed).unwrap(), file);
    }
}

#[test]
fn a_tail_that_ends_early_leaves_no_record() {
    let folder = tempfile::tempdir().unwrap();
    let path = of_three(folder.path());
    let before = fs::read(&path).unwrap();
    let mut records = resume(&path, 9).0;
    let short = records.append(&message(b"\x04", 2 * PIECE as u64), &mut &vec![0; PIECE + 1][..]);
    assert_eq!(short.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    assert_eq!(fs::read(&path).unwrap(), before);
    records.append(&message(b"\x04", 0), &mut io::empty()).unwrap();
    assert_eq!(data_of(&fs::read(&path).unwrap()).len(), 4);
}

/// Whatever byte is cut off, changed or added: whole records before it stay, and nothing else.
#[test]
fn records_before_a_damage_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = of_three(folder.path());
    let whole = fs::read(&path).unwrap();
    let ends = [0, 20, 37, whole.len()];
    let kept_of = |at: usize| ends.iter().rposition(|end| *end <= at).unwrap();
    for at in 0..whole.len() {
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        let cut = whole[..at].to_vec();
        for damaged in [flipped, cut] {
            fs::write(&path, damaged).unwrap();
            let kept = kept_of(at);
            assert_eq!(resume(&path, 9).1, (kept > 0).then_some(kept as u64), "byte {at}");
            assert_eq!(fs::read(&path).unwrap(), whole[..ends[kept]], "byte {at}");
        }
    }
    for garbage in [&b"x"[..], &[0; 64], &[0xFF; 64], &whole[..19]] {
        fs::write(&path, [&whole, garbage].concat()).unwrap();
        assert_eq!(resume(&path, 9).1, Some(3));
        assert_eq!(fs::read(&path).unwrap(), whole);
    }
    assert_eq!(resume(&path, 2).1, Some(2));
    assert_eq!(fs::read(&path).unwrap(), whole[..ends[2]]);
}
