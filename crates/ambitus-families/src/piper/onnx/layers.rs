//! Layers of several nodes. B texts; rows are the last axis, `[B, C, R]`.

use super::graph::{Attr, Graph, Kind, Value};

/// Of norms.
const EPS: f32 = 1e-5;

/// A convolution over rows that keeps their number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Conv {
    /// Channels that it gives, channels of a group, taps.
    pub dims: [usize; 3],
    /// Rows between taps.
    pub dilation: usize,
    /// Groups of channels.
    pub groups: usize,
    /// Its weight is stored as lengths and directions.
    pub normed: bool,
    /// It has a bias.
    pub bias: bool,
}

impl Conv {
    /// Returns one without dilation and groups.
    pub fn of(out: usize, inner: usize, taps: usize) -> Conv {
        Conv { dims: [out, inner, taps], dilation: 1, groups: 1, normed: false, bias: true }
    }

    /// Adds the one of this name. Of an even number of taps the row is the one before the middle.
    pub fn add(self, g: &mut Graph, name: &str, x: Value) -> Value {
        let [out, _, taps] = self.dims;
        let beyond = (taps - 1) * self.dilation;
        g.scope(name, |g| {
            let weight = if self.normed { g.normed(&self.dims) } else { g.weight("weight", &self.dims) };
            let mut inputs = vec![x, weight];
            if self.bias {
                inputs.push(g.weight("bias", &[out]));
            }
            let attrs = [
                Attr::Ints("dilations", vec![self.dilation as i64]),
                Attr::Int("group", self.groups as i64),
                Attr::Ints("kernel_shape", vec![taps as i64]),
                Attr::Ints("pads", vec![(beyond / 2) as i64, (beyond - beyond / 2) as i64]),
                Attr::Ints("strides", vec![1]),
            ];
            g.with("Conv", &inputs, &attrs)
        })
    }
}

/// Returns the axes in another order.
pub(super) fn permute(g: &mut Graph, x: Value, axes: &[i64]) -> Value {
    g.with("Transpose", &[x], &[Attr::Ints("perm", axes.to_vec())])
}

/// Returns a number of a row, of no axes.
pub(super) fn entry(g: &mut Graph, row: Value, i: i64) -> Value {
    let i = g.int(i);
    g.op("Gather", &[row, i])
}

/// Returns x with an axis of length 1.
pub(super) fn unsqueeze(g: &mut Graph, x: Value, axis: i64) -> Value {
    let axes = g.ints(&[axis]);
    g.op("Unsqueeze", &[x, axes])
}

/// Returns x as floats.
pub(super) fn float(g: &mut Graph, x: Value) -> Value {
    g.with("Cast", &[x], &[Attr::Int("to", Kind::Float as i64)])
}

/// Returns parts of an axis, of these lengths.
pub(super) fn split<const N: usize>(g: &mut Graph, x: Value, axis: i64, lengths: [usize; N]) -> [Value; N] {
    let lengths = g.ints(&lengths.map(|n| n as i64));
    g.several("Split", &[x, lengths], &[Attr::Int("axis", axis)])
}

/// Returns x with a value before and behind the last of its axes, that many of each.
pub(super) fn pad(g: &mut Graph, x: Value, rank: usize, [before, behind]: [usize; 2], with: f32) -> Value {
    let mut pads = vec![0; 2 * rank];
    (pads[rank - 1], pads[2 * rank - 1]) = (before as i64, behind as i64);
    let pads = g.ints(&pads);
    let with = g.float(with);
    g.op("Pad", &[x, pads, with])
}

/// Returns x times a number.
pub(super) fn times(g: &mut Graph, x: Value, by: f32) -> Value {
    let by = g.float(by);
    g.op("Mul", &[x, by])
}

/// Returns the norm of this name over channels, `[B, C, R]`.
pub(super) fn layer_norm(g: &mut Graph, name: &str, x: Value, channels: usize) -> Value {
    g.scope(name, |g| {
        let gamma = g.weight("gamma", &[channels]);
        let beta = g.weight("beta", &[channels]);
        let x = permute(g, x, &[0, 2, 1]);
        let last = [Attr::Ints("axes", vec![-1])];
        let mean = g.with("ReduceMean", &[x], &last);
        let x = g.op("Sub", &[x, mean]);
        let two = g.float(2.0);
        let squares = g.op("Pow", &[x, two]);
        let spread = g.with("ReduceMean", &[squares], &last);
        let eps = g.float(EPS);
        let spread = g.op("Add", &[spread, eps]);
        let spread = g.op("Sqrt", &[spread]);
        let x = g.op("Div", &[x, spread]);
        let x = g.op("Mul", &[x, gamma]);
        let x = g.op("Add", &[x, beta]);
        permute(g, x, &[0, 2, 1])
    })
}

/// Returns x/2 (1 + erf(x / sqrt 2)).
pub(super) fn gelu(g: &mut Graph, x: Value) -> Value {
    let root = g.float(std::f32::consts::SQRT_2);
    let y = g.op("Div", &[x, root]);
    let y = g.op("Erf", &[y]);
    let one = g.float(1.0);
    let y = g.op("Add", &[y, one]);
    let y = g.op("Mul", &[x, y]);
    times(g, y, 0.5)
}

/// Returns a rectifier that passes a part of what is below zero.
pub(super) fn leaky(g: &mut Graph, x: Value, slope: f32) -> Value {
    g.with("LeakyRelu", &[x], &[Attr::Float("alpha", slope)])
}
