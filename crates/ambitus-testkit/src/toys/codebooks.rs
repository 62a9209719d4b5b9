//! A decoder over codebooks at toy size, as docs/decisions/0001 has it on paper. K codebooks, cross-attention from
//! token steps to text over two segment tables, K heads.

use crate::{Rng, Tensor, Tensors};
use ambitus_ir::ops::activation::ActivationKind;
use ambitus_ir::ops::attention::Attention;
use ambitus_ir::ops::index::{Sinusoid, SinusoidKind};
use ambitus_ir::{Builder, Program, Session, TensorType, ValueId};

const CODEBOOKS: usize = 2;
const CARD: usize = 13;
const DIM: usize = 8;
const TEXT_DIM: usize = 6;
const STEPS: usize = 16;
const TEXT_ROWS: usize = 9;
const CLIPS: usize = 3;
/// Token steps and text rows of each clip.
const LENGTHS: [(usize, usize); 2] = [(8, 4), (5, 3)];

pub fn loss(session: &mut Session) -> Program {
    let mut b = Builder::new(session, "micro");
    let loss = decoder(&mut b);
    b.output("loss", loss);
    b.finish()
}

fn decoder(b: &mut Builder<'_>) -> ValueId {
    let table = TensorType::i32(&[CLIPS + 1]);
    let (segs, text_segs) = (b.input("segments", table), b.input("text_segments", table));
    // A frozen encoder's output: a program of its own fills this input.
    let text = b.input("text", TensorType::f32(&[TEXT_ROWS, TEXT_DIM]));
    let text = linear(b, "enc_to_dec_proj", text, DIM);
    let mut x = embedded(b, segs);
    for i in 0..2 {
        x = b.block("model.decoder.layers", i, |b| layer(b, x, text, segs, text_segs));
    }
    let x = norm(b, "model.decoder.layer_norm", x);
    let heads: Vec<ValueId> = (0..CODEBOOKS).map(|k| head(b, k, x)).collect();
    heads.into_iter().reduce(|a, h| b.add(a, h)).expect("there are codebooks")
}

fn embedded(b: &mut Builder<'_>, segs: ValueId) -> ValueId {
    let at = b.segment_positions(segs, STEPS);
    let op = Sinusoid { kind: SinusoidKind::CosSin, half: DIM / 2, scale: 1.0, base: 10000.0 };
    let mut x = b.push1(op, &[at]);
    for k in 0..CODEBOOKS {
        let codes = b.input(&format!("codes.{k}"), TensorType::i32(&[STEPS]));
        let e = b.scope(&format!("model.decoder.embed_tokens.{k}"), |b| {
            let w = b.parameter("weight", &[CARD + 1, DIM]);
            b.gather(w, codes)
        });
        x = b.add(x, e);
    }
    x
}

fn head(b: &mut Builder<'_>, k: usize, x: ValueId) -> ValueId {
    let labels = b.input(&format!("labels.{k}"), TensorType::i32(&[STEPS]));
    let norm = b.input(&format!("norm.{k}"), TensorType::f32(&[1]));
    b.scope(&format!("lm_heads.{k}"), |b| {
        let w = b.parameter("weight", &[CARD, DIM]);
        b.linear_cross_entropy(x, w, labels, norm, 4)
    })
}

fn layer(b: &mut Builder<'_>, x: ValueId, text: ValueId, segs: ValueId, text_segs: ValueId) -> ValueId {
    let h = norm(b, "self_attn_layer_norm", x);
    let h = attention(b, "self_attn", (h, segs), (h, segs), true);
    let x = b.add(x, h);
    let h = norm(b, "encoder_attn_layer_norm", x);
    let h = attention(b, "encoder_attn", (h, segs), (text, text_segs), false);
    let x = b.add(x, h);
    let h = norm(b, "final_layer_norm", x);
    let h = linear(b, "fc1", h, 2 * DIM);
    let h = b.activation(ActivationKind::GeluErf, h);
    let h = linear(b, "fc2", h, DIM);
    b.add(x, h)
}

/// Queries from one packed sequence, keys and values from another: (rows, segments) each.
fn attention(
    b: &mut Builder<'_>,
    scope: &str,
    from: (ValueId, ValueId),
    to: (ValueId, ValueId),
    causal: bool,
) -> ValueId {
    b.scope(scope, |b| {
        let q = linear(b, "q_proj", from.0, DIM);
        let (k, v) = (linear(b, "k_proj", to.0, DIM), linear(b, "v_proj", to.0, DIM));
        let op = Attention { heads: 2, kv_heads: 2, head_dim: DIM / 2, causal, scale: 0.5 };
        let o = b.push(op, &[q, k, v, from.1, to.1])[0];
        linear(b, "out_proj", o, DIM)
    })
}

fn linear(b: &mut Builder<'_>, scope: &str, x: ValueId, out: usize) -> ValueId {
    b.scope(scope, |b| {
        let inner = b.dim(x, 1);
        let w = b.parameter("weight", &[out, inner]);
        b.linear(x, w, None)
    })
}

fn norm(b: &mut Builder<'_>, scope: &str, x: ValueId) -> ValueId {
    b.scope(scope, |b| {
        let (gamma, beta) = (b.parameter("weight", &[DIM]), b.parameter("bias", &[DIM]));
        b.layer_norm(x, gamma, beta, 1e-5)
    })
}

/// Returns the inputs for these clips, codebook k delayed by k steps: holes hold the special token and are not scored.
pub fn batch(clips: &[usize]) -> Tensors {
    let mut out = Tensors::new();
    let (mut segs, mut text_segs) = (vec![0], vec![0]);
    let mut text = Tensor::full(TensorType::f32(&[TEXT_ROWS, TEXT_DIM]), 0.0);
    let mut codes = [(); CODEBOOKS].map(|()| vec![CARD as i32; STEPS]);
    let mut labels = [(); CODEBOOKS].map(|()| vec![-1; STEPS]);
    let (mut at, mut text_at) = (0, 0);
    for &clip in clips {
        let mut rng = Rng::new(300 + clip as u64);
        let (steps, rows) = LENGTHS[clip];
        for (k, (codes, labels)) in codes.iter_mut().zip(&mut labels).enumerate() {
            for token in 0..steps - 1 - k {
                let code = rng.below(CARD) as i32;
                labels[at + token + k] = code;
                codes[at + token + k + 1] = code;
            }
        }
        let part = &mut text.data[text_at * TEXT_DIM..(text_at + rows) * TEXT_DIM];
        part.fill_with(|| rng.range(-1.0, 1.0));
        (at, text_at) = (at + steps, text_at + rows);
        segs.push(at as i32);
        text_segs.push(text_at as i32);
    }
    segs.resize(CLIPS + 1, at as i32);
    text_segs.resize(CLIPS + 1, text_at as i32);
    out.insert("segments".to_owned(), Tensor::i32(&segs));
    out.insert("text_segments".to_owned(), Tensor::i32(&text_segs));
    out.insert("text".to_owned(), text);
    for k in 0..CODEBOOKS {
        let scored: usize = LENGTHS.iter().map(|(steps, _)| steps - 1 - k).sum();
        out.insert(format!("codes.{k}"), Tensor::i32(&codes[k]));
        out.insert(format!("labels.{k}"), Tensor::i32(&labels[k]));
        out.insert(format!("norm.{k}"), Tensor::scalar(1.0 / (CODEBOOKS * scored) as f32));
    }
    out
}
