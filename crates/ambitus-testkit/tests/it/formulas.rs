//! Decompositions against the formulas of the ops' documents, written as straight loops in f64. Gradient ops are held by
//! the gradient checks.

use ambitus_ir::Op;
use ambitus_ir::ops::activation::ActivationKind;
use ambitus_ir::ops::attention::{Attention, Rotary};
use ambitus_ir::ops::conv::Conv1d;
use ambitus_ir::ops::optim::{AdamW, PARTIAL};
use ambitus_testkit::tolerances::{FORMULA, Tolerance, differs};
use ambitus_testkit::{Interp, Rng, Rounding, Tensor, cases};
use std::collections::BTreeSet;
use std::f64::consts::{FRAC_1_SQRT_2, PI};

type Data = Vec<f64>;

fn cols(t: &Tensor) -> usize {
    t.ty.shape.cols()
}

/// Rows of a segment.
fn segment(table: &Tensor, s: usize) -> std::ops::Range<usize> {
    table.data[s] as usize..table.data[s + 1] as usize
}

/// Calls `f` for every segment with its rows.
fn each_segment(table: &Tensor, mut f: impl FnMut(usize, std::ops::Range<usize>)) {
    for s in 0..table.data.len() - 1 {
        f(s, segment(table, s));
    }
}

fn activation(kind: ActivationKind, x: f64) -> f64 {
    match kind {
        ActivationKind::GeluErf => 0.5 * x * (1.0 + libm::erf(x * FRAC_1_SQRT_2)),
        ActivationKind::GeluTanh => 0.5 * x * (1.0 + ((2.0 / PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh()),
        ActivationKind::Silu => silu(x),
        ActivationKind::Mish => x * x.exp().ln_1p().tanh(),
        ActivationKind::Elu => x.max(x.min(0.0).exp_m1()),
    }
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// (x - mean) / sqrt(var + eps)
fn normalised(row: &[f64], eps: f32) -> Data {
    let n = row.len() as f64;
    let mean = row.iter().sum::<f64>() / n;
    let var = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
    row.iter().map(|x| (x - mean) / (var + f64::from(eps)).sqrt()).collect()
}

/// `at`: positions, where they are given.
fn rotary(op: &Rotary, x: &Tensor, freqs: &Tensor, segs: &Tensor, at: Option<&Tensor>) -> Data {
    let (width, half) = (cols(x), op.head_dim / 2);
    let mut y = vec![0.0; x.data.len()];
    each_segment(segs, |_, rows| {
        for (place, t) in rows.enumerate() {
            let position = at.map_or(place as f64, |at| at.data[t]);
            for c in 0..width {
                let (head, at) = (c / op.head_dim, c % op.head_dim);
                let start = t * width + head * op.head_dim;
                if head >= op.rotated {
                    y[start + at] = x.data[start + at];
                    continue;
                }
                let (pair, second) = if op.interleaved { (at / 2, at % 2) } else { (at % half, at / half) };
                let (ia, ib) = if op.interleaved { (2 * pair, 2 * pair + 1) } else { (pair, pair + half) };
                let (a, b) = (x.data[start + ia], x.data[start + ib]);
                let sign = if op.inverse { -1.0 } else { 1.0 };
                let (sin, cos) = (sign * position * freqs.data[pair]).sin_cos();
                y[start + at] = if second == 0 { a * cos - b * sin } else { b * cos + a * sin };
            }
        }
    });
    y
}

fn attention(op: &Attention, x: &[Tensor]) -> Vec<Data> {
    let [q, k, v, qs, ks] = x else { panic!("five operands") };
    let (d, heads) = (op.head_dim, op.heads);
    let (wide, kwide) = (cols(q), cols(k));
    let mut o = vec![0.0; q.data.len()];
    let mut lse = vec![0.0; q.data.len() / wide * heads];
    each_segment(qs, |s, rows| {
        for (i, t) in rows.enumerate() {
            for h in 0..heads {
                let kh = h / (heads / op.kv_heads);
                let query = &q.data[t * wide + h * d..][..d];
                let seen = segment(ks, s).enumerate().filter(|(j, _)| !op.causal || *j <= i);
                let scored: Vec<(f64, &[f64])> = seen
                    .map(|(_, u)| {
                        let key = &k.data[u * kwide + kh * d..][..d];
                        let dot: f64 = query.iter().zip(key).map(|(a, b)| a * b).sum();
                        (f64::from(op.scale) * dot, &v.data[u * kwide + kh * d..][..d])
                    })
                    .collect();
                if scored.is_empty() {
                    continue;
                }
                let sum: f64 = scored.iter().map(|(s, _)| s.exp()).sum();
                lse[t * heads + h] = sum.ln();
                for (score, value) in scored {
                    for c in 0..d {
                        o[t * wide + h * d + c] += score.exp() / sum * value[c];
                    }
                }
            }
        }
    });
    vec![o, lse]
}

fn windowed(heads: usize, x: &[Tensor]) -> Vec<Data> {
    let [q, k, v, rel_k, rel_v, segs] = x else { panic!("six operands") };
    let (wide, d, near) = (cols(q), cols(rel_k), rel_k.ty.shape[0]);
    let (mut o, mut lse) = (vec![0.0; q.data.len()], vec![0.0; q.data.len() / wide * heads]);
    each_segment(segs, |_, rows| {
        for (t, h) in rows.clone().flat_map(|t| (0..heads).map(move |h| (t, h))) {
            // A row of a head, and what is added to it at its distance from t.
            let row = |x: &Tensor, table: &Tensor, u: usize| -> Data {
                let r = (u + near / 2).checked_sub(t).filter(|r| *r < near);
                let more = |c: usize| r.map_or(0.0, |r| table.data[r * d + c]);
                (0..d).map(|c| x.data[u * wide + h * d + c] + more(c)).collect()
            };
            let score = |u: usize| -> f64 {
                let key = row(k, rel_k, u);
                (0..d).map(|c| q.data[t * wide + h * d + c] * key[c]).sum::<f64>() / (d as f64).sqrt()
            };
            let scores: Data = rows.clone().map(score).collect();
            let sum: f64 = scores.iter().map(|s| s.exp()).sum();
            lse[t * heads + h] = sum.ln();
            for (u, score) in rows.clone().zip(scores) {
                for (c, v) in row(v, rel_v, u).into_iter().enumerate() {
                    o[t * wide + h * d + c] += score.exp() / sum * v;
                }
            }
        }
    });
    vec![o, lse]
}

fn conv1d(op: &Conv1d, x: &[Tensor]) -> Data {
    let [x, w, bias, segs] = x else { panic!("four operands") };
    let (cin, cout) = (cols(x), w.ty.shape[0]);
    let (per, taps) = (w.ty.shape[1], w.ty.shape[2]);
    let mut y = vec![0.0; x.ty.shape[0] * cout];
    each_segment(segs, |_, rows| {
        for t in rows.clone() {
            for o in 0..cout {
                let group = o / (cout / op.groups);
                let mut sum = bias.data[o];
                for k in 0..taps {
                    let from = (t + k).wrapping_sub(op.pad);
                    if !rows.contains(&from) {
                        continue;
                    }
                    for c in 0..per {
                        sum += w.data[(o * per + c) * taps + k] * x.data[from * cin + group * per + c];
                    }
                }
                y[t * cout + o] = sum;
            }
        }
    });
    y
}

fn lstm(x: &[Tensor]) -> Vec<Data> {
    let [x, w, h, c, segs] = x else { panic!("five operands") };
    let n = cols(h);
    let (mut y, mut h, mut c) = (vec![0.0; x.data.len() / 4], h.data.clone(), c.data.clone());
    let logistic = |x: f64| 1.0 / (1.0 + (-x).exp());
    each_segment(segs, |s, rows| {
        for t in rows {
            let before = h[s * n..][..n].to_vec();
            let dot = |row: &[f64]| -> f64 { row.iter().zip(&before).map(|(w, h)| w * h).sum() };
            let z: Data = w.data.chunks(n).zip(&x.data[t * 4 * n..]).map(|(w, x)| x + dot(w)).collect();
            for k in 0..n {
                let at = s * n + k;
                c[at] = logistic(z[n + k]) * c[at] + logistic(z[k]) * z[2 * n + k].tanh();
                h[at] = logistic(z[3 * n + k]) * c[at].tanh();
                y[t * n + k] = h[at];
            }
        }
    });
    vec![y, h, c]
}

fn grn(x: &[Tensor], eps: f32) -> Data {
    let [x, gamma, beta, segs] = x else { panic!("four operands") };
    let c = cols(x);
    let mut y = vec![0.0; x.data.len()];
    each_segment(segs, |_, rows| {
        let square = |k: usize| -> f64 { rows.clone().map(|t| x.data[t * c + k].powi(2)).sum() };
        let g: Data = (0..c).map(|k| square(k).sqrt()).collect();
        let m = g.iter().sum::<f64>() / c as f64 + f64::from(eps);
        for t in rows.clone() {
            for k in 0..c {
                let v = x.data[t * c + k];
                y[t * c + k] = gamma.data[k] * (v * g[k] / m) + beta.data[k] + v;
            }
        }
    });
    y
}

fn cross_entropy(x: &[Tensor]) -> f64 {
    let [x, w, labels, norm] = x else { panic!("four operands") };
    let d = cols(x);
    let mut sum = 0.0;
    for (t, label) in labels.data.iter().enumerate().filter(|(_, l)| **l >= 0.0) {
        let logit = |v: usize| -> f64 { (0..d).map(|c| x.data[t * d + c] * w.data[v * d + c]).sum() };
        let logits: Data = (0..w.ty.shape[0]).map(logit).collect();
        let high = logits.iter().copied().fold(f64::MIN, f64::max);
        let total: f64 = logits.iter().map(|l| (l - high).exp()).sum();
        sum += high + total.ln() - logits[*label as usize];
    }
    norm.data[0] * sum
}

fn adamw(op: &AdamW, x: &[Tensor]) -> Vec<Data> {
    let s: Data = x[4..].iter().map(|t| t.data[0]).collect();
    let (lr, coef, step, apply) = (s[0], s[1], s[2], s[3]);
    let mut y = vec![x[0].data.clone(), x[2].data.clone(), x[3].data.clone()];
    if apply == 0.0 {
        return y;
    }
    let (c1, c2) = (1.0 - op.beta1.powf(step), 1.0 - op.beta2.powf(step));
    for i in 0..y[0].len() {
        let g = coef * x[1].data[i];
        y[0][i] *= 1.0 - lr * op.weight_decay;
        y[1][i] = op.beta1 * y[1][i] + (1.0 - op.beta1) * g;
        y[2][i] = op.beta2 * y[2][i] + (1.0 - op.beta2) * g * g;
        y[0][i] -= lr / c1 * y[1][i] / ((y[2][i] / c2).sqrt() + op.eps);
    }
    y
}

/// x w + bias, of x `[T, In]`, w `[In, Out]` and perhaps a bias `[Out]`.
fn linear_in(x: &[Tensor]) -> Data {
    let (inner, out) = (cols(&x[0]), x[1].ty.shape[1]);
    let bias = |o: usize| x.get(2).map_or(0.0, |b| b.data[o]);
    let product =
        |row: &[f64], o: usize| -> f64 { (0..inner).map(|c| row[c] * x[1].data[c * out + o]).sum() };
    let row = |row: &[f64]| (0..out).map(|o| product(row, o) + bias(o)).collect::<Vec<f64>>();
    x[0].data.chunks(inner).flat_map(row).collect()
}

/// Results by the formula, or `None` for ops without one here.
fn formula(op: &Op, x: &[Tensor]) -> Option<Vec<Data>> {
    let each = |f: &dyn Fn(usize) -> f64| -> Vec<Data> { vec![(0..x[0].data.len()).map(f).collect()] };
    let at = |t: usize, i: usize| x[t].data[i];
    let chunks = |t: &Tensor| -> Vec<Data> { t.data.chunks(cols(t)).map(<[f64]>::to_vec).collect() };
    Some(match op {
        Op::Activation(op) => each(&|i| activation(op.kind, at(0, i))),
        Op::Snake(_) => {
            let c = cols(&x[0]);
            each(&|i| at(0, i) + (at(1, i % c) * at(0, i)).sin().powi(2) / (at(1, i % c) + 1e-9))
        }
        Op::SwiGlu(_) => each(&|i| silu(at(0, i)) * at(1, i)),
        Op::Scale(_) => each(&|i| at(0, i) * at(1, 0)),
        Op::ScaleRows(_) => each(&|i| at(0, i) * at(1, i / cols(&x[0]))),
        Op::Accumulate(_) => each(&|i| {
            let old = if at(2, 0) == 0.0 { 0.0 } else { at(2, 0) * at(0, i) };
            old + at(1, i)
        }),
        Op::Lerp(_) => each(&|i| {
            if at(3, 0) == 0.0 { at(0, i) } else { at(0, i) + (1.0 - at(2, 0)) * (at(1, i) - at(0, i)) }
        }),
        Op::Linear(_) => {
            let out = x[1].ty.shape[0];
            let (left, right) = (chunks(&x[0]), chunks(&x[1]));
            let dot = |a: &Data, b: &Data| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
            let y = left.iter().flat_map(|a| right.iter().map(move |b| dot(a, b)));
            let bias = |o: usize| x.get(2).map_or(0.0, |b| b.data[o]);
            vec![y.enumerate().map(|(i, y)| y + bias(i % out)).collect()]
        }
        Op::LinearIn(_) => {
            vec![linear_in(x)]
        }
        Op::LayerNorm(op) => {
            let n: Data = chunks(&x[0]).iter().flat_map(|r| normalised(r, op.eps)).collect();
            let c = cols(&x[0]);
            each(&|i| n[i] * at(1, i % c) + at(2, i % c))
        }
        Op::RmsNorm(op) => {
            let c = cols(&x[0]);
            let ms = |i: usize| {
                let row = &x[0].data[i / c * c..][..c];
                row.iter().map(|x| x * x).sum::<f64>() / c as f64
            };
            each(&|i| at(0, i) / (ms(i) + f64::from(op.eps)).sqrt() * at(1, i % c))
        }
        Op::AdaLayerNorm(op) => {
            let c = cols(&x[0]);
            let rows = chunks(&x[0]);
            let mut y = vec![0.0; x[0].data.len()];
            each_segment(&x[3], |s, range| {
                for t in range {
                    for (k, n) in normalised(&rows[t], op.eps).into_iter().enumerate() {
                        y[t * c + k] = n * (1.0 + at(2, s * c + k)) + at(1, s * c + k);
                    }
                }
            });
            vec![y]
        }
        Op::GatedResidual(_) => {
            let c = cols(&x[0]);
            let mut y = x[0].data.clone();
            each_segment(&x[3], |s, range| {
                (range.start * c..range.end * c).for_each(|i| y[i] += at(1, s * c + i % c) * at(2, i));
            });
            vec![y]
        }
        Op::SegmentBroadcast(op) => {
            let c = cols(&x[0]);
            let mut y = vec![0.0; op.rows * c];
            each_segment(&x[1], |s, range| {
                (range.start * c..range.end * c).for_each(|i| y[i] = at(0, s * c + i % c));
            });
            vec![y]
        }
        Op::SegmentSum(_) => {
            let c = cols(&x[0]);
            let mut y = vec![0.0; (x[1].data.len() - 1) * c];
            each_segment(&x[1], |s, range| {
                (range.start * c..range.end * c).for_each(|i| y[s * c + i % c] += at(0, i));
            });
            vec![y]
        }
        Op::Grn(op) => vec![grn(x, op.eps)],
        Op::Rotary(op) => vec![rotary(op, &x[0], &x[1], &x[2], x.get(3))],
        Op::Attention(op) => attention(op, x),
        Op::WindowedAttention(op) => windowed(op.heads, x),
        Op::Conv1d(op) => vec![conv1d(op, x)],
        Op::Lstm(_) => lstm(x),
        Op::MaskedMse(_) => {
            let term = |i: usize| at(2, i / cols(&x[0])) * (at(0, i) - at(1, i)).powi(2);
            vec![vec![at(3, 0) * (0..x[0].data.len()).map(term).sum::<f64>()]]
        }
        Op::LinearCrossEntropy(_) => vec![vec![cross_entropy(x)]],
        Op::SumSquares(_) => {
            let part = |p: &[f64]| p.iter().map(|x| x * x).sum();
            vec![x[0].data.chunks(PARTIAL).map(part).collect()]
        }
        Op::AdamW(op) => adamw(op, x),
        _ => return None,
    })
}

const TOLERANCE: Tolerance = Tolerance { op: "", rel: 0.0, abs: FORMULA, reason: "" };

#[test]
fn decompositions_are_the_formulas() {
    let mut interp = Interp::new(Rounding::Exact);
    let mut checked = BTreeSet::new();
    for case in cases() {
        let Some(expected) = formula(&case.op, &case.values()) else {
            continue;
        };
        let got = case.expected(&mut interp).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        for (k, (g, e)) in got.iter().zip(&expected).enumerate() {
            let off = differs(&g.data, e, TOLERANCE);
            assert_eq!(off, None, "{} result {k}: (index, got, expected)", case.name);
        }
        checked.insert(case.op.name());
    }
    assert_eq!(checked.len(), 25, "{checked:?}");
}

/// An accumulating op is its plain form plus beta times the accumulator, and leaves other results alone.
#[test]
fn accumulating_ops_add_to_the_plain_result() {
    let mut interp = Interp::new(Rounding::Exact);
    let mut rng = Rng::new(11);
    let mut checked = BTreeSet::new();
    for case in cases() {
        let plain = case.expected(&mut interp).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        for k in 0..plain.len() {
            let Some(op) = case.op.def().accumulating(k) else {
                continue;
            };
            let acc = rng.tensor(plain[k].ty, -1.0, 1.0);
            let mut x = case.values();
            x.extend([acc.clone(), Tensor::scalar(0.375)]);
            let y = interp.op(&op, &x).unwrap_or_else(|e| panic!("{}: {e}", case.name));
            for (i, (got, mut want)) in y.into_iter().zip(plain.clone()).enumerate() {
                if i == k {
                    want.data.iter_mut().zip(&acc.data).for_each(|(w, a)| *w += 0.375 * a);
                }
                let off = differs(&got.data, &want.data, TOLERANCE);
                assert_eq!(off, None, "{} result {i}: (index, got, expected)", case.name);
            }
            checked.insert(op.name());
        }
    }
    let all = ["conv1d_weight_grad", "linear_cross_entropy_grad", "matmul", "scatter_add"];
    assert_eq!(checked, all.into());
}

/// Rows of no segment may hold anything: it reaches no other row and no sum.
#[test]
fn rows_of_no_segment_reach_nothing() {
    let mut interp = Interp::new(Rounding::Exact);
    let mut checked = BTreeSet::new();
    for case in cases() {
        // Operands of segment tables, each with the operands whose rows it divides.
        let tables: &[(usize, &[usize])] = match case.op.name() {
            "segment_sum" => &[(1, &[0])],
            "ada_layer_norm" | "grn" | "conv1d" => &[(3, &[0])],
            "ada_layer_norm_grad" | "grn_grad" => &[(3, &[0, 2])],
            "gated_residual_grad" => &[(3, &[1, 2])],
            "rotary" | "dropout" => &[(2, &[0])],
            "attention" => &[(3, &[0]), (4, &[1, 2])],
            "windowed_attention" => &[(5, &[0, 1, 2])],
            "windowed_attention_grad" => &[(8, &[0, 1, 2, 7])],
            "monotonic_path" => &[(4, &[0]), (5, &[1, 2])],
            "attention_grad" => &[(6, &[0, 5]), (7, &[1, 2])],
            "conv1d_input_grad" => &[(2, &[1])],
            "conv1d_weight_grad" => &[(2, &[0, 1])],
            _ => continue,
        };
        let clean = case.expected(&mut interp).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        let mut x = case.values();
        for (table, operands) in tables {
            let end = *x[*table].data.last().expect("a table has offsets") as usize;
            for o in *operands {
                let c = cols(&x[*o]);
                x[*o].data[end * c..].fill(f64::NAN);
            }
        }
        let dirty = interp.op(&case.op, &x).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        assert!(dirty == clean, "{}", case.name);
        checked.insert(case.op.name());
    }
    assert_eq!(checked.len(), 16, "{checked:?}");
}
