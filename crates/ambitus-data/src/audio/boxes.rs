//! A first look at containers of sound and pictures: whether they are whole.

use super::input::Medium;
use super::sniff::read_at;
use crate::error::AudioFault;

/// Boxes of a file that are walked, not read, at most: one written live has two for each second or so.
const MAX_BOXES: usize = 1 << 20;
/// What a size in Matroska says that was not known when it was written.
const UNKNOWN: u64 = u64::MAX;

/// Walks the boxes of an MP4 or QuickTime file (ISO/IEC 14496-12, 4.2).
pub(super) fn check_mp4(file: &mut dyn Medium, start: u64, length: u64) -> Result<(), AudioFault> {
    let (mut at, mut described) = (start, false);
    for _ in 0..MAX_BOXES {
        if at >= length {
            break;
        }
        let mut head = [0u8; 16];
        let n = read_at(file, at, &mut head)?;
        if n < 8 {
            return Err(AudioFault::Truncated("it ends within a box".into()));
        }
        let of = |bytes: &[u8]| bytes.iter().fold(0u64, |v, &b| v << 8 | u64::from(b));
        described |= &head[4..8] == b"moov";
        let size = match of(&head[..4]) {
            // To the end of the file.
            0 => length - at,
            1 => of(&head[8..16]),
            size => size,
        };
        if size < 8 {
            return Err(AudioFault::Header(format!("a box of {size} bytes at byte {at}")));
        }
        if size > length - at {
            let there = length - at;
            return Err(AudioFault::Truncated(format!("a box of {size} bytes at byte {at}, {there} there")));
        }
        at += size;
    }
    match described {
        true => Ok(()),
        false => {
            Err(AudioFault::Truncated("it was never finished: nothing says what is in it (no `moov`)".into()))
        }
    }
}

/// Checks that a Matroska file is as long as it says (RFC 8794, 4 to 6).
pub(super) fn check_mkv(file: &mut dyn Medium, start: u64, length: u64) -> Result<(), AudioFault> {
    let mut at = start;
    // The header and what it is of.
    for id in [0x1a45_dfa3_u32, 0x1853_8067] {
        let mut head = [0u8; 12];
        let n = read_at(file, at, &mut head)?;
        let head = &head[..n];
        let Some(size) = head.strip_prefix(&id.to_be_bytes()).and_then(vint) else {
            return Err(AudioFault::Header("no Matroska segment where one should begin".into()));
        };
        let (bytes, size) = size;
        at += 4 + bytes;
        if size != UNKNOWN && size > length.saturating_sub(at) {
            let there = length.saturating_sub(at);
            return Err(AudioFault::Truncated(format!("{size} bytes declared, {there} there")));
        }
        if id == 0x1a45_dfa3 {
            at = at.saturating_add(size);
        }
    }
    Ok(())
}

/// Reads a number whose first byte says how long it is: its bytes, and the value.
fn vint(bytes: &[u8]) -> Option<(u64, u64)> {
    let first = *bytes.first()?;
    let count = first.leading_zeros() as usize + 1;
    let bytes = bytes.get(..count).filter(|_| count <= 8)?;
    let value = bytes.iter().fold(0u64, |v, &b| v << 8 | u64::from(b)) & ((1 << (7 * count)) - 1);
    Some((count as u64, if value == (1 << (7 * count)) - 1 { UNKNOWN } else { value }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;
    use std::sync::Arc;

    fn looked(
        bytes: &[u8],
        check: fn(&mut dyn Medium, u64, u64) -> Result<(), AudioFault>,
    ) -> Result<(), String> {
        let all: Arc<[u8]> = bytes.into();
        check(&mut Cursor::new(all), 0, bytes.len() as u64).map_err(|e| e.to_string())
    }

    #[test]
    fn boxes_are_whole_or_named() {
        let whole = b"\0\0\0\x0cftypisom\0\0\0\x08moov\0\0\0\x09mdatx";
        assert_eq!(looked(whole, check_mp4), Ok(()));
        assert!(
            looked(&whole[..whole.len() - 1], check_mp4)
                .expect_err("cut")
                .starts_with("truncated: a box of 9 bytes")
        );
        assert!(looked(&whole[..12], check_mp4).expect_err("cut").contains("no `moov`"));
        assert!(looked(b"\0\0\0\x03ftypisom", check_mp4).expect_err("bad").contains("a box of 3 bytes"));
        let mkv = b"\x1a\x45\xdf\xa3\x81x\x18\x53\x80\x67\x83abc";
        assert_eq!(looked(mkv, check_mkv), Ok(()));
        assert!(
            looked(&mkv[..mkv.len() - 1], check_mkv)
                .expect_err("cut")
                .starts_with("truncated: 3 bytes declared, 2")
        );
        assert_eq!(looked(b"\x1a\x45\xdf\xa3\x81x\x18\x53\x80\x67\xff", check_mkv), Ok(()));
        assert!(looked(&mkv[..8], check_mkv).expect_err("cut").contains("no Matroska segment"));
    }
}
