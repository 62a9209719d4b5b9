//! The planner: every value of every program gets its bytes.
//!
//! `lifetimes` says what must live when, `solve` assigns offsets, `check` proves the result independently. States have one
//! offset for the whole session, in the arena or in the host's; programs run one at a time and share the transient region; caches lie there
//! too, below what programs that use them have, so they last until another program runs; inputs and outputs have one layout for all
//! slots, by name, so that programs that read the same batch read the same bytes.

pub mod check;
pub mod lifetimes;
pub mod problem;
pub mod report;
pub mod solve;
pub mod timelines;

use ambitus_ir::ops::copy::Space;
use ambitus_ir::plan::{Address, Live, PlannedProgram, PlannedSession, Region};
use ambitus_ir::target::Target;
use ambitus_ir::{Program, Session, StateDecl, StateKind, TensorType};
use lifetimes::{Home, Lifetimes};
use problem::{Buffer, Problem, Solution};
use solve::Aim;
use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

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
    Needs::of(session, target, slots).plan()
}

/// What a session needs, before any value has an offset: enough to say what does not fit.
pub struct Needs {
    session: Session,
    slots: usize,
    slot: SlotLayout,
    states: Vec<Address>,
    state_bytes: u64,
    host_state_bytes: u64,
    programs: Vec<ProgramNeeds>,
}

/// The stretches of one program.
struct ProgramNeeds {
    lives: Lifetimes,
    /// Bytes of caches in the transient region, if it uses any: its own lie above them.
    caches: u64,
    /// The transient region's and the host's, each with the most bytes that live in it at once, and when.
    arenas: [(Problem, u64, u32); 2],
}

impl Needs {
    /// Returns the needs of verified programs; `slots` is the number of batches that are prepared at once.
    pub fn of(session: Session, target: &dyn Target, slots: usize) -> Needs {
        let (mut states, mut on_host, mut caches) = (Stack::default(), Stack::default(), Stack::default());
        let mut home = |s: &StateDecl| match (s.home, s.kind) {
            (Space::Device, StateKind::Cache) => caches.push(Region::Transient, s.ty.bytes()),
            (Space::Device, _) => states.push(Region::State, s.ty.bytes()),
            (Space::Host, _) => on_host.push(Region::Host, s.ty.bytes()),
        };
        let places: Vec<Address> = session.states.iter().map(&mut home).collect();
        let mut slot = SlotLayout::default();
        for p in &session.programs {
            let outputs = p.outputs.iter().map(|o| (&o.name, o.value));
            for (name, value) in p.inputs.iter().map(|i| (&i.name, i.value)).chain(outputs) {
                slot.place(name, p.ty(value));
            }
        }
        let uses_cache = |p: &Program| {
            p.states.iter().any(|used| session.states[used.state.index()].kind == StateKind::Cache)
        };
        let needs = |p| ProgramNeeds::of(p, if uses_cache(p) { caches.top } else { 0 }, target);
        let programs = session.programs.iter().map(needs).collect();
        let (state_bytes, host_state_bytes) = (states.top, on_host.top);
        Needs { session, slots, slot, states: places, state_bytes, host_state_bytes, programs }
    }

    /// Returns the session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Returns the bytes of the states and slots, and the most transient bytes that live at once: no arena is smaller.
    pub fn arena_bytes(&self) -> u64 {
        self.fixed_bytes() + self.most_live(0)
    }

    /// Returns the bytes of the host's space with one pass of placement there.
    pub fn host_bytes(&self) -> u64 {
        let placed = |p: &ProgramNeeds| solve::solve_within(&p.arenas[1].0, Aim::Any).height;
        self.host_state_bytes + self.programs.iter().map(placed).max().unwrap_or(0)
    }

    /// Returns the bytes of an arena for the session, when it only matters whether `room` is enough: work goes into lower
    /// offsets only until it is, and none where nothing helps. [`Needs::plan`] may find some hundredths less.
    ///
    /// # Panics
    /// As [`Needs::plan`].
    pub fn arena_within(&self, room: u64, heights: &Heights) -> u64 {
        let fixed = self.fixed_bytes();
        let mut programs: Vec<_> = self.session.programs.iter().zip(&self.programs).collect();
        // What needs most says most.
        programs.sort_by_key(|(_, needs)| Reverse(needs.least(0)));
        let mut most = self.most_live(0);
        for (p, needs) in programs {
            if fixed + most > room {
                break;
            }
            let room = room - fixed - needs.caches;
            most = most.max(needs.caches + heights.within(&needs.arenas[0].0, room, &p.name));
        }
        fixed + most
    }

    fn fixed_bytes(&self) -> u64 {
        self.state_bytes + self.slot.stack.top * self.slots as u64
    }

    fn most_live(&self, arena: usize) -> u64 {
        self.programs.iter().map(|p| p.least(arena)).max().unwrap_or(0)
    }

    /// Gives every value its offset, as low as can be.
    ///
    /// # Panics
    /// When the independent checker finds a fault: that is a bug of `solve`.
    pub fn plan(&self) -> PlannedSession {
        self.plan_sharing(&Solutions::default())
    }

    /// Gives every value its offset, with arenas that are solved already. See [`Needs::plan`].
    ///
    /// # Panics
    /// As [`Needs::plan`].
    pub fn plan_sharing(&self, solutions: &Solutions) -> PlannedSession {
        // On the host all programs run in the same bytes: what the largest needs at least is enough for every one. So they do on
        // the device, but there each program's own need is shown.
        let aims = [Aim::Height(0), Aim::Height(self.most_live(1))];
        let Needs { session, slot, host_state_bytes, .. } = self;
        let one = &|(p, needs): (&Program, &ProgramNeeds)| {
            let solved = [0, 1].map(|arena| solutions.of(&needs.arenas[arena].0, aims[arena], &p.name));
            plan_program(p, (&session.states, &self.states), *host_state_bytes, slot, (needs, solved))
        };
        // Side by side: one or two of them are most of the work.
        let programs: Vec<PlannedProgram> = std::thread::scope(|scope| {
            let work = session.programs.iter().zip(&self.programs);
            let running: Vec<_> = work.map(|work| scope.spawn(move || one(work))).collect();
            let done = running.into_iter().map(|thread| thread.join());
            done.map(|p| p.unwrap_or_else(|why| std::panic::resume_unwind(why))).collect()
        });
        let most = |f: &dyn Fn(&PlannedProgram) -> u64| programs.iter().map(f).max().unwrap_or(0);
        // The states of the host's space, and above them what programs copy there.
        let host_bytes = *host_state_bytes + most(&|p| p.host_bytes);
        PlannedSession {
            state_bytes: self.state_bytes,
            transient_bytes: most(&|p| p.transient_bytes),
            slot_bytes: slot.stack.top,
            slots: self.slots,
            host_state_bytes: *host_state_bytes,
            host_bytes,
            states: self.states.clone(),
            programs,
            session: session.without_programs(),
        }
    }
}

/// Heights of arenas that were found: sessions of one model share programs, which are placed once.
#[derive(Default)]
pub struct Heights(Mutex<Vec<(Problem, u64)>>);

impl Heights {
    /// Returns a height within `room` where one is known, else what the solver finds for that room.
    fn within(&self, problem: &Problem, room: u64, program: &str) -> u64 {
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known().iter().find(|(p, height)| *height <= room && p == problem).map(|k| k.1);
        found.unwrap_or_else(|| {
            let height = solved(problem, Aim::About(room), program).height;
            known().push((problem.clone(), height));
            height
        })
    }
}

/// The latest arenas that were solved: sessions of one model on several cards share programs, which are solved once. By default
/// none is kept.
#[derive(Default)]
pub struct Solutions {
    known: Mutex<VecDeque<(Problem, Aim, Solution)>>,
    most: usize,
}

impl Solutions {
    /// Returns none yet, of which the latest `most` will be kept.
    pub fn keeping(most: usize) -> Solutions {
        Solutions { known: Mutex::default(), most }
    }

    /// Returns the solution of an arena, solved now if it is not known.
    fn of(&self, problem: &Problem, aim: Aim, program: &str) -> Solution {
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known().iter().find(|(p, a, _)| *a == aim && p == problem).map(|k| k.2.clone());
        found.unwrap_or_else(|| {
            let solution = solved(problem, aim, program);
            if self.most > 0 {
                let mut known = known();
                if known.len() == self.most {
                    known.pop_front();
                }
                known.push_back((problem.clone(), aim, solution.clone()));
            }
            solution
        })
    }
}

impl ProgramNeeds {
    fn of(p: &Program, caches: u64, target: &dyn Target) -> ProgramNeeds {
        let lives = lifetimes::lifetimes(p, target);
        let arenas = [&lives.device, &lives.host].map(|buffers| {
            let problem = Problem::new(buffers.clone())
                .unwrap_or_else(|why| panic!("bug in lifetimes of program `{}`: {why}", p.name));
            let (bound, at) = problem::live_bound(&problem);
            (problem, bound, at)
        });
        ProgramNeeds { lives, caches, arenas }
    }

    /// Returns the most bytes that live at once in an arena, caches among them.
    fn least(&self, arena: usize) -> u64 {
        let caches = if arena == 0 { self.caches } else { 0 };
        caches + self.arenas[arena].1
    }
}

#[derive(Default)]
struct SlotLayout {
    stack: Stack,
    places: HashMap<(String, TensorType), Address>,
}

impl SlotLayout {
    fn place(&mut self, name: &str, ty: TensorType) {
        let stack = &mut self.stack;
        self.places.entry((name.to_owned(), ty)).or_insert_with(|| stack.push(Region::Slot, ty.bytes()));
    }

    fn of(&self, name: &str, ty: TensorType) -> Address {
        self.places[&(name.to_owned(), ty)]
    }
}

/// Solves one arena and proves the solution.
fn solved(problem: &Problem, aim: Aim, program: &str) -> Solution {
    let solution = solve::solve_within(problem, aim);
    if let Err(violation) = check::check(problem, &solution) {
        panic!("bug in solve of program `{program}`: {violation}");
    }
    solution
}

fn plan_program(
    p: &Program,
    (decls, states): (&[StateDecl], &[Address]),
    host_states: u64,
    slot: &SlotLayout,
    (needs, [device, host]): (&ProgramNeeds, [Solution; 2]),
) -> PlannedProgram {
    let ProgramNeeds { lives, caches, arenas } = needs;
    let peak_at = arenas[0].2;
    let device_place = |k: usize| Address {
        region: Region::Transient,
        offset: caches + device.offsets[k],
        bytes: lives.device[k].size,
    };
    let place = |home: Home| match home {
        Home::State(k) => {
            let (used, ty) = (p.states[k], p.ty(p.states[k].enters));
            states[used.state.index()].part(decls[used.state.index()].ty, used.first, ty)
        }
        Home::Input(k) => slot.of(&p.inputs[k].name, p.ty(p.inputs[k].value)),
        Home::Output(k) => slot.of(&p.outputs[k].name, p.ty(p.outputs[k].value)),
        Home::Device(k) => device_place(k),
        Home::Host(k) => {
            let (offset, bytes) = (host_states + host.offsets[k], lives.host[k].size);
            Address { region: Region::Host, offset, bytes }
        }
    };
    let places = lives.homes.iter().map(|home| home.map(&place)).collect();
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
        transient_bytes: caches + device.height,
        host_bytes: host.height,
        live_bound_bytes: needs.least(0),
        peak_at: peak_at as usize,
        program: p.clone(),
    }
}
