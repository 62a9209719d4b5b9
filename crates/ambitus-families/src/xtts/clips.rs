//! XTTS v2: codes and texts from prepared files, and the mel of a piece of each clip, drawn for each use, which says whose voice it is
//! (coqui-tts 0.28, `get_prompt_slice`).

use super::conditioning::FRONT;
use crate::clips::{Clips, Use, When, sample_id};
use crate::dvae;
use ambitus_data::pieces::{Counts, PieceClip, load_counts, load_piece_clip};
use ambitus_data::{ClipIndex, DataError, mel};
use ambitus_ir::ops::random::philox4x32_10;
use ambitus_models::xtts::batch::{self, Clip};
use ambitus_models::xtts::config::{BANDS, Config, SAMPLES_PER_CODE};
use ambitus_models::{Batch, Norms, clip_key};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Shortest and longest piece, samples: three and six seconds.
const PIECE: [usize; 2] = [66_150, 132_300];
/// Samples of a validation's pieces.
const HELD_OUT: usize = PIECE[0].midpoint(PIECE[1]);
/// The stream of a clip's generator that pieces are drawn from: masks of dropout have others.
const STREAM: u32 = 1;

/// Prepared clips on the disk.
pub(super) struct PieceClips {
    index: Arc<ClipIndex>,
    /// Which of them.
    chosen: Vec<u32>,
    rows: Vec<u32>,
    seed: u64,
    config: Config,
    /// Codes of the piece are not scored.
    masks: bool,
    /// What the bands of a mel are divided by, or why that is not known.
    scale: Result<Vec<f32>, String>,
}

impl PieceClips {
    /// Returns those clips of an index, in this order; `seed` is that of their draws in training. The model's folder has the statistics of
    /// mels, which were read when the clips were prepared. With `masks` the codes of a piece are not scored in training.
    pub fn new(
        index: Arc<ClipIndex>,
        chosen: &[usize],
        seed: u64,
        (dir, config, masks): (&Path, Config, bool),
    ) -> PieceClips {
        let rows = chosen.iter().map(|&i| index.frames()[i]).collect();
        let scale = dvae::statistics(&dir.join(dvae::STATISTICS), BANDS).map_err(|e| e.to_string());
        let chosen = chosen.iter().map(|&i| i as u32).collect();
        PieceClips { index, chosen, rows, seed, config, masks, scale }
    }

    fn place(&self, of: &Use) -> usize {
        self.chosen[of.clip] as usize
    }

    fn path(&self, of: &Use) -> PathBuf {
        self.index.path(self.place(of))
    }

    /// Refuses what the index does not say of a clip: there would be no room for it.
    fn checked(&self, of: &Use, counts: Counts) -> Result<Counts, DataError> {
        match self.config.rows_of(counts.text, counts.codes) == self.rows[of.clip] as usize {
            true => Ok(counts),
            false => {
                let reason = "is not the clip of index.json; delete it and run `prepare` again".to_owned();
                Err(DataError::File { path: self.path(of), reason })
            }
        }
    }

    /// Returns the key of a use, of its piece and its dropout masks. A validation draws nothing.
    fn key(&self, of: &Use) -> Option<[u32; 2]> {
        match of.when {
            When::Epoch(epoch) => {
                let sample = sample_id(self.index.name(self.place(of)));
                Some(clip_key(self.seed, epoch.into(), sample))
            }
            When::Round(_) => None,
        }
    }

    /// Returns the codes `[from, to)` that are not scored in a use. In a validation, as in the project's, all are.
    fn left_out(&self, of: &Use, counts: Counts) -> [usize; 2] {
        match self.key(of) {
            Some(key) if self.masks => covered(&piece(Some(key), counts.samples), counts.codes),
            _ => [0, 0],
        }
    }

    /// Returns the mel `[517, 80]` of the piece of a use.
    fn mel(&self, of: &Use, clip: &PieceClip) -> Result<Vec<f32>, DataError> {
        let scale = self.scale.as_ref().map_err(|why| DataError::Invalid(why.clone()))?;
        let mut sound: Vec<f32> = clip.sound(piece(self.key(of), clip.counts().samples)).collect();
        sound.resize(PIECE[1], 0.0);
        Ok(mel::rows(&FRONT, Some(scale), &sound).expect("six seconds have rows"))
    }
}

/// Returns the piece of a clip that conditions it: drawn, of three to six seconds, or without a key 4.5 s from the clip's begin. Of a
/// clip that is shorter than that it is half the clip, and drawn as well.
fn piece(key: Option<[u32; 2]>, samples: usize) -> Range<usize> {
    let words = key.map(|key| philox4x32_10([0, 0, 0, STREAM], key));
    // In 0..=most.
    let draw = |word: u32, most: usize| ((u64::from(word) * (most as u64 + 1)) >> 32) as usize;
    let long = words.map_or(HELD_OUT, |words| PIECE[0] + draw(words[0], PIECE[1] - PIECE[0]));
    let long = if samples < long { samples / 2 } else { long };
    let start = words.map_or(0, |words| draw(words[1], samples - long));
    start..start + long
}

/// Returns the codes `[from, to)` of which a piece has any sample. Where these are all of a clip, none: it would say nothing but its end.
fn covered(piece: &Range<usize>, codes: usize) -> [usize; 2] {
    let covered = [piece.start / SAMPLES_PER_CODE, piece.end.div_ceil(SAMPLES_PER_CODE).min(codes)];
    if covered == [0, codes] { [0, 0] } else { covered }
}

impl Clips for PieceClips {
    fn rows(&self) -> &[u32] {
        &self.rows
    }

    fn norms(&self, uses: &[Use]) -> Result<Norms, DataError> {
        let counted = |of: &Use| {
            let counts = self.checked(of, load_counts(&self.path(of))?)?;
            Ok((counts, self.left_out(of, counts)))
        };
        let all = uses.iter().map(counted).collect::<Result<Vec<_>, DataError>>()?;
        // Only how many there are matters.
        let ids = vec![0; all.iter().map(|(counts, _)| counts.text.max(counts.codes)).max().unwrap_or(0)];
        Ok(batch::norms(all.iter().map(|(counts, left_out)| Clip {
            text: &ids[..counts.text],
            codes: &ids[..counts.codes],
            left_out: *left_out,
            key: [0, 0],
        })))
    }

    fn fill(&self, uses: &[Use], batch: &mut Batch) -> Result<(), DataError> {
        let load = |of: &Use| {
            let clip = load_piece_clip(&self.path(of))?;
            self.checked(of, clip.counts()).map(|_| clip)
        };
        let files = uses.iter().map(load).collect::<Result<Vec<_>, DataError>>()?;
        let ids: Vec<_> = files.iter().map(|clip| (clip.text(), clip.codes())).collect();
        let laid = uses.iter().zip(&files).zip(&ids).map(|((of, file), (text, codes))| Clip {
            text,
            codes,
            left_out: self.left_out(of, file.counts()),
            key: self.key(of).unwrap_or_default(),
        });
        batch::fill(&self.config, batch, &laid.collect::<Vec<_>>());
        for (i, (of, clip)) in uses.iter().zip(&files).enumerate() {
            batch::put_mel(batch, i, &self.mel(of, clip)?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_drawn_inside_the_clip_and_held_out_ones_begin_it() {
        for samples in [11_025, 66_149, 100_000, 132_300, 255_995] {
            let (mut lengths, mut starts) = ([usize::MAX, 0], [usize::MAX, 0]);
            for n in 0..2000 {
                let key = Some(clip_key(7, n, 11));
                let piece = piece(key, samples);
                assert_eq!(piece, super::piece(key, samples));
                assert!(piece.end <= samples);
                for (ends, x) in [(&mut lengths, piece.len()), (&mut starts, piece.start)] {
                    *ends = [ends[0].min(x), ends[1].max(x)];
                }
                let half = samples / 2;
                assert!(piece.len() == half || (PIECE[0]..=PIECE[1].min(samples)).contains(&piece.len()));
            }
            // All of the range is reached, to a hundredth of it.
            let most = if samples < PIECE[0] { samples / 2 } else { PIECE[1].min(samples) };
            let least = if samples < PIECE[1] { PIECE[0].min(samples / 2) } else { PIECE[0] };
            assert!(lengths[0] >= least && lengths[0] <= least + 700, "{samples}: {lengths:?}");
            assert!(lengths[1] <= most && lengths[1] + 700 >= most, "{samples}: {lengths:?}");
            assert!(starts[0] < 700 && starts[1] + 6000 > samples - least, "{samples}: {starts:?}");
        }
        // As `get_prompt_slice` of the package has them.
        for (samples, end) in [(99_225, 99_225), (99_224, 49_612), (200_000, 99_225), (11_025, 5512)] {
            assert_eq!(piece(None, samples), 0..end);
        }
    }

    #[test]
    fn codes_of_a_piece_are_those_it_touches_unless_it_touches_all() {
        for (piece, codes, want) in [
            (0..1024, 3, [0, 1]),
            (0..1025, 3, [0, 2]),
            (1023..1024, 3, [0, 1]),
            (1024..1025, 3, [1, 2]),
            (1024..3000, 3, [1, 3]),
            // The last code has few samples.
            (2048..2050, 3, [2, 3]),
            (0..2050, 3, [0, 0]),
            (1000..2049, 3, [0, 0]),
        ] {
            assert_eq!(covered(&piece, codes), want, "{piece:?}");
        }
    }
}
