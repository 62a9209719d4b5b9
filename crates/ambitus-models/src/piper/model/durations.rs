//! How likely the durations of phonemes are: a flow of splines with a variational posterior, or a plain prediction (VITS, section 2.2.2).
//! Packed are phonemes of packed texts, U of them.

use super::layers::{absolute, conv, depthwise, layer_norm, sigmoid, times, total};
use super::{Drops, Packed, Way};
use crate::common::codec::layers::leaky;
use crate::common::pointwise;
use crate::piper::config::{BINS, BOUND, Config, Durations, SPLINE_LAYERS, SPLINES};
use ambitus_ir::ops::activation::ActivationKind;
use ambitus_ir::ops::elementwise::{BinaryKind, UnaryKind};
use ambitus_ir::ops::reduce::ReduceKind;
use ambitus_ir::ops::segment::SegmentSum;
use ambitus_ir::ops::spline::RationalSpline;

use ambitus_ir::{Builder, TensorType, ValueId};

/// Below which the logarithm of a duration is not taken.
const LEAST: f32 = 1e-5;
/// What a plain prediction adds to a duration before its logarithm.
const MORE: f32 = 1e-6;

/// Returns the sum over all phonemes of the bound on a duration's negative log-likelihood, or of the squared error of its logarithm, f32
/// `[1]`: of states `[U, H]`, which get no gradient, and durations `[U, 1]` in frames; a voice is `[S, V]`.
pub fn loss(
    b: &mut Builder<'_>,
    cfg: &Config,
    text: Packed,
    drops: Drops,
    [states, durations]: [ValueId; 2],
    voice: Option<ValueId>,
) -> ValueId {
    let states = b.detach(states);
    let voice = voice.map(|voice| b.detach(voice));
    b.scope("dp", |b| {
        let each = match cfg.durations {
            Durations::Stochastic { taps } => stochastic(b, taps, text, drops, [states, durations], voice),
            Durations::Plain { width, taps } => {
                let said = plain(b, [width, taps], text, drops, states, voice);
                let more = b.fill_like(durations, MORE);
                let true_ones = b.add(durations, more);
                let true_ones = b.unary(UnaryKind::Log, true_ones);
                let apart = b.sub(said, true_ones);
                b.mul(apart, apart)
            }
        };
        // Packed of no text are left out.
        let by_text = b.push1(SegmentSum {}, &[each, text.table]);
        total(b, by_text)
    })
}

/// Returns the logarithms of durations in frames, f32 `[U, 1]`, of states `[U, H]`: the predicted ones, or those that the flow makes of the
/// input `duration_noise` f32 `[U, 2]`. The flow's last step back, its first spline, is left out, as in the project: it moves what is not
/// read. A voice is `[S, V]`.
pub fn predicted(
    b: &mut Builder<'_>,
    cfg: &Config,
    text: Packed,
    states: ValueId,
    voice: Option<ValueId>,
) -> ValueId {
    b.scope("dp", |b| match cfg.durations {
        Durations::Plain { width, taps } => plain(b, [width, taps], text, Drops::NONE, states, voice),
        Durations::Stochastic { taps } => {
            let flow = Flow { taps, text };
            let seen = flow.seen(b, states, voice, Drops::NONE);
            let noise = b.input("duration_noise", TensorType::f32(&[text.count, 2]));
            let z = flow.back(b, "flows", noise, seen, 1);
            b.slice(z, 1, 0, 1)
        }
    })
}

/// Returns the predicted logarithms of durations, `[U, 1]`.
fn plain(
    b: &mut Builder<'_>,
    [width, taps]: [usize; 2],
    text: Packed,
    drops: Drops,
    states: ValueId,
    voice: Option<ValueId>,
) -> ValueId {
    let mut x = moved(b, states, voice, text);
    for i in 1..=2 {
        x = conv(b, &format!("conv_{i}"), x, [width, taps], taps / 2, text.table);
        x = leaky(b, x, 0.0);
        x = layer_norm(b, &format!("norm_{i}"), x);
        x = b.scope(&format!("norm_{i}"), |b| drops.of(b, x, text));
    }
    pointwise(b, "proj", x, 1)
}

/// Returns states with what a voice adds to them.
fn moved(b: &mut Builder<'_>, x: ValueId, voice: Option<ValueId>, text: Packed) -> ValueId {
    let Some(voice) = voice else { return x };
    let width = b.dim(x, 1);
    let by = pointwise(b, "cond", voice, width);
    let by = b.segment_broadcast(by, text.table, text.count);
    b.add(x, by)
}

/// Returns the bound of each phoneme, `[U, 1]`, with the input `duration_noise` f32 `[U, 2]`.
fn stochastic(
    b: &mut Builder<'_>,
    taps: usize,
    text: Packed,
    drops: Drops,
    [states, durations]: [ValueId; 2],
    voice: Option<ValueId>,
) -> ValueId {
    let width = b.dim(states, 1);
    let flow = Flow { taps, text };
    let x = flow.seen(b, states, voice, drops);
    let h = pointwise(b, "post_pre", durations, width);
    let h = b.scope("post_convs", |b| flow.convs(b, h, None, drops));
    let h = pointwise(b, "post_proj", h, width);
    let seen = b.add(x, h);
    let noise = b.input("duration_noise", TensorType::f32(&[text.count, 2]));
    let (drawn, gain) = flow.of(b, "post_flows", noise, seen);
    let [u, rest] = [0, 1].map(|i| b.slice(drawn, 1, i, 1));
    // log sigmoid(u) + log sigmoid(-u)
    let slope = both_logs(b, u);
    let gain = b.add(gain, slope);
    let part = sigmoid(b, u);
    let whole = b.sub(durations, part);
    let least = b.fill_like(whole, LEAST);
    let whole = b.binary(BinaryKind::Max, whole, least);
    let first = b.unary(UnaryKind::Log, whole);
    let gain = b.sub(gain, first);
    let z = b.concat(&[first, rest], 1);
    let (z, more) = flow.of(b, "flows", z, x);
    let gain = b.add(gain, more);
    // The normal distributions' constants cancel: two of the prior, two of the noise.
    let [prior, drawn] = [z, noise].map(|z| {
        let squares = b.mul(z, z);
        let squares = b.reduce(ReduceKind::Sum, squares, 1);
        times(b, squares, 0.5)
    });
    let bound = b.sub(prior, drawn);
    b.sub(bound, gain)
}

/// Returns log sigmoid(x) + log sigmoid(-x) = -|x| - 2 log(1 + e^-|x|).
fn both_logs(b: &mut Builder<'_>, x: ValueId) -> ValueId {
    let far = absolute(b, x);
    let near = b.unary(UnaryKind::Neg, far);
    let e = b.unary(UnaryKind::Exp, near);
    let one = b.fill_like(e, 1.0);
    let e = b.add(e, one);
    let log = b.unary(UnaryKind::Log, e);
    let log = times(b, log, 2.0);
    b.sub(near, log)
}

/// A flow over two numbers of each phoneme.
struct Flow {
    taps: usize,
    text: Packed,
}

impl Flow {
    /// Returns what splines see of states `[U, H]` and a voice, `[U, H]`.
    fn seen(&self, b: &mut Builder<'_>, states: ValueId, voice: Option<ValueId>, drops: Drops) -> ValueId {
        let width = b.dim(states, 1);
        let x = pointwise(b, "pre", states, width);
        let x = moved(b, x, voice, self.text);
        let x = b.scope("convs", |b| self.convs(b, x, None, drops));
        pointwise(b, "proj", x, width)
    }

    /// Applies the flow `name` to z `[U, 2]`, seen by `[U, H]`; returns it and the logarithm of its slope `[U, 1]`.
    fn of(&self, b: &mut Builder<'_>, name: &str, z: ValueId, seen: ValueId) -> (ValueId, ValueId) {
        b.scope(name, |b| {
            let (z, mut gain) = b.scope("0", |b| self.affine(b, z));
            let mut columns = [0, 1].map(|i| b.slice(z, 1, i, 1));
            for i in 0..SPLINES {
                let [kept, moved] = columns;
                let (moved, more) = self.spline(b, i, [kept, moved], seen, Way::There);
                gain = b.add(gain, more);
                // The project turns the two around behind each.
                columns = [moved, kept];
            }
            (b.concat(&columns, 1), gain)
        })
    }

    /// Applies the inverse of the flow `name` to z `[U, 2]`, without its splines before spline `first`.
    fn back(&self, b: &mut Builder<'_>, name: &str, z: ValueId, seen: ValueId, first: usize) -> ValueId {
        b.scope(name, |b| {
            let mut columns = [0, 1].map(|i| b.slice(z, 1, i, 1));
            for i in (0..SPLINES).rev() {
                let [mut moved, kept] = columns;
                if i >= first {
                    (moved, _) = self.spline(b, i, [kept, moved], seen, Way::Back);
                }
                columns = [kept, moved];
            }
            let z = b.concat(&columns, 1);
            b.scope("0", |b| {
                let [m, logs] = self.affinity(b);
                let less = b.unary(UnaryKind::Neg, logs);
                let by = b.unary(UnaryKind::Exp, less);
                let z = b.sub(z, m);
                b.mul(z, by)
            })
        })
    }

    /// Returns m and logs of the flow's first step, `[U, 2]` each.
    fn affinity(&self, b: &mut Builder<'_>) -> [ValueId; 2] {
        ["m", "logs"].map(|name| {
            let row = b.parameter(name, &[2, 1]);
            let row = b.reshape(row, &[1, 2]);
            b.broadcast(row, &[self.text.count, 2])
        })
    }

    /// Returns m + e^logs z, and the logarithm of its slope `[U, 1]`.
    fn affine(&self, b: &mut Builder<'_>, z: ValueId) -> (ValueId, ValueId) {
        let [m, logs] = self.affinity(b);
        let by = b.unary(UnaryKind::Exp, logs);
        let z = b.mul(by, z);
        let gain = b.reduce(ReduceKind::Sum, logs, 1);
        (b.add(m, z), gain)
    }

    /// Moves `moved` `[U, 1]` by spline i, which `kept` `[U, 1]` and `seen` `[U, H]` give; returns it and the logarithm of the slope.
    fn spline(
        &self,
        b: &mut Builder<'_>,
        i: usize,
        [kept, moved]: [ValueId; 2],
        seen: ValueId,
        way: Way,
    ) -> (ValueId, ValueId) {
        let (rows, width) = (self.text.count, b.dim(seen, 1));
        b.scope(&(2 * i + 1).to_string(), |b| {
            let h = pointwise(b, "pre", kept, width);
            let h = b.scope("convs", |b| self.convs(b, h, Some(seen), Drops::NONE));
            let h = pointwise(b, "proj", h, 3 * BINS - 1);
            let sizes = b.slice(h, 1, 0, 2 * BINS);
            let sizes = times(b, sizes, 1.0 / (width as f32).sqrt());
            let slopes = b.slice(h, 1, 2 * BINS, BINS - 1);
            let params = b.concat(&[sizes, slopes], 1);
            let x = b.reshape(moved, &[rows]);
            let spline = RationalSpline { bins: BINS, bound: BOUND, inverse: way == Way::Back };
            let [y, gain] = b.rational_spline(spline, x, params);
            (b.reshape(y, &[rows, 1]), b.reshape(gain, &[rows, 1]))
        })
    }

    /// Applies dilated convolutions, of each channel and then of all at a row, `[U, H]` to `[U, H]`.
    fn convs(&self, b: &mut Builder<'_>, x: ValueId, seen: Option<ValueId>, drops: Drops) -> ValueId {
        let width = b.dim(x, 1);
        let mut x = seen.map_or(x, |seen| b.add(x, seen));
        for i in 0..SPLINE_LAYERS {
            let dilation = self.taps.pow(i as u32);
            let mut y = depthwise(b, &format!("convs_sep.{i}"), x, self.taps, dilation, self.text.table);
            y = layer_norm(b, &format!("norms_1.{i}"), y);
            y = b.activation(ActivationKind::GeluErf, y);
            y = pointwise(b, &format!("convs_1x1.{i}"), y, width);
            y = layer_norm(b, &format!("norms_2.{i}"), y);
            y = b.activation(ActivationKind::GeluErf, y);
            y = b.scope(&format!("norms_2.{i}"), |b| drops.of(b, y, self.text));
            x = b.add(x, y);
        }
        x
    }
}

/// Returns z `[U, 2]` after the flow `flows`, and that after its inverse, seen by `[U, H]`.
#[cfg(test)]
pub fn there_and_back(
    b: &mut Builder<'_>,
    taps: usize,
    text: Packed,
    z: ValueId,
    seen: ValueId,
) -> [ValueId; 2] {
    let flow = Flow { taps, text };
    let (there, _) = flow.of(b, "flows", z, seen);
    [there, flow.back(b, "flows", there, seen, 0)]
}
