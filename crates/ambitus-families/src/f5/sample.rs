//! Fills the masked middle of a clip by integrating the learned flow.

use crate::batches::{has_input, write_batch};
use crate::error::RunError;
use crate::sample::{Held, Sampler, Settings};
use ambitus_data::griffin_lim::GriffinLim;
use ambitus_data::{DataError, load_clip, mel, wav};
use ambitus_exec::executor::Executor;
use ambitus_models::f5::batch::{self, Clip};
use ambitus_models::f5::config::MELS;
use ambitus_models::f5::draw::{self, Draw};
use ambitus_models::{Batch, Capacity};
use std::ops::Range;
use std::path::Path;

/// Griffin-Lim rounds: enough for a speaker to be known by.
const ROUNDS: usize = 48;
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
        inpaint(self, exec, (program, capacity), held, settings)
    }

    fn write_sound(&self, path: &Path, values: &[f32], seed: u64) -> Result<(), DataError> {
        let mut sound = GriffinLim::new(values, ROUNDS, seed);
        wav::write_wav_pieces(path, mel::SAMPLE_RATE, || Ok(sound.next_piece().map(<[f32]>::to_vec)))
    }
}

/// Generates the middle of a clip with `program` (a sampling program of at least two clips of `frames`): mel `[N, M]` with
/// the known frames as they were.
///
/// # Errors
/// From the executor.
fn inpaint(
    sampler: &Middle,
    exec: &mut dyn Executor,
    (program, capacity): (&str, Capacity),
    held: &Held,
    settings: Settings,
) -> Result<Vec<f32>, RunError> {
    let (mel, text) = (held.values.as_slice(), held.text.as_slice());
    let frames = mel.len() / MELS;
    let Range { start: from, end: to } = sampler.generated(frames);
    let mut cond = mel.to_vec();
    cond[from * MELS..to * MELS].fill(0.0);
    let mut x = vec![0.0; mel.len()];
    draw::noise(draw::clip_key(settings.seed, 0, 0), &mut x);

    // Two clips in one pass: with the conditions and without.
    let wide = capacity.rows * MELS;
    let (mut host, mut velocity) = (Batch::new(&batch::layout(capacity)), vec![0.0; wide]);
    let (mut xs, mut conds) = (vec![0.0; wide], vec![0.0; wide]);
    conds[..cond.len()].copy_from_slice(&cond);
    let at = |i: u32| {
        let t = i as f32 / settings.steps as f32;
        t + SWAY * ((std::f32::consts::FRAC_PI_2 * t).cos() - 1.0 + t)
    };
    for step in 0..settings.steps {
        let (t, next) = (at(step), at(step + 1));
        let given =
            |drop: bool| Draw { time: t, span: (from, to), drop_audio: drop, drop_text: drop, key: [0, 0] };
        let clip = |drop| Clip { mel, text, draw: given(drop), noise: Some(mel), span: None };
        batch::fill(&mut host, &[clip(false), clip(true)]);
        xs[..x.len()].copy_from_slice(&x);
        xs[x.len()..2 * x.len()].copy_from_slice(&x);
        write_batch(exec, program, &host)?;
        // A rank with a part of the model has the inputs of that part.
        for (input, data) in [("x", &xs), ("cond", &conds)] {
            if has_input(exec.planned(), program, input) {
                exec.write_f32(program, input, 0, data)?;
            }
        }
        exec.run(program, 0)?;
        exec.read_f32(program, "velocity", 0, &mut velocity)?;
        let (with, without) = velocity.split_at(x.len());
        for ((x, v), u) in x.iter_mut().zip(with).zip(without) {
            *x += (next - t) * (v + settings.cfg * (v - u));
        }
    }
    for i in (0..from).chain(to..frames) {
        x[i * MELS..(i + 1) * MELS].copy_from_slice(&mel[i * MELS..(i + 1) * MELS]);
    }
    Ok(x)
}
