//! A voice and its discriminators as programs, in the project's tensor names. S clips, F packed frames, U packed phonemes, H channels.
//!
//! The generator's step makes a slice of each clip from its spectrogram and its text; the discriminators' step judges that slice beside
//! the recorded one. A slot of no clip holds zeros, and is counted nowhere.

mod durations;
mod frames;
pub mod infer;
mod layers;
mod sound;
mod text;

use super::config::{Config, DURATION_DROPOUT};
use crate::batch::Capacity;
use ambitus_ir::ops::elementwise::UnaryKind;
use ambitus_ir::ops::reduce::ReduceKind;
use ambitus_ir::ops::segment::SegmentSum;
use ambitus_ir::{Builder, DType, Program, Session, TensorType, ValueId};
use layers::{Runs, absolute, times, total};
use sound::{Tables, judge};
use text::Text;

/// The generator's samples of all slices: an output of its step, an input of the discriminators'.
const WAVE: &str = "wave";
/// The phoneme of each frame.
pub(super) const PATH: &str = "path";

/// Rows of several clips end to end.
#[derive(Clone, Copy, Debug)]
struct Packed {
    /// How many there is room for.
    count: usize,
    /// Their segments i32 `[S+1]`.
    table: ValueId,
}

/// In which direction a flow is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// As in training: from what was recorded to what is simple.
    There,
    /// The inverse.
    Back,
}

/// Dropout: its probability, and random keys i32 `[S, 2]`.
#[derive(Clone, Copy, Debug)]
struct Drops(Option<(f32, ValueId)>);

impl Drops {
    const NONE: Drops = Drops(None);

    fn of(self, b: &mut Builder<'_>, x: ValueId, rows: Packed) -> ValueId {
        match self.0 {
            Some((p, keys)) => b.dropout(x, p, keys, rows.table),
            None => x,
        }
    }
}

/// Builds the generator's step (see `batch` for the inputs): outputs `loss`, its parts [`super::REPORTED`] `[1]`, the samples `wave`
/// `[S * slice, 1]` and `path` f32 `[F]`, the phoneme of each frame, counted from its text's first. With `train`, dropout is applied.
pub fn generator(session: &mut Session, cfg: &Config, cap: Capacity, name: &str, train: bool) -> Program {
    let mut builder = Builder::new(session, name);
    let b = &mut builder;
    let packed = |b: &mut Builder<'_>, name: &str, count| {
        let table = b.input(name, TensorType::i32(&[cap.clips + 1]));
        Packed { count, table }
    };
    let (frames, text) =
        (packed(b, "segments", cap.rows), packed(b, "text_segments", cap.clips * cfg.context));
    let spec = b.input("spec", TensorType::f32(&[cap.rows, cfg.spectra.bins()]));
    let [drops, duration_drops] = [cfg.dropout, DURATION_DROPOUT].map(|p| {
        let some = train && cfg.dropout > 0.0;
        Drops(some.then(|| (p, b.input("keys", TensorType::i32(&[cap.clips, 2])))))
    });
    let slices = Slices::of(b, cfg, cap.clips);
    let at = b.input("slice_rows", TensorType::i32(&[cap.clips * cfg.segment]));
    let (parts, wave, path) = b.scope("model_g", |b| {
        let voice = voice(b, cfg, cap.clips);
        let said = text::encode(b, cfg, text, drops);
        let seen = frames::encode(b, cfg, frames, spec, voice);
        let latent = frames::flow(b, cfg, frames, seen.latent, voice, Way::There);
        let path = aligned(b, latent, &said, frames, text);
        let one = b.fill(TensorType::f32(&[cap.rows, 1]), 1.0);
        let lasting = b.scatter_add(one, path, text.count);
        let dur = durations::loss(b, cfg, text, duration_drops, [said.states, lasting], voice);
        let kl = divergence(b, [latent, seen.logs, said.mean, said.logs], path, frames);
        let slice = b.gather(seen.latent, at);
        let runs = Runs::of(cap.clips, cfg.segment);
        let wave = sound::generate(b, cfg, runs, slice, voice);
        let path = within(b, path, frames, text);
        ([kl, dur], slices.kept(b, wave), path)
    });
    let [kl, dur] = parts;
    let real = b.gather(spec, at);
    let mel = slices.apart(b, cfg, real, wave);
    let [fm, adv] = b.scope("model_d", |b| slices.judged(b, cfg, wave));
    let [clips, rows, phonemes] = super::batch::NORMS.map(|name| b.input(name, TensorType::f32(&[1])));
    let mel = times(b, mel, cfg.mel_weight);
    let kl = times(b, kl, cfg.kl_weight);
    let parts = [(mel, clips), (kl, rows), (dur, phonemes), (fm, clips), (adv, clips)]
        .map(|(sum, norm)| b.scale(sum, norm));
    let loss = parts.into_iter().reduce(|sum, part| b.add(sum, part)).expect("there are parts");
    b.output("loss", loss);
    for (name, part) in super::REPORTED.iter().zip(parts) {
        b.output(name, part);
    }
    b.output(WAVE, wave);
    b.output(PATH, path);
    builder.finish()
}

/// Builds the discriminators' step: the generator's samples and the recorded ones; output `loss` `[1]`.
pub fn discriminators(session: &mut Session, cfg: &Config, cap: Capacity, name: &str) -> Program {
    let mut builder = Builder::new(session, name);
    let b = &mut builder;
    let slices = Slices::of(b, cfg, cap.clips);
    let wave = b.input(WAVE, TensorType::f32(&[cap.clips * cfg.slice(), 1]));
    let loss = b.scope("model_d", |b| slices.told_apart(b, cfg, wave));
    let norm = b.input(super::batch::NORMS[0], TensorType::f32(&[1]));
    let loss = b.scale(loss, norm);
    b.output("loss", loss);
    builder.finish()
}

/// Returns the vectors of those who speak, f32 `[S, V]`, by the input `speakers` i32 `[S]`; `None` of a model of one speaker.
fn voice(b: &mut Builder<'_>, cfg: &Config, clips: usize) -> Option<ValueId> {
    (cfg.speakers > 1).then(|| {
        let who = b.input("speakers", TensorType::i32(&[clips]));
        let table = b.scope("emb_g", |b| b.parameter("weight", &[cfg.speakers, cfg.speaker]));
        b.gather(table, who)
    })
}

/// Returns the text row of each frame, i32 `[F]`: of all ways to go through the clip's text, the one under which its frames are most likely.
fn aligned(b: &mut Builder<'_>, latent: ValueId, said: &Text, frames: Packed, text: Packed) -> ValueId {
    let less = b.unary(UnaryKind::Neg, said.logs);
    let inverse = b.unary(UnaryKind::Exp, less);
    let base = b.reduce(ReduceKind::Sum, less, 1);
    let base = b.reshape(base, &[text.count]);
    b.monotonic_path(latent, [said.mean, inverse, base], frames.table, text.table)
}

/// Returns rows of all texts as rows of the frame's own, f32 `[F]`.
fn within(b: &mut Builder<'_>, path: ValueId, frames: Packed, text: Packed) -> ValueId {
    let clips = b.dim(text.table, 0) - 1;
    let starts = b.slice(text.table, 0, 0, clips);
    let starts = b.cast(starts, DType::F32);
    let starts = b.reshape(starts, &[clips, 1]);
    let starts = b.segment_broadcast(starts, frames.table, frames.count);
    let starts = b.reshape(starts, &[frames.count]);
    let path = b.cast(path, DType::F32);
    b.sub(path, starts)
}

/// Returns the divergence of the frames' latents from their phonemes' distribution, summed, f32 `[1]`:
/// logs_p - logs_q - 1/2 + (z - m)^2 e^(-2 logs_p) / 2.
fn divergence(
    b: &mut Builder<'_>,
    [latent, spread, mean, logs]: [ValueId; 4],
    path: ValueId,
    frames: Packed,
) -> ValueId {
    let [mean, logs] = [mean, logs].map(|of| b.gather(of, path));
    let less = b.unary(UnaryKind::Neg, logs);
    let inverse = b.unary(UnaryKind::Exp, less);
    let apart = b.sub(latent, mean);
    let apart = b.mul(apart, inverse);
    let apart = b.mul(apart, apart);
    let half = b.fill_like(apart, 1.0);
    let apart = b.sub(apart, half);
    let apart = times(b, apart, 0.5);
    let wider = b.sub(logs, spread);
    let each = b.add(wider, apart);
    let each = b.reduce(ReduceKind::Sum, each, 1);
    let by_clip = b.push1(SegmentSum {}, &[each, frames.table]);
    total(b, by_clip)
}

/// The slices of a micro-batch.
struct Slices {
    /// Their samples.
    runs: Runs,
    /// f32 `[S, 1]`: 1 for a clip, 0 where there is none.
    present: ValueId,
    /// The recorded samples `[S * slice, 1]`.
    real: ValueId,
}

impl Slices {
    fn of(b: &mut Builder<'_>, cfg: &Config, clips: usize) -> Slices {
        let runs = Runs::of(clips, cfg.slice());
        let present = b.input("present", TensorType::f32(&[clips, 1]));
        let real = b.input("real", TensorType::f32(&[runs.rows(), 1]));
        Slices { runs, present, real }
    }

    /// Returns 1 for rows of clips, f32 `[rows]`, of any number of rows a slice.
    fn mask(&self, b: &mut Builder<'_>, rows: usize) -> ValueId {
        let all = b.broadcast(self.present, &[self.runs.count, rows / self.runs.count]);
        b.reshape(all, &[rows])
    }

    /// Returns x with zeros where there is no clip.
    fn kept(&self, b: &mut Builder<'_>, x: ValueId) -> ValueId {
        let rows = b.dim(x, 0);
        let mask = self.mask(b, rows);
        b.scale_rows(x, mask)
    }

    /// Returns the sum over clips of the mean distance of the mels of spectrogram frames `[S * segment, bins]` and of samples, `[1]`.
    fn apart(&self, b: &mut Builder<'_>, cfg: &Config, spec: ValueId, wave: ValueId) -> ValueId {
        let tables = Tables::of(b, cfg);
        let real = tables.mel(b, spec);
        let made = tables.spectrogram(b, cfg, self.runs, wave);
        let made = tables.mel(b, made);
        let apart = b.sub(real, made);
        let apart = absolute(b, apart);
        let apart = self.kept(b, apart);
        self.mean(b, apart)
    }

    /// Returns the sum of x `[R, C]` over what one clip has of it, `[1]`: over clips, the mean.
    fn mean(&self, b: &mut Builder<'_>, x: ValueId) -> ValueId {
        let of_clip = b.ty(x).shape.elements() / self.runs.count;
        let sum = total(b, x);
        times(b, sum, 1.0 / of_clip as f32)
    }

    /// Returns the sums over clips, `[1]`: how far what the discriminators make of the samples is from what they make of the recorded
    /// ones (arXiv 1910.06711), twice the mean of each layer; and how far their verdicts are from one (arXiv 1611.04076).
    fn judged(&self, b: &mut Builder<'_>, cfg: &Config, wave: ValueId) -> [ValueId; 2] {
        let mut sums: [Option<ValueId>; 2] = [None, None];
        for i in 0..cfg.judges.len() {
            let real = judge(b, cfg, i, self.runs, self.real);
            let made = judge(b, cfg, i, self.runs, wave);
            let mut add = |b: &mut Builder<'_>, to: usize, more: ValueId| {
                sums[to] = Some(sums[to].map_or(more, |sum| b.add(sum, more)));
            };
            for (real, made) in real.iter().zip(&made) {
                let apart = b.sub(*real, *made);
                let apart = absolute(b, apart);
                let mean = self.mean(b, apart);
                let mean = times(b, mean, 2.0);
                add(b, 0, mean);
            }
            let off = self.off(b, &made, true);
            add(b, 1, off);
        }
        sums.map(|sum| sum.expect("there are discriminators"))
    }

    /// Returns the sum over clips of the mean square of how far verdicts are from one, or from zero, `[1]`.
    fn off(&self, b: &mut Builder<'_>, judged: &[ValueId], real: bool) -> ValueId {
        let verdict = *judged.last().expect("there is a verdict");
        let rows = b.dim(verdict, 0);
        let mask = self.mask(b, rows);
        let mut off = b.scale_rows(verdict, mask);
        if real {
            let one = b.reshape(mask, &[rows, 1]);
            off = b.sub(one, off);
        }
        let squares = b.mul(off, off);
        self.mean(b, squares)
    }

    /// Returns how far the discriminators' verdicts are from one of the recorded samples, and from zero of the generator's, `[1]`.
    fn told_apart(&self, b: &mut Builder<'_>, cfg: &Config, wave: ValueId) -> ValueId {
        let mut sum: Option<ValueId> = None;
        for i in 0..cfg.judges.len() {
            for (samples, real) in [(self.real, true), (wave, false)] {
                let judged = judge(b, cfg, i, self.runs, samples);
                let off = self.off(b, &judged, real);
                sum = Some(sum.map_or(off, |sum| b.add(sum, off)));
            }
        }
        sum.expect("there are discriminators")
    }
}
