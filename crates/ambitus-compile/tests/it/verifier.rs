//! Every invariant of the verifier, broken on purpose.

use ambitus_ir::ops::copy::Space;
use ambitus_ir::text::parse;
use ambitus_ir::verify::verify;
use ambitus_ir::{Builder, Origin, Output, Phase, Program, Session, StateUse, TensorType, ValueId};

/// A gradient that is added into a state, and a scaled activation.
const GOOD: &str = "
    state w = parameter f32[3,4] trainable
    state grad.w = gradient f32[3,4]
    program p {
        %0 = input dy f32[2,3]
        %1 = input x f32[2,4]
        %2 = input beta f32[1]
        %3 = state w
        %4 = state grad.w
        %5 = activation(%1) {kind=silu} : f32[2,4] @ a fwd
        %6 = linear(%5, %3) : f32[2,3] @ b fwd
        %7 = activation(%1) {kind=silu} : f32[2,4] @ a recompute
        %8 = matmul(%0, %7) {ta=true, tb=false, acc=false, wide=false} : f32[3,4] @ b.matmul bwd
        %9 = accumulate(%4, %8, %2) : f32[3,4] @ b.accumulate bwd
        state grad.w leaves %9
        output y %6
    }";
const X: ValueId = ValueId(1);
const BETA: ValueId = ValueId(2);
const W: ValueId = ValueId(3);
const OLD: ValueId = ValueId(4);
const DW: ValueId = ValueId(8);
const NEW: ValueId = ValueId(9);
const ACCUMULATE: usize = 4;

/// Breaks the program and returns (instruction, invariant) of the violation.
fn broken(how: impl FnOnce(&mut Program)) -> (usize, u8) {
    let mut session = parse(GOOD).expect("the program parses");
    let mut p = session.programs.remove(0);
    verify(&session, &p).expect("the program is well formed");
    how(&mut p);
    let violation = verify(&session, &p).expect_err("the fault is found");
    assert!(violation.to_string().contains("program `p`"), "{violation}");
    (violation.instr, violation.invariant)
}

fn reader(op: usize, p: &mut Program, input: usize, v: ValueId) {
    p.instrs[op].inputs[input] = v;
}

#[test]
fn values_are_defined_once_and_before_use() {
    assert_eq!(broken(|p| p.instrs.swap(0, 1)), (0, 1), "used before it is made");
    assert_eq!(broken(|p| p.instrs[2].outputs = p.instrs[0].outputs.clone()), (2, 1), "made twice");
    assert_eq!(broken(|p| p.inputs[0].value = X), (5, 1), "entered twice");
    assert_eq!(broken(|p| drop(p.instrs.remove(0))), (0, 1), "never made");
}

#[test]
fn results_have_the_inferred_types() {
    let wide = TensorType::f32(&[2, 5]);
    assert_eq!(broken(|p| p.types[5] = wide), (0, 2));
    assert_eq!(broken(|p| reader(1, p, 1, X)), (1, 2), "operands that do not fit");
    assert_eq!(broken(|p| p.types[W.index()] = wide), (5, 2), "a state of another type");
    let mut pitched = TensorType::f32(&[2, 4]);
    pitched.pitch = 8;
    assert_eq!(broken(|p| p.types[5] = pitched), (0, 2), "the pitch is part of the type");
}

#[test]
fn only_states_are_overwritten_and_nothing_reads_them_after() {
    assert_eq!(
        broken(|p| reader(ACCUMULATE, p, 0, DW)),
        (ACCUMULATE, 3),
        "overwrites a temporary, which it also reads"
    );
    assert_eq!(
        broken(|p| {
            reader(ACCUMULATE, p, 0, DW);
            reader(ACCUMULATE, p, 1, W);
        }),
        (ACCUMULATE, 3),
        "overwrites a temporary"
    );
    let again = |p: &mut Program| {
        let mut again = p.instrs[ACCUMULATE].clone();
        again.outputs = vec![p.new_value(p.ty(NEW))];
        p.instrs.push(again);
    };
    assert_eq!(broken(again), (5, 3), "overwrites the old bytes twice");
    let late = |p: &mut Program| {
        let mut late = p.instrs[ACCUMULATE].clone();
        late.inputs = vec![NEW, OLD, BETA];
        late.outputs = vec![p.new_value(p.ty(NEW))];
        p.instrs.push(late);
    };
    assert_eq!(broken(late), (5, 3), "reads the old bytes");
}

#[test]
fn states_leave_on_their_own_bytes() {
    assert_eq!(broken(|p| p.states[1].leaves = OLD), (5, 4), "the overwritten value");
    assert_eq!(broken(|p| p.states[0].leaves = NEW), (5, 4), "another state's value");
    assert_eq!(broken(|p| p.states[1].leaves = DW), (5, 4), "no state's value");
}

#[test]
fn signatures_name_things_once_and_outputs_exist() {
    assert_eq!(broken(|p| p.inputs[0].name = "x".to_owned()), (5, 6));
    let twice = |p: &mut Program| p.outputs.push(p.outputs[0].clone());
    assert_eq!(broken(twice), (5, 6));
    let same_bytes = |p: &mut Program| p.outputs[0].name = "x".to_owned();
    assert_eq!(broken(same_bytes), (5, 6), "an output on an input's bytes");
    let gone = |p: &mut Program| p.outputs.push(Output { name: "old".to_owned(), value: OLD });
    assert_eq!(broken(gone), (5, 6), "an overwritten value");
    let state = |p: &mut Program| {
        let value = p.new_value(p.ty(W));
        p.states.push(StateUse { state: p.states[0].state, first: 0, enters: value, leaves: value });
    };
    assert_eq!(broken(state), (5, 6));
}

/// Each part once, and none with the whole.
#[test]
fn parts_of_a_state_lie_apart() {
    let text = |second: &str| {
        let program = format!("%0 = state w from 0 f32[128]\n%1 = state w {second}");
        parse(&format!("state w = parameter f32[512]\nprogram p {{\n{program}\n}}")).expect("the text parses")
    };
    let verdict = |s: &Session| verify(s, &s.programs[0]).map_err(|v| v.invariant);
    assert_eq!(verdict(&text("from 128 f32[384]")), Ok(()));
    assert_eq!(verdict(&text("from 64 f32[448]")), Err(6));
    let mut whole = text("from 128 f32[384]");
    let p = &mut whole.programs[0];
    (p.states[1].first, p.types[1]) = (0, TensorType::f32(&[512]));
    assert_eq!(verdict(&whole), Err(6));
    let mut torn = text("from 128 f32[100]");
    torn.programs[0].states[1].first = 130;
    assert_eq!(verdict(&torn), Err(2), "not where values may begin");
}

#[test]
fn clones_have_originals() {
    assert_eq!(broken(|p| p.instrs[2].origin.path = "other".into()), (2, 7));
    let original = Origin { path: "a".into(), phase: Phase::Backward };
    assert_eq!(broken(|p| p.instrs[0].origin = original), (2, 7), "the original is a forward instruction");
}

/// A program with a copy to the host and back, whose parts a test leaves out or changes.
fn copying(body: impl FnOnce(&mut Builder<'_>, ValueId)) -> Option<u8> {
    let mut session = Session::default();
    let mut b = Builder::new(&mut session, "p");
    let ty = TensorType::f32(&[2, 4]);
    let (id, state) = b.declare("s", ty, ambitus_ir::StateKind::Gradient);
    body(&mut b, state);
    let value =
        b.program().instrs.iter().rev().find_map(|i| (i.op.name() == "accumulate").then(|| i.outputs[0]));
    if let Some(value) = value {
        b.give_back(id, value);
    }
    let p = b.finish();
    verify(&session, &p).err().map(|v| v.invariant)
}

#[test]
fn starts_and_dones_pair_and_guard_what_lies_between() {
    let add = |b: &mut Builder<'_>, old: ValueId, x: ValueId| {
        let one = b.fill(TensorType::f32(&[1]), 1.0);
        b.accumulate(old, x, one)
    };
    let whole = copying(|b, s| {
        let copy = b.copy_start(s, 0, Space::Host);
        let y = b.copy_done(s, copy, 0);
        let back = b.copy_start(y, 0, Space::Device);
        let y = b.copy_done(y, back, 0);
        add(b, s, y);
    });
    assert_eq!(whole, None);
    let undone = copying(|b, s| {
        b.copy_start(s, 0, Space::Host);
    });
    assert_eq!(undone, Some(5), "never done");
    let other_queue = copying(|b, s| {
        let copy = b.copy_start(s, 0, Space::Host);
        b.copy_done(s, copy, 1);
    });
    assert_eq!(other_queue, Some(5));
    let twice = copying(|b, s| {
        let copy = b.copy_start(s, 0, Space::Host);
        b.copy_done(s, copy, 0);
        b.copy_done(s, copy, 0);
    });
    assert!(twice.is_some());
    let other_source = copying(|b, s| {
        let x = b.fill_like(s, 0.0);
        let copy = b.copy_start(s, 0, Space::Host);
        b.copy_done(x, copy, 0);
    });
    assert_eq!(other_source, Some(5));
    let early = copying(|b, s| {
        let copy = b.copy_start(s, 0, Space::Host);
        b.add(copy.0, copy.0);
        b.copy_done(s, copy, 0);
    });
    assert_eq!(early, Some(5), "read before it is done");
    let torn = copying(|b, s| {
        let copy = b.copy_start(s, 0, Space::Host);
        let x = b.fill_like(s, 0.0);
        add(b, s, x);
        b.copy_done(s, copy, 0);
    });
    assert_eq!(torn, Some(5), "the source is overwritten under the copy");
}

/// The invariant that a program over a weight w and a gradient g on the host breaks first; `leaves` is g's last value.
fn on_host(lines: &str, leaves: &str) -> Option<u8> {
    let text = format!(
        "state w = parameter f32[2,4] host
        state g = gradient f32[2,4] host
        program p {{
            %0 = input x f32[2,4]
            %1 = input beta f32[1]
            %2 = state w
            %3 = state g
            {lines}
            state g leaves {leaves}
        }}"
    );
    let s = ambitus_ir::text::parse(&text).unwrap_or_else(|e| panic!("{e}"));
    verify(&s, &s.programs[0]).err().map(|v| v.invariant)
}

#[test]
fn only_copies_reach_the_host() {
    let fetch = "%4, %5 = copy_start(%3) {queue=0, to=device} : f32[2,4], u8[1] @ a fwd
        %6 = copy_done(%3, %4, %5) {queue=0} : f32[2,4] @ b fwd
        %7 = accumulate(%6, %0, %1) : f32[2,4] @ c fwd";
    let store = "%8, %9 = store_start(%7, %3) {queue=1} : f32[2,4], u8[1] @ d fwd
        %10 = copy_done(%7, %8, %9) {queue=1} : f32[2,4] @ e fwd";
    assert_eq!(
        on_host(&format!("{fetch}\n{store}"), "%10"),
        None,
        "a fetched copy is overwritten and stored"
    );
    assert_eq!(on_host(&format!("{fetch}\n{store}"), "%3"), Some(4), "the old value is gone");
    assert_eq!(on_host(fetch, "%7"), Some(4), "a copy on the device is not the state");
    let again = "%8 = accumulate(%6, %0, %1) : f32[2,4] @ f fwd";
    assert_eq!(on_host(&format!("{fetch}\n{again}"), "%3"), Some(3), "the copy was overwritten");
    let direct = "%4 = accumulate(%3, %0, %1) : f32[2,4] @ a fwd";
    assert_eq!(on_host(direct, "%4"), Some(8));
    let read = "%4 = binary(%2, %0) {kind=add} : f32[2,4] @ a fwd";
    assert_eq!(on_host(read, "%3"), Some(8));
    let across = "%4, %5 = copy_start(%2) {queue=0, to=host} : f32[2,4], u8[1] @ a fwd
        %6 = copy_done(%2, %4, %5) {queue=0} : f32[2,4] @ b fwd";
    assert_eq!(on_host(across, "%3"), Some(8), "from host to host");
    let onto_input = "%4, %5 = store_start(%0, %0) {queue=0} : f32[2,4], u8[1] @ a fwd
        %6 = copy_done(%0, %4, %5) {queue=0} : f32[2,4] @ b fwd";
    assert_eq!(on_host(onto_input, "%3"), Some(8), "no state's value");
    let undone = "%4, %5 = store_start(%0, %3) {queue=0} : f32[2,4], u8[1] @ a fwd";
    assert_eq!(on_host(undone, "%4"), Some(5));
    let under = "%4, %5 = copy_start(%3) {queue=0, to=device} : f32[2,4], u8[1] @ a fwd
        %6, %7 = store_start(%0, %3) {queue=1} : f32[2,4], u8[1] @ b fwd
        %8 = copy_done(%3, %4, %5) {queue=0} : f32[2,4] @ c fwd
        %9 = copy_done(%0, %6, %7) {queue=1} : f32[2,4] @ d fwd";
    assert_eq!(on_host(under, "%9"), Some(5), "stored to while it is fetched");
}
