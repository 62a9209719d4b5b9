//! Opening and running planned sessions.

use crate::bind::{Here, Io};
use crate::driver::{Arenas, Card, Graph, Piece, Rect, Spare};
use crate::nccl::Rank;
use crate::ops;
use crate::programs::{address, in_order, io, steps};
use crate::step::{Gemm, Step};
use ambitus_comm::Communicator;
use ambitus_exec::executor::{
    ExecError, Executor, check_places, input_place, output_place, plan_error, program, state_place,
};
use ambitus_exec::transfer;
use ambitus_ir::plan::{Address, PlannedProgram, PlannedSession};
use ambitus_ir::{DType, Instr, StateId, TensorType};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// A planned session on a card.
pub struct CudaExecutor {
    /// Without the instructions, which are recorded.
    planned: PlannedSession,
    /// Of every program, on every slot; dropped before the card.
    programs: Vec<Vec<Recorded>>,
    /// Where the session is one rank's of several; ends before the card.
    rank: Option<Arc<Rank>>,
    card: Card,
    arenas: Arenas,
    /// The algorithms of its products, as text.
    choices: String,
}

/// What a session that is one of several ranks' reaches the others by.
#[derive(Clone)]
pub struct Ranks<'r> {
    /// From card to card, in programs.
    pub nccl: Arc<Rank>,
    /// From host to host, while it is opened.
    pub host: &'r dyn Communicator,
}

/// A program on a slot.
enum Recorded {
    /// As a graph.
    Graph(Graph),
    /// In pieces, of a program that exchanges with other ranks.
    Pieces(Vec<Piece>),
}

/// A session that was not opened, and the card that it was for.
pub struct Unopened {
    /// The card.
    pub card: Card,
    /// Why.
    pub why: ExecError,
}

impl From<Box<Unopened>> for ExecError {
    fn from(unopened: Box<Unopened>) -> ExecError {
        unopened.why
    }
}

impl CudaExecutor {
    /// Takes the arenas, settles the algorithm of every product, which is timed where none is known (all ranks take the first
    /// one's), and records every program for every slot.
    ///
    /// # Errors
    /// When the card has too little memory left, a plan cannot run there, or the session was compiled for another number of
    /// ranks. The card is given back.
    pub fn open(
        planned: impl Into<Arc<PlannedSession>>,
        mut card: Card,
        ranks: Option<Ranks<'_>>,
    ) -> Result<Self, Box<Unopened>> {
        let planned = planned.into();
        match prepare(&planned, &mut card, ranks.as_ref()) {
            Ok((arenas, programs, choices)) => {
                let (planned, rank) = (planned.without_instructions(), ranks.map(|r| r.nccl));
                Ok(CudaExecutor { planned, programs, rank, card, arenas, choices })
            }
            Err(why) => {
                card.release();
                Err(Box::new(Unopened { card, why }))
            }
        }
    }

    /// Returns the card.
    pub fn card(&self) -> &Card {
        &self.card
    }

    /// Returns the card, with the arenas given back.
    pub fn into_card(self) -> Card {
        let CudaExecutor { programs, rank, mut card, .. } = self;
        drop((programs, rank));
        card.release();
        card
    }

    /// Fills the arena with NaN, for checks: what is read without having been written shows.
    ///
    /// # Errors
    /// When the card fails.
    pub fn poison(&mut self) -> Result<(), ExecError> {
        let bytes = self.planned.arena_bytes() as usize;
        self.card.fill(0xff, bytes)
    }

    /// Writes raw bytes to a place of slot 0, for checks of types that the seam does not move.
    ///
    /// # Errors
    /// When the card fails.
    pub fn write_bytes(&mut self, at: Address, data: &[u8]) -> Result<(), ExecError> {
        let at = address(&self.planned, self.arenas, at, 0);
        self.card.write(Rect { at, rows: 1, width: data.len(), pitch: data.len() }, data)
    }

    /// Raw bytes of a place of slot 0.
    ///
    /// # Errors
    /// When the card fails.
    pub fn read_bytes(&self, at: Address, len: usize) -> Result<Vec<u8>, ExecError> {
        let mut out = vec![0; len];
        let at = address(&self.planned, self.arenas, at, 0);
        self.card.read(Rect { at, rows: 1, width: len, pitch: len }, &mut out)?;
        Ok(out)
    }

    fn here(&self) -> Here {
        let (rank, ranks) = self.rank.as_ref().map_or((0, 1), |r| (r.rank(), r.ranks()));
        Here { rank, ranks, capability: self.card.info().capability }
    }

    /// Returns the seconds of every instruction of a program of the plan that was opened, for measuring. Each run of an instruction
    /// has bytes of its own as far as the card has memory left, so that no cache holds them. Instructions of one op on equal types
    /// are measured once, exchanges between ranks without what travels. States are changed by it.
    ///
    /// # Errors
    /// When the card fails.
    pub fn time_instructions(
        &mut self,
        planned: &PlannedSession,
        p: &PlannedProgram,
    ) -> Result<Vec<f64>, ExecError> {
        let spare = self.card.spare()?;
        let mut known: HashMap<String, f64> = HashMap::new();
        let mut seconds = Vec::with_capacity(p.program.instrs.len());
        for (i, instr) in p.program.instrs.iter().enumerate() {
            let kind = format!("{:?} {:?}", instr.op, p.program.signature(instr));
            let each = match known.get(&kind) {
                Some(each) => *each,
                None => {
                    let io = io(planned, p, self.arenas, (0, self.here()), i);
                    let variants = self.variants(instr, &io, &spare);
                    self.card.time(&variants.map_err(|what| plan_error(p, i, &what))?)?
                }
            };
            known.insert(kind, each);
            seconds.push(each);
        }
        Ok(seconds)
    }

    /// Returns the steps of an instruction where it is planned, and on copies of what it reads and writes.
    fn variants(&self, instr: &Instr, io: &Io, spare: &Spare) -> Result<Vec<Vec<Step>>, String> {
        /// Copies of an instruction; beyond the card's caches long before.
        const MOST: u64 = 64;
        let mut all = vec![ops::bind(&instr.op, io)?];
        let ranges = io.ranges();
        let padded = |r: &Range<u64>| (r.end - r.start).next_multiple_of(256);
        let each: u64 = ranges.iter().map(padded).sum();
        let computes = all[0].iter().all(|s| matches!(s, Step::Launch(_) | Step::Gemm(_)));
        let copies = if computes { (spare.bytes / each.max(256)).min(MOST) } else { 0 };
        for copy in 0..copies {
            let mut at = spare.at + copy * each;
            let mut places = Vec::new();
            for range in &ranges {
                self.card.duplicate(at, range.clone()).map_err(|e| e.to_string())?;
                places.push((range.clone(), at));
                at += padded(range);
            }
            let to = |address: u64| {
                let inside = places.iter().find(|(r, _)| r.contains(&address));
                inside.map_or(address, |(r, new)| new + (address - r.start))
            };
            all.push(ops::bind(&instr.op, &io.moved(to))?);
        }
        Ok(all)
    }

    /// Returns the seconds of the library's first choices of an algorithm, at most `most`, for every product of a program, by its
    /// instruction's number; products of equal shapes once.
    ///
    /// # Errors
    /// When the card fails.
    pub fn time_algorithms(
        &mut self,
        planned: &PlannedSession,
        p: &PlannedProgram,
        most: usize,
    ) -> Result<Vec<(usize, Vec<f64>)>, ExecError> {
        let steps = steps(planned, p, self.arenas, 0, self.here())?;
        let mut known = HashSet::new();
        let mut found = Vec::new();
        for (i, steps) in steps.iter().enumerate() {
            for step in steps {
                if let Step::Gemm(gemm) = step
                    && known.insert(self.card.product_key(gemm))
                {
                    found.push((i, self.card.time_algorithms(gemm, most)?));
                }
            }
        }
        Ok(found)
    }

    fn write(
        &mut self,
        (ty, at): (TensorType, Address),
        slot: usize,
        start: usize,
        data: &[u8],
    ) -> Result<(), ExecError> {
        let base = address(&self.planned, self.arenas, at, slot);
        let len = data.len() / ty.dtype.size();
        for (rect, from) in rectangles(ty, base, start, len) {
            self.card.write(rect, &data[from..from + rect.rows * rect.width])?;
        }
        Ok(())
    }

    fn read(
        &self,
        (ty, at): (TensorType, Address),
        slot: usize,
        start: usize,
        out: &mut [u8],
    ) -> Result<(), ExecError> {
        let base = address(&self.planned, self.arenas, at, slot);
        for (rect, to) in rectangles(ty, base, start, out.len() / ty.dtype.size()) {
            self.card.read(rect, &mut out[to..to + rect.rows * rect.width])?;
        }
        Ok(())
    }
}

/// Arenas, every program on every slot, and the algorithms of products as text.
fn prepare(
    planned: &PlannedSession,
    card: &mut Card,
    ranks: Option<&Ranks<'_>>,
) -> Result<(Arenas, Vec<Vec<Recorded>>, String), ExecError> {
    check_places(planned)?;
    let (rank, count) = ranks.map_or((0, 1), |r| (r.nccl.rank(), r.nccl.ranks()));
    let here = Here { rank, ranks: count, capability: card.info().capability };
    let arenas = card.allocate(planned.arena_bytes(), planned.host_bytes)?;
    let gemms = products(planned, card, arenas, here)?;
    let mut choices = card.settle(&gemms)?;
    if let Some(Ranks { host, .. }) = ranks {
        card.agree(&ambitus_comm::gather(*host, "the algorithms of products", choices.as_bytes())?);
        choices = card.settle(&gemms)?;
    }
    // Nothing that timing has left there.
    card.fill(0, planned.arena_bytes() as usize)?;
    let mut programs = Vec::with_capacity(planned.programs.len());
    for p in &planned.programs {
        let on_slots: Result<_, _> =
            (0..planned.slots.max(1)).map(|slot| record(planned, p, arenas, (slot, here), card)).collect();
        programs.push(on_slots?);
    }
    Ok((arenas, programs, choices))
}

/// Returns a product of each kind that the programs have.
fn products(
    planned: &PlannedSession,
    card: &Card,
    arenas: Arenas,
    here: Here,
) -> Result<Vec<Gemm>, ExecError> {
    let (mut keys, mut found) = (HashSet::new(), Vec::new());
    for p in &planned.programs {
        for slot in 0..planned.slots.max(1) {
            for step in steps(planned, p, arenas, slot, here)?.into_iter().flatten() {
                if let Step::Gemm(g) = step
                    && keys.insert(card.product_key(&g))
                {
                    found.push(g);
                }
            }
        }
    }
    Ok(found)
}

/// Records a program on a slot.
fn record(
    planned: &PlannedSession,
    p: &PlannedProgram,
    arenas: Arenas,
    (slot, here): (usize, Here),
    card: &mut Card,
) -> Result<Recorded, ExecError> {
    let (of, all): (Vec<usize>, Vec<Step>) = in_order(planned, p, arenas, (slot, here))?.into_iter().unzip();
    let end = p.program.instrs.len();
    let fault = |(step, what): (usize, String)| plan_error(p, of.get(step).copied().unwrap_or(end), &what);
    if all.iter().any(|s| matches!(s, Step::Exchange(e) if e.is_between_ranks())) {
        return card.record_pieces(all).map(Recorded::Pieces).map_err(fault);
    }
    card.record(&all).map(Recorded::Graph).map_err(fault)
}

/// Returns the elements `start..start + len` of a tensor as rectangles, each with its offset in the transfer's bytes: the rest
/// of a row, whole rows, the start of a row. A dense tensor is one row.
fn rectangles(ty: TensorType, base: u64, start: usize, len: usize) -> Vec<(Rect, usize)> {
    let size = ty.dtype.size();
    let elements = ty.shape.elements();
    let (cols, pitch) = if ty.is_dense() { (elements, elements) } else { (ty.shape.cols(), ty.pitch) };
    let mut found = Vec::new();
    let (mut at, end) = (start, start + len);
    while at < end {
        let (row, col) = (at / cols, at % cols);
        let (rows, width) = if col == 0 && end - at >= cols {
            ((end - at) / cols, cols)
        } else {
            (1, (cols - col).min(end - at))
        };
        let place = base + ((row * pitch + col) * size) as u64;
        let rect = Rect { at: place, rows, width: width * size, pitch: pitch * size };
        found.push((rect, (at - start) * size));
        at += rows * width;
    }
    found
}

/// Returns the bytes of numbers, as the card has them too.
fn bytes<T: Number>(data: &[T]) -> &[u8] {
    // SAFETY: numbers have no padding, and every byte is one.
    unsafe { std::slice::from_raw_parts(data.as_ptr().cast(), size_of_val(data)) }
}

/// Returns the bytes of numbers, to write. See [`bytes`].
fn bytes_mut<T: Number>(data: &mut [T]) -> &mut [u8] {
    // SAFETY: as in `bytes`; any bytes are a number.
    unsafe { std::slice::from_raw_parts_mut(data.as_mut_ptr().cast(), size_of_val(data)) }
}

/// Types without padding of which every bit pattern is a value.
trait Number: Copy {}
impl Number for f32 {}
impl Number for i32 {}

impl Executor for CudaExecutor {
    fn planned(&self) -> &PlannedSession {
        &self.planned
    }

    fn arena_bytes(&self) -> u64 {
        self.planned.arena_bytes()
    }

    fn choices(&self) -> &str {
        &self.choices
    }

    fn write_state_at(&mut self, state: StateId, start: usize, data: &[f32]) -> Result<(), ExecError> {
        let place = state_place(&self.planned, state, start, data.len())?;
        if place.0.dtype == DType::F32 {
            return self.write(place, 0, start, bytes(data));
        }
        let mut narrow = vec![0; data.len() * place.0.dtype.size()];
        transfer::narrow(place.0.dtype, data, &mut narrow);
        self.write(place, 0, start, &narrow)
    }

    fn read_state_at(&self, state: StateId, start: usize, out: &mut [f32]) -> Result<(), ExecError> {
        let place = state_place(&self.planned, state, start, out.len())?;
        if place.0.dtype == DType::F32 {
            return self.read(place, 0, start, bytes_mut(out));
        }
        let mut narrow = vec![0; out.len() * place.0.dtype.size()];
        self.read(place, 0, start, &mut narrow)?;
        transfer::widen(place.0.dtype, &narrow, out);
        Ok(())
    }

    fn write_f32(&mut self, program: &str, input: &str, slot: usize, data: &[f32]) -> Result<(), ExecError> {
        let place = input_place(&self.planned, (program, input), slot, DType::F32, data.len())?;
        self.write(place, slot, 0, bytes(data))
    }

    fn write_i32(&mut self, program: &str, input: &str, slot: usize, data: &[i32]) -> Result<(), ExecError> {
        let place = input_place(&self.planned, (program, input), slot, DType::I32, data.len())?;
        self.write(place, slot, 0, bytes(data))
    }

    fn run(&mut self, name: &str, slot: usize) -> Result<(), ExecError> {
        let (at, _) = program(&self.planned, name, slot)?;
        match (self.programs[at].get(slot), &self.rank) {
            (Some(Recorded::Graph(graph)), _) => self.card.replay(graph),
            (Some(Recorded::Pieces(pieces)), Some(rank)) => self.card.run(pieces, rank),
            _ => Ok(()),
        }
    }

    fn read_f32(&self, program: &str, output: &str, slot: usize, out: &mut [f32]) -> Result<(), ExecError> {
        let place = output_place(&self.planned, (program, output), slot, DType::F32, out.len())?;
        self.read(place, slot, 0, bytes_mut(out))
    }
}
