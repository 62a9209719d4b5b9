//! How far two computations of the same numbers may differ: one table.

use ambitus_ir::DType;

/// The most that two results of an op may differ, element by element: `abs + rel * |expected|`, where `abs` is in units
/// of the largest expected element (at least 1).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// The op.
    pub op: &'static str,
    /// In units of the expected element.
    pub rel: f64,
    /// In units of the largest expected element.
    pub abs: f64,
    /// Why not tighter.
    pub reason: &'static str,
}

/// Distance of two neighbouring f32 near 1.
pub const F32: f64 = 1.2e-7;

const fn row(op: &'static str, rel: f64, abs: f64, reason: &'static str) -> Tolerance {
    Tolerance { op, rel, abs, reason }
}

/// Ops of an f32 executor against the interpreter in f64. Ops that are not listed are exact up to one rounding.
pub const F32_AGAINST_F64: &[Tolerance] = &[
    row("unary", 8.0 * F32, 4.0 * F32, "polynomials of transcendental functions; sines near their zeros"),
    row("reduce", 0.0, 16.0 * F32, "rounding grows with the number of terms, which cancel"),
    row("scatter_add", 4.0 * F32, 8.0 * F32, "few terms a row, and the accumulator's rounding"),
    row("matmul", 0.0, 16.0 * F32, "products of up to 100 terms that cancel"),
    row("linear", 0.0, 16.0 * F32, "products of up to 128 terms that cancel"),
    row("linear_in", 0.0, 16.0 * F32, "products of up to 128 terms that cancel"),
    row(
        "activation",
        16.0 * F32,
        8.0 * F32,
        "polynomials of exponentials; tails are below the largest element's last digit",
    ),
    row("activation_grad", 16.0 * F32, 8.0 * F32, "as activation, with a difference"),
    row("swiglu", 16.0 * F32, 8.0 * F32, "as activation"),
    row("swiglu_grad", 16.0 * F32, 8.0 * F32, "as activation, with a difference"),
    row("snake", 8.0 * F32, 8.0 * F32, "a rounded angle's sine, squared, over a small number"),
    row("layer_norm", 16.0 * F32, 16.0 * F32, "the mean is taken off before the variance is known"),
    row("layer_norm_grad", 0.0, 32.0 * F32, "three sums a row that cancel, and sums over rows"),
    row("rms_norm", 16.0 * F32, 8.0 * F32, "a sum and a root"),
    row("rms_norm_grad", 0.0, 32.0 * F32, "two sums a row that cancel, and sums over rows"),
    row("grn", 16.0 * F32, 8.0 * F32, "sums over rows and channels"),
    row("grn_grad", 0.0, 64.0 * F32, "sums of sums that cancel"),
    row("ada_layer_norm", 16.0 * F32, 16.0 * F32, "as layer_norm"),
    row("ada_layer_norm_grad", 0.0, 32.0 * F32, "as layer_norm_grad"),
    row("gated_residual", 4.0 * F32, 4.0 * F32, "a product and a sum"),
    row("gated_residual_grad", 4.0 * F32, 16.0 * F32, "sums over a segment's rows"),
    row("segment_sum", 0.0, 16.0 * F32, "sums over a segment's rows that cancel"),
    row("rotary_frequencies", 8.0 * F32, 0.0, "a power"),
    row("rotary", 0.0, 16.0 * F32, "the angle is a rounded product of up to 20, then sine and cosine"),
    row("sinusoid", 0.0, 2e-4, "the angle is rounded to f32 at up to 1000"),
    row("attention", 0.0, 32.0 * F32, "products, exponentials and a quotient of sums"),
    row("attention_grad", 0.0, 64.0 * F32, "products of products that cancel"),
    row("windowed_attention", 0.0, 32.0 * F32, "as attention"),
    row("windowed_attention_grad", 0.0, 64.0 * F32, "as attention_grad"),
    row("conv1d", 0.0, 16.0 * F32, "products of up to 84 terms that cancel"),
    row("lstm", 16.0 * F32, 64.0 * F32, "products that cancel, and rows that feed each other"),
    row("conv1d_input_grad", 0.0, 16.0 * F32, "as conv1d"),
    row("conv1d_weight_grad", 0.0, 16.0 * F32, "sums over rows that cancel"),
    row(
        "rational_spline_grad",
        F32,
        0.001 * F32,
        "rounded once from f64, whose smallest numbers f32 has not, and where a softmax is almost one number cancel",
    ),
    row("masked_mse", 16.0 * F32, 0.0, "a sum of squares over thousands of elements, in tiles"),
    row("masked_mse_grad", 8.0 * F32, 2.0 * F32, "a difference and four products"),
    row("linear_cross_entropy", 16.0 * F32, 8.0 * F32, "logits, a log-sum-exp and a sum over rows"),
    row("linear_cross_entropy_grad", 0.0, 32.0 * F32, "logits, a softmax and a product"),
    row("head_sums", 16.0 * F32, 16.0 * F32, "logits that cancel, and a sum of exponentials"),
    row("head_loss", 16.0 * F32, 8.0 * F32, "logarithms, and a sum over rows"),
    row("head_grad", 0.0, 32.0 * F32, "as linear_cross_entropy_grad"),
    row("dropout", 4.0 * F32, 0.0, "1 / (1 - p)"),
    row("sum_squares", 16.0 * F32, 0.0, "4096 terms of one sign"),
    row("sum_partials", 4.0 * F32, 4.0 * F32, "one rounding of a sum that may cancel"),
    row("adamw", 16.0 * F32, 16.0 * F32, "constants rounded to f32, a root and a quotient"),
    row(
        "adamw_bf16",
        16.0 * F32,
        16.0 * F32,
        "as adamw: what lies between two bf16 is rounded by the same bits",
    ),
    row("adamw_8bit", 16.0 * F32, 16.0 * F32, "as adamw; codes are equal"),
    row("lion", 8.0 * F32, 8.0 * F32, "constants rounded to f32; no sign is of a number near zero"),
    row("lion_bf16", 8.0 * F32, 8.0 * F32, "as lion: what lies between two bf16 is rounded by the same bits"),
    row("lion_8bit", 8.0 * F32, 8.0 * F32, "as lion; codes are equal"),
    row("lerp", 4.0 * F32, 4.0 * F32, "a difference"),
    row("accumulate", 4.0 * F32, 4.0 * F32, "a product and a sum, fused or not"),
    row("scale_rows", 2.0 * F32, 0.0, "a product"),
    row("scale", 2.0 * F32, 0.0, "a product"),
    row("binary", 2.0 * F32, 0.0, "one rounding, perhaps of a quotient by a reciprocal"),
];

/// Returns the tolerance of an op for an f32 executor against the interpreter in f64.
pub fn f32_against_f64(op: &str) -> Tolerance {
    let exact = row("", F32, 0.0, "moves numbers, or rounds once");
    F32_AGAINST_F64.iter().find(|t| t.op == op).copied().unwrap_or(exact)
}

/// Gradient rules against differences, relative (see [`crate::gradcheck::Gap`]): the differences of a logarithm at 1/4 are
/// good to about 3e-9, and a constant rounded to f32 is off by up to 6e-8 of the part that it multiplies.
pub const GRADIENT: f64 = 3e-8;

/// (loss and all gradients together, each gradient) of a small model in fp16 against fp32, relative; of the single ones not
/// below 1e-3 of all together. A rounding is 2^-11; about thirty stand one behind the other, and the gradients of queries and
/// keys are differences of nearly equal numbers (o is rounded, and a softmax's gradient sums to zero).
pub const FP16_GRADIENTS: (f64, f64) = (2e-3, 1.25e-2);

/// Tolerances of bf16 gradients: a rounding is 2^-8, eight times fp16's, and so is everything.
pub const BF16_GRADIENTS: (f64, f64) = (1.6e-2, 1e-1);

/// Samples of a decoded sound against the codec's package: fp32 through some forty layers, and half a step of 16 bits.
pub const CODEC_AUDIO: f32 = 1e-4;

/// Samples of a vocoder's sound against its package, in units of the largest: fp32 through eight blocks, an exponential and a
/// sum of some five hundred frequencies. The package itself is up to 1e-5 from its own fp64.
pub const VOCODER_AUDIO: f32 = 1e-4;

/// Samples of a voice's speech against its package's, full scale being 1: fp32 through a text encoder, a flow and a generator.
pub const VOICE_AUDIO: f32 = 1e-4;

/// States of a text encoder against its package's, relative (see [`relative`]): fp32 through every block, with sums in another order.
pub const TEXT_STATES: f64 = 1e-5;

/// States and logits of a model that hears against its package's, in units of the largest: fp32 through encoder and decoder, from mel frames
/// whose transforms are in fp32 there.
pub const HEARD: f32 = 1e-4;

/// Mel rows, frames decoded from codes and voices against the package's, relative L2: its transforms and sums are in fp32.
pub const SPEECH_PARTS: f64 = 1e-5;

/// The logarithm of a single band of mel rows: near the floor, beside a loud one, torchaudio's is itself up to 1e-4 from fp64.
pub const MEL_BAND: f32 = 5e-4;

/// Decompositions against straight loops in f64, in units of the largest expected element (at least 1): constants of
/// decompositions are rounded to f32.
pub const FORMULA: f64 = 2e-7;

/// Returns the first element that differs by more than the tolerance: (index, got, expected). Equal infinities, and NaN where NaN
/// is expected, agree.
pub fn differs(got: &[f64], expected: &[f64], t: Tolerance) -> Option<(usize, f64, f64)> {
    let largest = expected.iter().filter(|x| x.is_finite()).fold(1.0f64, |m, x| m.max(x.abs()));
    let off = |(g, e): (&f64, &f64)| {
        let same = g == e || (g.is_nan() && e.is_nan());
        let near = (g - e).abs() <= t.abs * largest + t.rel * e.abs();
        !same && !near
    };
    if got.len() != expected.len() {
        return Some((got.len().min(expected.len()), got.len() as f64, expected.len() as f64));
    }
    let at = got.iter().zip(expected).position(off)?;
    Some((at, got[at], expected[at]))
}

/// Relative L2 distance of 16-bit results from the interpreter's, rounded once: two roundings of bfloat16 (2^-9 each), and
/// sums of them.
pub const SIXTEEN_BIT: f64 = 2e-2;

/// Relative L2 distance of results of 16-bit operands from the interpreter's unrounded ones, of ops that tensor cores compute with sums in
/// fp32: o and convolutions are rounded once (2^-9, 1.2e-3 in the mean of squares), as are the probabilities that values are
/// multiplied by; gradients twice more; lse is fp32 throughout. `None`: the op is held to [`SIXTEEN_BIT`].
pub fn on_tensor_cores(op: &str, result: DType) -> Option<f64> {
    match (op, result) {
        ("attention", DType::F32) => Some(1e-5),
        ("attention" | "conv1d" | "conv1d_input_grad" | "conv1d_weight_grad", _) => Some(3e-3),
        ("attention_grad", _) => Some(5e-3),
        _ => None,
    }
}

/// ‖got − want‖ / ‖want‖ over the finite elements; infinite where one is finite and the other is not.
pub fn relative(got: &[f64], want: &[f64]) -> f64 {
    let (mut off, mut all) = (0.0, 0.0);
    for (g, w) in got.iter().zip(want) {
        if g.is_finite() != w.is_finite() {
            return f64::INFINITY;
        }
        if w.is_finite() {
            off += (g - w).powi(2);
            all += w.powi(2);
        }
    }
    // Results that are zero mathematically are compared as they are.
    off.sqrt() / f64::max(all.sqrt(), 1e-6 * (want.len() as f64).sqrt()).max(1e-12)
}
