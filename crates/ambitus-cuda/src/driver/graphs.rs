//! Programs on the card: steps are put on streams while these record, and replayed as a CUDA graph.

use super::exchange::Running;
use super::{Card, device_error, failed};
use crate::kernels::matmul;
use crate::step::{Gemm, Launch, Step};
use ambitus_exec::executor::ExecError;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use std::collections::{HashMap, HashSet};
use std::ffi::c_void;

/// A part of a program that exchanges with other ranks.
pub(crate) enum Piece {
    /// A stretch without exchanges.
    Graph(Graph),
    /// What is put on the streams for each run. NCCL can be recorded into graphs from 2.9 on, but not polled there, so it would
    /// be unknown which collective another rank has not reached.
    Step(Step),
}

/// A program as a CUDA graph.
pub struct Graph {
    exec: sys::CUgraphExec,
    context: sys::CUcontext,
}

/// Returns for each step whether it is put on the streams alone: exchanges and the waits for them, and the copies of a queue
/// of which one is under way across these.
fn alone(steps: &[Step]) -> Vec<bool> {
    let tokens: HashSet<u64> =
        steps.iter().filter_map(|s| if let Step::Exchange(e) = s { Some(e.token) } else { None }).collect();
    let exchanges = |s: &Step| match s {
        Step::Exchange(_) => true,
        Step::Join { to } => tokens.contains(to),
        _ => false,
    };
    let mut alone: Vec<bool> = steps.iter().map(exchanges).collect();
    // Copies: the queue, and where they begin and end.
    let mut open: HashMap<u64, (u32, usize)> = HashMap::new();
    let mut copies = Vec::new();
    for (i, step) in steps.iter().enumerate() {
        match step {
            Step::Fork { queue, to, .. } => _ = open.insert(*to, (*queue, i)),
            Step::Join { to } => {
                copies.extend(open.remove(to).map(|(queue, begin)| (queue, begin, i)));
            }
            _ => {}
        }
    }
    copies.extend(open.into_values().map(|(queue, begin)| (queue, begin, steps.len())));
    loop {
        let crosses = |(_, begin, end): &&(u32, usize, usize)| alone[*begin..*end].iter().any(|alone| *alone);
        let queues: HashSet<u32> = copies.iter().filter(crosses).map(|(queue, ..)| *queue).collect();
        let (gone, left): (Vec<_>, Vec<_>) =
            copies.into_iter().partition(|(queue, ..)| queues.contains(queue));
        if gone.is_empty() {
            return alone;
        }
        for (_, begin, end) in gone {
            alone[begin] = true;
            alone.get_mut(end).into_iter().for_each(|alone| *alone = true);
        }
        copies = left;
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: instantiated by `record`, destroyed once; the card, with the context, outlives its executor's graphs.
        unsafe {
            let _ = result::ctx::set_current(self.context);
            let _ = result::graph::exec_destroy(self.exec);
        }
    }
}

impl Card {
    /// Records steps as a graph.
    ///
    /// # Errors
    /// Steps that the card refuses, by index.
    pub fn record(&mut self, steps: &[Step]) -> Result<Graph, (usize, String)> {
        let whole = |e| (steps.len(), failed("recording a program", e));
        self.enter().map_err(whole)?;
        let graph = self.capture(steps)?;
        let flags = sys::CUgraphInstantiate_flags_enum(0);
        // SAFETY: the graph was just recorded; it is not needed once instantiated.
        let made = unsafe {
            let made = result::graph::instantiate(graph, flags);
            let _ = result::graph::destroy(graph);
            made
        };
        let made = Graph { exec: made.map_err(whole)?, context: self.context };
        // Its memory on the card is taken now, not at the first step.
        // SAFETY: graph and stream are live.
        unsafe {
            result::graph::upload(made.exec, self.main).and_then(|()| result::stream::synchronize(self.main))
        }
        .map_err(whole)?;
        Ok(made)
    }

    /// Records steps as graphs where nothing is exchanged: everything that the steps need is loaded then, before the first exchange
    /// (what is loaded while an exchange waits for another rank may wait for its end, for ever).
    ///
    /// # Errors
    /// Steps that the card refuses, by index.
    pub(crate) fn record_pieces(&mut self, steps: Vec<Step>) -> Result<Vec<Piece>, (usize, String)> {
        let alone = alone(&steps);
        let (mut pieces, mut stretch, mut at) = (Vec::new(), Vec::new(), 0);
        for (step, alone) in steps.into_iter().zip(alone) {
            at += 1;
            if !alone {
                stretch.push(step);
                continue;
            }
            self.end_stretch(&mut stretch, at - 1, &mut pieces)?;
            pieces.push(Piece::Step(step));
        }
        self.end_stretch(&mut stretch, at, &mut pieces)?;
        Ok(pieces)
    }

    /// Records the steps before step `end`.
    fn end_stretch(
        &mut self,
        stretch: &mut Vec<Step>,
        end: usize,
        pieces: &mut Vec<Piece>,
    ) -> Result<(), (usize, String)> {
        let steps = std::mem::take(stretch);
        if !steps.is_empty() {
            let graph = self.record(&steps).map_err(|(i, why)| (end - steps.len() + i, why))?;
            pieces.push(Piece::Graph(graph));
        }
        Ok(())
    }

    /// Starts a recorded program, after everything that was put on the card before.
    ///
    /// # Errors
    /// When the card fails; what fails later is said by whoever waits.
    pub fn replay(&mut self, graph: &Graph) -> Result<(), ExecError> {
        self.enter().map_err(|e| device_error("entering the context", e))?;
        self.start(graph).map_err(|e| device_error("starting a program", e))
    }

    pub(super) fn start(&self, graph: &Graph) -> Result<(), DriverError> {
        // SAFETY: graph and stream are live.
        unsafe { result::graph::launch(graph.exec, self.main) }
    }

    /// Puts a kernel on a stream.
    pub(super) fn launch(&self, l: &Launch, stream: sys::CUstream) -> Result<(), String> {
        let function = *self.functions.get(l.kernel).ok_or_else(|| format!("no kernel {}", l.kernel))?;
        // Arguments are read as a C struct: aligned.
        let mut args = vec![0u64; l.args.len().div_ceil(8)];
        for (word, bytes) in args.iter_mut().zip(l.args.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(whole);
        }
        let mut parameters = [args.as_mut_ptr().cast::<c_void>()];
        let (grid, block) = ((l.grid[0], l.grid[1], 1), (l.block, 1, 1));
        // SAFETY: the kernel takes this one struct, declared from the same Rust type; the driver copies it before the call
        // returns; addresses in it lie in the arenas by the plan's check.
        unsafe { result::launch_kernel(function, grid, block, l.shared, stream, &mut parameters) }
            .map_err(|e| failed(l.kernel, e))
    }

    /// Puts a product on the stream. A bias that cuBLASLt does not add at this shape is added by a kernel.
    fn multiply(&mut self, g: &Gemm) -> Result<(), String> {
        let main = self.main;
        let products = self.products.as_mut().ok_or("cuBLASLt is not loaded")?;
        match products.launch(g, main) {
            Err(_) if g.bias != 0 => {
                products.launch(&Gemm { bias: 0, ..*g }, main)?;
                matmul::add_bias(g).iter().try_for_each(|l| self.launch(l, main))
            }
            done => done,
        }
    }

    /// Returns the stream of a copy queue.
    pub(super) fn queue(&mut self, queue: u32) -> Result<sys::CUstream, DriverError> {
        if let Some(stream) = self.copies.get(&queue) {
            return Ok(*stream);
        }
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking)?;
        self.copies.insert(queue, stream);
        Ok(stream)
    }

    /// Returns an event that all work put on a stream so far comes before.
    pub(super) fn mark(stream: sys::CUstream) -> Result<sys::CUevent, DriverError> {
        let event = result::event::create(sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING)?;
        // SAFETY: event and stream are live.
        unsafe { result::event::record(event, stream) }.map(|()| event)
    }

    /// Makes a stream wait for a mark, which ends here.
    pub(super) fn follow(stream: sys::CUstream, event: sys::CUevent) -> Result<(), DriverError> {
        // SAFETY: event and stream are live. An event may be destroyed while work waits for it; while recording it only
        // stands for an edge of the graph.
        unsafe {
            let flags = sys::CUevent_wait_flags_enum::CU_EVENT_WAIT_DEFAULT;
            result::stream::wait_event(stream, event, flags)?;
            result::event::destroy(event)
        }
    }

    /// Puts one step on the streams.
    pub(super) fn put(&mut self, step: &Step, running: &mut Running<'_>) -> Result<(), String> {
        match step {
            Step::Launch(l) => self.launch(l, self.main),
            Step::Gemm(g) => self.multiply(g),
            Step::Fork { queue, from, to, bytes } => {
                let copy = |stream| {
                    // SAFETY: both ranges lie in the arenas by the plan's check, which are mapped for the card.
                    unsafe { sys::cuMemcpyAsync(*to, *from, *bytes as usize, stream) }.result()
                };
                let main = self.main;
                let put = |stream| {
                    Card::follow(stream, Card::mark(main)?)?;
                    copy(stream)?;
                    Card::mark(stream)
                };
                let end = self.queue(*queue).and_then(put).map_err(|e| failed("copying", e))?;
                running.ends.insert(*to, end);
                Ok(())
            }
            Step::Exchange(exchange) => self.exchange(exchange, running),
            Step::Join { to } => {
                let end = running.ends.remove(to).ok_or("a copy is waited for that was not started")?;
                Card::follow(self.main, end).map_err(|e| failed("waiting for a copy", e))
            }
        }
    }

    fn capture(&mut self, steps: &[Step]) -> Result<sys::CUgraph, (usize, String)> {
        let whole = |e| (steps.len(), failed("recording a program", e));
        // Relaxed: kernels of libraries may be loaded while recording.
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream is live and not recording.
        unsafe { result::stream::begin_capture(self.main, mode) }.map_err(whole)?;
        let mut running = Running::default();
        let fault =
            steps.iter().enumerate().find_map(|(i, s)| self.put(s, &mut running).err().map(|e| (i, e)));
        // SAFETY: the stream is recording.
        let graph = unsafe { result::stream::end_capture(self.main) };
        match (fault, graph) {
            (None, graph) => graph.map_err(whole),
            (Some(fault), graph) => {
                if let Ok(graph) = graph {
                    // SAFETY: just recorded, used by nothing.
                    let _ = unsafe { result::graph::destroy(graph) };
                }
                Err(fault)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::Exchange;

    fn fork(queue: u32, to: u64) -> Step {
        Step::Fork { queue, from: 0, to, bytes: 1 }
    }

    #[test]
    fn only_copies_across_exchanges_and_those_of_their_queue_are_alone() {
        let join = |to| Step::Join { to };
        let exchange = Step::Exchange(Exchange { queue: 9, token: 99, what: "x".into(), work: Vec::new() });
        let steps = [
            fork(0, 1),
            join(1),
            fork(1, 2),
            exchange,
            fork(0, 3),
            join(3),
            join(99),
            join(2),
            fork(1, 4),
            join(4),
        ];
        let expected = [false, false, true, true, false, false, true, true, true, true];
        assert_eq!(alone(&steps), expected);
        assert_eq!(alone(&[fork(0, 1), join(1)]), [false, false]);
    }
}
