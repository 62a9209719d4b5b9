//! The planner: every value of every program gets its bytes.
//!
//! `lifetimes` says what must live when, `solve` assigns offsets, `check` proves the result independently. States have one
//! offset for the whole session, in the arena or in the host's; programs run one at a time and share the transient region; inputs and outputs have one
//! layout for all slots, by name, so that programs that read the same batch read the same bytes.

pub mod check;
pub mod lifetimes;
pub mod problem;
pub mod report;
pub mod solve;

use ambitus_ir::ops::copy::Space;
use ambitus_ir::plan::{Address, Live, PlannedProgram, PlannedSession, Region};
use ambitus_ir::target::Target;
use ambitus_ir::{Program, Session, StateDecl, TensorType};
use lifetimes::{Home, Lifetimes};
use problem::{Buffer, Problem};
use solve::Aim;
use std::collections::HashMap;

/// Byte ranges handed out one after another.
#[derive(Default)]
struct Stack {
    top: u64,
}

impl Stack {
    fn push(&mut self, region: Region, bytes: u64) -> Address {
        let offset = self.top;
        self.top = (offset + bytes).next_multiple_of(TensorType::ALIGN);
        Address { region, offset, bytes }
    }
}

/// Assigns every byte of a session. Programs must be verified; `slots` is how many batches are prepared at once.
///
/// # Panics
/// When the independent checker finds a fault: that is a bug of `solve`.
pub fn plan(session: Session, target: &dyn Target, slots: usize) -> PlannedSession {
    plan_within(session, target, slots, None)
}

/// As [`plan`], for an arena of `room` bytes: work goes into lower offsets only where they decide whether it is enough.
pub fn plan_within(session: Session, target: &dyn Target, slots: usize, room: Option<u64>) -> PlannedSession {
    let (mut states, mut on_host) = (Stack::default(), Stack::default());
    let mut home = |s: &StateDecl| match s.home {
        Space::Device => states.push(Region::State, s.ty.bytes()),
        Space::Host => on_host.push(Region::Host, s.ty.bytes()),
    };
    let state_places: Vec<Address> = session.states.iter().map(&mut home).collect();
    let mut slot = SlotLayout::default();
    let lives: Vec<Lifetimes> = session.programs.iter().map(|p| lifetimes::lifetimes(p, target)).collect();
    let problems: Vec<[Problem; 2]> =
        session.programs.iter().zip(&lives).map(|(p, l)| problems(p, l)).collect();
    for p in &session.programs {
        let outputs = p.outputs.iter().map(|o| (&o.name, o.value));
        for (name, value) in p.inputs.iter().map(|i| (&i.name, i.value)).chain(outputs) {
            slot.place(name, p.ty(value));
        }
    }
    let room = room.map(|bytes| bytes.saturating_sub(states.top + slot.stack.top * slots as u64));
    // All programs run in the same bytes: what the largest needs at least is enough for every one.
    let least =
        [0, 1].map(|arena| problems.iter().map(|p| problem::live_bound(&p[arena]).0).max().unwrap_or(0));
    let aims = match room {
        None => least.map(Aim::Height),
        // The host's arena is another question.
        Some(room) if room < least[0] => [Aim::Any, Aim::Any],
        Some(room) => [Aim::Height(room), Aim::Any],
    };
    let programs: Vec<PlannedProgram> = session
        .programs
        .iter()
        .zip(lives.iter().zip(&problems))
        .map(|(p, (lives, problems))| {
            let solved = [0, 1].map(|arena| solved(&problems[arena], aims[arena], &p.name));
            plan_program(p, &state_places, on_host.top, &mut slot, (lives, solved))
        })
        .collect();
    let most = |f: &dyn Fn(&PlannedProgram) -> u64| programs.iter().map(f).max().unwrap_or(0);
    // The states of the host's space, and above them what programs copy there.
    let host_bytes = on_host.top + most(&|p| p.host_bytes);
    PlannedSession {
        state_bytes: states.top,
        transient_bytes: most(&|p| p.transient_bytes),
        slot_bytes: slot.stack.top,
        slots,
        host_state_bytes: on_host.top,
        host_bytes,
        states: state_places,
        programs,
        session,
    }
}

#[derive(Default)]
struct SlotLayout {
    stack: Stack,
    places: HashMap<(String, TensorType), Address>,
}

impl SlotLayout {
    fn place(&mut self, name: &str, ty: TensorType) -> Address {
        let stack = &mut self.stack;
        let new = || stack.push(Region::Slot, ty.bytes());
        *self.places.entry((name.to_owned(), ty)).or_insert_with(new)
    }
}

/// A program's problems: the transient region's and the host's.
fn problems(p: &Program, lives: &Lifetimes) -> [Problem; 2] {
    [&lives.device, &lives.host].map(|buffers| {
        Problem::new(buffers.clone())
            .unwrap_or_else(|why| panic!("bug in lifetimes of program `{}`: {why}", p.name))
    })
}

/// Solves one arena and proves the solution; with the bound and its instant.
fn solved(problem: &Problem, aim: Aim, program: &str) -> (problem::Solution, u64, u32) {
    let solution = solve::solve_within(problem, aim);
    if let Err(violation) = check::check(problem, &solution) {
        panic!("bug in solve of program `{program}`: {violation}");
    }
    let (bound, at) = problem::live_bound(problem);
    (solution, bound, at)
}

fn plan_program(
    p: &Program,
    states: &[Address],
    host_states: u64,
    slot: &mut SlotLayout,
    (lives, [device, host]): (&Lifetimes, [(problem::Solution, u64, u32); 2]),
) -> PlannedProgram {
    let ((device, live_bound_bytes, peak_at), (host, _, _)) = (device, host);
    let device_place = |k: usize| Address {
        region: Region::Transient,
        offset: device.offsets[k],
        bytes: lives.device[k].size,
    };
    let mut place = |home: Home| match home {
        Home::State(k) => states[p.states[k].state.index()],
        Home::Input(k) => slot.place(&p.inputs[k].name, p.ty(p.inputs[k].value)),
        Home::Output(k) => slot.place(&p.outputs[k].name, p.ty(p.outputs[k].value)),
        Home::Device(k) => device_place(k),
        Home::Host(k) => {
            let (offset, bytes) = (host_states + host.offsets[k], lives.host[k].size);
            Address { region: Region::Host, offset, bytes }
        }
    };
    let places = lives.homes.iter().map(|home| home.map(&mut place)).collect();
    let stretch = |(k, b): (usize, &Buffer)| Live {
        first: b.first,
        last: b.last,
        place: device_place(k),
        value: lives.first_value.get(k).copied(),
    };
    PlannedProgram {
        places,
        workspaces: lives.workspaces.iter().map(|w| w.map(device_place)).collect(),
        lives: lives.device.iter().enumerate().map(stretch).collect(),
        transient_bytes: device.height,
        host_bytes: host.height,
        live_bound_bytes,
        peak_at: peak_at as usize,
        program: p.clone(),
    }
}
