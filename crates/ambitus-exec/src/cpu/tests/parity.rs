//! Every case of the test kit in every float type: near the interpreter, the same bits at any thread count and in both
//! copy modes.

use super::{bits, open, planned, run, run_here};
use crate::cpu::{AsyncMode, CpuTarget};
use ambitus_ir::DType;
use ambitus_testkit::tolerances::{SIXTEEN_BIT, differs, f32_against_f64, relative};
use ambitus_testkit::{Case, Interp, Rounding, Tensor, cases};

/// Thread counts that must give the same bits: alone, as many as tests may have, and odd.
const THREADS: [usize; 3] = [1, 2, 3];

fn faults(case: &Case, dtype: DType, expected: &[Tensor]) -> Vec<String> {
    let (inputs, states) = case.feeds();
    let mut first: Option<Vec<Vec<u8>>> = None;
    let mut faults = Vec::new();
    for threads in THREADS {
        let (session, program) = case.program();
        let planned = planned(session, program, &CpuTarget::new(threads));
        for copies in [AsyncMode::Early, AsyncMode::Late] {
            let mut exec = match open(&planned, threads, copies) {
                Ok(exec) => exec,
                Err(why) => return vec![format!("{}: {why}", case.name)],
            };
            let results = run(&mut exec, "case", &inputs, &states);
            let have = bits(&results);
            if *first.get_or_insert_with(|| have.clone()) != have {
                faults.push(format!("{}: other bits with {threads} threads", case.name));
            }
            if threads > 1 {
                continue;
            }
            for (name, ty, bytes) in &results {
                let got = Tensor::from_bytes(*ty, bytes).data;
                let mut want = case.result(expected, name).clone();
                if ty.dtype != DType::F32 {
                    // The interpreter is exact; a result is rounded once.
                    want.ty = *ty;
                    want.round();
                }
                if dtype != DType::F32 {
                    let off = relative(&got, &want.data);
                    if off > SIXTEEN_BIT {
                        faults.push(format!("{}: {name} is off by {off:.1e}", case.name));
                    }
                } else if let Some((at, got, want)) =
                    differs(&got, &want.data, f32_against_f64(case.op.name()))
                {
                    faults.push(format!("{}: {name}[{at}] is {got}, not {want}", case.name));
                }
            }
        }
    }
    faults
}

/// Returns the cases that ran.
fn check(dtype: DType) -> Vec<String> {
    let mut interp = Interp::new(Rounding::Exact);
    let target = CpuTarget::new(1);
    let mut checked = Vec::new();
    let mut all = Vec::new();
    for case in cases().iter().flat_map(|c| run_here(c, dtype, &target)) {
        // Some decompositions, so the interpreter, are of f32 only.
        let reference = if dtype == DType::F32 { case.clone() } else { case.widened() };
        match reference.expected(&mut interp) {
            Ok(expected) => all.extend(faults(&case, dtype, &expected)),
            Err(why) => all.push(format!("{}: {why}", case.name)),
        }
        checked.push(case.op.name().to_owned());
    }
    assert!(all.is_empty(), "{} faults in {} cases:\n{}", all.len(), checked.len(), all.join("\n"));
    checked
}

#[test]
fn every_case_agrees_with_the_interpreter() {
    check(DType::F32);
}

#[test]
fn every_case_agrees_with_the_interpreter_in_bf16() {
    let checked = check(DType::BF16);
    for op in [
        "linear",
        "linear_in",
        "matmul",
        "attention",
        "attention_grad",
        "windowed_attention",
        "windowed_attention_grad",
        "ada_layer_norm_grad",
        "rotary",
        "dropout",
    ] {
        assert!(checked.iter().any(|c| c == op), "{op} has no kernel in bf16");
    }
}

#[test]
fn every_case_agrees_with_the_interpreter_in_f16() {
    assert!(check(DType::F16).len() > 100);
}
