//! Fills the masked middle of a clip by integrating the learned flow.

use super::flow::{self, Given};
use crate::codec::GRIFFIN_LIM_ROUNDS;
use crate::error::RunError;
use crate::generate::Flow;
use crate::sample::{Held, Sampler, Settings};
use ambitus_data::griffin_lim::GriffinLim;
use ambitus_data::{DataError, load_clip, mel, wav};
use ambitus_exec::executor::Executor;
use ambitus_models::f5::config::MELS;
use ambitus_models::f5::draw;
use ambitus_models::{Capacity, clip_key};
use std::ops::Range;
use std::path::Path;

/// F5-TTS's sway sampling coefficient (arXiv 2410.06885, section 3.3): steps are denser near noise.
const SWAY: f32 = -1.0;

/// The middle half of a clip is masked and generated; values are mel frames `[N, M]`.
pub struct Middle;

impl Sampler for Middle {
    fn columns(&self) -> usize {
        MELS
    }

    fn generated(&self, rows: usize) -> Range<usize> {
        rows / 4..rows - rows / 4
    }

    fn load(&self, clip: &Path, rows: usize) -> Result<Held, DataError> {
        let mut clip = load_clip(clip)?;
        clip.mel.truncate(rows * MELS);
        Ok(Held { values: clip.mel, text: clip.ids.iter().map(|id| *id as i32).collect() })
    }

    fn sample(
        &self,
        exec: &mut dyn Executor,
        program: &str,
        capacity: Capacity,
        held: &Held,
        settings: Settings,
    ) -> Result<Vec<f32>, RunError> {
        let rows = held.values.len() / MELS;
        let mut noise = vec![0.0; held.values.len()];
        draw::noise(clip_key(settings.seed, 0, 0), &mut noise);
        let given =
            Given { mel: &held.values, text: &held.text, generated: self.generated(rows), noise: &noise };
        let flow = Flow { steps: settings.steps as usize, cfg: settings.cfg, sway: SWAY };
        flow::integrate(exec, (program, capacity), &given, flow)
    }

    fn write_sound(&self, path: &Path, values: &[f32], seed: u64) -> Result<(), DataError> {
        let mut sound = GriffinLim::new(values, GRIFFIN_LIM_ROUNDS, seed);
        wav::write_wav_pieces(path, mel::SAMPLE_RATE, || Ok(sound.next_piece().map(<[f32]>::to_vec)))
    }
}
