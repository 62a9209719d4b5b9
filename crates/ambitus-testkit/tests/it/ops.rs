//! Walks over every op case.

use ambitus_ir::text::{parse, print_session};
use ambitus_ir::{DType, Op};
use ambitus_testkit::gradcheck::{gradcheck, has_gradient};
use ambitus_testkit::interp::decomposition;
use ambitus_testkit::tolerances::{GRADIENT, differs, f32_against_f64};
use ambitus_testkit::{Interp, Rounding, cases};
use std::collections::{BTreeSet, HashSet};

/// A new op must come with a case, and this number tells that the list was seen to grow.
const OPS: usize = 80;

#[test]
fn every_op_has_a_case() {
    assert_eq!(Op::NAMES.len(), OPS, "the list of ops changed");
    let covered: HashSet<&str> = cases().iter().map(|c| c.op.name()).collect();
    let missing: Vec<_> = Op::NAMES.iter().filter(|n| !covered.contains(**n)).collect();
    assert!(missing.is_empty(), "no case of {missing:?}");
}

#[test]
fn case_names_are_unique() {
    let mut seen = HashSet::new();
    for case in cases() {
        assert!(seen.insert(case.name.clone()), "two cases are named `{}`", case.name);
    }
}

/// Operands are what an f32 executor can hold, and results do not depend on bytes that must not be read.
#[test]
fn results_are_finite_and_of_the_declared_types() {
    let mut interp = Interp::new(Rounding::Exact);
    for case in cases() {
        let mut rounded = case.values();
        for (t, x) in rounded.iter_mut().zip(case.values()) {
            t.round();
            assert_eq!(differs(&t.data, &x.data, f32_against_f64("")), None, "{}", case.name);
        }
        let y = case.expected(&mut interp).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        let declared = case.op.def().infer(&case.types()).expect(&case.name);
        assert_eq!(y.iter().map(|t| t.ty).collect::<Vec<_>>(), declared, "{}", case.name);
        let finite = y.iter().all(|t| t.data.iter().all(|x| x.is_finite()));
        assert!(finite, "{} gives what is not finite", case.name);
    }
}

/// The oracle of a fused op must not stand on other fused ops.
#[test]
fn decompositions_hold_core_ops_only() {
    let mut fused = BTreeSet::new();
    for case in cases() {
        let Some(program) = decomposition(&case.op, &case.types()) else {
            continue;
        };
        fused.insert(case.op.name());
        for instr in &program.instrs {
            let (x, _) = program.signature(instr);
            let again = decomposition(&instr.op, &x);
            assert!(again.is_none(), "{} decomposes into {}", case.name, instr.op.name());
        }
    }
    assert!(fused.len() > 30, "{fused:?}");
}

/// Every op and attribute in the text form, alone and decomposed.
#[test]
fn texts_of_cases_read_back() {
    for case in cases() {
        let (mut session, program) = case.program();
        session.programs.push(program);
        session.programs.extend(decomposition(&case.op, &case.types()));
        let text = print_session(&session);
        let again = parse(&text).unwrap_or_else(|e| panic!("{}: {e}\n{text}", case.name));
        assert!(again == session, "{}:\n{text}", case.name);
    }
}

/// A case as a program, its states taken in and given back, is the case.
#[test]
fn programs_of_cases_give_the_same_results() {
    let mut interp = Interp::new(Rounding::Exact);
    for case in cases() {
        let (session, program) = case.program();
        ambitus_ir::verify::verify(&session, &program).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        let (inputs, mut states) = case.feeds();
        let outputs = interp.run(&session, &program, &inputs, &mut states);
        let outputs = outputs.unwrap_or_else(|e| panic!("{}: {e}", case.name));
        let expected = case.expected(&mut interp).expect(&case.name);
        for (k, y) in expected.iter().enumerate().filter(|(_, y)| y.ty.dtype != DType::U8) {
            let got = match case.overwritten(k) {
                Some(i) => &states[&format!("x{i}")],
                None => &outputs[&format!("y{k}")],
            };
            assert_eq!(got, y, "{} result {k}", case.name);
        }
    }
}

/// The table of tolerances is wide enough for a plain f32 executor: the decompositions with every result rounded.
#[test]
fn f32_decompositions_stay_within_the_tolerances() {
    let mut exact = Interp::new(Rounding::Exact);
    let mut rounded = Interp::new(Rounding::ToType);
    let mut worst = Vec::new();
    for case in cases() {
        let want = case.expected(&mut exact).expect(&case.name);
        let got = case.expected(&mut rounded).expect(&case.name);
        for (k, (g, w)) in got.iter().zip(&want).enumerate() {
            let mut w = w.clone();
            if !matches!(w.ty.dtype, DType::F32) {
                w.round();
            }
            let off = differs(&g.data, &w.data, f32_against_f64(case.op.name()));
            if let Some((at, g, w)) = off {
                worst.push(format!("{} result {k}[{at}]: {g} instead of {w}", case.name));
            }
        }
    }
    assert!(worst.is_empty(), "{}", worst.join("\n"));
}

#[test]
fn gradient_rules_agree_with_differences() {
    let mut checked = BTreeSet::new();
    let mut worst = Vec::new();
    for case in cases() {
        if case.operands.iter().all(|o| !o.differentiable) {
            continue;
        }
        let gaps = gradcheck(&case, 7).unwrap_or_else(|e| panic!("{e}"));
        for gap in gaps {
            if gap.relative.is_nan() || gap.relative > GRADIENT {
                worst.push(format!("{}: {gap:?}", case.name));
            }
        }
        checked.insert(case.op.name());
    }
    assert!(worst.is_empty(), "{}", worst.join("\n"));
    // Every op that has a rule is checked.
    for case in cases() {
        let accumulating = case.op.attrs().contains(&("acc", "true".to_owned()));
        if has_gradient(&case.op, &case.types()) && !accumulating {
            assert!(checked.contains(case.op.name()), "{} is not checked", case.op.name());
        }
    }
}
