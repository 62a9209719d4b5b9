//! Gradient rules against central differences, in double precision.

use crate::cases::Case;
use crate::interp::{Interp, Rounding};
use crate::tensor::{Rng, Tensor};
use ambitus_ir::ops::Vjp;
use ambitus_ir::{Builder, Op, Session, TensorType, ValueId};

/// Step of the differences. Their error is about step^2 times the third derivative, plus 1e-16 / step of the values.
const STEP: f64 = 1e-5;

/// How far apart a gradient rule and the differences are.
#[derive(Clone, Debug, PartialEq)]
pub struct Gap {
    /// Operand.
    pub operand: usize,
    /// Slope along a random direction, by the rule.
    pub rule: f64,
    /// Slope along that direction, by differences.
    pub differences: f64,
    /// Their distance over the largest that a slope along the direction could be: |gradient| |direction|, at least 1e-3.
    pub relative: f64,
}

/// Checks an op's gradient rule at a case, for every differentiable operand along a few random directions. The loss is
/// the first result times random numbers; rows of no segment count too.
///
/// # Errors
/// When the rule says that it has no gradient, leaves out a wanted one, or cannot be run.
pub fn gradcheck(case: &Case, seed: u64) -> Result<Vec<Gap>, String> {
    gradcheck_of(case, seed, &[0])
}

/// As [`gradcheck`], with a loss of the given results. The rule is told that the others have no gradient.
///
/// # Errors
/// As there.
pub fn gradcheck_of(case: &Case, seed: u64, results: &[usize]) -> Result<Vec<Gap>, String> {
    let mut interp = Interp::new(Rounding::Exact);
    let mut rng = Rng::new(seed);
    let x = case.values();
    let run =
        |interp: &mut Interp, x: &[Tensor]| interp.op(&case.op, x).map_err(|e| format!("{}: {e}", case.name));
    let y = run(&mut interp, &x)?;
    let weights: Vec<(usize, Tensor)> =
        results.iter().map(|k| (*k, rng.tensor(y[*k].ty, -1.0, 1.0))).collect();
    let gradients = gradients(case, &mut interp, &x, &weights)?;
    let loss = |y: &[Tensor]| -> f64 { weights.iter().map(|(k, w)| dot(&y[*k].data, &w.data)).sum() };

    let mut gaps = Vec::new();
    for (operand, gradient) in gradients.iter().enumerate() {
        let Some(gradient) = gradient else { continue };
        for _ in 0..3 {
            let direction = rng.tensor(x[operand].ty, -1.0, 1.0).data;
            let mut at = |step: f64| {
                let mut moved = x.clone();
                for (v, d) in moved[operand].data.iter_mut().zip(&direction) {
                    *v += step * d;
                }
                run(&mut interp, &moved).map(|y| loss(&y))
            };
            let differences = (at(STEP)? - at(-STEP)?) / (2.0 * STEP);
            let rule = dot(&gradient.data, &direction);
            let size = dot(&gradient.data, &gradient.data).sqrt() * dot(&direction, &direction).sqrt();
            let relative = (rule - differences).abs() / size.max(1e-3);
            gaps.push(Gap { operand, rule, differences, relative });
        }
    }
    Ok(gaps)
}

/// Gradients of the differentiable operands by the op's rule, run by the interpreter; `None` for the others.
fn gradients(
    case: &Case,
    interp: &mut Interp,
    x: &[Tensor],
    weights: &[(usize, Tensor)],
) -> Result<Vec<Option<Tensor>>, String> {
    let fail = |why: &str| format!("{}: {why}", case.name);
    let mut session = Session::default();
    let mut b = Builder::new(&mut session, "gradients");
    let ids: Vec<ValueId> = x.iter().enumerate().map(|(i, t)| b.input(&format!("x{i}"), t.ty)).collect();
    let y = b.push(case.op.clone(), &ids);
    let mut dy = vec![None; y.len()];
    for (k, w) in weights {
        dy[*k] = Some(b.input(&format!("dy{k}"), w.ty));
    }
    let need: Vec<bool> = case.operands.iter().map(|o| o.differentiable).collect();
    let rule = Vjp { x: &ids, y: &y, dy: &dy, need: &need };
    let grads = case.op.def().vjp(&mut b, &rule).map_err(|e| fail(&e))?;
    if grads.len() != x.len() {
        return Err(fail("the gradient rule returns another number of gradients than operands"));
    }
    for (i, g) in grads.iter().enumerate() {
        let Some(g) = g.filter(|_| need[i]) else {
            continue;
        };
        if b.ty(g) != x[i].ty {
            return Err(fail(&format!("gradient of operand {i} is {}, not {}", b.ty(g), x[i].ty)));
        }
        b.output(&format!("d{i}"), g);
    }
    let program = b.finish();
    let mut inputs = crate::interp::Tensors::new();
    for (i, t) in x.iter().enumerate() {
        inputs.insert(format!("x{i}"), t.clone());
    }
    inputs.extend(weights.iter().map(|(k, w)| (format!("dy{k}"), w.clone())));
    let made = interp.run(&session, &program, &inputs, &mut Default::default());
    let mut made = made.map_err(|e| fail(&e.to_string()))?;
    let missing = |i: usize| -> Option<Tensor> {
        // Comparisons and the like: the gradient is zero everywhere.
        let flat = matches!(&case.op, Op::Binary(_) | Op::Unary(_));
        flat.then(|| Tensor::full(x[i].ty, 0.0))
    };
    let mut all = Vec::new();
    for (i, need) in need.iter().enumerate() {
        let g = made.remove(&format!("d{i}"));
        match (need, g) {
            (false, _) => all.push(None),
            (true, Some(g)) => all.push(Some(g)),
            (true, None) => {
                let zero = missing(i);
                all.push(Some(zero.ok_or_else(|| fail(&format!("no gradient of operand {i}")))?));
            }
        }
    }
    Ok(all)
}

/// Returns true when the op has a gradient rule, whatever its operands.
pub fn has_gradient(op: &Op, types: &[TensorType]) -> bool {
    let mut session = Session::default();
    let mut b = Builder::new(&mut session, "probe");
    let x: Vec<ValueId> = types.iter().enumerate().map(|(i, t)| b.input(&format!("x{i}"), *t)).collect();
    let y = b.push(op.clone(), &x);
    let dy = vec![None; y.len()];
    op.def().vjp(&mut b, &Vjp { x: &x, y: &y, dy: &dy, need: &vec![false; x.len()] }).is_ok()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
