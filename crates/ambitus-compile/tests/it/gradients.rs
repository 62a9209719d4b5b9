//! Passes change memory, not numbers: whole toy models, run by the reference interpreter under every option.

use crate::common::compiled;
use ambitus_compile::passes::policy::Blocks;
use ambitus_compile::pipeline::{self, Options};
use ambitus_ir::Session;
use ambitus_testkit::paper::{FULL, Paper};
use ambitus_testkit::toys::{Gradients, Toy, states, toys};
use ambitus_testkit::{Interp, Rng, Rounding, Tensor, Tensors};

/// Sums in another order, in fp32: the loss and all gradients together, relative, and each gradient.
const REORDERED: f64 = 1e-6;
const REORDERED_EACH: f64 = 5e-6;
/// Step of central differences in double precision along a direction of unit length per parameter, and what their third
/// derivative and the constants of decompositions (rounded to f32) leave.
const STEP: f64 = 1e-4;
const DIFFERENCES: f64 = 2e-6;

fn gradients(
    toy: &Toy,
    batches: &[&Tensors],
    checkpoint: Blocks,
    target: Paper,
    rounding: Rounding,
) -> Gradients {
    toy.gradients(&compiled(&toy.model, Options::new(checkpoint), &target), batches, rounding)
}

fn norm(x: impl Iterator<Item = f64>) -> f64 {
    x.map(|v| v * v).sum::<f64>().sqrt()
}

fn assert_reordered(name: &str, a: &Gradients, b: &Gradients) {
    assert!((a.loss - b.loss).abs() <= REORDERED * a.loss.abs(), "{name}: loss {} or {}", a.loss, b.loss);
    let all = norm(a.by_name.iter().flat_map(|g| g.1.iter().copied()));
    let mut off = Vec::new();
    for ((param, x), (other, y)) in a.by_name.iter().zip(&b.by_name) {
        assert_eq!(param, other, "{name}: the programs have other gradients");
        let d = norm(x.iter().zip(y).map(|(x, y)| x - y));
        // A gradient that is nothing but rounding has no digits to agree in.
        let own = norm(x.iter().copied()).max(1e-3 * all);
        assert!(d <= REORDERED_EACH * own, "{name}: {param} is off by {:.1e}", d / own);
        off.push(d);
    }
    let off = norm(off.into_iter());
    assert!(off <= REORDERED * all, "{name}: all gradients are off by {:.1e}", off / all);
}

#[test]
fn checkpointing_changes_no_bit() {
    for toy in toys() {
        let with = |blocks| gradients(&toy, &[&toy.whole], blocks, FULL, Rounding::ToType);
        let none = with(Blocks::None);
        assert!(none.loss.is_finite() && none.loss > 0.0);
        let cheapest = (0..8).map(|values| Blocks::Cheapest { values, blocks: values % 2 });
        for blocks in cheapest.chain([Blocks::First(1), Blocks::All]) {
            assert_eq!(none, with(blocks.clone()), "{}: {blocks:?}", toy.name);
        }
    }
}

#[test]
fn two_micro_batches_are_one_update() {
    for toy in toys() {
        let with = |batches: &[&_]| gradients(&toy, batches, Blocks::None, FULL, Rounding::ToType);
        let one = with(&[&toy.whole]);
        let two = with(&[&toy.halves[0], &toy.halves[1]]);
        assert_reordered(toy.name, &one, &two);
    }
}

#[test]
fn a_target_without_kernels_gives_the_same_gradients() {
    let bare = Paper { fused: false, shares: false };
    for toy in toys() {
        let with = |target| gradients(&toy, &[&toy.whole], Blocks::First(1), target, Rounding::ToType);
        assert_reordered(toy.name, &with(FULL), &with(bare));
    }
}

#[test]
fn gradients_are_the_slopes_of_the_loss() {
    for toy in toys() {
        let gradients = gradients(&toy, &[&toy.whole], Blocks::All, FULL, Rounding::Exact);
        let mut session = Session::default();
        let forward = (toy.model)(&mut session);
        let forward = pipeline::plain(&mut session, forward, &FULL);
        let weights = states(&session);
        let mut interp = Interp::new(Rounding::Exact);
        let mut rng = Rng::new(5);
        let all = norm(gradients.by_name.iter().flat_map(|g| g.1.iter().copied()));
        for (name, gradient) in &gradients.by_name {
            let param = name.strip_prefix("grad.").expect("a gradient is named after its parameter");
            let direction: Vec<f64> = gradient.iter().map(|_| rng.range(-1.0, 1.0)).collect();
            let length = norm(direction.iter().copied());
            let mut loss_at = |step: f64| {
                let mut moved = weights.clone();
                let w: &mut Tensor = moved.get_mut(param).expect("the parameter is a state");
                w.data.iter_mut().zip(&direction).for_each(|(w, d)| *w += step * d / length);
                let out = interp.run(&session, &forward, &toy.whole, &mut moved);
                out.expect("the forward program runs")["loss"].data[0]
            };
            let slope = (loss_at(STEP) - loss_at(-STEP)) / (2.0 * STEP);
            let rule = gradient.iter().zip(&direction).map(|(g, d)| g * d).sum::<f64>() / length;
            let own = norm(gradient.iter().copied()).max(1e-3 * all);
            assert!(own > 0.0, "{}: {name} is zero", toy.name);
            let off = (slope - rule).abs() / own;
            assert!(off <= DIFFERENCES, "{}: {name}: slope {slope:e}, gradient {rule:e}", toy.name);
        }
    }
}

#[test]
fn options_are_only_about_memory() {
    for toy in toys() {
        let states_of = |checkpoint| {
            let session = compiled(&toy.model, Options::new(checkpoint), &FULL);
            session.states
        };
        assert_eq!(states_of(Blocks::None), states_of(Blocks::All), "{}", toy.name);
    }
}
