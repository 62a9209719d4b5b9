//! Speaking as two programs: what a text's frames are and how many each phoneme has, and samples of a window of frames. Between them the host
//! repeats rows and adds noise ([`crate::piper::speak`]). Nothing is dropped.

use super::layers::Runs;
use super::{Drops, Packed, Way, durations, frames, sound, text, voice};
use crate::piper::config::Config;
use ambitus_ir::ops::elementwise::UnaryKind;
use ambitus_ir::{Builder, Program, Session, TensorType};

/// Builds the program that reads a text of up to `phonemes` phonemes, U: inputs `phonemes` i32 `[U]` (-1: none), `text_segments` i32 `[2]`,
/// of several speakers `speakers` i32 `[1]`, and where durations are a flow its noise `duration_noise` f32 `[U, 2]`. Outputs: of a
/// phoneme's frames `mean` and `spread` f32 `[U, inter]`, and `lasting` f32 `[U, 1]`, how many there are before they are whole.
pub fn read(session: &mut Session, cfg: &Config, phonemes: usize, name: &str) -> Program {
    let mut builder = Builder::new(session, name);
    let b = &mut builder;
    let packed = Packed { count: phonemes, table: b.input("text_segments", TensorType::i32(&[2])) };
    let (said, spread, lasting) = b.scope("model_g", |b| {
        let voice = voice(b, cfg, 1);
        let said = text::encode(b, cfg, packed, Drops::NONE);
        let spread = b.unary(UnaryKind::Exp, said.logs);
        let logs = durations::predicted(b, cfg, packed, said.states, voice);
        (said, spread, b.unary(UnaryKind::Exp, logs))
    });
    b.output("mean", said.mean);
    b.output("spread", spread);
    b.output("lasting", lasting);
    builder.finish()
}

/// Builds the program that makes samples of a window of F frames: inputs `prior` f32 `[F, inter]`, what the text says of them with noise,
/// of several speakers `speakers` i32 `[1]`, and the tables of [`tables`](crate::common::codec::rows::tables), by which the first frames
/// hold sound; output `wave` f32 `[F * hop, 1]`. Samples less than [`Config::reach`] frames from an end of the window are those of a sound
/// that ends there.
pub fn sound(session: &mut Session, cfg: &Config, frames: usize, name: &str) -> Program {
    let mut builder = Builder::new(session, name);
    let b = &mut builder;
    let prior = b.input("prior", TensorType::f32(&[frames, cfg.inter]));
    let wave = b.scope("model_g", |b| {
        let voice = voice(b, cfg, 1);
        let runs = Runs::window(frames, cfg.spectra.hop);
        let packed = Packed { count: frames, table: runs.table(b) };
        let latent = frames::flow(b, cfg, packed, prior, voice, Way::Back);
        sound::generate(b, cfg, runs, latent, voice)
    });
    b.output("wave", wave);
    builder.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Capacity;
    use crate::model::Model;
    use crate::piper::config::{Durations, Gated};
    use ambitus_ir::ValueId;
    use ambitus_testkit::{Interp, Rng, Rounding, Tensor};
    use std::collections::HashMap;

    /// How far a flow and its inverse may be from where they began, of the largest number: in f64, and in f32.
    const BACK: [f64; 2] = [1e-9, 1e-4];
    /// Size of the splines' logits beside that of other layers' results.
    const STEEP: f64 = 0.5;
    /// Of even numbers around 0 with a variance of one.
    const SPREAD: f64 = 1.732;
    /// Rows of two sequences.
    const ROWS: usize = 11;

    fn small(speakers: usize) -> Config {
        Config {
            hidden: 8,
            inter: 6,
            speakers,
            speaker: 4,
            coupling: Gated { layers: 4, taps: 5 },
            durations: Durations::Stochastic { taps: 3 },
            ..Config::medium()
        }
    }

    /// Builds a program, runs it on random numbers, in f64 and in f32, and returns the largest differences of its outputs `x` and `back`.
    fn apart(build: impl Fn(&mut Builder<'_>, &Config), speakers: usize) -> [f64; 2] {
        let cfg = small(speakers);
        let mut session = Session::default();
        let mut builder = Builder::new(&mut session, "there_and_back");
        build(&mut builder, &cfg);
        let p = builder.finish();
        ambitus_ir::verify::verify(&session, &p).unwrap();
        let mut rng = Rng::new(7);
        let mut states = HashMap::new();
        for s in &session.states {
            let fan_in = s.ty.shape.iter().skip(1).product::<usize>().max(1) as f64;
            // Steep splines are ill-conditioned: one undoes what rounding makes of the one before.
            let flat = if s.name.contains("flows") && s.name.contains(".proj.") { STEEP } else { 1.0 };
            let size = flat * SPREAD * fan_in.powf(-0.5);
            states.insert(s.name.clone(), rng.tensor(s.ty, -size, size));
        }
        let mut inputs = HashMap::new();
        for input in &p.inputs {
            let ty = p.ty(input.value);
            let value = match &*input.name {
                "rows" => Tensor::i32(&[0, 4, ROWS as i32]),
                "speakers" => Tensor::i32(&[1, 0]),
                _ => rng.tensor(ty, -SPREAD, SPREAD),
            };
            inputs.insert(input.name.clone(), value);
        }
        [Rounding::Exact, Rounding::ToType].map(|rounding| {
            let out = Interp::new(rounding).run(&session, &p, &inputs, &mut states).unwrap();
            let (x, back) = (&out["x"].data, &out["back"].data);
            let largest = x.iter().fold(0.0f64, |m, x| m.max(x.abs()));
            assert!(out["there"].data.iter().zip(x).any(|(a, b)| (a - b).abs() > 0.1 * largest));
            x.iter().zip(back).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max) / largest
        })
    }

    fn rows(b: &mut Builder<'_>) -> Packed {
        Packed { count: ROWS, table: b.input("rows", TensorType::i32(&[3])) }
    }

    fn outputs(b: &mut Builder<'_>, values: [ValueId; 3]) {
        for (name, value) in ["x", "there", "back"].into_iter().zip(values) {
            b.output(name, value);
        }
    }

    #[test]
    fn frames_come_back_through_their_flow() {
        for speakers in [1, 3] {
            let off = apart(
                |b, cfg| {
                    let packed = rows(b);
                    let voice = voice(b, cfg, 2);
                    let x = b.input("given", TensorType::f32(&[ROWS, cfg.inter]));
                    let there = frames::flow(b, cfg, packed, x, voice, Way::There);
                    let back = frames::flow(b, cfg, packed, there, voice, Way::Back);
                    outputs(b, [x, there, back]);
                },
                speakers,
            );
            assert!(off[0] <= BACK[0] && off[1] <= BACK[1], "{speakers} speakers: {off:?}");
        }
    }

    #[test]
    fn durations_come_back_through_their_flow() {
        let off = apart(
            |b, cfg| {
                let packed = rows(b);
                let x = b.input("given", TensorType::f32(&[ROWS, 2]));
                let seen = b.input("seen", TensorType::f32(&[ROWS, cfg.hidden]));
                let [there, back] = durations::there_and_back(b, 3, packed, x, seen);
                outputs(b, [x, there, back]);
            },
            1,
        );
        assert!(off[0] <= BACK[0] && off[1] <= BACK[1], "{off:?}");
    }

    /// Training declares every parameter that speaking reads.
    #[test]
    fn parameters_are_those_of_training() {
        let plain = Config { durations: Durations::Plain { width: 8, taps: 3 }, ..small(1) };
        for cfg in [small(1), small(3), plain] {
            let mut session = Session::default();
            cfg.loss(&mut session, 0, Capacity { rows: 64, clips: 2 }, "micro", true);
            let before = session.states.len();
            for p in [read(&mut session, &cfg, 9, "read"), sound(&mut session, &cfg, 24, "sound")] {
                ambitus_ir::verify::verify(&session, &p).unwrap();
            }
            assert_eq!(session.states.len(), before);
        }
    }
}
