//! The checks for cards, on the emulated card: every kernel runs on the processor, from the plan to the graph.

use crate::{Emulation, emulation, of_driver};
use ambitus_cuda::driver::Card;
use ambitus_ir::DType;
use ambitus_testkit::{Case, cases, emulated_cuda};
use std::ffi::{CString, c_char};
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
    for (kernel, most) in CONFLICTS {
        let (served, again) = conflicts(kernel);
        println!("{kernel}: shared memory serves {served} times, {again} more for want of banks");
        assert!(served > 0, "{kernel} did not run");
        let share = again as f64 / served as f64;
        assert!(
            share <= most,
            "{kernel}: {share:.3} conflicts each time that shared memory is used, at most {most}"
        );
    }
}

/// Kernels that live on shared memory, and how often an access of a warp may wait for banks: measured, rounded up.
const CONFLICTS: [(&str, f64); 7] = [
    ("attention_64", 0.0),
    ("attention_128", 0.0),
    ("attention_queries_grad_64", 0.0),
    ("attention_keys_grad_64", 0.0),
    ("conv_grouped", 0.01),
    ("conv_grouped_weight", 0.03),
    ("transpose", 0.0),
];

/// Returns how often shared memory served a kernel since this was asked, and how often again because lanes wanted one bank.
fn conflicts(kernel: &str) -> (u64, u64) {
    let name = CString::new(kernel).expect("a name");
    let (mut served, mut again) = (0, 0);
    type Conflicts = unsafe extern "C" fn(*const c_char, *mut u64, *mut u64);
    // SAFETY: the emulated driver's function, on a text and two live integers.
    unsafe { of_driver::<Conflicts>("emulated_conflicts")(name.as_ptr(), &mut served, &mut again) };
    (served, again)
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
