//! Every case of the test kit: near the interpreter, the same bits at any thread count and in both copy modes.

use super::{bits, numbers, open, planned, run, runs_here, value};
use crate::cpu::{AsyncMode, CpuTarget};
use ambitus_testkit::tolerances::{differs, f32_against_f64};
use ambitus_testkit::{Case, Interp, Rounding, cases};

/// Thread counts that must give the same bits: alone, as many as tests may have, and odd.
const THREADS: [usize; 3] = [1, 2, 3];

fn faults(case: &Case, interp: &mut Interp) -> Vec<String> {
    let expected = case.expected(interp).unwrap();
    let (inputs, states) = case.feeds();
    let tolerance = f32_against_f64(case.op.name());
    let mut first: Option<Vec<Vec<u32>>> = None;
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
            for (name, ty, words) in &results {
                let got = numbers(ty.dtype, words);
                let want = value(&expected, case, name);
                if let Some((at, got, want)) = differs(&got, &want.data, tolerance) {
                    faults.push(format!("{}: {name}[{at}] is {got}, not {want}", case.name));
                }
            }
        }
    }
    faults
}

#[test]
fn every_case_agrees_with_the_interpreter() {
    let mut interp = Interp::new(Rounding::Exact);
    let target = CpuTarget::new(1);
    let mut checked = 0;
    let mut all = Vec::new();
    for case in cases().iter().filter(|c| runs_here(c, &target)) {
        checked += 1;
        all.extend(faults(case, &mut interp));
    }
    assert!(all.is_empty(), "{} faults in {checked} cases:\n{}", all.len(), all.join("\n"));
}
