//! The validation loss: held-out clips, the same draws every time.

use crate::error::RunError;
use crate::gradients::run_micro;
use crate::loader::Source;
use ambitus_data::load_clip;
use ambitus_data::pack::{Capacity, pack};
use ambitus_exec::executor::Executor;
use ambitus_models::f5::batch::{self, Batch, Clip};
use ambitus_models::f5::draw::{self, Draw};
use ambitus_models::f5::model;

/// Draws per clip: enough that a small set of clips gives a steady number.
const DRAWS: u64 = 4;
/// Epoch of validation draws: none that training reaches.
const EPOCH: u64 = u64::MAX;

/// The clips and their fixed draws.
pub struct Validation {
    clips: Vec<Source>,
    capacity: model::Capacity,
    draws: Vec<(usize, Draw)>,
    groups: Vec<Vec<usize>>,
    norm: f32,
}

impl Validation {
    /// Fixes the draws. Conditions are never dropped; flow times are spread evenly over 0..1 for each clip.
    ///
    /// # Errors
    /// A clip longer than the capacity.
    pub fn new(clips: Vec<Source>, capacity: model::Capacity, seed: u64) -> Result<Validation, RunError> {
        let mut draws = Vec::new();
        for (i, clip) in clips.iter().enumerate() {
            for round in 0..DRAWS {
                let key = draw::clip_key(seed, EPOCH - round, clip.sample);
                let mut d = draw::draw(key, clip.frames as usize);
                d.time = (round as f32 + d.time) / DRAWS as f32;
                d.drop_audio = false;
                d.drop_text = false;
                draws.push((i, d));
            }
        }
        let lengths: Vec<u32> = draws.iter().map(|(i, _)| clips[*i].frames).collect();
        let most = Capacity { frames: capacity.frames as u32, clips: capacity.clips };
        let groups = pack(&lengths, most)?;
        let norm = batch::norm(draws.iter().map(|(_, d)| d.span.1 - d.span.0).sum());
        Ok(Validation { clips, capacity, draws, groups, norm })
    }

    /// True when no clip was held out.
    pub fn is_empty(&self) -> bool {
        self.clips.is_empty()
    }

    /// The loss of `program` (an evaluation program) over all draws.
    ///
    /// # Errors
    /// Damaged clip files.
    pub fn loss(&self, exec: &mut dyn Executor, program: &str) -> Result<f64, RunError> {
        let mut host = Batch::new(self.capacity);
        let mut sum = 0.0;
        for group in &self.groups {
            let loaded = group
                .iter()
                .map(|&k| {
                    let clip = load_clip(&self.clips[self.draws[k].0].path)?;
                    let text = clip.ids.iter().map(|id| *id as i32).collect::<Vec<_>>();
                    Ok((k, clip.mel, text))
                })
                .collect::<Result<Vec<_>, RunError>>()?;
            let clips: Vec<Clip<'_>> = loaded
                .iter()
                .map(|(k, mel, text)| Clip { mel, text, draw: self.draws[*k].1, noise: None, span: None })
                .collect();
            host.fill(&clips);
            sum += f64::from(run_micro(exec, program, &host, self.norm, false)?);
        }
        Ok(sum)
    }
}
