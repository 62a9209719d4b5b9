//! What the planner keeps in place, and how long.

use ambitus_compile::pipeline;
use ambitus_compile::plan::plan;
use ambitus_ir::ops::activation::ActivationKind::Silu;
use ambitus_ir::ops::copy::Space;
use ambitus_ir::plan::{Live, PlannedProgram, PlannedSession, Region};
use ambitus_ir::{Builder, Session, StateKind, TensorType, ValueId};
use ambitus_testkit::owners;
use ambitus_testkit::paper::{FULL, Paper};

const TY: [usize; 2] = [64, 64];
const BYTES: u64 = 64 * 64 * 4;

/// Plans one program, with the passes when asked.
fn planned(build: impl FnOnce(&mut Builder<'_>), shares: bool) -> PlannedSession {
    let mut session = Session::default();
    let mut b = Builder::new(&mut session, "p");
    build(&mut b);
    let p = b.finish();
    ambitus_ir::verify::verify(&session, &p).expect("the program is well formed");
    session.programs.push(p);
    let target = Paper { shares, ..FULL };
    let planned = plan(session, &target, 1);
    owners::check(&planned, &target);
    planned
}

fn stretch(p: &PlannedProgram, v: ValueId) -> Live {
    let place = p.place(v);
    let at =
        p.program.instrs.iter().position(|i| i.outputs.contains(&v)).expect("an instruction makes it") as u32;
    let found = p.lives.iter().find(|l| l.place == place && l.first <= at && at <= l.last);
    *found.expect("a value in the transient region has a stretch")
}

#[test]
fn a_copy_holds_source_and_result_from_start_to_done() {
    let mut values = None;
    let planned = planned(
        |b| {
            let x = b.input("x", TensorType::f32(&TY));
            let a = b.activation(Silu, x); // 0
            let out = b.copy_start(a, 0, Space::Host); // 1
            // Nothing but the copy reads `a` from here on, and these would gladly take its bytes.
            let c = b.activation(Silu, x); // 2
            let d = b.activation(Silu, c); // 3
            let held = b.copy_done(a, out, 0); // 4
            let e = b.activation(Silu, d); // 5
            let back = b.copy_start(held, 0, Space::Device); // 6
            let f = b.activation(Silu, e); // 7
            let again = b.copy_done(held, back, 0); // 8
            let y = b.add(f, again); // 9
            b.output("y", y);
            values = Some((a, out, c, d, held, back, again));
        },
        true,
    );
    let (a, out, c, d, held, back, again) = values.expect("the program was built");
    let p = &planned.programs[0];
    assert_eq!((stretch(p, a).first, stretch(p, a).last), (0, 4), "the source stays until the copy is done");
    assert_eq!((stretch(p, out.1).first, stretch(p, out.1).last), (1, 4), "so does the token");
    for v in [c, d] {
        let (there, source) = (p.place(v), p.place(a));
        assert!(there.offset >= source.offset + BYTES || source.offset >= there.offset + BYTES);
    }
    // The result of a copy to the host is in the host arena, and ready on the same bytes.
    assert_eq!(p.place(out.0).region, Region::Host);
    assert_eq!(p.place(out.0), p.place(held));
    assert_eq!(planned.host_bytes, BYTES);
    // On the way back the bytes on the device are taken from the start, though nothing may read them yet.
    assert_eq!((stretch(p, back.0).first, stretch(p, back.0).last), (6, 9));
    assert_eq!(p.place(back.0), p.place(again));
}

#[test]
fn a_copied_state_is_read_in_place() {
    let mut copy = None;
    let planned = planned(
        |b| {
            let ty = TensorType::f32(&TY);
            let (_, s) = b.declare("s", ty, ambitus_ir::StateKind::Parameter);
            let out = b.copy_start(s, 3, Space::Host);
            let y = b.copy_done(s, out, 3);
            b.output("y", y);
            copy = Some((s, out.0));
        },
        true,
    );
    let (s, out) = copy.expect("the program was built");
    let p = &planned.programs[0];
    assert_eq!(p.place(s).region, Region::State);
    assert_eq!(p.place(out).region, Region::Host);
}

#[test]
fn the_last_reader_overwrites_where_the_target_can() {
    let chain = |b: &mut Builder<'_>| {
        let x = b.input("x", TensorType::f32(&TY));
        let mut y = b.activation(Silu, x);
        for _ in 0..5 {
            y = b.activation(Silu, y);
        }
        let z = b.add(y, y);
        b.output("z", z);
    };
    let bytes = |shares| planned(chain, shares).programs[0].transient_bytes;
    assert_eq!(bytes(true), BYTES, "one stretch for the whole chain");
    assert_eq!(bytes(false), 2 * BYTES, "operand and result side by side");
}

#[test]
fn a_value_that_is_read_later_is_not_overwritten() {
    let planned = planned(
        |b| {
            let x = b.input("x", TensorType::f32(&TY));
            let a = b.activation(Silu, x);
            let c = b.activation(Silu, a);
            let d = b.add(c, a);
            let e = b.add(d, d);
            b.output("e", e);
        },
        true,
    );
    let p = &planned.programs[0];
    let [a, c] = [0, 1].map(|i: usize| p.place(p.program.instrs[i].outputs[0]));
    assert_ne!(a.offset, c.offset);
}

#[test]
fn inputs_and_outputs_lie_in_the_slot_and_programs_share_it() {
    let mut session = Session::default();
    for name in ["train", "evaluate"] {
        let mut b = Builder::new(&mut session, name);
        let other = b.input(&format!("only.{name}"), TensorType::f32(&[8]));
        let x = b.input("x", TensorType::f32(&TY));
        let s = b.reshape(other, &[1, 8]);
        b.output("s", s);
        let y = b.activation(Silu, x);
        b.output("y", y);
        let p = b.finish();
        let p = pipeline::plain(&mut session, p, &FULL);
        session.programs.push(p);
    }
    let planned = plan(session, &FULL, 3);
    owners::check(&planned, &FULL);
    let [train, evaluate] = [&planned.programs[0], &planned.programs[1]];
    let at = |p: &PlannedProgram| p.place(p.program.input("x").expect("the input is there"));
    assert_eq!(at(train), at(evaluate));
    assert_eq!(at(train).region, Region::Slot);
    let at = |p: &PlannedProgram| p.place(p.program.output("y").expect("the output is there"));
    assert_eq!(at(train), at(evaluate));
    assert_eq!(planned.transient_bytes, 0, "everything lies in the slot");
    assert_eq!(planned.arena_bytes(), 3 * planned.slot_bytes);
}

#[test]
#[should_panic(expected = "whose bytes are gone")]
fn the_second_opinion_sees_a_wrong_place() {
    let mut values = None;
    let mut planned = planned(
        |b| {
            let x = b.input("x", TensorType::f32(&TY));
            let held = b.activation(Silu, x);
            let other = b.activation(Silu, held);
            let y = b.add(held, other);
            b.output("y", y);
            values = Some((held, other));
        },
        false,
    );
    let (held, other) = values.expect("the program was built");
    let p = &mut planned.programs[0];
    // One instruction later than allowed: `other` is written over `held`, which is read again.
    let reader = p.program.instrs.remove(1);
    p.program.instrs.insert(0, reader);
    p.program.instrs[0].inputs = vec![p.program.inputs[0].value];
    p.places[other.index()] = p.places[held.index()];
    owners::check(&planned, &FULL);
}

/// A cache lies below the work of the programs that use it, where others have theirs: they may overwrite it.
#[test]
fn a_cache_takes_bytes_of_other_programs() {
    let mut session = Session::default();
    let cache = TensorType::f32(&TY);
    let uses = |session: &mut Session, name: &str| {
        let mut b = Builder::new(session, name);
        let x = b.input("x", TensorType::f32(&[1, TY[1]]));
        let row = b.input("row", TensorType::i32(&[1]));
        let (id, before) = b.declare("cache", cache, StateKind::Cache);
        let after = b.write_rows(before, x, row);
        b.give_back(id, after);
        let y = b.activation(Silu, after);
        let z = b.add(y, after);
        b.output("z", z);
        b.finish()
    };
    let programs = [uses(&mut session, "first"), uses(&mut session, "second")];
    let mut b = Builder::new(&mut session, "other");
    let x = b.input("big", TensorType::f32(&[3 * TY[0], TY[1]]));
    let y = b.activation(Silu, x);
    let z = b.add(y, y);
    b.output("sum", z);
    let other = b.finish();
    session.programs = programs.into_iter().chain([other]).collect();
    let target = Paper { shares: false, ..FULL };
    let planned = plan(session, &target, 1);
    owners::check(&planned, &target);
    assert_eq!(planned.state_bytes, 0);
    assert_eq!((planned.states[0].region, planned.states[0].offset), (Region::Transient, 0));
    let [first, second, other] = &planned.programs[..] else { panic!("three programs") };
    for p in [first, second] {
        assert!(p.lives.iter().all(|live| live.place.offset >= BYTES), "work lies on the cache");
        assert!(p.transient_bytes > BYTES && p.live_bound_bytes == p.transient_bytes);
    }
    assert!(other.lives.iter().any(|live| live.place.offset == 0));
    assert_eq!(planned.transient_bytes, other.transient_bytes);
}
