//! The plan's types: where every value lies. Made by the planner, obeyed by executors, checked by neither alone.

use crate::program::{Input, Instr, Output, Program, Session, StateUse, ValueId};
use crate::tensor::TensorType;

/// A stretch of memory with its own base address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Region {
    /// One offset per state for the whole session.
    State,
    /// Values and workspaces of the running program; shared by all programs, as only one runs at a time.
    Transient,
    /// Host-written inputs and host-read outputs of slot k: the same layout for every slot, so that one program runs on
    /// any of them.
    Slot,
    /// The host arena: states of the host's space, at one offset for the whole session, and above them what the running
    /// program copies there.
    Host,
}

/// A planned byte range: region base + offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// Which base.
    pub region: Region,
    /// Bytes from the base; a multiple of [`TensorType::ALIGN`].
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

impl Address {
    /// Of a value of type `whole` here, the `part` from element `first` on.
    pub fn part(self, whole: TensorType, first: usize, part: TensorType) -> Address {
        Address { offset: self.offset + whole.byte_of(first), bytes: part.bytes(), ..self }
    }
}

/// A planned range of the transient region and when it is in use.
#[derive(Clone, Copy, Debug)]
pub struct Live {
    /// First instruction that uses it.
    pub first: u32,
    /// Last instruction that uses it.
    pub last: u32,
    /// Where it lies.
    pub place: Address,
    /// The first value kept there; `None` for an instruction's scratch.
    pub value: Option<ValueId>,
}

/// A program with every value's place.
#[derive(Clone, Debug)]
pub struct PlannedProgram {
    /// The program that runs.
    pub program: Program,
    /// By [`ValueId`]; `None` for values that no instruction, input or state defines any more.
    pub places: Vec<Option<Address>>,
    /// Scratch of each instruction.
    pub workspaces: Vec<Option<Address>>,
    /// The transient region over time.
    pub lives: Vec<Live>,
    /// Bytes that this program reaches in the host arena above the states there.
    pub host_bytes: u64,
    /// Bytes of the transient region that this program reaches.
    pub transient_bytes: u64,
    /// Most bytes that are live at one instant: no plan of this order can be lower.
    pub live_bound_bytes: u64,
    /// The instruction at which the live bytes are highest.
    pub peak_at: usize,
}

impl PlannedProgram {
    /// Returns where a value lies.
    ///
    /// # Panics
    /// For values that nothing defines: the verifier admits none.
    pub fn place(&self, v: ValueId) -> Address {
        self.places[v.index()].expect("every defined value is planned")
    }

    /// Returns what the outside sees of it; values are numbered anew.
    fn without_instructions(&self) -> PlannedProgram {
        let mut program = Program { name: self.program.name.clone(), ..Program::default() };
        let mut places = Vec::new();
        let mut take = |program: &mut Program, v: ValueId| {
            places.push(self.places[v.index()]);
            program.new_value(self.program.ty(v))
        };
        for Input { name, value } in &self.program.inputs {
            let value = take(&mut program, *value);
            program.inputs.push(Input { name: name.clone(), value });
        }
        for Output { name, value } in &self.program.outputs {
            let value = take(&mut program, *value);
            program.outputs.push(Output { name: name.clone(), value });
        }
        PlannedProgram { program, places, workspaces: Vec::new(), lives: Vec::new(), ..*self }
    }
}

/// Returns the bytes that a planned program takes at most, by its instructions and values; the allocator's own among them.
pub fn program_bytes(p: &Program) -> u64 {
    let vector = |len: usize, each: usize| if len == 0 { 0 } else { allocated(len * each) };
    let (values, instrs) = (p.types.len(), p.instrs.len());
    let instruction = |i: &Instr| {
        // The path's two counts stand before its text.
        let path = allocated(i.origin.path.len() + 2 * size_of::<usize>());
        path + vector(i.inputs.len(), size_of::<ValueId>()) + vector(i.outputs.len(), size_of::<ValueId>())
    };
    // A stretch of memory has a value or an instruction's scratch.
    let tables = values * (size_of::<TensorType>() + size_of::<Option<Address>>() + size_of::<Live>())
        + instrs * (size_of::<Instr>() + size_of::<Option<Address>>() + size_of::<Live>());
    p.instrs.iter().map(instruction).sum::<u64>() + tables as u64
}

/// Returns the bytes of a heap block: glibc and most others keep 8 for themselves and give multiples of 16, from 32 on.
pub fn allocated(bytes: usize) -> u64 {
    ((bytes + 8).next_multiple_of(16)).max(32) as u64
}

/// A session with every byte assigned.
#[derive(Clone, Debug)]
pub struct PlannedSession {
    /// States after all passes. Its programs are in `programs`, and only there.
    pub session: Session,
    /// Programs, in the order of their first use.
    pub programs: Vec<PlannedProgram>,
    /// Address of every state.
    pub states: Vec<Address>,
    /// Bytes of the state region.
    pub state_bytes: u64,
    /// Bytes of the transient region: the most that any program needs.
    pub transient_bytes: u64,
    /// Bytes of one slot.
    pub slot_bytes: u64,
    /// Slots.
    pub slots: usize,
    /// Bytes of the host arena that are states.
    pub host_state_bytes: u64,
    /// Bytes of the host arena.
    pub host_bytes: u64,
}

impl PlannedSession {
    /// Returns the bytes of the one allocation: states, transients, slots.
    pub fn arena_bytes(&self) -> u64 {
        self.state_bytes + self.transient_bytes + self.slot_bytes * self.slots as u64
    }

    /// Returns where a region starts in the arena (in its own arena, for [`Region::Host`]).
    pub fn base(&self, region: Region, slot: usize) -> u64 {
        match region {
            Region::State | Region::Host => 0,
            Region::Transient => self.state_bytes,
            Region::Slot => self.state_bytes + self.transient_bytes + self.slot_bytes * slot as u64,
        }
    }

    /// Returns what is left to know of it when an executor has bound every instruction: states, inputs, outputs, and bytes.
    /// Thousands of instructions take megabytes, which the plan of a run has no room for twice.
    pub fn without_instructions(&self) -> PlannedSession {
        let session = self.session.without_programs();
        let programs = self.programs.iter().map(PlannedProgram::without_instructions).collect();
        PlannedSession { session, programs, states: self.states.clone(), ..*self }
    }

    /// Returns where a state, or the part of it that a program takes, lies; `part`: the type of its value there.
    pub fn state_place(&self, used: &StateUse, part: TensorType) -> Address {
        let whole = self.session.states[used.state.index()].ty;
        self.states[used.state.index()].part(whole, used.first, part)
    }

    /// Returns the program that reaches highest in the transient region; of several, the first: gradients that another hands on may
    /// lie as high.
    pub fn highest(&self) -> Option<&PlannedProgram> {
        self.programs.iter().rev().max_by_key(|p| p.transient_bytes)
    }

    /// Returns a planned program by name.
    pub fn program(&self, name: &str) -> Option<&PlannedProgram> {
        self.programs.iter().find(|p| p.program.name == name)
    }

    /// Returns the type and address of a state by name.
    pub fn state(&self, name: &str) -> Option<(TensorType, Address)> {
        let id = self.session.state(name)?;
        Some((self.session.states[id.index()].ty, self.states[id.index()]))
    }
}
