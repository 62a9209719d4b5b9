//! A prepared file of music: all of its codes, of which a use reads some.
//!
//! Layout, little-endian: magic (8 bytes), key (32), key of its description's states (32), codebooks C u32, pieces P u32, frames T u32,
//! numbers of its other texts N u32, ids of its description U u32, most ids of a use u32, flags u32, seconds f64, rms, peak f32, ends of
//! the pieces u32 `[P]`, of each other text its ids and the key of its states u32 `[N / 9, 9]`, sums of the blocks of codes 16 bytes each,
//! blake3 of all before (32); then codes u32 `[T, C]`, in blocks of 1,024 frames, each with the sum (the beginning of its blake3) that is in
//! the head. So codes are read and verified by blocks.

use std::io::{Read, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::{Kept, Other};
use crate::atomic;
use crate::error::DataError;
use crate::files;
use crate::measured::Measured;
use crate::rng::SplitMix;
use crate::sealed::{self, BEGINNING, Kind, MEASURED};

/// Where the counts are.
const COUNTS: usize = BEGINNING + 32;
const HEADER: usize = COUNTS + 7 * 4 + MEASURED;
const CHECKSUM: usize = 32;
/// Frames of a block.
const BLOCK: usize = 1024;
/// Bytes of its sum.
const SUM: usize = 16;
/// More than a day of four codebooks at fifty frames a second.
const MOST: u64 = 128 << 20;
/// For what is said of damage.
const KIND: Kind = Kind { magic: b"ambmusi1", name: "file of music", header: HEADER, most: MOST };

/// A prepared file: its head. Codes are on the disk.
#[derive(Debug, Clone)]
pub struct MusicClip {
    path: PathBuf,
    /// The number C of codebooks.
    pub codebooks: usize,
    /// Its texts.
    pub kept: Kept,
    /// Where each piece ends: one of the whole file, or those that were drawn.
    ends: Vec<u32>,
    sums: Vec<[u8; SUM]>,
    /// Bytes before the codes.
    head: u64,
    pub(super) states: [u8; 32],
}

/// What a file says besides.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Facts {
    pub(super) key: [u8; 32],
    pub(super) states: [u8; 32],
    pub(super) measured: Measured,
}

/// Saves a file: `codes` are `[T, C]`, of pieces that end at `ends`.
pub(super) fn save(
    path: &Path,
    facts: &Facts,
    kept: &Kept,
    (ends, codes, codebooks): (&[u32], &[u32], usize),
) -> Result<(), DataError> {
    let bytes: Vec<u8> = codes.iter().flat_map(|code| code.to_le_bytes()).collect();
    let blocks = || bytes.chunks(4 * codebooks * BLOCK);
    let frames = codes.len() / codebooks;
    let numbers: Vec<u32> = kept.others.iter().flat_map(Other::numbers).collect();
    let mut head = KIND.begin(&facts.key, 4 * (ends.len() + numbers.len()) + SUM * blocks().len());
    head.extend_from_slice(&facts.states);
    let counts = [codebooks, ends.len(), frames, numbers.len(), kept.plain, kept.longest];
    sealed::put(&mut head, counts.map(|n| n as u32).into_iter().chain([facts.measured.flags()]));
    facts.measured.put(&mut head);
    sealed::put(&mut head, ends.iter().chain(&numbers).copied());
    blocks().for_each(|block| head.extend_from_slice(&sum(block)));
    let checksum = blake3::hash(&head);
    head.extend_from_slice(checksum.as_bytes());
    if (head.len() + bytes.len()) as u64 > MOST {
        let reason = format!("{} bytes of codes; a {} has {MOST} at most", bytes.len(), KIND.name);
        return Err(DataError::file(path, reason));
    }
    atomic::write(path, |file| file.write_all(&head).and_then(|()| file.write_all(&bytes)))
}

impl Other {
    /// Numbers of one.
    const NUMBERS: usize = 9;

    fn numbers(&self) -> [u32; Other::NUMBERS] {
        std::array::from_fn(|i| match i {
            0 => self.ids as u32,
            i => sealed::number(&self.states, 4 * (i - 1)),
        })
    }

    fn at(bytes: &[u8]) -> Other {
        Other { ids: sealed::number(bytes, 0) as usize, states: sealed::array(bytes, 4) }
    }
}

fn sum(block: &[u8]) -> [u8; SUM] {
    sealed::array(blake3::hash(block).as_bytes(), 0)
}

/// Reads the head of a file. The length of all is verified.
pub(super) fn read(path: &Path) -> Result<(Facts, MusicClip), DataError> {
    let damaged = |what: &str| KIND.damaged(path, what);
    let io = |e| DataError::io(path, e);
    let (mut file, length) = files::open(path)?;
    let mut bytes = vec![0; HEADER];
    file.read_exact(&mut bytes).map_err(|_| damaged("too short"))?;
    if !bytes.starts_with(KIND.magic) {
        return Err(damaged(&format!("not a {}", KIND.name)));
    }
    let counts: [u64; 7] = std::array::from_fn(|i| u64::from(sealed::number(&bytes, COUNTS + 4 * i)));
    let [codebooks, pieces, frames, numbers, plain, longest, flags] = counts;
    let blocks = frames.div_ceil(BLOCK as u64);
    let rest = 4 * (pieces + numbers) + SUM as u64 * blocks;
    let head = HEADER as u64 + rest + CHECKSUM as u64;
    let codes = frames.saturating_mul(codebooks).saturating_mul(4);
    if codebooks == 0 || head.saturating_add(codes) != length || length > MOST {
        return Err(damaged("wrong length"));
    }
    bytes.resize((HEADER as u64 + rest) as usize, 0);
    file.read_exact(&mut bytes[HEADER..]).map_err(io)?;
    let mut checksum = [0; CHECKSUM];
    file.read_exact(&mut checksum).map_err(io)?;
    if *blake3::hash(&bytes).as_bytes() != checksum {
        return Err(damaged("wrong checksum"));
    }
    let measured = Measured::at(&bytes, COUNTS + 7 * 4, flags as u32);
    let facts = Facts { key: sealed::key(&bytes), states: sealed::array(&bytes, BEGINNING), measured };
    let (ends, after) = bytes[HEADER..].split_at(4 * pieces as usize);
    let (numbers, sums) = after.split_at(4 * numbers as usize);
    let ends: Vec<u32> = sealed::numbers(ends).collect();
    if !ends.is_sorted() || ends.last().map(|end| u64::from(*end)) != Some(frames) {
        return Err(damaged("its pieces are not its frames"));
    }
    let clip = MusicClip {
        path: path.to_owned(),
        codebooks: codebooks as usize,
        kept: Kept {
            plain: plain as usize,
            longest: longest as usize,
            others: numbers.chunks_exact(4 * Other::NUMBERS).map(Other::at).collect(),
        },
        ends,
        sums: sums.as_chunks::<SUM>().0.to_vec(),
        head,
        states: facts.states,
    };
    Ok((facts, clip))
}

/// Opens a prepared file: reads and verifies its head.
///
/// # Errors
/// The file cannot be read, or is damaged.
pub fn load_music_clip(path: &Path) -> Result<MusicClip, DataError> {
    read(path).map(|(_, clip)| clip)
}

impl MusicClip {
    /// Returns the frames of all codes.
    pub fn frames(&self) -> usize {
        self.ends.last().map_or(0, |end| *end as usize)
    }

    /// Returns the frames of a use: of a piece, at most `most`. The draw is a function of the key alone: which piece, and where in it.
    /// Without a key it is the first piece's beginning, as a validation reads it.
    pub fn segment(&self, most: usize, key: Option<[u32; 2]>) -> Range<usize> {
        let mut rng =
            key.map(|[low, high]| SplitMix::keyed("segment", u64::from(low) | u64::from(high) << 32, 0));
        let mut below = |n: usize| rng.as_mut().map_or(0, |rng| rng.below(n));
        let piece = below(self.ends.len());
        let start = if piece == 0 { 0 } else { self.ends[piece - 1] as usize };
        let frames = self.ends[piece] as usize - start;
        let from = start + below(frames.saturating_sub(most) + 1);
        from..from + frames.min(most)
    }

    /// Reads the codes of a range of frames, `[C, n]`. Only the blocks that hold them are read, and verified.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged.
    ///
    /// # Panics
    /// Beyond the frames.
    pub fn codes(&self, range: Range<usize>) -> Result<Vec<u32>, DataError> {
        assert!(range.end <= self.frames(), "frames {range:?} of {}", self.frames());
        let (n, row) = (range.len(), 4 * self.codebooks);
        let mut codes = vec![0; self.codebooks * n];
        let (file, _) = crate::files::open(&self.path)?;
        let mut bytes = Vec::new();
        for block in range.start / BLOCK..range.end.div_ceil(BLOCK) {
            let (first, end) = (block * BLOCK, self.frames().min((block + 1) * BLOCK));
            bytes.resize((end - first) * row, 0);
            let at = self.head + (first * row) as u64;
            file.read_exact_at(&mut bytes, at).map_err(|e| DataError::io(&self.path, e))?;
            if sum(&bytes) != self.sums[block] {
                return Err(KIND.damaged(&self.path, "wrong checksum of its codes"));
            }
            for t in range.start.max(first)..range.end.min(end) {
                let frame = &bytes[(t - first) * row..][..row];
                for (c, code) in sealed::numbers(frame).enumerate() {
                    codes[c * n + t - range.start] = code;
                }
            }
        }
        Ok(codes)
    }

    /// Loads the states `[U, E]` of its description, or of another text by its number, E of them `width`. The file lies in `folder`.
    ///
    /// # Errors
    /// The file of states cannot be read, is damaged, or has other states.
    pub fn states(&self, folder: &Path, other: Option<usize>, width: usize) -> Result<Vec<f32>, DataError> {
        let (states, ids) = match other.and_then(|number| self.kept.others.get(number)) {
            Some(other) => (&other.states, other.ids),
            None => (&self.states, self.kept.plain),
        };
        crate::codes::load_states_of(folder, (states, ids), width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        let measured = Measured { seconds: 40.0, rms: 0.1, peak: 0.5, ..Measured::default() };
        Facts { key: [7; 32], states: [9; 32], measured }
    }

    fn kept() -> Kept {
        let other = |ids, byte| Other { ids, states: [byte; 32] };
        Kept { plain: 2, longest: 5, others: vec![other(5, 4), other(0, 200)] }
    }

    fn saved(ends: &[u32], codebooks: usize) -> (tempfile::TempDir, PathBuf, Vec<u32>) {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("a.music");
        let frames = *ends.last().expect("a piece") as usize;
        let codes: Vec<u32> = (0..frames * codebooks).map(|i| (i * 7919 % 2048) as u32).collect();
        save(&path, &facts(), &kept(), (ends, &codes, codebooks)).expect("is saved");
        (dir, path, codes)
    }

    #[test]
    fn any_range_reads_back() {
        for (ends, codebooks) in [(vec![2500], 4), (vec![1024], 2), (vec![1], 8), (vec![700, 1400, 2100], 3)]
        {
            let (_dir, path, codes) = saved(&ends, codebooks);
            let (found, clip) = read(&path).expect("reads");
            assert_eq!(found, facts());
            assert_eq!((clip.codebooks, clip.frames()), (codebooks, codes.len() / codebooks));
            assert_eq!(clip.kept, kept());
            let n = clip.frames();
            for range in [0..n, 0..1, n - 1..n, n / 3..n / 2 + 1, n / 2..n / 2] {
                let read = clip.codes(range.clone()).expect("reads");
                let want: Vec<u32> = (0..codebooks)
                    .flat_map(|c| range.clone().map(|t| codes[t * codebooks + c]).collect::<Vec<_>>())
                    .collect();
                assert_eq!(read, want, "{range:?}");
            }
        }
    }

    #[test]
    fn segments_depend_on_the_key_alone_and_end_within() {
        let (_dir, path, _) = saved(&[1000], 1);
        let clip = load_music_clip(&path).expect("reads");
        assert_eq!(clip.segment(300, None), 0..300);
        assert_eq!(clip.segment(3000, Some([1, 2])), 0..1000);
        let drawn: Vec<_> = (0..4000).map(|i| clip.segment(300, Some([i, 5]))).collect();
        assert!(drawn.iter().all(|s| s.len() == 300 && s.end <= 1000));
        assert_eq!(drawn[17], clip.segment(300, Some([17, 5])));
        assert!(drawn.iter().any(|s| s.start == 0) && drawn.iter().any(|s| s.end == 1000));
        // Every start is as likely: their mean is in the middle.
        let mean = drawn.iter().map(|s| s.start as f64).sum::<f64>() / 4000.0;
        assert!((mean - 350.0).abs() < 15.0, "{mean}");

        let (_dir, path, _) = saved(&[300, 600, 900, 1000], 1);
        let clip = load_music_clip(&path).expect("reads");
        let mut counts = [0; 4];
        for i in 0..4000 {
            let segment = clip.segment(300, Some([9, i]));
            let piece = segment.start / 300;
            assert_eq!(segment, 300 * piece..(300 * piece + 300).min(1000));
            counts[piece] += 1;
        }
        assert!(counts.iter().all(|n| (900..1100).contains(n)), "{counts:?}");
    }

    #[test]
    fn damage_is_found_wherever_it_is() {
        let (_dir, path, codes) = saved(&[2500], 4);
        let whole = std::fs::read(&path).expect("reads");
        let head = whole.len() - 4 * codes.len();
        for at in [0, 20, COUNTS, COUNTS + 8, HEADER - 3, HEADER + 5, head - 40, head - 1] {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            std::fs::write(&path, &bytes).expect("writes");
            assert!(load_music_clip(&path).is_err(), "byte {at} of {head}");
        }
        // Of codes in the block that has them alone.
        let mut bytes = whole.clone();
        let at = head + 4 * 4 * 1500;
        bytes[at] ^= 1;
        std::fs::write(&path, &bytes).expect("writes");
        let clip = load_music_clip(&path).expect("its head is whole");
        assert!(clip.codes(0..1024).is_ok() && clip.codes(2048..2500).is_ok());
        assert!(
            clip.codes(1000..1100)
                .expect_err("is damaged")
                .to_string()
                .contains("wrong checksum of its codes")
        );
        for cut in [10, HEADER, head, whole.len() - 1] {
            std::fs::write(&path, &whole[..cut]).expect("writes");
            assert!(load_music_clip(&path).is_err(), "cut at {cut}");
        }
    }
}
