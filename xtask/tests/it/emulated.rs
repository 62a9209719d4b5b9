//! The checks for cards, on the emulated card: every kernel runs on the processor, from the plan to the graph.

use crate::{Emulation, emulation};
use ambitus_cuda::driver::Card;
use ambitus_ir::DType;
use ambitus_testkit::{Case, cases, emulated_cuda};
use xtask::ops;

pub fn card() -> Card {
    let folder = emulated_cuda::libraries().expect("the emulation is loaded");
    let card = Card::open_with(0, Some(&folder)).expect("the emulated card opens");
    assert_eq!(card.info().name, "emulated card");
    card
}

/// `AMBITUS_CASES=word` runs the cases whose names have the word.
fn check(dtype: DType) -> ops::Outcome {
    let word = std::env::var("AMBITUS_CASES").unwrap_or_default();
    let mut cases = cases();
    cases.retain(|case| case.name.contains(&word));
    let outcome = ops::check(card(), dtype, &cases).1;
    assert!(!word.is_empty() || outcome.cases > 300, "only {} cases ran in {}", outcome.cases, dtype.name());
    outcome
}

/// Runs the cases one by one, each fault on a new card.
pub fn each_case(dtype: DType, mut seen: impl FnMut(Case, ops::Outcome)) {
    let mut open = Some(card());
    for case in cases() {
        let here = open.take().unwrap_or_else(card);
        let (back, outcome) = ops::check(here, dtype, std::slice::from_ref(&case));
        open = back;
        seen(case, outcome);
    }
}

fn none(faults: &[String]) {
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn every_kernel_agrees_with_the_interpreter() {
    let Some(one) = emulation(Emulation::default()) else { return };
    let up = check(DType::F32);
    none(&up.faults);
    drop(one);
    for turns in 1..=4 {
        let Some(_one) = emulation(Emulation { turns, late: true, ..Emulation::default() }) else { return };
        let other = check(DType::F32);
        none(&other.faults);
        assert!(
            up.bits == other.bits,
            "other bits with threads in order {turns} and copies late: a barrier is missing"
        );
    }
}

#[test]
fn no_kernel_has_a_race() {
    let Some(_one) = emulation(Emulation { races: true, ..Emulation::default() }) else { return };
    let mut faults = Vec::new();
    for dtype in [DType::F32, DType::BF16] {
        each_case(dtype, |_, outcome| faults.extend(outcome.faults));
    }
    none(&faults);
}

#[test]
fn kernels_take_sixteen_bit_operands() {
    let Some(_one) = emulation(Emulation::default()) else { return };
    for dtype in [DType::BF16, DType::F16] {
        none(&check(dtype).faults);
    }
}

#[test]
fn results_may_lie_on_operands() {
    let Some(_one) = emulation(Emulation::default()) else { return };
    let (shared, faults) = ops::check_sharing(card());
    none(&faults);
    assert!(shared > 20, "only {shared} results lay on operands");
}
