use super::*;
use crate::cpu::kernels::testing::{Rng, check};
use crate::cpu::kernels::{MatMut, segment};

/// fp32 products of head_dim and up to a few hundred keys against f64.
const TOL: f32 = 3e-5;

struct Case {
    spec: Attention,
    q_seg: Vec<i32>,
    k_seg: Vec<i32>,
    q_rows: usize,
    k_rows: usize,
}

/// Returns the outputs in f64: o, lse, dq, dk, dv.
fn reference(c: &Case, q: &[f32], k: &[f32], v: &[f32], d_o: &[f32]) -> [Vec<f32>; 5] {
    let Attention { heads, kv_heads, head_dim: d, causal, scale } = c.spec;
    let (qc, kc) = (heads * d, kv_heads * d);
    let mut out = [
        vec![0.0; c.q_rows * qc],
        vec![0.0; c.q_rows * heads],
        vec![0.0; c.q_rows * qc],
        vec![0.0; c.k_rows * kc],
        vec![0.0; c.k_rows * kc],
    ];
    for s in 0..c.q_seg.len() - 1 {
        let (rows, keys) = (segment(&c.q_seg, s), segment(&c.k_seg, s));
        for h in 0..heads {
            let g = h / (heads / kv_heads);
            for (i, t) in rows.clone().enumerate() {
                let seen: Vec<usize> =
                    keys.clone().enumerate().filter(|(j, _)| !causal || *j <= i).map(|x| x.1).collect();
                if seen.is_empty() {
                    continue;
                }
                let dot = |x: &[f32], a: usize, y: &[f32], b: usize| -> f64 {
                    (0..d).map(|e| x[a + e] as f64 * y[b + e] as f64).sum()
                };
                let (qa, ka) = (t * qc + h * d, |j: usize| j * kc + g * d);
                let score: Vec<f64> = seen.iter().map(|&j| scale as f64 * dot(q, qa, k, ka(j))).collect();
                let top = score.iter().copied().fold(f64::MIN, f64::max);
                let sum: f64 = score.iter().map(|x| (x - top).exp()).sum();
                let p: Vec<f64> = score.iter().map(|x| (x - top).exp() / sum).collect();
                out[1][t * heads + h] = (top + sum.ln()) as f32;
                for e in 0..d {
                    let x: f64 = seen.iter().zip(&p).map(|(&j, p)| p * v[ka(j) + e] as f64).sum();
                    out[0][qa + e] = x as f32;
                }
                let dp: Vec<f64> = seen.iter().map(|&j| dot(d_o, qa, v, ka(j))).collect();
                let delta: f64 = p.iter().zip(&dp).map(|(a, b)| a * b).sum();
                for ((&j, p), dp) in seen.iter().zip(&p).zip(&dp) {
                    let ds = p * (dp - delta) * scale as f64;
                    for e in 0..d {
                        out[2][qa + e] += (ds * k[ka(j) + e] as f64) as f32;
                        out[3][ka(j) + e] += (ds * q[qa + e] as f64) as f32;
                        out[4][ka(j) + e] += (p * d_o[qa + e] as f64) as f32;
                    }
                }
            }
        }
    }
    out
}

fn verify(rng: &mut Rng, c: &Case) {
    let (qc, kc) = (c.spec.heads * c.spec.head_dim, c.spec.kv_heads * c.spec.head_dim);
    let (q, d_o) = (rng.vec(c.q_rows * qc), rng.vec(c.q_rows * qc));
    let (k, v) = (rng.vec(c.k_rows * kc), rng.vec(c.k_rows * kc));
    let want = reference(c, &q, &k, &v, &d_o);
    let what = format!("{:?} {:?} {:?}", c.spec, c.q_seg, c.k_seg);
    check(&want.concat(), TOL, &what, |pool| {
        let mut o = vec![f32::NAN; q.len()];
        let mut lse = vec![f32::NAN; c.q_rows * c.spec.heads];
        let (mut dq, mut dk, mut dv) = (o.clone(), vec![f32::NAN; k.len()], vec![f32::NAN; k.len()]);
        let mut ws = vec![f32::NAN; attention_workspace(&c.spec, pool.threads(), false)];
        let qm = |x| Mat::dense(x, c.q_rows, qc);
        let km = |x| Mat::dense(x, c.k_rows, kc);
        attention(
            pool,
            qm(&q),
            km(&k),
            km(&v),
            &c.q_seg,
            &c.k_seg,
            &c.spec,
            MatMut::dense(&mut o, c.q_rows, qc),
            MatMut::dense(&mut lse, c.q_rows, c.spec.heads),
            &mut ws,
        );
        let mut ws = vec![f32::NAN; attention_grad_workspace(&c.spec, c.q_rows, pool.threads(), false)];
        attention_grad(
            pool,
            qm(&q),
            km(&k),
            km(&v),
            qm(&o),
            Mat::dense(&lse, c.q_rows, c.spec.heads),
            qm(&d_o),
            &c.q_seg,
            &c.k_seg,
            &c.spec,
            MatMut::dense(&mut dq, c.q_rows, qc),
            MatMut::dense(&mut dk, c.k_rows, kc),
            MatMut::dense(&mut dv, c.k_rows, kc),
            &mut ws,
        );
        [o, lse, dq, dk, dv].concat()
    });
}

#[test]
fn self_attention_over_segments() {
    let mut rng = Rng::new(11);
    for (heads, kv_heads, head_dim, causal) in
        [(2, 2, 64, false), (4, 2, 16, true), (3, 1, 33, true), (1, 1, 5, false), (1, 1, 100, true)]
    {
        let rows = 40 + rng.below(40);
        let seg = rng.segments(4, rows);
        let scale = 1.0 / (head_dim as f32).sqrt();
        let spec = Attention { heads, kv_heads, head_dim, causal, scale };
        let case = Case { spec, q_seg: seg.clone(), k_seg: seg, q_rows: rows, k_rows: rows };
        verify(&mut rng, &case);
    }
}

#[test]
fn several_tiles() {
    let mut rng = Rng::new(12);
    for causal in [false, true] {
        let spec = Attention { heads: 2, kv_heads: 1, head_dim: 24, causal, scale: 1.5 };
        let seg = vec![0, 3, 603];
        let case = Case { spec, q_seg: seg.clone(), k_seg: seg, q_rows: 605, k_rows: 605 };
        verify(&mut rng, &case);
    }
}

#[test]
fn cross_attention_with_empty_segments() {
    let mut rng = Rng::new(13);
    for causal in [false, true] {
        let spec = Attention { heads: 2, kv_heads: 2, head_dim: 8, causal, scale: 0.5 };
        let case =
            Case { spec, q_seg: vec![0, 5, 5, 12, 20], k_seg: vec![0, 0, 9, 20, 60], q_rows: 22, k_rows: 61 };
        verify(&mut rng, &case);
    }
}

/// A query of each segment, as in a step of decoding, over more keys than a tile has.
#[test]
fn one_query_of_a_segment() {
    let mut rng = Rng::new(14);
    for (heads, kv_heads, head_dim, causal) in [(6, 2, 64, false), (2, 2, 33, false), (3, 1, 100, true)] {
        let spec = Attention { heads, kv_heads, head_dim, causal, scale: 0.3 };
        let (q_seg, k_seg) = (vec![0, 1, 1, 2, 3, 5], vec![0, 700, 720, 720, 727, 740]);
        verify(&mut rng, &Case { spec, q_seg, k_seg, q_rows: 6, k_rows: 741 });
    }
}
