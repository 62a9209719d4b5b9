//! Seconds of a program, instruction by instruction: of one rank, and of ranks that run programs of their own and wait for each
//! other.

use ambitus_ir::ops::transfer::{End, Route, TransferStart};
use ambitus_ir::target::Target;
use ambitus_ir::{Instr, Op, Program, TensorType, ValueId};
use std::collections::BTreeMap;

/// Seconds of one instruction with operands and results of these types.
pub(super) type Takes<'t> = dyn Fn(&Instr, &[TensorType], &[TensorType]) -> f64 + 't;

/// Where one rank is in time. Copies and collectives of one queue run one after another, alongside what stands between start and
/// done where the target can; only what a done waits for counts.
#[derive(Default)]
struct Clock {
    now: f64,
    queues: BTreeMap<u32, f64>,
    ready: BTreeMap<ValueId, f64>,
    x: Vec<TensorType>,
    y: Vec<TensorType>,
}

impl Clock {
    fn step(&mut self, p: &Program, instr: &Instr, target: &dyn Target, takes: &Takes<'_>) {
        p.signature_into(instr, &mut self.x, &mut self.y);
        let def = instr.op.def();
        let takes = takes(instr, &self.x, &self.y);
        match def.queue().filter(|_| target.copies_beside()) {
            Some(queue) if def.props().starts => {
                let free = self.queues.entry(queue).or_insert(0.0);
                *free = free.max(self.now) + takes;
                // By token, the last of both.
                self.ready.extend(instr.outputs.last().map(|token| (*token, *free)));
            }
            Some(_) => {
                let at = instr.inputs.last().and_then(|token| self.ready.get(token));
                self.now = at.map_or(self.now, |at| self.now.max(*at));
            }
            None => self.now += takes,
        }
    }
}

/// Returns the seconds of one run of a program.
pub(super) fn elapsed(p: &Program, target: &dyn Target, takes: &Takes<'_>) -> f64 {
    let mut clock = Clock::default();
    p.instrs.iter().for_each(|instr| clock.step(p, instr, target, takes));
    clock.now
}

/// How far a rank is in a step, and what it did until then.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timeline {
    /// Seconds since the step began.
    pub now: f64,
    /// Of these, seconds in which it computed.
    pub busy: f64,
    /// Bytes that it sent and got.
    pub moved: f64,
}

/// Returns the end of a transfer between two ranks.
fn end(instr: &Instr) -> Option<&TransferStart> {
    match &instr.op {
        Op::TransferStart(op) if op.end != End::Both => Some(op),
        _ => None,
    }
}

/// Extends every rank's timeline by one run of its program: [`place`](crate::passes::place) made them of one. A transfer
/// begins when both ranks are there, and both wait for it: its source is free and its result is there after it.
///
/// # Panics
/// When the programs do not belong together.
pub fn together(programs: &[&Program], target: &dyn Target, ranks: &mut [Timeline]) {
    let takes: &Takes<'_> = &|instr, x, y| target.seconds(&instr.op, x, y);
    let mut clocks: Vec<Clock> = ranks.iter().map(|t| Clock { now: t.now, ..Clock::default() }).collect();
    let mut at = vec![0; programs.len()];
    // To each rank's next transfer, then over one that both ends have come to.
    let mut met = Some(());
    while met.is_some() {
        for (rank, p) in programs.iter().enumerate() {
            let before = clocks[rank].now;
            while let Some(instr) = p.instrs.get(at[rank]).filter(|i| end(i).is_none()) {
                clocks[rank].step(p, instr, target, takes);
                at[rank] += 1;
            }
            ranks[rank].busy += clocks[rank].now - before;
        }
        let waits = |rank: usize| Some(end(programs[rank].instrs.get(at[rank])?)?.route);
        let meets = |route: &Route| waits(route.from) == Some(*route) && waits(route.to) == Some(*route);
        let found = (0..programs.len()).filter_map(|r| Some((r, waits(r)?))).find(|(_, route)| meets(route));
        met = found.map(|(rank, route)| {
            let p = programs[rank];
            let (x, y) = p.signature(&p.instrs[at[rank]]);
            let seconds = takes(&p.instrs[at[rank]], &x, &y);
            let done = clocks[route.from].now.max(clocks[route.to].now) + seconds;
            let bytes = end(&p.instrs[at[rank]]).map_or(0, |op| op.ty().bytes());
            for r in [route.from, route.to] {
                clocks[r].now = done;
                ranks[r].moved += bytes as f64;
                at[r] += 1;
            }
        });
    }
    let all = programs.iter().zip(&at).all(|(p, at)| *at == p.instrs.len());
    assert!(all, "bug in place: ranks wait for each other at {at:?}");
    for (rank, clock) in ranks.iter_mut().zip(&clocks) {
        rank.now = clock.now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passes::place::{Cut, place};
    use ambitus_ir::{Builder, Session};

    /// A second for a product, none for anything else.
    struct Seconds;

    impl Target for Seconds {
        fn name(&self) -> &str {
            "seconds"
        }
        fn has_kernel(&self, _: &Op, _: &[TensorType], _: &[TensorType]) -> bool {
            true
        }
        fn workspace(&self, _: &Op, _: &[TensorType], _: &[TensorType]) -> u64 {
            0
        }
        fn shares(&self, _: &Op, _: usize, _: usize) -> bool {
            false
        }
        fn seconds(&self, op: &Op, _: &[TensorType], _: &[TensorType]) -> f64 {
            match op {
                Op::MatMul(_) => 1.0,
                Op::TransferStart(_) => 0.25,
                _ => 0.0,
            }
        }
    }

    /// Returns two blocks of a product each, for `batches` batches in one program.
    fn chain(batches: usize) -> Session {
        let mut s = Session::default();
        let mut b = Builder::new(&mut s, "forward");
        for k in 0..batches {
            let mut x = b.input(&format!("x@{k}"), TensorType::f32(&[8, 8]));
            for block in 0..2 {
                x = b.block("layers", block, |b| {
                    let w = b.parameter("w", &[8, 8]);
                    b.matmul(x, w, false, false)
                });
            }
            b.output(&format!("y@{k}"), x);
        }
        let p = b.finish();
        s.programs.push(p);
        s
    }

    #[test]
    fn ranks_work_on_different_batches_at_a_time() {
        for (batches, done, busy) in [(1, 2.5, 1.0), (4, 6.0 + 1.0, 4.0)] {
            let parts = place(&chain(batches), &Cut { starts: vec![1] });
            let mut ranks = [Timeline::default(); 2];
            let programs: Vec<&Program> = parts.iter().map(|p| &p.programs[0]).collect();
            together(&programs, &Seconds, &mut ranks);
            // A product and a transfer for each batch, the last product, and the outputs that the first rank gets.
            assert_eq!(ranks.map(|r| r.busy), [busy; 2], "{batches}");
            assert_eq!(ranks[0].now, ranks[1].now);
            assert_eq!(ranks[0].now, done, "{batches}");
        }
    }
}
