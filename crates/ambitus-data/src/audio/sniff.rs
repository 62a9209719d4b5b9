//! A first look at an audio file: which container it is, and whether its declared sizes can be true.
//!
//! Done before any decoder sees the file, so that a lying header is refused with a plain reason and cannot make a
//! decoder allocate by it.

use std::io::SeekFrom;

use super::boxes::{check_mkv, check_mp4};
use super::input::Medium;
use super::{MAX_CHANNELS, MAX_RATE, MAX_VORBIS_TABLES, MIN_RATE};
use crate::error::AudioFault;

/// Kind of audio file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Container {
    /// RIFF/WAVE.
    Wav,
    /// Native FLAC.
    Flac,
    /// MPEG audio, layer III.
    Mp3,
    /// Ogg.
    Ogg,
    /// MPEG-4 or QuickTime: the first audio track.
    Mp4,
    /// Matroska or WebM: the first audio track.
    Mkv,
    /// AAC without a container.
    Adts,
}

/// What the first look found.
#[derive(Debug)]
pub(super) struct Sniffed {
    pub(super) container: Container,
    /// Where the stream begins (an ID3 tag is skipped), bytes.
    pub(super) start: u64,
    /// Whether the frame count that the decoder reports is written in the file, not estimated.
    pub(super) counted: bool,
}

/// ID3 tags and chunk lists are walked, not read; this many steps at most.
const MAX_STEPS: usize = 4096;

pub(super) fn sniff(file: &mut dyn Medium, length: u64) -> Result<Sniffed, AudioFault> {
    if length == 0 {
        return Err(AudioFault::Empty);
    }
    let start = skip_id3(file, length)?;
    let mut head = [0u8; 12];
    let n = read_at(file, start, &mut head)?;
    let head = &head[..n];
    let container = match head {
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'A', b'V', b'E'] => Container::Wav,
        [b'f', b'L', b'a', b'C', ..] => Container::Flac,
        [b'O', b'g', b'g', b'S', ..] => Container::Ogg,
        [_, _, _, _, b'f', b't', b'y', b'p', ..] => Container::Mp4,
        // QuickTime's own files may begin with any of these.
        [_, _, _, _, b'm', b'o', b'o', b'v', ..]
        | [_, _, _, _, b'm', b'd', b'a', b't', ..]
        | [_, _, _, _, b'w', b'i', b'd', b'e', ..] => Container::Mp4,
        [0x1a, 0x45, 0xdf, 0xa3, ..] => Container::Mkv,
        // Twelve sync bits, then layer 0.
        [0xff, b, ..] if b & 0xf6 == 0xf0 => Container::Adts,
        // Eleven sync bits, then layer III (01).
        [0xff, b, ..] if b & 0xe0 == 0xe0 && b & 0x06 == 0x02 => Container::Mp3,
        _ => return Err(AudioFault::Unknown(describe(head))),
    };
    let counted = match container {
        Container::Wav => check_wav(file, start, length)?,
        Container::Flac => check_flac(file, start, length)?,
        Container::Ogg => {
            check_ogg(file, start, length)?;
            false
        }
        Container::Mp4 => check_mp4(file, start, length).map(|()| false)?,
        Container::Mkv => check_mkv(file, start, length).map(|()| false)?,
        Container::Adts => false,
        Container::Mp3 => {
            let mut frame = [0u8; 256];
            let n = read_at(file, start, &mut frame)?;
            has(&frame[..n], b"Xing") || has(&frame[..n], b"Info") || has(&frame[..n], b"VBRI")
        }
    };
    Ok(Sniffed { container, start, counted })
}

fn describe(head: &[u8]) -> String {
    if head.iter().all(|&b| b == 0) {
        return "it begins with zeros".into();
    }
    let hex: Vec<String> = head.iter().take(8).map(|b| format!("{b:02x}")).collect();
    format!("it begins with {}", hex.join(" "))
}

fn has(bytes: &[u8], pattern: &[u8]) -> bool {
    bytes.windows(pattern.len()).any(|w| w == pattern)
}

fn io(error: std::io::Error) -> AudioFault {
    AudioFault::Unsupported(format!("cannot be read ({error})"))
}

/// Fills as much of `buffer` as the file has from `at`.
pub(super) fn read_at(file: &mut dyn Medium, at: u64, buffer: &mut [u8]) -> Result<usize, AudioFault> {
    file.seek(SeekFrom::Start(at)).map_err(io)?;
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..]).map_err(io)? {
            0 => break,
            n => filled += n,
        }
    }
    Ok(filled)
}

/// Skips ID3v2 tags in front: their size is in 4 x 7 bits (id3.org, ID3v2.4.0 structure, 3.1).
fn skip_id3(file: &mut dyn Medium, length: u64) -> Result<u64, AudioFault> {
    let mut at = 0;
    for _ in 0..16 {
        let mut tag = [0u8; 10];
        if read_at(file, at, &mut tag)? < 10 || &tag[..3] != b"ID3" {
            break;
        }
        let size = tag[6..].iter().fold(0u64, |s, &b| s << 7 | u64::from(b & 0x7f));
        let footer = if tag[5] & 0x10 != 0 { 10 } else { 0 };
        at += 10 + size + footer;
        if at >= length {
            return Err(AudioFault::Truncated(format!("an ID3 tag of {size} bytes in a file of {length}")));
        }
    }
    Ok(at)
}

pub(super) fn check_format(rate: u32, channels: usize) -> Result<(), AudioFault> {
    if !(1..=MAX_CHANNELS).contains(&channels) {
        return Err(AudioFault::Channels(channels));
    }
    if !(MIN_RATE..=MAX_RATE).contains(&rate) {
        return Err(AudioFault::Rate(rate));
    }
    Ok(())
}

fn le16(bytes: &[u8]) -> u16 {
    u16::from_le_bytes([bytes[0], bytes[1]])
}

fn le32(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// Walks the chunks to `data`; true if the length of the data is declared.
fn check_wav(file: &mut dyn Medium, start: u64, length: u64) -> Result<bool, AudioFault> {
    let mut at = start + 12;
    let mut seen_format = false;
    for _ in 0..MAX_STEPS {
        let mut chunk = [0u8; 8];
        if read_at(file, at, &mut chunk)? < 8 {
            return Err(if at > length {
                AudioFault::Truncated("a chunk ends past the end of the file".into())
            } else {
                AudioFault::Header("no data chunk".into())
            });
        }
        let size = le32(&chunk[4..]);
        at += 8;
        match &chunk[..4] {
            b"fmt " => {
                let mut format = [0u8; 16];
                if size < 16 || read_at(file, at, &mut format)? < 16 {
                    return Err(AudioFault::Header("format chunk too short".into()));
                }
                let (tag, channels) = (le16(&format), usize::from(le16(&format[2..])));
                let (align, bits) = (le16(&format[12..]), le16(&format[14..]));
                check_format(le32(&format[4..]), channels)?;
                if !matches!(tag, 1 | 3 | 6 | 7 | 0xfffe) {
                    return Err(AudioFault::Unsupported(format!("wav format tag {tag}")));
                }
                if !matches!(bits, 8 | 16 | 24 | 32 | 64) {
                    return Err(AudioFault::Unsupported(format!("{bits} bits per sample")));
                }
                let expected = channels * usize::from(bits / 8);
                if usize::from(align) != expected {
                    return Err(AudioFault::Header(format!(
                        "{channels} channel(s) of {bits} bits take {expected} bytes per frame, not {align}"
                    )));
                }
                seen_format = true;
            }
            b"data" => {
                if !seen_format {
                    return Err(AudioFault::Header("data before the format chunk".into()));
                }
                let there = length.saturating_sub(at);
                return match size {
                    // Written by programs that stream to a pipe: the length was not known.
                    u32::MAX => Ok(false),
                    0 => Err(AudioFault::Empty),
                    size if u64::from(size) > there => {
                        Err(AudioFault::Truncated(format!("{size} bytes of audio declared, {there} there")))
                    }
                    _ => Ok(true),
                };
            }
            _ => {}
        }
        at += u64::from(size) + u64::from(size & 1);
    }
    Err(AudioFault::Header("too many chunks before the audio".into()))
}

/// Walks the metadata blocks; true if STREAMINFO declares the number of samples.
fn check_flac(file: &mut dyn Medium, start: u64, length: u64) -> Result<bool, AudioFault> {
    let mut at = start + 4;
    let mut counted = None;
    for _ in 0..MAX_STEPS {
        let mut block = [0u8; 4];
        if read_at(file, at, &mut block)? < 4 {
            return Err(AudioFault::Truncated("it ends within the header".into()));
        }
        let size = u64::from(u32::from_be_bytes([0, block[1], block[2], block[3]]));
        at += 4;
        if at + size > length {
            return Err(AudioFault::Truncated(format!(
                "a header block of {size} bytes, {} there",
                length.saturating_sub(at)
            )));
        }
        if block[0] & 0x7f == 0 {
            let mut info = [0u8; 34];
            if size < 34 || read_at(file, at, &mut info)? < 34 {
                return Err(AudioFault::Header("STREAMINFO too short".into()));
            }
            // 20 bits rate, 3 bits channels - 1, 5 bits depth - 1, 36 bits samples (RFC 9639, 8.2).
            let packed = info[10..18].iter().fold(0u64, |v, &b| v << 8 | u64::from(b));
            check_format((packed >> 44) as u32, (packed >> 41 & 7) as usize + 1)?;
            counted = Some(packed & ((1 << 36) - 1) > 0);
        }
        at += size;
        if block[0] & 0x80 != 0 {
            return counted.ok_or_else(|| AudioFault::Header("no STREAMINFO".into()));
        }
    }
    Err(AudioFault::Header("too many header blocks".into()))
}

/// Checks that the last page is whole and marked as the end (RFC 3533, 6).
fn check_ogg(file: &mut dyn Medium, start: u64, length: u64) -> Result<(), AudioFault> {
    let mut head = [0u8; 64];
    let n = read_at(file, start, &mut head)?;
    let head = &head[..n];
    if has(head, b"OpusHead") {
        return Err(AudioFault::Unsupported("opus; convert it to wav or flac".into()));
    }
    if !has(head, b"\x01vorbis") {
        return Err(AudioFault::Unsupported("ogg without vorbis".into()));
    }
    const MAX_PAGE: u64 = 27 + 255 + 255 * 255;
    let from = length.saturating_sub(MAX_PAGE).max(start);
    let mut tail = vec![0u8; (length - from) as usize];
    let n = read_at(file, from, &mut tail)?;
    let tail = &tail[..n];
    // The pattern may also occur inside a page; the last one that is a whole page to the end of the file counts.
    for at in (0..tail.len().saturating_sub(26)).rev() {
        if &tail[at..at + 4] != b"OggS" {
            continue;
        }
        let segments = usize::from(tail[at + 26]);
        let Some(table) = tail.get(at + 27..at + 27 + segments) else {
            continue;
        };
        let body: usize = table.iter().map(|&b| usize::from(b)).sum();
        if at + 27 + segments + body == tail.len() {
            return if tail[at + 5] & 4 != 0 {
                Ok(())
            } else {
                Err(AudioFault::Truncated("the last page is not marked as the end".into()))
            };
        }
    }
    Err(AudioFault::Truncated("the last page is not whole".into()))
}

/// Checks the sum, in bytes, of the vector tables to which the codebooks of a Vorbis setup header will be unpacked.
///
/// Codebooks start at any bit with the 24-bit pattern "BCV", 16 bits of dimensions and 24 of entries (Vorbis I, 3.2.1).
/// Finding the pattern by chance is improbable, and a codebook without it is refused by the decoder.
pub(super) fn check_vorbis_tables(extra: &[u8]) -> Result<(), AudioFault> {
    let mut window = 0u64;
    let mut total = 0u64;
    for (i, bit) in extra.iter().flat_map(|&byte| (0..8).map(move |b| u64::from(byte >> b & 1))).enumerate() {
        window = window >> 1 | bit << 63;
        if i >= 63 && window & 0xff_ffff == 0x56_4342 {
            let (dimensions, entries) = (window >> 24 & 0xffff, window >> 40);
            // Beyond these the decoder refuses the codebook before it allocates.
            if dimensions <= 32 && entries <= 128 * 1024 {
                total += dimensions * entries * 4;
            }
        }
    }
    if total > MAX_VORBIS_TABLES {
        return Err(AudioFault::Header(format!("its codebooks would take {} MiB", total >> 20)));
    }
    Ok(())
}
