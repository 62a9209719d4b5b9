//! Transfers, slots and errors of both executors.

use ambitus_compile::plan::plan;
use ambitus_exec::cpu::{AsyncMode, CpuExecutor, CpuOptions, CpuTarget};
use ambitus_exec::executor::{ExecError, Executor};
use ambitus_exec::null::NullExecutor;
use ambitus_ir::ops::copy::Space;
use ambitus_ir::plan::{PlannedSession, Region};
use ambitus_ir::{Builder, DType, Session, StateDecl, StateKind, TensorType};
use std::path::Path;
use std::sync::Arc;

const ROWS: usize = 3;
/// Odd, so that rows are padded.
const COLS: usize = 35;
/// Element types of states.
const DTYPES: [DType; 4] = [DType::F32, DType::BF16, DType::F16, DType::U8];

/// `step`: y = x + w over a padded weight, then w = y.
fn planned(slots: usize) -> Arc<PlannedSession> {
    let mut session = Session::default();
    let ty = TensorType::f32(&[ROWS, COLS]);
    let (kind, trainable, home) = (StateKind::Parameter, false, Space::Device);
    let w = session.declare(StateDecl { name: "w".to_owned(), ty, kind, trainable, home });
    let mut b = Builder::new(&mut session, "step");
    let (x, old) = (b.input("x", ty), b.state(w));
    let beta = b.input("beta", TensorType::f32(&[1]));
    b.input("ids", TensorType::i32(&[2]));
    let y = b.add(x, old);
    b.output("y", y);
    let new = b.accumulate(old, y, beta);
    b.give_back(w, new);
    let program = b.finish();
    session.programs.push(program);
    Arc::new(plan(session, &CpuTarget::new(1), slots))
}

fn counting(from: usize) -> Vec<f32> {
    (from..from + ROWS * COLS).map(|i| i as f32).collect()
}

#[test]
fn states_stream_in_and_out_in_any_pieces() {
    let planned = planned(2);
    let mut exec = CpuExecutor::open(planned.clone(), 2).unwrap();
    let w = planned.session.state("w").unwrap();
    let data = counting(1);
    for piece in [1, 7, 34, 36, 105] {
        exec.write_state(w, &vec![-1.0; ROWS * COLS]).unwrap();
        for start in (0..data.len()).step_by(piece) {
            let end = data.len().min(start + piece);
            exec.write_state_at(w, start, &data[start..end]).unwrap();
        }
        let mut out = vec![0.0; data.len()];
        for start in (0..data.len()).step_by(piece) {
            let end = data.len().min(start + piece);
            exec.read_state_at(w, start, &mut out[start..end]).unwrap();
        }
        assert_eq!(out, data, "pieces of {piece}");
    }
    assert_eq!(exec.arena_bytes(), planned.arena_bytes());
}

/// Where a state may lie, and where the host arena is then.
const PLACES: [(Space, bool); 3] = [(Space::Device, false), (Space::Host, false), (Space::Host, true)];

/// Opens a session whose host arena, if there is one, is in memory or in a file of `folder`.
fn opened(planned: PlannedSession, in_file: bool, copies: AsyncMode, folder: &Path) -> CpuExecutor {
    let options = CpuOptions { copies, disk: in_file.then_some(folder), ..CpuOptions::from(2) };
    CpuExecutor::open(planned, options).expect("small arenas")
}

/// States of every type that passes as f32, wherever they lie, their rows padded each in its own way.
#[test]
fn states_of_every_type_come_back_from_every_place_in_any_pieces() {
    let folder = tempfile::tempdir().unwrap();
    for (dtype, (home, in_file)) in DTYPES.into_iter().flat_map(|d| PLACES.map(|place| (d, place))) {
        let mut session = Session::default();
        // Around the one that is written lie others, which must not change.
        let names = ["before", "m", "after"];
        let ids = names.map(|name| {
            let (ty, kind, name) =
                (TensorType::new(dtype, &[ROWS, COLS]), StateKind::Optimizer, name.to_owned());
            session.declare(StateDecl { name, ty, kind, trainable: false, home })
        });
        let planned = plan(session, &CpuTarget::new(1), 1);
        let mut exec = opened(planned, in_file, AsyncMode::Early, folder.path());
        // Whole numbers up to 255 are numbers of all types.
        let data: Vec<f32> = (0..ROWS * COLS).map(|i| (i * 2) as f32).collect();
        let beside = vec![7.0; ROWS * COLS];
        for other in [ids[0], ids[2]] {
            exec.write_state(other, &beside).unwrap();
        }
        for piece in [1, 7, 34, 36, 105] {
            exec.write_state(ids[1], &vec![3.0; ROWS * COLS]).unwrap();
            for start in (0..data.len()).step_by(piece) {
                let end = data.len().min(start + piece);
                exec.write_state_at(ids[1], start, &data[start..end]).unwrap();
            }
            let mut out = vec![0.0; data.len()];
            for start in (0..data.len()).step_by(piece) {
                let end = data.len().min(start + piece);
                exec.read_state_at(ids[1], start, &mut out[start..end]).unwrap();
            }
            assert_eq!(out, data, "{dtype:?} in pieces of {piece}, {home:?}, in a file: {in_file}");
        }
        for other in [ids[0], ids[2]] {
            let mut out = vec![0.0; data.len()];
            exec.read_state(other, &mut out).unwrap();
            assert_eq!(out, beside, "{dtype:?}, {home:?}, in a file: {in_file}");
        }
    }
}

/// A program moves a state of every type to the device and stores it over another one, wherever both lie.
#[test]
fn copies_move_every_type_between_every_place() {
    let folder = tempfile::tempdir().unwrap();
    let ways = [AsyncMode::Early, AsyncMode::Late].into_iter().flat_map(|m| [(m, false), (m, true)]);
    for (dtype, (copies, in_file)) in DTYPES.into_iter().flat_map(|d| ways.clone().map(move |w| (d, w))) {
        let mut session = Session::default();
        let ty = TensorType::new(dtype, &[ROWS, COLS]);
        let [from, to] = ["from", "to"].map(|name| {
            let (kind, home, name) = (StateKind::Optimizer, Space::Host, name.to_owned());
            session.declare(StateDecl { name, ty, kind, trainable: false, home })
        });
        let mut b = Builder::new(&mut session, "move");
        let (x, old) = (b.state(from), b.state(to));
        let copy = b.copy_start(x, 0, Space::Device);
        let here = b.copy_done(x, copy, 0);
        let store = b.store_start(here, old, 1);
        let new = b.copy_done(here, store, 1);
        b.give_back(to, new);
        let program = b.finish();
        session.programs.push(program);
        let planned = plan(session, &CpuTarget::new(1), 1);
        let mut exec = opened(planned, in_file, copies, folder.path());
        let data: Vec<f32> = (0..ROWS * COLS).map(|i| (255 - i) as f32).collect();
        exec.write_state(from, &data).unwrap();
        exec.run("move", 0).unwrap();
        let mut out = vec![0.0; data.len()];
        exec.read_state(to, &mut out).unwrap();
        assert_eq!(out, data, "{dtype:?}, {copies:?}, in a file: {in_file}");
    }
}

#[test]
fn slots_hold_their_own_inputs_and_outputs() {
    let planned = planned(2);
    let mut exec = CpuExecutor::open(planned.clone(), 1).unwrap();
    let w = planned.session.state("w").unwrap();
    for slot in 0..2 {
        exec.write_f32("step", "x", slot, &counting(1000 * slot)).unwrap();
        exec.write_f32("step", "beta", slot, &[0.0]).unwrap();
    }
    exec.write_state(w, &counting(0)).unwrap();
    exec.run("step", 1).unwrap();
    exec.run("step", 0).unwrap();
    let mut out = vec![0.0; ROWS * COLS];
    exec.read_f32("step", "y", 1, &mut out).unwrap();
    assert!((0..out.len()).all(|i| out[i] == (1000 + 2 * i) as f32));
    exec.read_f32("step", "y", 0, &mut out).unwrap();
    assert!((0..out.len()).all(|i| out[i] == (1000 + 3 * i) as f32));
    let mut state = vec![0.0; ROWS * COLS];
    exec.read_state(w, &mut state).unwrap();
    assert_eq!(state, out);
}

#[test]
fn bad_transfers_are_refused_by_both_executors() {
    let planned = planned(1);
    let w = planned.session.state("w").unwrap();
    let cpu = CpuExecutor::open(planned.clone(), 1).unwrap();
    let null = NullExecutor::open(planned).unwrap();
    let all: [Box<dyn Executor>; 2] = [Box::new(cpu), Box::new(null)];
    for mut e in all {
        let mut one = [0.0];
        assert!(matches!(e.run("other", 0), Err(ExecError::NoProgram(_))));
        assert!(matches!(e.run("step", 1), Err(ExecError::NoSlot { slot: 1, slots: 1 })));
        let wrong = e.write_f32("step", "z", 0, &[0.0]);
        assert!(matches!(wrong, Err(ExecError::NoValue { .. })));
        let wrong = e.write_f32("step", "x", 0, &[0.0]);
        assert!(matches!(wrong, Err(ExecError::Length { want: 105, got: 1, .. })));
        let wrong = e.write_f32("step", "ids", 0, &[0.0; 2]);
        assert!(matches!(wrong, Err(ExecError::Type { want: DType::I32, got: DType::F32, .. })));
        let wrong = e.write_i32("step", "beta", 0, &[0]);
        assert!(matches!(wrong, Err(ExecError::Type { want: DType::F32, got: DType::I32, .. })));
        let wrong = e.read_f32("step", "y", 0, &mut one);
        assert!(matches!(wrong, Err(ExecError::Length { .. })));
        assert!(matches!(e.write_state(w, &[0.0]), Err(ExecError::Length { .. })));
        assert!(e.write_state_at(w, 104, &[0.0]).is_ok());
        let past = e.write_state_at(w, 105, &[0.0]);
        assert!(matches!(past, Err(ExecError::Length { want: 105, got: 106, .. })));
        assert!(e.read_state_at(w, usize::MAX, &mut one).is_err());
    }
}

#[test]
fn the_null_executor_walks_and_reads_zeros() {
    let planned = planned(1);
    let w = planned.session.state("w").unwrap();
    let mut null = NullExecutor::open(planned).unwrap();
    null.write_state(w, &counting(1)).unwrap();
    null.run("step", 0).unwrap();
    null.run("step", 0).unwrap();
    assert_eq!((null.instructions(), null.arena_bytes()), (4, 0));
    let mut out = counting(1);
    null.read_f32("step", "y", 0, &mut out).unwrap();
    assert!(out.iter().all(|x| *x == 0.0));
}

#[test]
fn plans_with_faults_are_refused_at_open() {
    let fault = |change: &dyn Fn(&mut PlannedSession)| {
        let mut planned = (*planned(1)).clone();
        change(&mut planned);
        let cpu = CpuExecutor::open(planned, 1).map(drop);
        cpu.expect_err("a fault").to_string()
    };
    let y = |p: &PlannedSession| p.programs[0].program.output("y").unwrap().index();
    let past = fault(&|p| p.slot_bytes = 256);
    assert!(past.contains("pass the 256 of Slot"), "{past}");
    let overlap = fault(&|p| {
        let (at, x) = (y(p), p.programs[0].program.input("x").unwrap().index());
        let mut place = p.programs[0].places[x].unwrap();
        place.offset += TensorType::ALIGN;
        p.programs[0].places[at] = Some(place);
        p.slot_bytes += 1024;
    });
    assert!(overlap.contains("overwrites operand"), "{overlap}");
    let moved = fault(&|p| {
        let v = p.programs[0].program.states[0].leaves.index();
        p.programs[0].places[v].as_mut().unwrap().region = Region::Slot;
    });
    assert!(moved.contains("is not on the state w"), "{moved}");
    let none = fault(&|p| {
        let at = y(p);
        p.programs[0].places[at] = None;
    });
    assert!(none.contains("has no place"), "{none}");
}
