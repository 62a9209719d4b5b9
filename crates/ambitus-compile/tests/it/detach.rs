//! Detached values: no gradient flows to them, and nothing is left of them in a program that runs.

use ambitus_compile::CompileError;
use ambitus_compile::passes::policy::Blocks;
use ambitus_compile::passes::simplify::Simplify;
use ambitus_compile::pipeline::{self, Options};
use ambitus_ir::ops::reduce::ReduceKind;
use ambitus_ir::verify::verify;
use ambitus_ir::{Builder, Op, Program, Session, TensorType, ValueId};
use ambitus_testkit::paper::FULL;
use ambitus_testkit::{Interp, Rounding, Tensor, Tensors};

fn detached(p: &Program) -> usize {
    p.instrs.iter().filter(|i| matches!(i.op, Op::Detach(_))).count()
}

/// A program whose loss is the sum of what `body` makes of y = x w.
fn program(s: &mut Session, body: impl FnOnce(&mut Builder<'_>, ValueId) -> ValueId) -> Program {
    let mut b = Builder::new(s, "micro");
    let (x, w) = (b.input("x", TensorType::f32(&[3])), b.parameter("w", &[3]));
    let y = b.mul(x, w);
    let all = body(&mut b, y);
    let loss = b.reduce(ReduceKind::Sum, all, 0);
    b.output("loss", loss);
    b.finish()
}

fn micro(s: &mut Session, p: Program) -> Result<Program, CompileError> {
    pipeline::micro(s, p, Options::new(Blocks::None), &FULL)
}

/// Of y * detach(y) the gradient by w is x * y, not twice that.
#[test]
fn gradients_stop_and_the_value_stays() {
    let mut s = Session::default();
    let p = program(&mut s, |b, y| {
        let still = b.detach(y);
        b.mul(y, still)
    });
    let p = micro(&mut s, p).expect("w has a gradient");
    assert_eq!(detached(&p), 0);
    let (x, w) = ([2.0f32, -3.0, 0.5], [1.5f32, 0.25, 4.0]);
    let inputs = [("x", Tensor::f32(&[3], &x)), ("beta", Tensor::scalar(0.0))];
    let inputs: Tensors = inputs.into_iter().map(|(name, t)| (name.to_owned(), t)).collect();
    let states = [("w", Tensor::f32(&[3], &w)), ("grad.w", Tensor::f32(&[3], &[0.0; 3]))];
    let mut states: Tensors = states.into_iter().map(|(name, t)| (name.to_owned(), t)).collect();
    let outputs = Interp::new(Rounding::Exact).run(&s, &p, &inputs, &mut states).expect("it runs");
    let each = || x.iter().zip(&w).map(|(x, w)| (f64::from(*x), f64::from(*w)));
    assert_eq!(outputs["loss"].data, [each().map(|(x, w)| (x * w).powi(2)).sum::<f64>()]);
    assert_eq!(states["grad.w"].data, each().map(|(x, w)| x * x * w).collect::<Vec<f64>>());
}

/// What is only reached through a detached value gets no gradient, and ops without one may stand between.
#[test]
fn nothing_behind_it_is_differentiated() {
    let mut s = Session::default();
    let p = program(&mut s, |b, y| b.detach(y));
    assert!(matches!(micro(&mut s, p), Err(CompileError::NoPath(names)) if names == ["w"]));

    let mut s = Session::default();
    let p = program(&mut s, |b, y| {
        let still = b.detach(y);
        let sign = b.unary(ambitus_ir::ops::elementwise::UnaryKind::IsFinite, still);
        b.mul(y, sign)
    });
    assert!(micro(&mut s, p).is_ok());
}

#[test]
fn it_stays_before_autodiff_and_where_an_output_needs_bytes() {
    let mut s = Session::default();
    let mut b = Builder::new(&mut s, "p");
    let x = b.input("x", TensorType::f32(&[3]));
    let of_input = b.detach(x);
    let y = b.add(x, of_input);
    let (first, second) = (b.detach(y), b.detach(y));
    let third = b.detach(second);
    let z = b.mul(third, first);
    b.output("of_input", of_input);
    b.output("y", y);
    b.output("first", first);
    b.output("z", z);
    let p = b.finish();
    let before = pipeline::run(&mut s, p.clone(), &Simplify { before_autodiff: true }).expect("it is kept");
    assert_eq!(detached(&before), 4 - 1, "two of one value are one");
    let after = pipeline::run(&mut s, p, &Simplify { before_autodiff: false }).expect("it is dropped");
    verify(&s, &after).expect("the program is sound");
    let made = |name: &str| {
        let value = after.output(name).expect("an output");
        after.instrs.iter().any(|i| i.outputs.contains(&value) && matches!(i.op, Op::Detach(_)))
    };
    assert!(made("of_input") && made("first") && !made("y") && !made("z"));
    assert_eq!(detached(&after), 2);
}
