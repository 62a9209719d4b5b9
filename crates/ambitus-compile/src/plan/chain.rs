//! Chains: programs that run one after another and are placed as one problem, because states that pass from one to the next lie
//! among their transient stretches. Without such states every program is a chain of its own.

use super::lifetimes::{Home, Lifetimes};
use super::problem::{self, Buffer, Problem, Solution};
use ambitus_ir::plan::{Address, Live, Region};
use ambitus_ir::{Program, Session, StateId, StateUse, TensorType};
use std::collections::BTreeMap;

/// Programs that are placed together.
pub(super) struct Chain {
    /// In the order in which they run.
    pub links: Vec<Link>,
    /// States that lie among the stretches.
    pub passing: Vec<StateId>,
    /// Bytes of caches below, if its program uses any.
    pub caches: u64,
    /// The stretches of the links, one link after another, and those of the states.
    pub problem: Problem,
    /// Most bytes of the problem that live at once.
    pub bound: u64,
}

/// A program of a chain.
pub(super) struct Link {
    /// Its index in the session.
    pub program: usize,
    /// The instants of its first and its last instruction.
    instants: [u32; 2],
    /// Its first stretch in the problem.
    first: usize,
}

impl Chain {
    /// Links programs, given by their indices, over states that are written before they are read.
    pub fn of(
        session: &Session,
        lives: &[Lifetimes],
        programs: &[usize],
        passing: Vec<StateId>,
        caches: u64,
    ) -> Chain {
        let (mut links, mut buffers, mut begins) = (Vec::new(), Vec::new(), 0);
        let mut spans: Vec<Option<[u32; 2]>> = vec![None; passing.len()];
        for &program in programs {
            let p = &session.programs[program];
            let end = begins + p.instrs.len().saturating_sub(1) as u32;
            for (k, [first, last]) in uses(p, &lives[program], &passing) {
                let first = spans[k].map_or(begins + first, |[first, _]| first);
                spans[k] = Some([first, begins + last]);
            }
            links.push(Link { program, instants: [begins, end], first: buffers.len() });
            let later = |b: &Buffer| Buffer { first: begins + b.first, last: begins + b.last, ..*b };
            buffers.extend(lives[program].device.iter().map(later));
            begins = end + 1;
        }
        buffers.extend(spans.into_iter().zip(&passing).map(|(span, state)| {
            let [first, last] = span.unwrap_or_default();
            let size = session.states[state.index()].ty.bytes();
            Buffer { first, last, size, align: TensorType::ALIGN }
        }));
        let names = || programs.iter().map(|&i| &*session.programs[i].name).collect::<Vec<_>>().join(", ");
        let problem = Problem::new(buffers)
            .unwrap_or_else(|why| panic!("bug in lifetimes of program `{}`: {why}", names()));
        let bound = problem::live_bound(&problem).0;
        Chain { links, passing, caches, problem, bound }
    }

    /// Returns the most bytes that live at once, caches among them.
    pub fn least(&self) -> u64 {
        self.caches + self.bound
    }

    /// Returns where the states lie.
    pub fn states<'s>(&'s self, solution: &'s Solution) -> impl Iterator<Item = (StateId, Address)> + 's {
        let first = self.problem.buffers().len() - self.passing.len();
        self.passing.iter().enumerate().map(move |(k, state)| (*state, self.place(first + k, solution)))
    }

    /// Returns where stretch `k` of a link lies.
    pub fn stretch(&self, link: &Link, k: usize, solution: &Solution) -> Address {
        self.place(link.first + k, solution)
    }

    /// Returns the instant of a link's program at which most bytes live.
    pub fn peak_at(&self, link: &Link) -> u32 {
        problem::most_live(self.problem.buffers(), link.instants).1 - link.instants[0]
    }

    /// Returns the bytes of the transient region that a link reaches.
    pub fn height(&self, link: &Link, solution: &Solution) -> u64 {
        let [begins, end] = link.instants;
        let buffers = self.problem.buffers().iter().zip(&solution.offsets);
        let there = buffers.filter(|(b, _)| b.size > 0 && b.first <= end && b.last >= begins);
        self.caches + there.map(|(b, offset)| offset + b.footprint()).max().unwrap_or(0)
    }

    /// Returns the states' stretches while a link's program `p` runs.
    pub fn lives(&self, link: &Link, p: &Program, solution: &Solution) -> Vec<Live> {
        let [begins, end] = link.instants;
        let first = self.problem.buffers().len() - self.passing.len();
        let live = |k: usize| {
            let b = self.problem.buffers()[first + k];
            let used = p.states.iter().find(|used| used.state == self.passing[k])?;
            Some(Live {
                first: b.first.max(begins) - begins,
                last: b.last.min(end) - begins,
                place: self.place(first + k, solution),
                value: Some(used.enters),
            })
        };
        (0..self.passing.len()).filter_map(live).collect()
    }

    fn place(&self, k: usize, solution: &Solution) -> Address {
        let offset = self.caches + solution.offsets[k];
        Address { region: Region::Transient, offset, bytes: self.problem.buffers()[k].size }
    }
}

/// Returns which of the states a program uses, with the first and the last of its instructions that name their bytes.
fn uses(p: &Program, lives: &Lifetimes, passing: &[StateId]) -> BTreeMap<usize, [u32; 2]> {
    let of_passing = |used: &StateUse| passing.iter().position(|state| *state == used.state);
    let which: Vec<Option<usize>> = p.states.iter().map(of_passing).collect();
    let mut out = BTreeMap::new();
    for (at, instr) in (0..).zip(&p.instrs) {
        for v in instr.inputs.iter().chain(&instr.outputs) {
            let Some(Home::State(k)) = lives.homes[v.index()] else { continue };
            if let Some(k) = which[k] {
                out.entry(k).or_insert([at; 2])[1] = at;
            }
        }
    }
    out
}
