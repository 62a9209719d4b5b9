//! Splines: what is known of them without their formulas.

use ambitus_ir::ops::Vjp;
use ambitus_ir::ops::spline::RationalSpline;
use ambitus_ir::{Builder, Op, Session, TensorType};
use ambitus_testkit::gradcheck::gradcheck_of;
use ambitus_testkit::tolerances::GRADIENT;
use ambitus_testkit::{Case, Interp, Rounding, Tensor, cases};

/// Cases of curves, without those of inverses.
fn curves() -> Vec<(RationalSpline, Case)> {
    let of = |case: Case| match &case.op {
        Op::RationalSpline(op) if !op.inverse => Some((op.clone(), case)),
        _ => None,
    };
    let curves: Vec<_> = cases().into_iter().filter_map(of).collect();
    assert!(curves.len() > 5, "{} curves", curves.len());
    curves
}

/// A curve's results of one of its cases.
fn run(op: RationalSpline, x: &[Tensor]) -> [Tensor; 2] {
    let y = Interp::new(Rounding::Exact).op(&op.into(), x).expect("the operands fit");
    y.try_into().expect("two results")
}

/// Of y, of the logarithm, and of both: the rule is told which of them have a gradient.
#[test]
fn gradients_of_either_result_agree_with_differences() {
    let mut checked = 0;
    for (_, case) in curves() {
        if case.operands.iter().all(|o| !o.differentiable) {
            continue;
        }
        for results in [&[0][..], &[1], &[0, 1]] {
            for gap in gradcheck_of(&case, 3, results).unwrap_or_else(|e| panic!("{e}")) {
                assert!(gap.relative <= GRADIENT, "{} of results {results:?}: {gap:?}", case.name);
                checked += 1;
            }
        }
    }
    assert!(checked >= 4 * 3 * 2 * 3, "{checked} slopes");
}

#[test]
fn inverses_undo_the_curve() {
    for (op, case) in curves() {
        let x = case.values();
        let [y, log] = run(op.clone(), &x);
        let [again, back] = run(RationalSpline { inverse: true, ..op }, &[y, x[1].clone()]);
        for t in 0..x[0].data.len() {
            let (off, sum) = (again.data[t] - x[0].data[t], log.data[t] + back.data[t]);
            // Where the curve is flat, with a slope of 10^-7, half of 16 digits are left.
            let near = off.abs() <= 1e-8 * x[0].data[t].abs().max(1.0) && sum.abs() <= 1e-8;
            assert!(near, "{} row {t}: x is off by {off}, logarithms by {sum}", case.name);
        }
    }
}

/// Neighbours say how steep a curve is, and it goes through its ends.
#[test]
fn logarithms_are_those_of_slopes() {
    for (op, case) in curves() {
        let x = case.values();
        let [_, log] = run(op.clone(), &x);
        let step = 1e-7;
        let moved = |by: f64| {
            let mut x = x.clone();
            x[0].data.iter_mut().for_each(|x| *x += by);
            run(op.clone(), &x)[0].clone()
        };
        let (low, high) = (moved(-step), moved(step));
        for t in 0..x[0].data.len() {
            // On a bound or a knot the second derivative jumps; far away neighbours are one number.
            if x[0].data[t].abs() > 100.0 {
                continue;
            }
            let slope = (high.data[t] - low.data[t]) / (2.0 * step);
            let want = log.data[t].exp();
            assert!((slope - want).abs() <= 1e-4 * want.max(1.0), "{} row {t}: {slope}, {want}", case.name);
        }
    }
}

/// Bins of one size and one slope at all inner knots: in the middle of a bin y = x, and the slope is that of the formula by hand,
/// 2 / (1 + D) with D = 0.001 + ln 2.
#[test]
fn the_middle_of_a_flat_bin_by_hand() {
    let op = RationalSpline { bins: 10, bound: 5.0, inverse: false };
    let middles: Vec<f32> = (-4..4).map(|j| j as f32 + 0.5).collect();
    let x = [Tensor::f32(&[8], &middles), Tensor::full(TensorType::f32(&[8, 29]), 0.0)];
    let [y, log] = run(op, &x);
    let want = (2.0 / (1.001 + std::f64::consts::LN_2)).ln();
    for t in 0..8 {
        assert!((y.data[t] - x[0].data[t]).abs() < 1e-14, "{} at {}", y.data[t], x[0].data[t]);
        assert!((log.data[t] - want).abs() < 1e-14, "{} instead of {want}", log.data[t]);
    }
}

/// Nothing is asked for where nothing depends on a result, and an inverse says that it has no gradient.
#[test]
fn gradients_that_are_not_there() {
    let mut session = Session::default();
    let mut b = Builder::new(&mut session, "spline");
    let x = [b.input("x", TensorType::f32(&[4])), b.input("params", TensorType::f32(&[4, 29]))];
    let op = |inverse| RationalSpline { bins: 10, bound: 5.0, inverse };
    let y = b.rational_spline(op(false), x[0], x[1]);
    let before = b.program().instrs.len();
    let mut ask = |inverse: bool, dy: [_; 2]| {
        let rule = Vjp { x: &x, y: &y, dy: &dy, need: &[true; 2] };
        Op::from(op(inverse)).def().vjp(&mut b, &rule)
    };
    assert_eq!(ask(false, [None; 2]), Ok(vec![None; 2]));
    assert_eq!(ask(true, [Some(y[0]), None]), Err("the inverse has no gradient".to_owned()));
    assert_eq!(b.program().instrs.len(), before);
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let infer = |bins, bound, x: &[usize], params: &[usize]| {
        let types = [TensorType::f32(x), TensorType::f32(params)];
        Op::from(RationalSpline { bins, bound, inverse: false }).def().infer(&types)
    };
    assert_eq!(infer(10, 5.0, &[3], &[3, 29]), Ok(vec![TensorType::f32(&[3]); 2]));
    for (bins, bound, x, params, why) in [
        (0, 5.0, &[3][..], &[3, 29][..], "0 bins"),
        (1000, 5.0, &[3], &[3, 2999], "1000 bins"),
        (10, 0.0, &[3], &[3, 29], "bound 0"),
        (10, f32::NAN, &[3], &[3, 29], "bound NaN"),
        (10, 5.0, &[3, 1], &[3, 29], "not f32[T]"),
        (10, 5.0, &[3], &[4, 29], "f32[3,29]"),
        (10, 5.0, &[3], &[3, 30], "f32[3,29]"),
    ] {
        let said = infer(bins, bound, x, params).expect_err("does not fit");
        assert!(said.contains(why), "{said}");
    }
}
