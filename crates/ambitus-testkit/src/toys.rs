//! Models small enough for the reference interpreter, with clips of unequal length, one empty segment and free rows.

mod codebooks;

use crate::{Interp, Rng, Rounding, Tensor, Tensors};
use ambitus_ir::{Program, Session, StateDecl, StateKind, TensorType};
use ambitus_models::small::{self, FRAMES, MELS, TOKENS};

/// A model and one update's clips.
pub struct Toy {
    /// For messages.
    pub name: &'static str,
    /// Builds the forward step, named `micro`.
    pub model: fn(&mut Session) -> Program,
    /// The update's clips in one micro-batch.
    pub whole: Tensors,
    /// The update's clips in two micro-batches.
    pub halves: [Tensors; 2],
}

/// Loss and every gradient, by parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradients {
    /// The update's loss.
    pub loss: f64,
    /// Elements of each gradient, sorted by name.
    pub by_name: Vec<(String, Vec<f64>)>,
}

/// Both forms of flow matching over frames, a Llama, and a decoder over codebooks that attends to a text.
pub fn toys() -> [Toy; 4] {
    [
        Toy {
            name: "frames v1",
            model: small::frames_v1,
            whole: frames_batch(&[0, 1]),
            halves: [frames_batch(&[1]), frames_batch(&[0])],
        },
        Toy {
            name: "frames v0",
            model: small::frames_v0,
            whole: frames_batch(&[0, 1]),
            halves: [frames_batch(&[0]), frames_batch(&[1])],
        },
        Toy {
            name: "llama",
            model: small::tokens_loss,
            whole: llama_batch(&[0, 1]),
            halves: [llama_batch(&[0]), llama_batch(&[1])],
        },
        Toy {
            name: "codebooks",
            model: codebooks::loss,
            whole: codebooks::batch(&[1, 0]),
            halves: [codebooks::batch(&[0]), codebooks::batch(&[1])],
        },
    ]
}

const CLIPS: [usize; 2] = [9, 5];

/// Models of more blocks, of which three ranks can have some each; the last with a head of its own.
pub fn deep_toys() -> [Toy; 3] {
    let [frames, _, llama, _] = toys();
    let untied = Toy { name: "llama of 3, untied", model: small::tokens_untied, ..batches_of(&llama) };
    [
        Toy { name: "frames v1 of 4", model: small::frames_deep, ..frames },
        Toy { name: "llama of 3", model: small::tokens_deep, ..llama },
        untied,
    ]
}

/// Models whose embedding, and head, is larger than a part: tied, untied, and of rows with pads.
pub fn wide_toys() -> [Toy; 3] {
    let toy = |name, model, vocab| Toy {
        name,
        model,
        whole: words(&[0, 1], vocab),
        halves: [words(&[0], vocab), words(&[1], vocab)],
    };
    [
        toy("llama of many words", small::tokens_wide, 2500),
        toy("llama of many words, untied", small::tokens_wide_untied, 2500),
        toy("llama of many words in odd rows", small::tokens_odd, 16_500),
    ]
}

fn batches_of(toy: &Toy) -> Toy {
    let (whole, halves) = (toy.whole.clone(), toy.halves.clone());
    Toy { name: toy.name, model: toy.model, whole, halves }
}

/// Returns the inputs of the program over frames for these clips, laid end to end.
fn frames_batch(clips: &[usize]) -> Tensors {
    let (rows, segs) = (FRAMES.rows, FRAMES.clips);
    let wide = TensorType::f32(&[rows, MELS]);
    let mut floats = [wide, wide].map(|ty| Tensor::full(ty, 0.0));
    let mut masks = [0; 3].map(|_| Tensor::full(TensorType::f32(&[rows]), 0.0));
    let mut time = Tensor::full(TensorType::f32(&[segs]), 0.0);
    let mut keys = Tensor::full(TensorType::i32(&[segs, 2]), 0.0);
    let (mut text, mut segments) = (vec![0; rows], vec![0]);
    let mut at = 0;
    for (s, &clip) in clips.iter().enumerate() {
        let mut rng = Rng::new(100 + clip as u64);
        let n = CLIPS[clip];
        for t in &mut floats {
            t.data[at * MELS..(at + n) * MELS].fill_with(|| rng.range(-2.0, 1.0));
        }
        for i in 0..n {
            // The middle is predicted, the first frame and the last are given; text ends before the audio does.
            let predicted = (1..n - 1).contains(&i);
            masks[0].data[at + i] = f64::from(u8::from(!predicted));
            masks[1].data[at + i] = f64::from(u8::from(predicted));
            masks[2].data[at + i] = f64::from(u8::from(i + 2 < n));
            text[at + i] = if i + 2 < n { 1 + rng.below(11) as i32 } else { 0 };
        }
        time.data[s] = rng.range(0.1, 0.9);
        keys.data[2 * s..2 * s + 2].fill_with(|| rng.below(1000) as f64);
        at += n;
        segments.push(at as i32);
    }
    segments.resize(segs + 1, at as i32);
    let predicted: usize = CLIPS.iter().map(|n| n - 2).sum();
    let [mel, noise] = floats;
    let [cond_mask, span, text_mask] = masks;
    let norm = Tensor::scalar(1.0 / (MELS * predicted) as f32);
    named([
        ("mel", mel),
        ("noise", noise),
        ("cond_mask", cond_mask),
        ("span", span),
        ("text_mask", text_mask),
        ("time", time),
        ("keys", keys),
        ("text", Tensor::i32(&text)),
        ("segments", Tensor::i32(&segments)),
        ("norm", norm),
    ])
}

fn named<const N: usize>(tensors: [(&str, Tensor); N]) -> Tensors {
    tensors.into_iter().map(|(name, t)| (name.to_owned(), t)).collect()
}

fn llama_batch(clips: &[usize]) -> Tensors {
    words(clips, 23)
}

/// Returns inputs of a Llama program of `vocab` words for these clips, laid end to end.
fn words(clips: &[usize], vocab: usize) -> Tensors {
    let mut ids = vec![0; TOKENS.rows];
    let mut labels = vec![-100; TOKENS.rows];
    let mut segments = vec![0];
    let mut at = 0;
    for &i in clips {
        let mut rng = Rng::new(200 + i as u64);
        for t in 0..CLIPS[i] {
            ids[at + t] = rng.below(vocab) as i32;
            if t > 0 {
                labels[at + t - 1] = ids[at + t];
            }
        }
        at += CLIPS[i];
        segments.push(at as i32);
    }
    segments.resize(TOKENS.clips + 1, at as i32);
    let scored: usize = CLIPS.iter().map(|n| n - 1).sum();
    named([
        ("input_ids", Tensor::i32(&ids)),
        ("labels", Tensor::i32(&labels)),
        ("segments", Tensor::i32(&segments)),
        ("norm", Tensor::scalar(1.0 / scored as f32)),
    ])
}

/// Weights near those of a trained model: no zero, so that every gradient is felt; norms around one. States that are
/// not weights hold NaN: a first micro-batch must not read them.
pub fn states(session: &Session) -> Tensors {
    let mut rng = Rng::new(11);
    let mut out = Tensors::new();
    for s in &session.states {
        let fan = s.ty.shape.iter().skip(1).product::<usize>() as f64;
        let bound = 1.0 / fan.max(4.0).sqrt();
        let t = match s.kind {
            StateKind::Parameter if s.ty.shape.len() == 1 => rng.tensor(s.ty, 0.7, 1.3),
            StateKind::Parameter => rng.tensor(s.ty, -bound, bound),
            _ => Tensor::full(s.ty, f64::NAN),
        };
        out.insert(s.name.clone(), t);
    }
    out
}

impl Toy {
    /// Returns the update's gradients from these micro-batches, one after another, by the first program of a session that was
    /// compiled from [`Toy::model`].
    ///
    /// # Panics
    /// When the program does not run.
    pub fn gradients(&self, session: &Session, batches: &[&Tensors], rounding: Rounding) -> Gradients {
        let mut states = states(session);
        let mut interp = Interp::new(rounding);
        let mut loss = 0.0;
        for (k, batch) in batches.iter().enumerate() {
            let mut inputs = (*batch).clone();
            inputs.insert("beta".to_owned(), Tensor::scalar(if k == 0 { 0.0 } else { 1.0 }));
            let out = interp.run(session, &session.programs[0], &inputs, &mut states);
            loss += out.unwrap_or_else(|e| panic!("{}: {e}", self.name))["loss"].data[0];
        }
        let gradients = session.states.iter().filter(|s| s.kind == StateKind::Gradient);
        let mut by_name: Vec<_> = gradients.map(|s| (s.name.clone(), states[&s.name].data.clone())).collect();
        by_name.sort_by(|a, b| a.0.cmp(&b.0));
        Gradients { loss, by_name }
    }
}

/// Returns all states after three updates, and what each said: loss, gradient norm, whether it was applied, its number.
///
/// # Panics
/// When a program does not run, or does not say one of these.
pub fn three_updates(s: &Session, batch: &Tensors, clip: f32) -> (Tensors, Vec<Vec<f64>>) {
    let mut states = states(s);
    let made = |d: &&StateDecl| matches!(d.kind, StateKind::Optimizer | StateKind::Counter | StateKind::Ema);
    for d in s.states.iter().filter(made) {
        states.insert(d.name.clone(), Tensor::full(d.ty, 0.0));
    }
    let mut inputs = batch.clone();
    for (name, x) in [("beta", 0.0), ("lr", 1e-2), ("clip", clip), ("decay", 0.25)] {
        inputs.insert(name.to_owned(), Tensor::scalar(x));
    }
    let mut interp = Interp::new(Rounding::ToType);
    let mut said = Vec::new();
    for _ in 0..3 {
        let mut out = Tensors::new();
        for p in &s.programs {
            out.extend(interp.run(s, p, &inputs, &mut states).unwrap_or_else(|e| panic!("{e}")));
        }
        said.push(["loss", "grad_norm", "apply", "step"].map(|name| out[name].data[0]).to_vec());
    }
    (states, said)
}
