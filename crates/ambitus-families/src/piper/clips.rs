//! Piper: phonemes and sound from prepared files, with the spectrogram of the sound, and what is drawn for each use.

use crate::clips::{Clips, Use, VALIDATION_SEED, When, sample_id};
use ambitus_data::mel::Linear;
use ambitus_data::pieces::{Counts, PieceClip, load_counts, load_piece_clip};
use ambitus_data::{ClipIndex, DataError};
use ambitus_models::piper::batch::{self, Clip, Sound};
use ambitus_models::piper::config::{Config, Durations};
use ambitus_models::piper::draw;
use ambitus_models::{Batch, Norms, clip_key};
use std::path::PathBuf;
use std::sync::Arc;

/// How often a validation uses each clip: its slice and noise are drawn.
pub(super) const ROUNDS: u32 = 4;

/// Prepared clips on the disk. The first id of a model with several speakers is who speaks.
pub(super) struct VoiceClips {
    index: Arc<ClipIndex>,
    /// Which of them.
    chosen: Vec<u32>,
    rows: Vec<u32>,
    seed: u64,
    config: Config,
}

impl VoiceClips {
    /// Returns those clips of an index, in this order; `seed` is that of their draws in training.
    pub fn new(index: Arc<ClipIndex>, chosen: &[usize], seed: u64, config: Config) -> VoiceClips {
        let rows = chosen.iter().map(|&i| index.frames()[i]).collect();
        let chosen = chosen.iter().map(|&i| i as u32).collect();
        VoiceClips { index, chosen, rows, seed, config }
    }

    fn path(&self, of: &Use) -> PathBuf {
        self.index.path(self.chosen[of.clip] as usize)
    }

    /// Refuses what the index does not say of a clip: there would be no room for it.
    fn checked(&self, of: &Use, counts: Counts) -> Result<Counts, DataError> {
        match counts.samples / self.config.spectra.hop == self.rows[of.clip] as usize {
            true => Ok(counts),
            false => {
                let reason = "is not the clip of index.json; delete it and run `prepare` again".to_owned();
                Err(DataError::File { path: self.path(of), reason })
            }
        }
    }

    /// Returns the key of a use: of its noise, its slice and its dropout masks.
    fn key(&self, of: &Use) -> [u32; 2] {
        let (seed, time) = match of.when {
            When::Epoch(epoch) => (self.seed, epoch),
            When::Round(round) => (VALIDATION_SEED, round),
        };
        clip_key(seed, time.into(), sample_id(self.index.name(self.chosen[of.clip] as usize)))
    }

    /// Returns who speaks, and the phonemes.
    fn said<'i>(&self, ids: &'i [u32]) -> (u32, &'i [u32]) {
        match ids.split_first() {
            Some((speaker, phonemes)) if self.config.speakers > 1 => (*speaker, phonemes),
            _ => (0, ids),
        }
    }

    fn clip<'i>(&self, of: &Use, ids: &'i [u32]) -> Clip<'i> {
        let (key, frames) = (self.key(of), self.rows[of.clip] as usize);
        let (speaker, phonemes) = self.said(ids);
        Clip { phonemes, frames, slice: draw::slice(key, frames, self.config.segment), speaker, key }
    }

    /// Puts the numbers of a use into a batch that was filled.
    fn put(&self, batch: &mut Batch, s: usize, clip: &Clip<'_>, file: &PieceClip) {
        let (c, frames) = (&self.config, clip.frames);
        let hop = c.spectra.hop;
        let wave: Vec<f32> = file.sound(0..frames * hop).collect();
        let front = Linear { n_fft: c.spectra.n_fft, hop, window: c.spectra.window };
        let spec = front.rows(&wave).expect("a clip is longer than a slice");
        let mut noise = vec![0.0; frames * c.inter];
        draw::noise(clip.key, &mut noise);
        let flows = matches!(c.durations, Durations::Stochastic { .. });
        let mut duration_noise = vec![0.0; if flows { 2 * clip.phonemes.len() } else { 0 }];
        draw::duration_noise(clip.key, &mut duration_noise);
        let real = &wave[clip.slice * hop..][..c.slice()];
        let sound = Sound { spec: &spec, real, noise: &noise, duration_noise: &duration_noise };
        batch::put(c, batch, s, &sound);
    }
}

impl Clips for VoiceClips {
    fn rows(&self) -> &[u32] {
        &self.rows
    }

    fn context(&self) -> u32 {
        self.index.context()
    }

    fn rounds(&self) -> u32 {
        ROUNDS
    }

    fn norms(&self, uses: &[Use]) -> Result<Norms, DataError> {
        let counted = |of: &Use| self.checked(of, load_counts(&self.path(of))?);
        let all = uses.iter().map(counted).collect::<Result<Vec<_>, DataError>>()?;
        // Only how many there are matters.
        let ids = vec![0; all.iter().map(|counts| counts.text).max().unwrap_or(0)];
        Ok(batch::norms(uses.iter().zip(&all).map(|(of, counts)| self.clip(of, &ids[..counts.text]))))
    }

    fn fill(&self, uses: &[Use], batch: &mut Batch) -> Result<(), DataError> {
        let load = |of: &Use| {
            let clip = load_piece_clip(&self.path(of))?;
            self.checked(of, clip.counts()).map(|_| clip)
        };
        let files = uses.iter().map(load).collect::<Result<Vec<_>, DataError>>()?;
        let ids: Vec<Vec<u32>> = files.iter().map(PieceClip::text).collect();
        let clips: Vec<Clip<'_>> = uses.iter().zip(&ids).map(|(of, ids)| self.clip(of, ids)).collect();
        batch::fill(&self.config, batch, &clips);
        for (s, (clip, file)) in clips.iter().zip(&files).enumerate() {
            self.put(batch, s, clip, file);
        }
        Ok(())
    }
}
