//! The seam: a planned session goes in, programs run.

use crate::transfer;
use ambitus_ir::plan::{Address, PlannedProgram, PlannedSession, Region};
use ambitus_ir::{DType, StateId, TensorType, ValueId};
use thiserror::Error;

/// Why an executor could not be opened or a transfer was refused.
#[derive(Debug, Error)]
pub enum ExecError {
    /// The system did not give the arena.
    #[error("the system refused {bytes} bytes for the arena; lower --memory or free memory")]
    OutOfMemory {
        /// bytes asked for
        bytes: u64,
    },
    /// The system did not give the threads.
    #[error("the system refused {threads} threads ({why}); lower --threads")]
    Threads {
        /// threads asked for
        threads: usize,
        /// the system's answer
        why: String,
    },
    /// The device is missing, refused or failed; the text says what to do.
    #[error("{0}")]
    Device(String),
    /// The host arena's file cannot be made, read or written; the text says which and what to do.
    #[error("{0}")]
    Disk(String),
    /// Another rank is gone, or does something else.
    #[error("{0}")]
    Ranks(#[from] ambitus_comm::CommError),
    /// No program of that name.
    #[error("the session has no program `{0}`")]
    NoProgram(String),
    /// No slot of that number.
    #[error("slot {slot} was asked for, the plan has {slots}")]
    NoSlot {
        /// number asked for
        slot: usize,
        /// slots of the plan
        slots: usize,
    },
    /// No input or output of that name.
    #[error("program `{program}` has no input or output `{name}`")]
    NoValue {
        /// the program
        program: String,
        /// the missing name
        name: String,
    },
    /// A transfer of another length than the value's, or past a state's end.
    #[error("`{name}` holds {want} elements, {got} were given")]
    Length {
        /// state, input or output
        name: String,
        /// elements of the value
        want: usize,
        /// elements given (for a part of a state: its end)
        got: usize,
    },
    /// A transfer of another element type than the value's.
    #[error("`{name}` holds {want:?} elements, {got:?} were given")]
    Type {
        /// state, input or output
        name: String,
        /// element type of the value
        want: DType,
        /// element type given
        got: DType,
    },
    /// The plan or program cannot run here: a bug of the planner or of lowering, never of the user.
    #[error("program `{program}`, instruction {instr} ({op}): {what}")]
    Plan {
        /// the program
        program: String,
        /// index of the instruction; the number of instructions for faults outside them
        instr: usize,
        /// the op's name
        op: String,
        /// what is wrong
        what: String,
    },
}

/// A planned session on a device.
///
/// Transfers are row-major without pads; executors add the pitch and zero the pads. States of other types than f32 pass as
/// f32, without loss (see [`transfer`](mod@crate::transfer)).
pub trait Executor {
    /// Returns the session it was opened with, [without instructions](PlannedSession::without_instructions).
    fn planned(&self) -> &PlannedSession;
    /// Returns the bytes of the arena that were really allocated.
    fn arena_bytes(&self) -> u64;
    /// Writes the elements `start..start + data.len()` of a state.
    fn write_state_at(&mut self, state: StateId, start: usize, data: &[f32]) -> Result<(), ExecError>;
    /// Reads the elements `start..start + out.len()` of a state.
    fn read_state_at(&self, state: StateId, start: usize, out: &mut [f32]) -> Result<(), ExecError>;
    /// Writes an `f32` input of a program into a slot.
    fn write_f32(&mut self, program: &str, input: &str, slot: usize, data: &[f32]) -> Result<(), ExecError>;
    /// Writes an `i32` input of a program into a slot.
    fn write_i32(&mut self, program: &str, input: &str, slot: usize, data: &[i32]) -> Result<(), ExecError>;
    /// Runs a program on a slot's inputs. It may return before the program's end: reads wait for it, and say what failed in it.
    fn run(&mut self, program: &str, slot: usize) -> Result<(), ExecError>;
    /// Reads an `f32` output of a program from a slot.
    fn read_f32(&self, program: &str, output: &str, slot: usize, out: &mut [f32]) -> Result<(), ExecError>;

    /// Returns, as text, what was chosen by timing when it was opened and decides the order of sums: a run that is resumed opens its
    /// executor with it. Empty where nothing is chosen so; the first line says what library and device the rest is for.
    fn choices(&self) -> &str {
        ""
    }

    /// Writes a whole state.
    fn write_state(&mut self, state: StateId, data: &[f32]) -> Result<(), ExecError> {
        whole(self.planned(), state, data.len())?;
        self.write_state_at(state, 0, data)
    }
    /// Reads a whole state.
    fn read_state(&self, state: StateId, out: &mut [f32]) -> Result<(), ExecError> {
        whole(self.planned(), state, out.len())?;
        self.read_state_at(state, 0, out)
    }
}

fn whole(planned: &PlannedSession, state: StateId, got: usize) -> Result<(), ExecError> {
    let decl = &planned.session.states[state.index()];
    let want = decl.ty.shape.elements();
    if want == got { Ok(()) } else { Err(ExecError::Length { name: decl.name.clone(), want, got }) }
}

/// Returns the type and address of a state, after checking that a transfer of `f32` elements `start..start + len` fits.
///
/// # Errors
/// Another element type, or past the end.
pub fn state_place(
    planned: &PlannedSession,
    state: StateId,
    start: usize,
    len: usize,
) -> Result<(TensorType, Address), ExecError> {
    let decl = &planned.session.states[state.index()];
    let want = decl.ty.shape.elements();
    if !transfer::passes(decl.ty.dtype) {
        return Err(ExecError::Type { name: decl.name.clone(), want: decl.ty.dtype, got: DType::F32 });
    }
    match start.checked_add(len) {
        Some(end) if end <= want => Ok((decl.ty, planned.states[state.index()])),
        end => {
            let got = end.unwrap_or(usize::MAX);
            Err(ExecError::Length { name: decl.name.clone(), want, got })
        }
    }
}

/// Returns a planned program by name, with its index.
///
/// # Errors
/// When there is none, or no such slot.
pub fn program<'p>(
    planned: &'p PlannedSession,
    name: &str,
    slot: usize,
) -> Result<(usize, &'p PlannedProgram), ExecError> {
    let found = planned.programs.iter().enumerate().find(|(_, p)| p.program.name == name);
    let found = found.ok_or_else(|| ExecError::NoProgram(name.to_owned()))?;
    // Programs without inputs and outputs run in sessions without slots.
    if slot >= planned.slots.max(1) {
        return Err(ExecError::NoSlot { slot, slots: planned.slots });
    }
    Ok(found)
}

/// Returns the type and address of a program's input, after checking element type and length of a whole transfer.
///
/// # Errors
/// Unknown names, another type or length.
pub fn input_place(
    planned: &PlannedSession,
    name: (&str, &str),
    slot: usize,
    dtype: DType,
    len: usize,
) -> Result<(TensorType, Address), ExecError> {
    let (_, p) = program(planned, name.0, slot)?;
    value_place(p, name, p.program.input(name.1), dtype, len)
}

/// Returns the type and address of a program's output, after checking element type and length of a whole transfer.
///
/// # Errors
/// Unknown names, another type or length.
pub fn output_place(
    planned: &PlannedSession,
    name: (&str, &str),
    slot: usize,
    dtype: DType,
    len: usize,
) -> Result<(TensorType, Address), ExecError> {
    let (_, p) = program(planned, name.0, slot)?;
    value_place(p, name, p.program.output(name.1), dtype, len)
}

fn value_place(
    p: &PlannedProgram,
    (program, name): (&str, &str),
    value: Option<ValueId>,
    got: DType,
    len: usize,
) -> Result<(TensorType, Address), ExecError> {
    let owned = || name.to_owned();
    let value = value.ok_or_else(|| ExecError::NoValue { program: program.to_owned(), name: owned() })?;
    let ty = p.program.ty(value);
    if ty.dtype != got {
        return Err(ExecError::Type { name: owned(), want: ty.dtype, got });
    }
    let want = ty.shape.elements();
    if want != len {
        return Err(ExecError::Length { name: owned(), want, got: len });
    }
    Ok((ty, p.place(value)))
}

/// Checks that every value and workspace of every program lies inside its region, aligned and large enough, and that
/// states lie where the session says. Executors call it once, at open.
///
/// # Errors
/// The first fault.
pub fn check_places(planned: &PlannedSession) -> Result<(), ExecError> {
    let session = &planned.session;
    for (decl, at) in session.states.iter().zip(&planned.states) {
        check_place(planned, *at, decl.ty.bytes()).map_err(|what| ExecError::Plan {
            program: String::new(),
            instr: 0,
            op: String::new(),
            what: format!("state {}: {what}", decl.name),
        })?;
    }
    for p in &planned.programs {
        let end = p.program.instrs.len();
        for (v, at) in p.places.iter().enumerate() {
            let Some(at) = at else { continue };
            check_place(planned, *at, p.program.types[v].bytes())
                .map_err(|what| plan_error(p, end, &format!("%{v}: {what}")))?;
        }
        for (i, ws) in p.workspaces.iter().enumerate() {
            let Some(ws) = ws else { continue };
            check_place(planned, *ws, 0).map_err(|what| plan_error(p, i, &format!("workspace: {what}")))?;
        }
        for s in &p.program.states {
            let want = planned.state_place(s, p.program.ty(s.enters));
            for v in [s.enters, s.leaves] {
                if p.places[v.index()] != Some(want) {
                    let name = &session.states[s.state.index()].name;
                    return Err(plan_error(p, end, &format!("{v} is not on the state {name}")));
                }
            }
        }
        let io = p.program.inputs.iter().map(|i| i.value);
        for v in io.chain(p.program.outputs.iter().map(|o| o.value)) {
            if p.places[v.index()].is_none() {
                return Err(plan_error(p, end, &format!("{v} has no place")));
            }
        }
        for (i, instr) in p.program.instrs.iter().enumerate() {
            let mut values = instr.inputs.iter().chain(&instr.outputs);
            if let Some(v) = values.find(|v| p.places[v.index()].is_none()) {
                return Err(plan_error(p, i, &format!("{v} has no place")));
            }
        }
    }
    Ok(())
}

fn check_place(planned: &PlannedSession, at: Address, bytes: u64) -> Result<(), String> {
    let limit = match at.region {
        Region::State => planned.state_bytes,
        Region::Transient => planned.transient_bytes,
        Region::Slot => planned.slot_bytes,
        Region::Host => planned.host_bytes,
    };
    if at.bytes < bytes {
        return Err(format!("{} bytes are planned, {bytes} are needed", at.bytes));
    }
    if !at.offset.is_multiple_of(TensorType::ALIGN) {
        return Err(format!("offset {} is not a multiple of {}", at.offset, TensorType::ALIGN));
    }
    match at.offset.checked_add(at.bytes) {
        Some(end) if end <= limit => Ok(()),
        _ => Err(format!("{} bytes at {} pass the {limit} of {:?}", at.bytes, at.offset, at.region)),
    }
}

/// Returns a fault of the plan at an instruction (or at the end, for faults outside).
pub fn plan_error(p: &PlannedProgram, instr: usize, what: &str) -> ExecError {
    ExecError::Plan {
        program: p.program.name.clone(),
        instr,
        op: p.program.instrs.get(instr).map_or("", |i| i.op.name()).to_owned(),
        what: what.to_owned(),
    }
}
