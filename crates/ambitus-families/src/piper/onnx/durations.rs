//! How long each id lasts: a flow of splines from noise, or a plain prediction (VITS, arXiv 2106.06103, section 2.2.2).
//! B texts of T ids, H channels.

use super::graph::{Attr, Graph, Kind, Value};
use super::layers::{Conv, entry, gelu, layer_norm, pad, permute, split, times};
use super::text::Text;
use ambitus_models::piper::config::{BINS, BOUND, Config, Durations, SPLINE_LAYERS, SPLINES};

/// Of a spline's interval, what every bin has of its width and of its height at least, and the least slope at its knots (the trainer's, as
/// in Durkan et al., arXiv 1906.04032).
const LEAST: f64 = 1e-3;

/// Returns the logarithms of durations in frames, f32 `[B, 1, T]`. A voice is `[1, V, 1]`, and the third of the
/// scales f32 `[3]` what noise is multiplied by.
pub(super) fn predict(
    g: &mut Graph,
    cfg: &Config,
    text: &Text,
    voice: Option<Value>,
    scales: Value,
) -> Value {
    g.scope("dp", |g| match cfg.durations {
        Durations::Stochastic { taps } => {
            let spread = entry(g, scales, 2);
            let flow = Flow { width: cfg.hidden, taps, mask: text.mask };
            flow.predict(g, cfg.speaker, text.states, voice, spread)
        }
        Durations::Plain { width, taps } => plain(g, cfg, [width, taps], text, voice),
    })
}

fn plain(g: &mut Graph, cfg: &Config, [width, taps]: [usize; 2], text: &Text, voice: Option<Value>) -> Value {
    let mut x = moved(g, text.states, voice, [cfg.hidden, cfg.speaker]);
    let mut inner = cfg.hidden;
    for i in 1..=2 {
        x = g.op("Mul", &[x, text.mask]);
        x = Conv::of(width, inner, taps).add(g, &format!("conv_{i}"), x);
        x = g.op("Relu", &[x]);
        x = layer_norm(g, &format!("norm_{i}"), x, width);
        inner = width;
    }
    x = g.op("Mul", &[x, text.mask]);
    x = Conv::of(1, width, 1).add(g, "proj", x);
    g.op("Mul", &[x, text.mask])
}

/// Returns x with what a voice adds to it.
fn moved(g: &mut Graph, x: Value, voice: Option<Value>, [width, speaker]: [usize; 2]) -> Value {
    let Some(voice) = voice else { return x };
    let by = Conv::of(width, speaker, 1).add(g, "cond", voice);
    g.op("Add", &[x, by])
}

/// The flow over two numbers of each id, from noise.
struct Flow {
    width: usize,
    taps: usize,
    mask: Value,
}

impl Flow {
    /// The flow backwards. Of its splines the project leaves out the last to be applied, `flows.1`.
    fn predict(
        &self,
        g: &mut Graph,
        speaker: usize,
        states: Value,
        voice: Option<Value>,
        spread: Value,
    ) -> Value {
        let pointwise = Conv::of(self.width, self.width, 1);
        let x = pointwise.add(g, "pre", states);
        let x = moved(g, x, voice, [self.width, speaker]);
        let x = g.scope("convs", |g| self.convs(g, x));
        let x = pointwise.add(g, "proj", x);
        let seen = g.op("Mul", &[x, self.mask]);

        let axis = [Attr::Int("axis", 1)];
        let like = g.with("Concat", &[self.mask, self.mask], &axis);
        let noise = g.op("RandomNormalLike", &[like]);
        let noise = g.op("Mul", &[noise, spread]);
        let [mut first, mut second] = split(g, noise, 1, [1, 1]);
        for i in (1..SPLINES).rev() {
            // The project turns the two around before each.
            (first, second) = (second, first);
            second = g.scope(&format!("flows.{}", 2 * i + 1), |g| self.spline(g, [first, second], seen));
            [first, second] = [first, second].map(|x| g.op("Mul", &[x, self.mask]));
        }
        let z = g.with("Concat", &[second, first], &axis);
        let z = g.scope("flows.0", |g| {
            let [m, logs] = ["m", "logs"].map(|name| g.weight(name, &[2, 1]));
            let z = g.op("Sub", &[z, m]);
            let less = g.op("Neg", &[logs]);
            let by = g.op("Exp", &[less]);
            g.op("Mul", &[z, by])
        });
        let z = g.op("Mul", &[z, self.mask]);
        let [logarithms, _] = split(g, z, 1, [1, 1]);
        logarithms
    }

    /// Dilated convolutions, of each channel and then of all at a row, `[B, H, T]` to `[B, H, T]`.
    fn convs(&self, g: &mut Graph, mut x: Value) -> Value {
        for i in 0..SPLINE_LAYERS {
            let dilation = self.taps.pow(i as u32);
            let y = g.op("Mul", &[x, self.mask]);
            let each = Conv { dilation, groups: self.width, ..Conv::of(self.width, 1, self.taps) };
            let y = each.add(g, &format!("convs_sep.{i}"), y);
            let y = layer_norm(g, &format!("norms_1.{i}"), y, self.width);
            let y = gelu(g, y);
            let y = Conv::of(self.width, self.width, 1).add(g, &format!("convs_1x1.{i}"), y);
            let y = layer_norm(g, &format!("norms_2.{i}"), y, self.width);
            let y = gelu(g, y);
            x = g.op("Add", &[x, y]);
        }
        g.op("Mul", &[x, self.mask])
    }

    /// Moves `moved` `[B, 1, T]` back along the spline that `kept` `[B, 1, T]` and `seen` `[B, H, T]` give.
    fn spline(&self, g: &mut Graph, [kept, moved]: [Value; 2], seen: Value) -> Value {
        let x = Conv::of(self.width, 1, 1).add(g, "pre", kept);
        let x = g.op("Add", &[x, seen]);
        let x = g.scope("convs", |g| self.convs(g, x));
        let x = Conv::of(3 * BINS - 1, self.width, 1).add(g, "proj", x);
        let x = g.op("Mul", &[x, self.mask]);
        let x = permute(g, x, &[0, 2, 1]);
        let [widths, heights, slopes] = split(g, x, 2, [BINS, BINS, BINS - 1]);
        let size = g.float((self.width as f32).sqrt());
        let [widths, heights] = [widths, heights].map(|x| {
            let x = g.op("Div", &[x, size]);
            Knots::of(g, x)
        });
        let y = permute(g, moved, &[0, 2, 1]);
        let x = inverse(g, y, &widths, &heights, slopes);
        permute(g, x, &[0, 2, 1])
    }
}

/// A spline's knots along one direction.
struct Knots {
    /// Those between its ends, `[B, T, BINS - 1]`.
    between: Value,
    /// All, `[B, T, BINS + 1]`.
    all: Value,
    /// What is between two, `[B, T, BINS]`.
    sizes: Value,
}

impl Knots {
    /// Returns knots whose distances are shares of the interval, of logits `[B, T, BINS]`.
    fn of(g: &mut Graph, logits: Value) -> Knots {
        let last = [Attr::Int("axis", -1)];
        let shares = g.with("Softmax", &[logits], &last);
        let shares = times(g, shares, (1.0 - LEAST * BINS as f64) as f32);
        let least = g.float(LEAST as f32);
        let shares = g.op("Add", &[shares, least]);
        let axis = g.int(-1);
        let sums = g.op("CumSum", &[shares, axis]);
        let [sums, _] = split(g, sums, 2, [BINS - 1, 1]);
        let sums = times(g, sums, 2.0 * BOUND);
        let low = g.float(-BOUND);
        let between = g.op("Add", &[sums, low]);
        let below = pad(g, between, 3, [1, 0], -BOUND);
        let above = pad(g, between, 3, [0, 1], BOUND);
        let all = pad(g, below, 3, [0, 1], BOUND);
        let sizes = g.op("Sub", &[above, below]);
        Knots { between, all, sizes }
    }
}

/// Returns where splines are y `[B, T, 1]`: of each bin a quotient of two parabolas, so the root of a quadratic equation (Durkan et al.,
/// arXiv 1906.04032, section 3.1 and appendix A.2). The identity outside the interval. `slopes` `[B, T, BINS - 1]` are what the softplus of
/// is the slope at each knot between the ends, where it is 1.
fn inverse(g: &mut Graph, y: Value, widths: &Knots, heights: &Knots, slopes: Value) -> Value {
    // softplus of this, and the least slope, is 1.
    let end = ((1.0 - LEAST).exp() - 1.0).ln() as f32;
    let slopes = pad(g, slopes, 3, [1, 1], end);
    let slopes = g.op("Softplus", &[slopes]);
    let least = g.float(LEAST as f32);
    let slopes = g.op("Add", &[slopes, least]);
    let passed = g.op("GreaterOrEqual", &[y, heights.between]);
    let passed = g.with("Cast", &[passed], &[Attr::Int("to", Kind::Int as i64)]);
    let last = g.ints(&[-1]);
    let bin = g.op("ReduceSum", &[passed, last]);
    let one = g.int(1);
    let next = g.op("Add", &[bin, one]);
    let mut at = |of: Value, bin: Value| g.with("GatherElements", &[of, bin], &[Attr::Int("axis", 2)]);
    let [left, width] = [widths.all, widths.sizes].map(|of| at(of, bin));
    let [low, height] = [heights.all, heights.sizes].map(|of| at(of, bin));
    let [start, stop] = [bin, next].map(|bin| at(slopes, bin));

    // With s the bin's own slope, d and e those at its ends, u = y - low:
    // a = u (d + e - 2 s) + h (s - d), b = h d - u (d + e - 2 s), c = -s u, and the root is 2 c / (-b - sqrt(b^2 - 4 a c)).
    let s = g.op("Div", &[height, width]);
    let u = g.op("Sub", &[y, low]);
    let twice = times(g, s, 2.0);
    let bent = g.op("Add", &[start, stop]);
    let bent = g.op("Sub", &[bent, twice]);
    let bent = g.op("Mul", &[u, bent]);
    let rise = g.op("Sub", &[s, start]);
    let rise = g.op("Mul", &[height, rise]);
    let a = g.op("Add", &[bent, rise]);
    let b = g.op("Mul", &[height, start]);
    let b = g.op("Sub", &[b, bent]);
    let c = g.op("Mul", &[s, u]);
    let c = g.op("Neg", &[c]);
    let squares = g.op("Mul", &[b, b]);
    let product = g.op("Mul", &[a, c]);
    let product = times(g, product, 4.0);
    let under = g.op("Sub", &[squares, product]);
    // Below zero by rounding alone.
    let under = g.op("Relu", &[under]);
    let root = g.op("Sqrt", &[under]);
    let sum = g.op("Add", &[b, root]);
    let sum = g.op("Neg", &[sum]);
    let c = times(g, c, 2.0);
    let part = g.op("Div", &[c, sum]);
    let x = g.op("Mul", &[part, width]);
    let x = g.op("Add", &[x, left]);
    let far = g.op("Abs", &[y]);
    let bound = g.float(BOUND);
    let inside = g.op("LessOrEqual", &[far, bound]);
    g.op("Where", &[inside, x, y])
}
