//! Opening and running planned sessions.

use super::arena::{Arena, return_freed};
use super::disk::{Disk, bytes, bytes_mut};
use super::dispatch::{Instruction, Kernel, kernel_bytes};
use super::host::{Bytes, Host};
use super::kernels::{Isa, Pool};
use super::operand::{Frame, Io, Place};
use super::ops;
use super::ranks::Ranks;
use super::types::Types;
use crate::executor::{
    ExecError, Executor, check_places, input_place, output_place, plan_error, program, state_place,
};
use crate::transfer;
use ambitus_comm::Communicator;
use ambitus_ir::ops::collective;
use ambitus_ir::plan::{Address, PlannedProgram, PlannedSession, Region};
use ambitus_ir::{DType, Instr, Op, Program, StateId, TensorType, ValueId};
use std::path::Path;
use std::sync::Arc;

/// When asynchronous copies do their work. Results must not depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AsyncMode {
    /// At the start: as early as is legal.
    #[default]
    Early,
    /// At the done: as late as is legal.
    Late,
}

/// How to open a [`CpuExecutor`]; a number of threads stands for itself and the defaults.
#[derive(Clone, Debug, Default)]
pub struct CpuOptions<'a> {
    /// Threads; 0 counts as 1.
    pub threads: usize,
    /// When copies do their work.
    pub copies: AsyncMode,
    /// Instruction set; `None` is the best of this processor.
    pub isa: Option<Isa>,
    /// A folder for a file that is the host arena: then only the arena is in memory.
    pub disk: Option<&'a Path>,
    /// The other ranks, of a session that is one of several ranks'.
    pub comm: Option<Arc<dyn Communicator>>,
}

impl From<usize> for CpuOptions<'_> {
    fn from(threads: usize) -> Self {
        CpuOptions { threads, ..CpuOptions::default() }
    }
}

/// A planned session in this process's memory.
pub struct CpuExecutor {
    /// Without the instructions, which are bound.
    pub(super) planned: PlannedSession,
    pub(super) arena: Arena,
    pub(super) host: Host,
    /// Where the session is one rank's of several.
    ranks: Option<Ranks>,
    pool: Pool,
    one: Pool,
    /// Kernels of every program's instructions, in the plan's order.
    steps: Vec<Vec<Kernel>>,
}

impl CpuExecutor {
    /// Resolves every instruction, and then allocates the arena and touches every page of it. What binding is done with goes
    /// before the arena comes: the plan too, unless the caller keeps it.
    ///
    /// # Errors
    /// When the system refuses memory or threads, the disk is full or refuses, a plan cannot run here, or the session was
    /// compiled for another number of ranks.
    pub fn open<'a>(
        planned: impl Into<Arc<PlannedSession>>,
        options: impl Into<CpuOptions<'a>>,
    ) -> Result<CpuExecutor, ExecError> {
        let (planned, options) = (planned.into(), options.into());
        let ranks = options.comm.map(Ranks::new);
        check_places(&planned)?;
        let here = ranks.as_ref().map_or((0, 1), |r| (r.rank(), r.ranks()));
        let isa = options.isa.unwrap_or(Isa::best());
        let pool = |threads: usize| {
            Pool::with_isa(threads, isa).map_err(|e| ExecError::Threads { threads, why: e.to_string() })
        };
        let (pool, one) = (pool(options.threads)?, pool(1)?);
        let mut steps = Vec::with_capacity(planned.programs.len());
        for p in &planned.programs {
            let kernels: Result<Vec<Kernel>, ExecError> = (0..p.program.instrs.len())
                .map(|i| resolve(p, i, &pool, here, options.copies).map_err(|what| plan_error(p, i, &what)))
                .collect();
            steps.push(kernels?);
        }
        let outside = planned.without_instructions();
        drop(planned);
        return_freed();
        let planned = outside;
        let arena = Arena::new(planned.arena_bytes())?;
        let host = Host::new(planned.host_bytes, options.disk)?;
        Ok(CpuExecutor { planned, arena, host, ranks, pool, one, steps })
    }

    /// Returns the number of threads.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Returns the bytes that the bound instructions of a program take at most, besides the arena.
    pub fn program_bytes(p: &Program) -> u64 {
        p.instrs.iter().map(kernel_bytes).sum()
    }

    fn walk(&mut self, name: &str, slot: usize) -> Result<(), ExecError> {
        let CpuExecutor { planned, arena, host, ranks, pool, one, steps } = self;
        let kernels = &mut steps[program(planned, name, slot)?.0];
        let (device, (on_host, disk)) = (arena.base(), host.running());
        let base = |region| {
            // SAFETY: regions of existing slots lie inside the arena, whose size is the sum of all of them.
            let device = || unsafe { device.add(planned.base(region, slot) as usize) };
            if region == Region::Host { on_host } else { device() }
        };
        // SAFETY: `check_places` put every place inside its region; the arenas are borrowed exclusively until the end.
        // Without memory for the host's, copies ask `disk`, and no other instruction has places there.
        let frame = unsafe { Frame::new(base, pool, one, disk, ranks.as_ref()) };
        pool.enter(|| {
            for kernel in kernels.iter_mut() {
                kernel(&frame);
                if frame.disk.is_some_and(Disk::has_failed) || frame.ranks.is_some_and(Ranks::has_failed) {
                    break;
                }
            }
        });
        ranks.as_ref().map_or(Ok(()), Ranks::check)?;
        host.check()
    }

    /// Returns what holds an address, and the byte at which it starts there.
    pub(super) fn locate(&self, at: Address, slot: usize) -> (&dyn Bytes, u64) {
        let bytes = if at.region == Region::Host { self.host.bytes() } else { &self.arena };
        (bytes, self.planned.base(at.region, slot) + at.offset)
    }

    /// Returns what holds an address, to write, and the byte at which it starts there.
    pub(super) fn locate_mut(&mut self, at: Address, slot: usize) -> (&mut dyn Bytes, u64) {
        let offset = self.planned.base(at.region, slot) + at.offset;
        (if at.region == Region::Host { self.host.bytes_mut() } else { &mut self.arena }, offset)
    }

    fn read(&self, (ty, at): (TensorType, Address), slot: usize, start: usize, out: &mut [f32]) {
        let (held, at) = self.locate(at, slot);
        let size = ty.dtype.size();
        for_runs(ty, start, out.len(), |place, done, n, _| {
            let (at, out) = (at + (place * size) as u64, &mut out[done..done + n]);
            if size == 4 {
                return held.get(at, bytes_mut(out));
            }
            let mut narrow = [0; PIECE];
            for (k, out) in out.chunks_mut(PIECE / size).enumerate() {
                let narrow = &mut narrow[..out.len() * size];
                held.get(at + (k * PIECE) as u64, narrow);
                transfer::widen(ty.dtype, narrow, out);
            }
        });
    }

    fn write(&mut self, (ty, at): (TensorType, Address), slot: usize, start: usize, from: &[f32]) {
        let (held, at) = self.locate_mut(at, slot);
        let size = ty.dtype.size();
        for_runs(ty, start, from.len(), |place, done, n, pad| {
            let (at, from) = (at + (place * size) as u64, &from[done..done + n]);
            if size == 4 {
                held.put(at, bytes(from));
            } else {
                let mut narrow = [0; PIECE];
                for (k, from) in from.chunks(PIECE / size).enumerate() {
                    let narrow = &mut narrow[..from.len() * size];
                    transfer::narrow(ty.dtype, from, narrow);
                    held.put(at + (k * PIECE) as u64, narrow);
                }
            }
            if pad > 0 {
                held.put(at + (n * size) as u64, &PAD[..pad * size]);
            }
        });
    }
}

/// Bytes of 8- and 16-bit elements that are converted at once.
const PIECE: usize = 16 << 10;
/// What a row's pad holds: it has fewer bytes than rows align to.
const PAD: [u8; 16] = [0; 16];

/// Calls `body(index in storage, index in the transfer, length, pad)` for every run of the elements `start..start + len`;
/// `pad` is the number of pad elements after a run that ends its row.
fn for_runs(ty: TensorType, start: usize, len: usize, mut body: impl FnMut(usize, usize, usize, usize)) {
    let (cols, pitch) = (ty.shape.cols(), ty.pitch);
    if ty.is_dense() {
        return body(start, 0, len, 0);
    }
    let mut done = 0;
    while done < len {
        let (r, c) = ((start + done) / cols, (start + done) % cols);
        let n = (cols - c).min(len - done);
        body(r * pitch + c, done, n, if c + n == cols { pitch - cols } else { 0 });
        done += n;
    }
}

/// Returns the instruction that a done of a collective waits for.
fn begun<'p>(p: &'p PlannedProgram, instr: &Instr) -> Option<&'p Instr> {
    let token = instr.inputs.last().filter(|_| matches!(instr.op, Op::CollectiveDone(_)))?;
    p.program.instrs.iter().find(|i| i.outputs.last() == Some(token))
}

fn resolve(
    p: &PlannedProgram,
    at: usize,
    pool: &Pool,
    (rank, ranks): (usize, usize),
    copies: AsyncMode,
) -> Result<Kernel, String> {
    let instr = &p.program.instrs[at];
    let place = |v: &ValueId| Place { ty: p.program.ty(*v), at: p.place(*v) };
    let ws = p.workspaces.get(at).copied().flatten().filter(|ws| ws.bytes > 0);
    let (x, y) = p.program.signature(instr);
    let types = Types { x: &x, y: &y };
    if !ops::takes(&instr.op, types) {
        return Err(format!("there is no CPU kernel for {x:?} to {y:?}"));
    }
    let mut places = instr.inputs.iter().chain(&instr.outputs).map(|v| p.place(*v));
    if !instr.op.def().reaches_host() && places.any(|at| at.region == Region::Host) {
        return Err("only copies reach the host arena".to_owned());
    }
    let begun = begun(p, instr).map(|i| &i.op);
    let started = begun.unwrap_or(&instr.op);
    if let Some(other) = collective::ranks(started).filter(|n| *n != ranks) {
        return Err(format!("the session is for {other} ranks, there are {ranks}"));
    }
    if let Op::TransferStart(op) = started
        && op.rank() != rank
    {
        return Err(format!("the session is rank {}'s, this is rank {rank}", op.rank()));
    }
    let want = 4 * ops::workspace(&instr.op, types, pool.threads()) as u64;
    let have = ws.map_or(0, |ws| ws.bytes);
    if have < want {
        return Err(format!("{have} bytes of workspace are planned, {want} are needed"));
    }
    let ws = ws.map(|at| Place { ty: TensorType::f32(&[at.bytes as usize / 4]), at });
    let (x, y) = (instr.inputs.iter().map(place).collect(), instr.outputs.iter().map(place).collect());
    let this = Instruction { op: &instr.op, begun, path: &instr.origin.path, copies };
    ops::bind(&this, Io::new(x, y, ws)?)
}

impl Executor for CpuExecutor {
    fn planned(&self) -> &PlannedSession {
        &self.planned
    }

    fn arena_bytes(&self) -> u64 {
        self.arena.bytes()
    }

    fn write_state_at(&mut self, state: StateId, start: usize, data: &[f32]) -> Result<(), ExecError> {
        let place = state_place(&self.planned, state, start, data.len())?;
        self.write(place, 0, start, data);
        self.host.check()
    }

    fn read_state_at(&self, state: StateId, start: usize, out: &mut [f32]) -> Result<(), ExecError> {
        let place = state_place(&self.planned, state, start, out.len())?;
        self.read(place, 0, start, out);
        self.host.check()
    }

    fn write_f32(&mut self, program: &str, input: &str, slot: usize, data: &[f32]) -> Result<(), ExecError> {
        let place = input_place(&self.planned, (program, input), slot, DType::F32, data.len())?;
        self.write(place, slot, 0, data);
        Ok(())
    }

    fn write_i32(&mut self, program: &str, input: &str, slot: usize, data: &[i32]) -> Result<(), ExecError> {
        let place = input_place(&self.planned, (program, input), slot, DType::I32, data.len())?;
        // SAFETY: f32 has i32's size and alignment, and every bit pattern is one; the words are only copied.
        let words = unsafe { std::slice::from_raw_parts(data.as_ptr().cast(), data.len()) };
        self.write(place, slot, 0, words);
        Ok(())
    }

    fn run(&mut self, program: &str, slot: usize) -> Result<(), ExecError> {
        self.walk(program, slot)
    }

    fn read_f32(&self, program: &str, output: &str, slot: usize, out: &mut [f32]) -> Result<(), ExecError> {
        let place = output_place(&self.planned, (program, output), slot, DType::F32, out.len())?;
        self.read(place, slot, 0, out);
        self.host.check()
    }
}
