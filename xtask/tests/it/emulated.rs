//! The checks for cards, on the emulated card: every kernel runs on the processor, from the plan to the graph. Every case runs, and is watched
//! for races; of repetitions in other orders and types a third is drawn, all with `AMBITUS_LONG=1`.

use crate::{Emulation, apart, emulation, of_driver};
use ambitus_cuda::driver::Card;
use ambitus_ir::ops::attention::Attention;
use ambitus_ir::{DType, TensorType};
use ambitus_testkit::{Case, Operand, Rng, Tensor, cases, drawn, emulated_cuda};
use std::ffi::{CString, c_char};
use xtask::ops;

pub fn card() -> Card {
    let folder = emulated_cuda::libraries().expect("the emulation is loaded");
    let card = Card::open_with(0, Some(&folder)).expect("the emulated card opens");
    assert_eq!(card.info().name, "emulated card");
    card
}

/// `AMBITUS_CASES=word` leaves the cases whose names have the word.
fn chosen() -> (String, Vec<Case>) {
    let word = std::env::var("AMBITUS_CASES").unwrap_or_default();
    let mut cases = cases();
    cases.retain(|case| case.name.contains(&word));
    (word, cases)
}

fn check(dtype: DType, cases: &[Case]) -> ops::Outcome {
    let outcome = ops::check(card(), dtype, cases).1;
    none(&outcome.faults);
    outcome
}

/// Those of ops that have kernels of their own on Hopper.
pub fn on_hopper(mut cases: Vec<Case>) -> Vec<Case> {
    cases.retain(|case| ["attention", "attention_grad"].contains(&case.op.name()));
    cases
}

/// Runs the cases one by one, each fault on a new card: all, or those of Hopper's own kernels.
pub fn each_case(dtype: DType, hopper: bool, mut seen: impl FnMut(Case, ops::Outcome)) {
    let cases = chosen().1;
    let mut open = Some(card());
    for case in if hopper { on_hopper(cases) } else { cases } {
        let here = open.take().unwrap_or_else(card);
        let (back, outcome) = ops::check(here, dtype, std::slice::from_ref(&case));
        open = back;
        seen(case, outcome);
    }
}

pub fn none(faults: &[String]) {
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn every_kernel_agrees_with_the_interpreter() {
    apart("emulated::every_kernel_agrees_with_the_interpreter", agrees);
}

fn agrees() {
    let (word, cases) = chosen();
    let Some(one) = emulation(Emulation::default()) else { return };
    let all = check(DType::F32, &cases);
    assert!(!word.is_empty() || all.cases > 300, "only {} cases ran", all.cases);
    let some = drawn(cases, 3);
    let up = check(DType::F32, &some);
    drop(one);
    for turns in 1..=4 {
        let Some(_one) = emulation(Emulation { turns, late: true, ..Emulation::default() }) else { return };
        assert!(
            up.bits == check(DType::F32, &some).bits,
            "other bits with threads in order {turns} and copies late: a barrier is missing"
        );
    }
}

/// Holds that shared memory serves kernels at once, of those that ran since.
pub fn banks_are_apart() {
    for (kernel, most) in CONFLICTS {
        let (served, again) = conflicts(kernel);
        println!("{kernel}: shared memory serves {served} times, {again} more for want of banks");
        assert!(served > 0 || !chosen().0.is_empty(), "{kernel} did not run");
        let share = again as f64 / served.max(1) as f64;
        assert!(
            share <= most,
            "{kernel}: {share:.3} conflicts each time that shared memory is used, at most {most}"
        );
    }
}

/// Kernels that live on shared memory, and how often an access of a warp may wait for banks: measured, rounded up.
const CONFLICTS: [(&str, f64); 22] = [
    ("attention_wgmma_64", 0.0),
    ("attention_wgmma_128", 0.0),
    ("attention_wgmma_queries_grad_64", 0.0),
    ("attention_wgmma_queries_grad_128", 0.0),
    ("attention_wgmma_keys_grad_64", 0.0),
    ("attention_wgmma_keys_grad_128", 0.0),
    ("attention_mma_64", 0.0),
    ("attention_mma_128", 0.0),
    ("attention_mma_queries_grad_64", 0.0),
    ("attention_mma_queries_grad_128", 0.0),
    ("attention_mma_keys_grad_64", 0.0),
    ("attention_mma_keys_grad_128", 0.0),
    ("conv_mma", 0.0),
    ("conv_weight_mma", 0.0),
    ("attention_64", 0.0),
    ("attention_128", 0.0),
    ("attention_queries_grad_64", 0.0),
    ("attention_keys_grad_64", 0.0),
    ("conv_grouped", 0.01),
    ("conv_grouped_weight", 0.03),
    ("transpose", 0.0),
    ("attention_rows", 0.0),
];

/// Returns how often shared memory served a kernel since this was asked, and how often again because lanes wanted one bank.
pub fn conflicts(kernel: &str) -> (u64, u64) {
    let name = CString::new(kernel).expect("a name");
    let (mut served, mut again) = (0, 0);
    type Conflicts = unsafe extern "C" fn(*const c_char, *mut u64, *mut u64);
    // SAFETY: the emulated driver's function, on a text and two live integers.
    unsafe { of_driver::<Conflicts>("emulated_conflicts")(name.as_ptr(), &mut served, &mut again) };
    (served, again)
}

#[test]
fn kernels_take_sixteen_bit_operands() {
    apart("emulated::kernels_take_sixteen_bit_operands", sixteen_bits);
}

fn sixteen_bits() {
    let Some(_one) = emulation(Emulation::default()) else { return };
    let (word, cases) = chosen();
    let all = check(DType::BF16, &cases);
    assert!(!word.is_empty() || all.cases > 300, "only {} cases ran", all.cases);
    check(DType::F16, &drawn(cases, 3));
}

/// Those of tensor cores, whose copies land early or late.
#[test]
fn tensor_cores_give_the_same_bits_in_any_order() {
    apart("emulated::tensor_cores_give_the_same_bits_in_any_order", orders_of_tensor_cores);
}

fn orders_of_tensor_cores() {
    const OPS: [&str; 5] =
        ["attention", "attention_grad", "conv1d", "conv1d_input_grad", "conv1d_weight_grad"];
    let cases = drawn(chosen().1.into_iter().filter(|case| OPS.contains(&case.op.name())), 3);
    let mut bits = None;
    for (turns, late) in [(0, false), (1, true), (2, true), (3, true), (4, true), (4, false)] {
        let Some(_one) = emulation(Emulation { turns, late, ..Emulation::default() }) else { return };
        let outcome = check(DType::BF16, &cases);
        let first = bits.get_or_insert_with(|| outcome.bits.clone());
        assert!(*first == outcome.bits, "other bits with threads in order {turns}, copies late: {late}");
    }
}

/// Hopper's own, whose products end early or late, too.
#[test]
fn hopper_gives_the_same_bits_in_any_order() {
    apart("emulated::hopper_gives_the_same_bits_in_any_order", orders_of_hopper);
}

fn orders_of_hopper() {
    let all = on_hopper(chosen().1);
    for dtype in [DType::BF16, DType::F16] {
        let (mut bits, cases) = (None, drawn(all.clone(), 3));
        for (turns, late) in [(0, false), (1, true), (2, true), (3, true), (4, true), (4, false)] {
            let how = Emulation { turns, late, hopper: true, ..Emulation::default() };
            let Some(_one) = emulation(how) else { return };
            let outcome = check(dtype, &cases);
            let first = bits.get_or_insert_with(|| outcome.bits.clone());
            assert!(*first == outcome.bits, "other bits with threads in order {turns}, late: {late}");
        }
    }
}

#[test]
fn results_may_lie_on_operands() {
    let Some(_one) = emulation(Emulation::default()) else { return };
    let (shared, faults) = ops::check_sharing(card());
    none(&faults);
    assert!(shared > 20, "only {shared} results lay on operands");
}

/// Attention of a sequence's query over its cache, with others' and in a cache of another size.
#[test]
fn a_sequence_decodes_alike_in_any_company() {
    let Some(_one) = emulation(Emulation::default()) else { return };
    let mut rng = Rng::new(5);
    let (heads, kv_heads, head_dim, seen) = (6, 2, 16, 150);
    let op = Attention { heads, kv_heads, head_dim, causal: false, scale: 0.25 };
    let mine = [(1, heads), (seen, kv_heads), (seen, kv_heads)]
        .map(|(rows, heads)| rng.tensor(TensorType::f32(&[rows, heads * head_dim]), -2.0, 2.0).data);
    // Sequences of `room` rows each; this one is the last.
    let mut bits = |sequences: usize, room: usize| {
        let mut part = |mine: &[f64], rows: usize, heads: usize| {
            let ty = TensorType::f32(&[rows * sequences, heads * head_dim]);
            let mut all = rng.tensor(ty, -2.0, 2.0);
            let at = rows * (sequences - 1) * heads * head_dim;
            all.data[at..at + mine.len()].copy_from_slice(mine);
            Operand { tensor: all, differentiable: false }
        };
        let [q, k, v] = [(0, 1, heads), (1, room, kv_heads), (2, room, kv_heads)]
            .map(|(i, rows, heads)| part(&mine[i], rows, heads));
        let table = |rows: usize, used: usize| {
            let ends = (0..sequences).flat_map(|s| [s * rows + used, (s + 1) * rows]);
            let data: Vec<f64> = [0].into_iter().chain(ends).map(|x| x as f64).collect();
            let tensor = Tensor::new(TensorType::i32(&[data.len()]), data);
            Operand { tensor, differentiable: false }
        };
        let operands = vec![q, k, v, table(1, 1), table(room, seen)];
        let case = Case { name: "decoding".to_owned(), op: op.clone().into(), operands };
        let outcome = check(DType::F32, &[case]);
        let last = |all: &Vec<u64>, each: usize| all[(sequences - 1) * each..].to_vec();
        [last(&outcome.bits[0], heads * head_dim), last(&outcome.bits[1], heads)]
    };
    let alone = bits(1, seen);
    assert_eq!(alone, bits(1, 400));
    assert_eq!(alone, bits(3, 200));
}
