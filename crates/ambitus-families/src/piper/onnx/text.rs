//! The text encoder: ids to the distribution of the frames that belong to each (Glow-TTS, arXiv 2005.11129).
//! B texts of T ids, H channels, P = 2 near + 1 places.

use super::graph::{Attr, Graph, Value};
use super::layers::{Conv, float, layer_norm, pad, permute, split, times, unsqueeze};
use ambitus_models::piper::config::Config;

/// What places beyond a text's end have in attention.
const NEVER: f32 = -1e4;

/// Encoded texts.
pub(super) struct Text {
    /// States f32 `[B, H, T]`.
    pub states: Value,
    /// The mean of each id's frames f32 `[B, inter, T]`.
    pub mean: Value,
    /// The logarithm of their spread f32 `[B, inter, T]`.
    pub logs: Value,
    /// 1 for ids, 0 behind a text's end, f32 `[B, 1, T]`.
    pub mask: Value,
}

/// Encodes ids i64 `[B, T]` of texts of these lengths, i64 `[B]`.
pub(super) fn encode(g: &mut Graph, cfg: &Config, [ids, lengths]: [Value; 2]) -> Text {
    g.scope("enc_p", |g| {
        let shape = g.op("Shape", &[ids]);
        let near = Near::of(g, cfg, shape);
        let ends = unsqueeze(g, lengths, 1);
        let mask = g.op("Less", &[near.rows, ends]);
        let mask = float(g, mask);
        let mask = unsqueeze(g, mask, 1);
        let x = g.scope("emb", |g| {
            let table = g.weight("weight", &[cfg.symbols, cfg.hidden]);
            g.op("Gather", &[table, ids])
        });
        let x = times(g, x, (cfg.hidden as f32).sqrt());
        let x = permute(g, x, &[0, 2, 1]);
        let x = g.op("Mul", &[x, mask]);
        let x = g.scope("encoder", |g| layers(g, cfg, &near, mask, x));
        let stats = Conv::of(2 * cfg.inter, cfg.hidden, 1).add(g, "proj", x);
        let stats = g.op("Mul", &[stats, mask]);
        let [mean, logs] = split(g, stats, 1, [cfg.inter; 2]);
        Text { states: x, mean, logs, mask }
    })
}

fn layers(g: &mut Graph, cfg: &Config, near: &Near, mask: Value, mut x: Value) -> Value {
    let rows = unsqueeze(g, mask, 3);
    let columns = unsqueeze(g, mask, 2);
    let seen = g.op("Mul", &[rows, columns]);
    let half = g.float(0.5);
    let seen = g.op("Greater", &[seen, half]);
    for i in 0..cfg.layers {
        let y = g.scope(&format!("attn_layers.{i}"), |g| attention(g, cfg, near, seen, x));
        let sum = g.op("Add", &[x, y]);
        x = layer_norm(g, &format!("norm_layers_1.{i}"), sum, cfg.hidden);
        let y = g.scope(&format!("ffn_layers.{i}"), |g| {
            let y = g.op("Mul", &[x, mask]);
            let y = Conv::of(cfg.filter, cfg.hidden, cfg.kernel).add(g, "conv_1", y);
            let y = g.op("Relu", &[y]);
            let y = g.op("Mul", &[y, mask]);
            let y = Conv::of(cfg.hidden, cfg.filter, cfg.kernel).add(g, "conv_2", y);
            g.op("Mul", &[y, mask])
        });
        let sum = g.op("Add", &[x, y]);
        x = layer_norm(g, &format!("norm_layers_2.{i}"), sum, cfg.hidden);
    }
    g.op("Mul", &[x, mask])
}

/// Which places are near which: tables that all layers share.
struct Near {
    /// i64 `[T]`, 0, 1, ...
    rows: Value,
    /// For each two ids the place of the second around the first, of P and one at either side for those that are not near: i64
    /// `[B, heads, T, T]`.
    places: Value,
    /// For each id those around it, of T and `near` at either side: i64 `[B, heads, T, P]`.
    around: Value,
}

impl Near {
    /// Returns the tables of ids of a shape i64 `[2]`.
    fn of(g: &mut Graph, cfg: &Config, shape: Value) -> Near {
        let count = 2 * cfg.near + 1;
        let [first, second] = [0, 1].map(|i| g.ints(&[i]));
        let [texts, length] = [first, second].map(|i| g.op("Gather", &[shape, i]));
        let (zero, one) = (g.int(0), g.int(1));
        let end = g.op("Gather", &[shape, one]);
        let rows = g.op("Range", &[zero, end, one]);
        let down = unsqueeze(g, rows, 1);
        let places = g.op("Sub", &[rows, down]);
        let middle = g.int(cfg.near as i64 + 1);
        let places = g.op("Add", &[places, middle]);
        let last = g.int(count as i64 + 1);
        let places = g.op("Clip", &[places, zero, last]);
        let steps: Vec<i64> = (0..count as i64).collect();
        let steps = g.ints(&steps);
        let around = g.op("Add", &[down, steps]);
        let heads = g.ints(&[cfg.heads as i64]);
        let axis = [Attr::Int("axis", 0)];
        let square = g.with("Concat", &[texts, heads, length, length], &axis);
        let places = g.op("Expand", &[places, square]);
        let count = g.ints(&[count as i64]);
        let narrow = g.with("Concat", &[texts, heads, length, count], &axis);
        let around = g.op("Expand", &[around, narrow]);
        Near { rows, places, around }
    }
}

/// Ids of a text see each other, with keys and values of their own for those that are near (Shaw et al., arXiv 1803.02155).
fn attention(g: &mut Graph, cfg: &Config, near: &Near, seen: Value, x: Value) -> Value {
    let (count, of_head) = (2 * cfg.near + 1, cfg.hidden / cfg.heads);
    let heads = g.ints(&[0, cfg.heads as i64, of_head as i64, -1]);
    let [q, k, v] = ["conv_q", "conv_k", "conv_v"].map(|name| {
        let x = Conv::of(cfg.hidden, cfg.hidden, 1).add(g, name, x);
        g.op("Reshape", &[x, heads])
    });
    let [q, v] = [q, v].map(|x| permute(g, x, &[0, 1, 3, 2]));
    let size = g.float((of_head as f32).sqrt());
    let q = g.op("Div", &[q, size]);
    let scores = g.op("MatMul", &[q, k]);
    let [near_k, near_v] = ["emb_rel_k", "emb_rel_v"].map(|name| g.weight(name, &[1, count, of_head]));
    let near_k = permute(g, near_k, &[0, 2, 1]);
    let more = g.op("MatMul", &[q, near_k]);
    // Those that are not near have none.
    let more = pad(g, more, 4, [1, 1], 0.0);
    let more = g.with("GatherElements", &[more, near.places], &[Attr::Int("axis", 3)]);
    let scores = g.op("Add", &[scores, more]);
    let never = g.float(NEVER);
    let scores = g.op("Where", &[seen, scores, never]);
    let shares = g.with("Softmax", &[scores], &[Attr::Int("axis", -1)]);
    let far = g.op("MatMul", &[shares, v]);
    let shares = pad(g, shares, 4, [cfg.near; 2], 0.0);
    let shares = g.with("GatherElements", &[shares, near.around], &[Attr::Int("axis", 3)]);
    let close = g.op("MatMul", &[shares, near_v]);
    let o = g.op("Add", &[far, close]);
    let o = permute(g, o, &[0, 1, 3, 2]);
    let all = g.ints(&[0, cfg.hidden as i64, -1]);
    let o = g.op("Reshape", &[o, all]);
    Conv::of(cfg.hidden, cfg.hidden, 1).add(g, "conv_o", o)
}
