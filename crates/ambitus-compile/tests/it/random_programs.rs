//! Random models: every pass keeps the verifier's invariants and the numbers, every plan passes its check.

use ambitus_compile::autodiff::differentiate;
use ambitus_compile::optimizer::{self, Optimizer};
use ambitus_compile::passes::policy::Blocks;
use ambitus_compile::pipeline::{self, Options};
use ambitus_compile::plan::plan;
use ambitus_ir::ops::activation::ActivationKind;
use ambitus_ir::ops::optim::AdamW;
use ambitus_ir::verify::verify;
use ambitus_ir::{Builder, Program, Session, StateKind, TensorType, ValueId};
use ambitus_testkit::owners;
use ambitus_testkit::paper::{FULL, Paper};
use ambitus_testkit::{Interp, Rng, Rounding, Tensor, Tensors};
use arbtest::arbitrary::{Result, Unstructured};

const ROWS: usize = 3;
const WIDTH: usize = 4;
/// Sums of a few contributions in another order, in fp32, relative to the gradient's length.
const REORDERED: f64 = 5e-6;

fn ty() -> TensorType {
    TensorType::f32(&[ROWS, WIDTH])
}

/// A model of a few blocks of random ops over everything made before, with parameters used once or several times.
fn model(session: &mut Session, u: &mut Unstructured<'_>) -> Result<Program> {
    let mut b = Builder::new(session, "micro");
    let x = b.input("x", ty());
    let rows = b.input("rows", TensorType::f32(&[ROWS]));
    let norm = b.input("norm", TensorType::f32(&[1]));
    let labels = b.input("labels", TensorType::i32(&[ROWS]));
    let mut values = vec![x];
    let mut last = x;
    for i in 0..u.int_in_range(1..=3)? {
        let mut fault = None;
        last = b.block("layers", i, |b| {
            grow(b, u, &mut values, rows).unwrap_or_else(|e| {
                fault = Some(e);
                last
            })
        });
        if let Some(e) = fault {
            return Err(e);
        }
    }
    let w = b.parameter("head", &[WIDTH, WIDTH]);
    let y = b.linear(last, w, None);
    let mut loss = b.masked_mse(y, x, rows, norm);
    for _ in 0..u.int_in_range(0..=2)? {
        let from = *u.choose(&values)?;
        let part = b.linear_cross_entropy(from, w, labels, norm, 2);
        loss = b.add(loss, part);
    }
    b.output("loss", loss);
    Ok(b.finish())
}

/// Appends a few random instructions; returns the last value.
fn grow(
    b: &mut Builder<'_>,
    u: &mut Unstructured<'_>,
    values: &mut Vec<ValueId>,
    rows: ValueId,
) -> Result<ValueId> {
    let mut last = *u.choose(values)?;
    for _ in 0..u.int_in_range(2..=7)? {
        let other = *u.choose(values)?;
        let shared = format!("shared.{}", u.int_in_range(0..=1)?);
        last = match u.int_in_range(0..=8)? {
            0 => b.activation(ActivationKind::Silu, last),
            1 => b.activation(ActivationKind::GeluTanh, other),
            2 => {
                let w = b.parameter(&shared, &[WIDTH, WIDTH]);
                b.linear(last, w, None)
            }
            3 => {
                let w = b.parameter(&format!("own.{}", values.len()), &[WIDTH, WIDTH]);
                b.linear(last, w, None)
            }
            4 => {
                let gamma = b.parameter(&format!("gamma.{}", values.len()), &[WIDTH]);
                b.rms_norm(last, gamma, 1e-5)
            }
            5 => b.add(last, other),
            6 => b.swiglu(last, other),
            7 => b.scale_rows(last, rows),
            _ => {
                let (left, right) = (b.slice(last, 1, 0, 1), b.slice(other, 1, 1, WIDTH - 1));
                b.concat(&[right, left], 1)
            }
        };
        values.push(last);
    }
    Ok(last)
}

fn inputs() -> Tensors {
    let mut rng = Rng::new(1);
    [
        ("x", rng.tensor(ty(), -1.0, 1.0)),
        ("rows", Tensor::f32(&[ROWS], &[1.0, 0.0, 0.5])),
        ("norm", Tensor::scalar(0.25)),
        ("labels", Tensor::i32(&[2, -1, 0])),
        ("beta", Tensor::scalar(0.0)),
    ]
    .map(|(name, t)| (name.to_owned(), t))
    .into()
}

fn states(session: &Session) -> Tensors {
    let mut rng = Rng::new(2);
    let draw = |s: &ambitus_ir::StateDecl| {
        let t = match s.kind {
            StateKind::Parameter => rng.tensor(s.ty, -0.7, 0.7),
            _ => Tensor::full(s.ty, f64::NAN),
        };
        (s.name.clone(), t)
    };
    session.states.iter().map(draw).collect()
}

/// Loss and gradients by name, as outputs or as states.
fn run(session: &Session, p: &Program) -> Vec<(String, Vec<f64>)> {
    let mut states = states(session);
    let out = Interp::new(Rounding::ToType).run(session, p, &inputs(), &mut states);
    let out = out.unwrap_or_else(|e| panic!("{e}"));
    let grads = states.into_iter().filter(|(name, _)| name.starts_with("grad."));
    let mut all: Vec<_> = out.into_iter().chain(grads).map(|(name, t)| (name, t.data)).collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

/// Weights and moments after the session's programs, which are an update.
fn updated(session: &Session) -> Vec<(String, Vec<u64>)> {
    let mut states = states(session);
    for s in session.states.iter().filter(|s| matches!(s.kind, StateKind::Optimizer | StateKind::Counter)) {
        states.insert(s.name.clone(), Tensor::full(s.ty, 0.0));
    }
    let mut inputs = inputs();
    inputs.insert("lr".to_owned(), Tensor::scalar(0.01));
    inputs.insert("clip".to_owned(), Tensor::scalar(0.1));
    for p in &session.programs {
        let out = Interp::new(Rounding::ToType).run(session, p, &inputs, &mut states);
        out.unwrap_or_else(|e| panic!("{e}"));
    }
    let kept = states.into_iter().filter(|(name, _)| !name.starts_with("grad."));
    let mut all: Vec<_> =
        kept.map(|(name, t)| (name, t.data.iter().map(|x| x.to_bits()).collect())).collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

#[test]
fn updates_in_backward_give_the_same_bits() {
    let adamw = Optimizer::from(AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 });
    arbtest::arbtest(|u| {
        let mut session = Session::default();
        let forward = model(&mut session, u)?;
        for checkpoint in [Blocks::None, Blocks::All] {
            let options = Options::new(checkpoint.clone());
            let mut s = session.clone();
            let Ok(micro) = pipeline::micro(&mut s, forward.clone(), options.clone(), &FULL) else {
                return Ok(());
            };
            let update = optimizer::update_per_tensor(&mut s, &adamw);
            let update = pipeline::plain(&mut s, update, &FULL);
            s.programs.extend([micro, update]);
            let want = updated(&s);
            let mut s = session.clone();
            let options = Options { optimizer: Some(adamw.clone()), update_in_backward: true, ..options };
            let p = pipeline::micro(&mut s, forward.clone(), options, &FULL);
            s.programs.push(p.expect("it was differentiable before"));
            assert_eq!(want, updated(&s), "{checkpoint:?}");
            owners::check(&plan(s, &FULL, 1), &FULL);
        }
        Ok(())
    })
    .budget_ms(1500);
}

#[test]
fn passes_keep_invariants_and_numbers() {
    arbtest::arbtest(|u| {
        let mut session = Session::default();
        let forward = model(&mut session, u)?;
        let Ok(plain) = differentiate(&mut session.clone(), forward.clone()) else {
            // A parameter that the loss does not reach: refused by name, as it should be.
            return Ok(());
        };
        verify(&session, &plain).unwrap_or_else(|e| panic!("{e}"));
        let expected = run(&session, &plain);
        let mut first = None;
        for checkpoint in [Blocks::None, Blocks::First(1), Blocks::All] {
            for target in [FULL, Paper { fused: false, shares: true }] {
                let mut s = session.clone();
                let p = pipeline::micro(&mut s, forward.clone(), Options::new(checkpoint.clone()), &target);
                let p = p.expect("it was differentiable before");
                let got = run(&s, &p);
                for ((name, x), (other, y)) in expected.iter().zip(&got) {
                    assert_eq!(name, other);
                    let length = |v: &[f64]| v.iter().map(|x| x * x).sum::<f64>().sqrt();
                    let off: Vec<f64> = x.iter().zip(y).map(|(x, y)| x - y).collect();
                    assert!(
                        length(&off) <= REORDERED * length(x).max(1.0),
                        "{name}: {x:?} or {y:?}, {checkpoint:?}"
                    );
                }
                if target.fused {
                    let bits = first.get_or_insert_with(|| got.clone());
                    assert_eq!(bits, &got, "{checkpoint:?} changes bits");
                }
                s.programs.push(p);
                owners::check(&plan(s, &target, 1), &target);
            }
        }
        Ok(())
    })
    .budget_ms(1500);
}
