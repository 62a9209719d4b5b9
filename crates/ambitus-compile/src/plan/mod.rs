//! The planner: every value of every program gets its bytes.
//!
//! `lifetimes` says what must live when, `solve` assigns offsets, `check` proves the result independently. States have one
//! offset for the whole session, in the arena or in the host's; programs run one at a time and share the transient region; caches lie there
//! too, below what programs that use them have, so they last until another program runs; inputs and outputs have one layout for all
//! slots, by name, so that programs that read the same batch read the same bytes.
//!
//! Where an update is one micro-batch ([`Gradients::Passing`]), gradients are states of the transient region as well, which begin
//! where backward makes them and end where the optimizer has read them: the programs from the one to the other are one placement
//! problem (`chain`). So the activations' bytes become gradients', and while a model is evaluated or speaks there are none.

mod chain;
pub mod check;
pub mod lifetimes;
pub mod problem;
pub mod report;
pub mod solve;
pub mod timelines;

use ambitus_ir::ops::copy::Space;
use ambitus_ir::plan::{Address, Live, PlannedProgram, PlannedSession, Region};
use ambitus_ir::target::Target;
use ambitus_ir::{Program, Session, StateDecl, StateId, StateKind, TensorType};
use chain::{Chain, Link};
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

/// How long the gradients of a session take bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gradients {
    /// Always: several micro-batches add to them.
    Kept,
    /// From where backward makes them until they are applied: each program that has them runs once an update, in the session's
    /// order, with nothing else between. The first contribution to a gradient overwrites what was there (`beta` is 0). All are kept
    /// where they are few bytes beside what else lives at once.
    Passing,
}

/// Gradients of fewer bytes than this part of what a program has alive are kept: they would hold the optimizer's stretches up among
/// those of backward, and save nothing to speak of.
const WORTH_PASSING: u64 = 64;

/// Assigns every byte of a session whose gradients are kept. Programs must be verified; `slots` is how many batches are prepared at
/// once.
///
/// # Panics
/// When the independent checker finds a fault: that is a bug of `solve`.
pub fn plan(session: Session, target: &dyn Target, slots: usize) -> PlannedSession {
    Needs::of(session, target, slots, Gradients::Kept).plan()
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
    /// Each program is a link of one.
    chains: Vec<Chain>,
}

/// The stretches of one program.
struct ProgramNeeds {
    lives: Lifetimes,
    /// The host's arena, and the most bytes that live in it at once.
    host: (Problem, u64),
}

impl Needs {
    /// Returns the needs of verified programs; `slots` is the number of batches that are prepared at once.
    pub fn of(session: Session, target: &dyn Target, slots: usize, gradients: Gradients) -> Needs {
        let (mut states, mut on_host, mut caches) = (Stack::default(), Stack::default(), Stack::default());
        let lives: Vec<Lifetimes> =
            session.programs.iter().map(|p| lifetimes::lifetimes(p, target)).collect();
        let is_gradient = |s: &StateDecl| s.kind == StateKind::Gradient && s.home == Space::Device;
        let bytes: u64 = session.states.iter().filter(|s| is_gradient(s)).map(|s| s.ty.bytes()).sum();
        let most = lives.iter().map(|l| problem::most_live(&l.device, [0, u32::MAX]).0).max().unwrap_or(0);
        let passing = gradients == Gradients::Passing && bytes >= most / WORTH_PASSING;
        let passes = |s: &StateDecl| passing && is_gradient(s);
        let mut home = |s: &StateDecl| match (s.home, s.kind) {
            (Space::Device, StateKind::Cache) => caches.push(Region::Transient, s.ty.bytes()),
            // Its offset is found with the programs'.
            (Space::Device, _) if passes(s) => {
                Address { region: Region::Transient, offset: 0, bytes: s.ty.bytes() }
            }
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
        let uses = |i: usize, what: &dyn Fn(&StateDecl) -> bool| {
            session.programs[i].states.iter().any(|used| what(&session.states[used.state.index()]))
        };
        let all = 0..session.programs.len();
        let (linked, alone): (Vec<usize>, Vec<usize>) = all.partition(|&i| uses(i, &passes));
        let mut chains: Vec<Chain> = alone
            .into_iter()
            .map(|i| {
                let below = if uses(i, &|s| s.kind == StateKind::Cache) { caches.top } else { 0 };
                Chain::of(&session, &lives, &[i], Vec::new(), below)
            })
            .collect();
        if !linked.is_empty() {
            let passing = session.states.iter().enumerate().filter(|(_, s)| passes(s));
            let passing = passing.map(|(i, _)| StateId(i as u32)).collect();
            chains.push(Chain::of(&session, &lives, &linked, passing, 0));
        }
        let programs = lives.into_iter().map(|lives| {
            let problem = Problem::new(lives.host.clone())
                .unwrap_or_else(|why| panic!("bug in lifetimes of the host's arena: {why}"));
            let bound = problem::live_bound(&problem).0;
            ProgramNeeds { lives, host: (problem, bound) }
        });
        let programs = programs.collect();
        let (state_bytes, host_state_bytes) = (states.top, on_host.top);
        Needs { session, slots, slot, states: places, state_bytes, host_state_bytes, programs, chains }
    }

    /// Returns the session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Returns the bytes of the states and slots, and the most transient bytes that live at once: no arena is smaller.
    pub fn arena_bytes(&self) -> u64 {
        self.fixed_bytes() + self.most_live()
    }

    /// Returns the bytes of the host's space with one pass of placement there.
    pub fn host_bytes(&self) -> u64 {
        let placed = |p: &ProgramNeeds| solve::solve_within(&p.host.0, Aim::Any).height;
        self.host_state_bytes + self.programs.iter().map(placed).max().unwrap_or(0)
    }

    /// Returns the bytes of an arena for the session, when it only matters whether `room` is enough: work goes into lower
    /// offsets only until it is, and none where nothing helps. [`Needs::plan`] may find some hundredths less.
    ///
    /// # Panics
    /// As [`Needs::plan`].
    pub fn arena_within(&self, room: u64, heights: &Heights) -> u64 {
        let fixed = self.fixed_bytes();
        let mut chains: Vec<&Chain> = self.chains.iter().collect();
        // What needs most says most.
        chains.sort_by_key(|chain| Reverse(chain.least()));
        let mut most = self.most_live();
        for chain in chains {
            if fixed + most > room {
                break;
            }
            let room = room - fixed - chain.caches;
            most = most.max(chain.caches + heights.within(&chain.problem, room, self.first(chain)));
        }
        fixed + most
    }

    fn fixed_bytes(&self) -> u64 {
        self.state_bytes + self.slot.stack.top * self.slots as u64
    }

    /// Returns the most bytes of the transient region that live at once.
    fn most_live(&self) -> u64 {
        self.chains.iter().map(Chain::least).max().unwrap_or(0)
    }

    /// Returns the name of a chain's first program.
    fn first(&self, chain: &Chain) -> &str {
        &self.session.programs[chain.links[0].program].name
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
        let Needs { session, slot, host_state_bytes, .. } = self;
        // Side by side: one or two of them are most of the work.
        let solve = |chain: &Chain| solutions.of(&chain.problem, Aim::Height(0), self.first(chain));
        let solved = side_by_side(self.chains.iter(), &solve);
        let mut states = self.states.clone();
        let mut links = Vec::new();
        for (chain, solution) in self.chains.iter().zip(&solved) {
            chain.states(solution).for_each(|(state, place)| states[state.index()] = place);
            links.extend(chain.links.iter().map(|link| (chain, link, solution)));
        }
        links.sort_by_key(|(_, link, _)| link.program);
        // On the host all programs run in the same bytes: what the largest needs at least is enough for every one. So they do on
        // the device, but there each program's own need is shown.
        let aim = Aim::Height(self.programs.iter().map(|p| p.host.1).max().unwrap_or(0));
        let plan = |(chain, link, solution): (&Chain, &Link, &Solution)| {
            let (p, needs) = (&session.programs[link.program], &self.programs[link.program]);
            let on_host = solutions.of(&needs.host.0, aim, &p.name);
            let placed = Placed { chain, link, solution, on_host, host_states: *host_state_bytes };
            plan_program(p, (&session.states, &states), slot, &needs.lives, &placed)
        };
        let programs: Vec<PlannedProgram> = side_by_side(links.into_iter(), &plan);
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
            states,
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

/// Does the same with each on a thread of its own.
fn side_by_side<T: Send, R: Send>(work: impl Iterator<Item = T>, one: &(impl Fn(T) -> R + Sync)) -> Vec<R> {
    std::thread::scope(|scope| {
        let running: Vec<_> = work.map(|work| scope.spawn(move || one(work))).collect();
        let done = running.into_iter().map(|thread| thread.join());
        done.map(|r| r.unwrap_or_else(|why| std::panic::resume_unwind(why))).collect()
    })
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

/// Where the stretches of a program lie.
struct Placed<'a> {
    chain: &'a Chain,
    link: &'a Link,
    solution: &'a Solution,
    on_host: Solution,
    /// Bytes of the host's arena below.
    host_states: u64,
}

fn plan_program(
    p: &Program,
    (decls, states): (&[StateDecl], &[Address]),
    slot: &SlotLayout,
    lives: &Lifetimes,
    placed: &Placed<'_>,
) -> PlannedProgram {
    let Placed { chain, link, solution, on_host, host_states } = placed;
    let device_place = |k: usize| chain.stretch(link, k, solution);
    let place = |home: Home| match home {
        Home::State(k) => {
            let (used, ty) = (p.states[k], p.ty(p.states[k].enters));
            states[used.state.index()].part(decls[used.state.index()].ty, used.first, ty)
        }
        Home::Input(k) => slot.of(&p.inputs[k].name, p.ty(p.inputs[k].value)),
        Home::Output(k) => slot.of(&p.outputs[k].name, p.ty(p.outputs[k].value)),
        Home::Device(k) => device_place(k),
        Home::Host(k) => {
            let (offset, bytes) = (host_states + on_host.offsets[k], lives.host[k].size);
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
    let own = lives.device.iter().enumerate().map(stretch);
    PlannedProgram {
        places,
        workspaces: lives.workspaces.iter().map(|w| w.map(device_place)).collect(),
        lives: own.chain(chain.lives(link, p, solution)).collect(),
        transient_bytes: chain.height(link, solution),
        host_bytes: on_host.height,
        live_bound_bytes: chain.least(),
        peak_at: chain.peak_at(link) as usize,
        program: p.clone(),
    }
}
