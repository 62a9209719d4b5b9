//! The encoder as a program, for inference. T mel rows of M bands. A plane of F bands, T times and C channels is `[F * T, C]`, band after
//! band: convolutions along time are those of each band's rows, and what a band reads of its neighbours lies in more columns.

use super::config::{Config, Stage};
use crate::common::codec::layers::leaky;
use ambitus_ir::ops::elementwise::{BinaryKind, UnaryKind};
use ambitus_ir::ops::reduce::ReduceKind;
use ambitus_ir::{Builder, Program, Session, TensorType, ValueId};

/// The program.
pub const EMBED: &str = "embed";
/// In the batch norms' roots.
const EPS: f32 = 1e-5;
/// Least variance over time.
const LEAST: f32 = 1e-5;

/// A plane `[bands * times, C]`.
#[derive(Clone, Copy)]
struct Plane {
    x: ValueId,
    bands: usize,
    times: usize,
}

/// Returns the bands and times of each stage's planes.
pub fn planes(cfg: &Config, times: usize) -> [[usize; 2]; 4] {
    let mut plane = [cfg.bands, times];
    [0, 1, 2, 3].map(|stage| {
        if stage > 0 {
            plane = [plane[0] / 2, plane[1].div_ceil(2)];
        }
        plane
    })
}

/// Builds the program for `times` rows: inputs `mel` `[M * T, 1]`, of each band the rows after one another, and `bands.i` i32
/// `[F + 1]`, the segments of a stage's planes ([`planes`]): every band's rows; output `voice` f32 `[1, D]`, of length 1.
pub fn embed(session: &mut Session, cfg: &Config, times: usize) -> Program {
    let mut builder = Builder::new(session, EMBED);
    let b = &mut builder;
    let mel = b.input("mel", TensorType::f32(&[cfg.bands * times, 1]));
    let mut plane = Plane { x: mel, bands: cfg.bands, times };
    let first = cfg.stages[0].width;
    let bias = b.frozen_parameter("conv1.bias", &[first]);
    let y = conv(b, "conv1", plane, first, (0, false), Some(bias));
    let y = leaky(b, y.x, 0.0);
    plane.x = batch_norm(b, "bn1", y);
    for (i, stage) in cfg.stages.iter().enumerate() {
        for k in 0..stage.blocks {
            plane = b.scope(&format!("layer{}.{k}", i + 1), |b| block(b, plane, stage, i, k == 0));
        }
    }
    let voice = pooled(b, cfg, plane);
    b.output("voice", voice);
    builder.finish()
}

/// Applies a residual block: relu(x + se(bn(conv(bn(relu(conv(x))))))).
fn block(b: &mut Builder<'_>, plane: Plane, stage: &Stage, at: usize, first: bool) -> Plane {
    let halves = first && at > 0;
    let h = conv(b, "conv1", plane, stage.width, (at, halves), None);
    let x = leaky(b, h.x, 0.0);
    let x = batch_norm(b, "bn1", x);
    let h = conv(b, "conv2", Plane { x, ..h }, stage.width, (at, false), None);
    let x = batch_norm(b, "bn2", h.x);
    let x = b.scope("se.fc", |b| excited(b, stage, x));
    let rest = if halves { downsampled(b, plane, stage.width) } else { plane.x };
    let y = b.add(x, rest);
    Plane { x: leaky(b, y, 0.0), ..h }
}

/// Returns a 3 x 3 convolution of a plane, one zero around it, at a stage: with a stride of 2 where it halves the plane.
fn conv(
    b: &mut Builder<'_>,
    name: &str,
    plane: Plane,
    to: usize,
    (stage, halves): (usize, bool),
    bias: Option<ValueId>,
) -> Plane {
    let from = b.dim(plane.x, 1);
    let w = b.frozen_parameter(&format!("{name}.weight"), &[to, from, 3, 3]);
    let w = b.permute(w, &[0, 2, 1, 3]);
    let mut w = b.reshape(w, &[to, 3 * from, 3]);
    let mut out = plane;
    let mut x = neighbours(b, plane, halves);
    if halves {
        (out.bands, out.times) = (plane.bands / 2, plane.times.div_ceil(2));
        x = pairs(b, x, Plane { bands: out.bands, ..plane });
        w = over_pairs(b, w);
    }
    let segments = b.input(&format!("bands.{stage}"), TensorType::i32(&[out.bands + 1]));
    let bias = bias.unwrap_or_else(|| b.fill(TensorType::f32(&[to]), 0.0));
    out.x = b.conv1d(x, w, bias, segments, 1, 1);
    out
}

/// Returns beside each row those of the band before and behind, `[F * T, 3 C]`; with a stride of 2 of every other band.
fn neighbours(b: &mut Builder<'_>, plane: Plane, halves: bool) -> ValueId {
    let (width, times) = (b.dim(plane.x, 1), plane.times);
    let none = b.fill(TensorType::f32(&[times, width]), 0.0);
    let all = if halves {
        let [even, odd] = alternate(b, plane);
        let most = b.slice(odd, 0, 0, (plane.bands / 2 - 1) * times);
        let before = b.concat(&[none, most], 0);
        [before, even, odd]
    } else {
        let most = (plane.bands - 1) * times;
        let before = b.slice(plane.x, 0, 0, most);
        let before = b.concat(&[none, before], 0);
        let behind = b.slice(plane.x, 0, times, most);
        let behind = b.concat(&[behind, none], 0);
        [before, plane.x, behind]
    };
    b.concat(&all, 1)
}

/// Returns the bands of even and of odd numbers.
fn alternate(b: &mut Builder<'_>, plane: Plane) -> [ValueId; 2] {
    let (width, half, times) = (b.dim(plane.x, 1), plane.bands / 2, plane.times);
    let both = b.reshape(plane.x, &[half, 2 * times, width]);
    [0, times].map(|first| {
        let one = b.slice(both, 1, first, times);
        b.reshape(one, &[half * times, width])
    })
}

/// Returns two rows of x `[F * T, C]` in one, `[F * T / 2, 2 C]`; a row of zeros completes an odd number of a band.
fn pairs(b: &mut Builder<'_>, x: ValueId, plane: Plane) -> ValueId {
    let (width, even) = (b.dim(x, 1), plane.times.next_multiple_of(2));
    let mut x = x;
    if even > plane.times {
        let bands = b.reshape(x, &[plane.bands, plane.times, width]);
        let none = b.fill(TensorType::f32(&[plane.bands, 1, width]), 0.0);
        x = b.concat(&[bands, none], 1);
    }
    b.reshape(x, &[plane.bands * even / 2, 2 * width])
}

/// Returns a convolution of three taps, stride 2 and one zero before as one of two taps over pairs of rows, w `[O, C, 3]` as
/// `[O, 2 C, 2]`: it reads the second row of the pair before, and both of its own.
fn over_pairs(b: &mut Builder<'_>, w: ValueId) -> ValueId {
    let shape = b.ty(w).shape;
    let none = b.fill(TensorType::f32(&[shape[0], shape[1], 1]), 0.0);
    let [before, first, second] = [0, 1, 2].map(|tap| b.slice(w, 2, tap, 1));
    let first = b.concat(&[none, first], 2);
    let second = b.concat(&[before, second], 2);
    b.concat(&[first, second], 1)
}

/// Returns every other row of every other band through a pointwise convolution, normalised.
fn downsampled(b: &mut Builder<'_>, plane: Plane, to: usize) -> ValueId {
    let from = b.dim(plane.x, 1);
    let [even, _] = alternate(b, plane);
    let two = pairs(b, even, Plane { bands: plane.bands / 2, ..plane });
    let x = b.slice(two, 1, 0, from);
    let w = b.frozen_parameter("downsample.0.weight", &[to, from, 1, 1]);
    let w = b.reshape(w, &[to, from]);
    let x = b.linear(x, w, None);
    batch_norm(b, "downsample.1", x)
}

/// Normalises x `[R, C]` with the statistics that training left.
fn batch_norm(b: &mut Builder<'_>, name: &str, x: ValueId) -> ValueId {
    let shape = b.ty(x).shape;
    let [weight, bias, mean, variance] = ["weight", "bias", "running_mean", "running_var"].map(|leaf| {
        let row = b.frozen_parameter(&format!("{name}.{leaf}"), &[shape[1]]);
        b.reshape(row, &[1, shape[1]])
    });
    let eps = b.fill_like(variance, EPS);
    let variance = b.add(variance, eps);
    let root = b.unary(UnaryKind::Rsqrt, variance);
    let scale = b.mul(weight, root);
    let moved = b.mul(mean, scale);
    let shift = b.sub(bias, moved);
    let [scale, shift] = [scale, shift].map(|row| b.broadcast(row, &shape));
    let x = b.mul(x, scale);
    b.add(x, shift)
}

/// Scales the channels of x by what its mean says of them (squeeze and excitation; Hu et al., arXiv 1709.01507).
fn excited(b: &mut Builder<'_>, stage: &Stage, x: ValueId) -> ValueId {
    let shape = b.ty(x).shape;
    let mean = b.reduce(ReduceKind::Sum, x, 0);
    let part = b.fill(TensorType::f32(&[1]), 1.0 / shape[0] as f32);
    let mean = b.scale(mean, part);
    let h = linear(b, "0", mean, stage.squeeze);
    let h = leaky(b, h, 0.0);
    let h = linear(b, "2", h, stage.width);
    // 1 / (1 + e^-h)
    let h = b.unary(UnaryKind::Neg, h);
    let h = b.unary(UnaryKind::Exp, h);
    let one = b.fill_like(h, 1.0);
    let h = b.add(h, one);
    let gate = b.div(one, h);
    let gate = b.broadcast(gate, &shape);
    b.mul(x, gate)
}

/// Returns the direction of a plane's mean and deviation over time, both weighed by an attention of every channel.
fn pooled(b: &mut Builder<'_>, cfg: &Config, plane: Plane) -> ValueId {
    let (width, Plane { bands, times, .. }) = (b.dim(plane.x, 1), plane);
    let x = b.reshape(plane.x, &[bands, times, width]);
    let x = b.permute(x, &[1, 2, 0]);
    let wide = width * bands;
    let x = b.reshape(x, &[times, wide]);
    let h = pointwise(b, "attention.0", x, cfg.hidden);
    let h = leaky(b, h, 0.0);
    let h = batch_norm(b, "attention.2", h);
    let h = pointwise(b, "attention.3", h, wide);
    let shape = [times, wide];
    let most = b.reduce(ReduceKind::Max, h, 0);
    let most = b.broadcast(most, &shape);
    let h = b.sub(h, most);
    let h = b.unary(UnaryKind::Exp, h);
    let sum = b.reduce(ReduceKind::Sum, h, 0);
    let sum = b.broadcast(sum, &shape);
    let w = b.div(h, sum);
    let weighed = b.mul(x, w);
    let mean = b.reduce(ReduceKind::Sum, weighed, 0);
    let squares = b.mul(weighed, x);
    let squares = b.reduce(ReduceKind::Sum, squares, 0);
    let square = b.mul(mean, mean);
    let variance = b.sub(squares, square);
    let least = b.fill_like(variance, LEAST);
    let variance = b.binary(BinaryKind::Max, variance, least);
    let deviation = b.unary(UnaryKind::Sqrt, variance);
    let both = b.concat(&[mean, deviation], 1);
    let y = linear(b, "fc", both, cfg.width);
    let squares = b.mul(y, y);
    let sum = b.reduce(ReduceKind::Sum, squares, 1);
    let length = b.unary(UnaryKind::Sqrt, sum);
    let least = b.fill_like(length, 1e-12);
    let length = b.binary(BinaryKind::Max, length, least);
    let length = b.broadcast(length, &[1, cfg.width]);
    b.div(y, length)
}

fn linear(b: &mut Builder<'_>, name: &str, x: ValueId, to: usize) -> ValueId {
    let from = b.dim(x, 1);
    let w = b.frozen_parameter(&format!("{name}.weight"), &[to, from]);
    let bias = b.frozen_parameter(&format!("{name}.bias"), &[to]);
    b.linear(x, w, Some(bias))
}

/// Returns a convolution of one tap.
fn pointwise(b: &mut Builder<'_>, name: &str, x: ValueId, to: usize) -> ValueId {
    let from = b.dim(x, 1);
    let w = b.frozen_parameter(&format!("{name}.weight"), &[to, from, 1]);
    let w = b.reshape(w, &[to, from]);
    let bias = b.frozen_parameter(&format!("{name}.bias"), &[to]);
    b.linear(x, w, Some(bias))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parameters are the package's, and the shape is read off them.
    #[test]
    fn the_published_tensors() {
        let stage = |width, blocks| Stage { width, blocks, squeeze: width / 8 };
        let stages = [stage(32, 3), stage(64, 4), stage(128, 6), stage(256, 3)];
        let cfg = Config { bands: 64, stages, hidden: 128, width: 512 };
        let mut s = Session::default();
        for times in [2, 13] {
            let p = embed(&mut s, &cfg, times);
            ambitus_ir::verify::verify(&s, &p).unwrap();
        }
        let statistics = |name: &str| name.ends_with("running_mean") || name.ends_with("running_var");
        let all = s.states.iter().filter(|s| !statistics(&s.name));
        assert_eq!(all.map(|s| s.ty.shape.elements()).sum::<usize>(), 8_028_492);
        let axes = |name: &str| s.states.iter().find(|s| s.name == name).map(|s| s.ty.shape.to_vec());
        assert_eq!(Config::of_tensors(axes), Ok(cfg.clone()));
        assert_eq!(planes(&cfg, 13), [[64, 13], [32, 7], [16, 4], [8, 2]]);
        assert!(Config::of_tensors(|_| None).unwrap_err().contains("layer1.0.conv2.weight is missing"));
    }
}
