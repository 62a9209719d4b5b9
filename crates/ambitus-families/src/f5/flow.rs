//! Integrates the learned flow from noise to mel frames, as the package's `CFM.sample` does (f5-tts 1.1.22): Euler steps on a swayed
//! grid, with guidance.

use crate::batches::{has_input, write_batch};
use crate::error::RunError;
use crate::generate::Flow;
use ambitus_exec::executor::Executor;
use ambitus_models::f5::batch::{self, Clip};
use ambitus_models::f5::config::MELS;
use ambitus_models::f5::draw::Draw;
use ambitus_models::{Batch, Capacity};
use std::f32::consts::FRAC_PI_2;
use std::ops::Range;

/// A clip of which some frames are given.
pub(super) struct Given<'a> {
    /// Frames `[N, M]`; what `generated` covers is not read.
    pub mel: &'a [f32],
    /// Text ids, -1 for filler.
    pub text: &'a [i32],
    /// The frames that are generated.
    pub generated: Range<usize>,
    /// Noise `[N, M]`.
    pub noise: &'a [f32],
}

/// The package's short grids, in 1/32 (`get_epss_timesteps`).
fn short_grid(steps: usize) -> Option<&'static [u8]> {
    Some(match steps {
        5 => &[0, 2, 4, 8, 16, 32],
        6 => &[0, 2, 4, 6, 8, 16, 32],
        7 => &[0, 2, 4, 6, 8, 16, 24, 32],
        10 => &[0, 2, 4, 6, 8, 12, 16, 20, 24, 28, 32],
        12 => &[0, 2, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32],
        16 => &[0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32],
        _ => return None,
    })
}

/// Returns the times of all steps, from 0 to 1: even ones or a short grid, then t + sway * (cos(pi / 2 t) - 1 + t).
fn grid(flow: Flow) -> Vec<f32> {
    let even = |i: usize| i as f32 / flow.steps as f32;
    let at: Vec<f32> = match short_grid(flow.steps) {
        Some(short) => short.iter().map(|n| f32::from(*n) / 32.0).collect(),
        None => (0..=flow.steps).map(even).collect(),
    };
    at.into_iter().map(|t| t + flow.sway * ((FRAC_PI_2 * t).cos() - 1.0 + t)).collect()
}

/// Returns the clips of a step of `program`: with the conditions, and with guidance also without.
pub(super) fn clips(flow: Flow) -> usize {
    // The package's threshold.
    if flow.cfg < 1e-5 { 1 } else { 2 }
}

/// Generates frames with `program`, a sampling program of `capacity`: mel `[N, M]` with the given frames as they were.
///
/// # Errors
/// From the executor.
pub(super) fn integrate(
    exec: &mut dyn Executor,
    (program, capacity): (&str, Capacity),
    given: &Given<'_>,
    flow: Flow,
) -> Result<Vec<f32>, RunError> {
    let Range { start: from, end: to } = given.generated;
    let (mut x, guided) = (given.noise.to_vec(), clips(flow) == 2);
    let wide = capacity.rows * MELS;
    let (mut host, mut velocity) = (Batch::new(&batch::layout(capacity)), vec![0.0; wide]);
    let (mut xs, mut conds) = (vec![0.0; wide], vec![0.0; wide]);
    // Those of the clip without conditions stay zero.
    conds[..x.len()].copy_from_slice(given.mel);
    conds[from * MELS..to * MELS].fill(0.0);
    for times in grid(flow).windows(2) {
        let clip = |drop: bool| {
            let draw =
                Draw { time: times[0], span: (from, to), drop_audio: drop, drop_text: drop, key: [0, 0] };
            Clip { mel: given.mel, text: given.text, draw, noise: Some(given.mel), span: None }
        };
        let both = [clip(false), clip(true)];
        batch::fill(&mut host, &both[..clips(flow)]);
        xs[..x.len()].copy_from_slice(&x);
        if guided {
            xs[x.len()..2 * x.len()].copy_from_slice(&x);
        }
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
        let step = times[1] - times[0];
        match guided {
            true => x
                .iter_mut()
                .zip(with.iter().zip(without))
                .for_each(|(x, (v, u))| *x += step * (v + flow.cfg * (v - u))),
            false => x.iter_mut().zip(with).for_each(|(x, v)| *x += step * v),
        }
    }
    for at in [0..from * MELS, to * MELS..x.len()] {
        x[at.clone()].copy_from_slice(&given.mel[at]);
    }
    Ok(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded from the package: 32 steps, sway -1.
    #[test]
    fn grids_are_the_packages() {
        let flow = Flow { steps: 32, cfg: 2.0, sway: -1.0 };
        let t = grid(flow);
        for (i, want) in
            [(1, 0.001_204_550_3), (2, 0.004_815_280_4), (16, 0.292_893_23), (31, 0.950_932_3), (32, 1.0)]
        {
            assert!((t[i] - want).abs() < 1e-6, "{i}: {}", t[i]);
        }
        for steps in [5, 6, 7, 10, 12, 16] {
            let t = grid(Flow { steps, sway: 0.0, ..flow });
            assert_eq!((t.len(), t[0], t[steps]), (steps + 1, 0.0, 1.0));
            assert!(t.windows(2).all(|w| w[0] < w[1]));
        }
        assert_eq!(grid(Flow { steps: 4, sway: 0.0, ..flow }), [0.0, 0.25, 0.5, 0.75, 1.0]);
    }
}
