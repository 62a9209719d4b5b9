//! The plan's types: where every value lies. Made by the planner, obeyed by executors, checked by neither alone.

use crate::program::{Program, Session, ValueId};
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
    /// Where a value lies.
    ///
    /// # Panics
    /// For values that nothing defines: the verifier admits none.
    pub fn place(&self, v: ValueId) -> Address {
        self.places[v.index()].expect("every defined value is planned")
    }
}

/// A session with every byte assigned.
#[derive(Clone, Debug)]
pub struct PlannedSession {
    /// States and programs after all passes.
    pub session: Session,
    /// Programs, in the session's order.
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
    /// Bytes of the one allocation: states, transients, slots.
    pub fn arena_bytes(&self) -> u64 {
        self.state_bytes + self.transient_bytes + self.slot_bytes * self.slots as u64
    }

    /// Where a region starts in the arena (in its own arena, for [`Region::Host`]).
    pub fn base(&self, region: Region, slot: usize) -> u64 {
        match region {
            Region::State | Region::Host => 0,
            Region::Transient => self.state_bytes,
            Region::Slot => self.state_bytes + self.transient_bytes + self.slot_bytes * slot as u64,
        }
    }

    /// A planned program by name.
    pub fn program(&self, name: &str) -> Option<&PlannedProgram> {
        self.programs.iter().find(|p| p.program.name == name)
    }

    /// Type and address of a state by name.
    pub fn state(&self, name: &str) -> Option<(TensorType, Address)> {
        let id = self.session.state(name)?;
        Some((self.session.states[id.index()].ty, self.states[id.index()]))
    }
}
