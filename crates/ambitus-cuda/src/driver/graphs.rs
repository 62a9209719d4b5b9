//! Programs on the card: steps are put on streams while these record, and replayed as a CUDA graph.

use super::exchange::Running;
use super::{Card, device_error, failed};
use crate::kernels::matmul;
use crate::step::{Gemm, Launch, Step};
use ambitus_exec::executor::ExecError;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use std::ffi::c_void;
use std::time::Instant;

/// A program as a CUDA graph.
pub struct Graph {
    exec: sys::CUgraphExec,
    context: sys::CUcontext,
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

    /// Runs a recorded program to its end.
    ///
    /// # Errors
    /// When the card fails.
    pub fn replay(&mut self, graph: &Graph) -> Result<(), ExecError> {
        self.enter().map_err(|e| device_error("entering the context", e))?;
        // SAFETY: graph and stream are live.
        unsafe {
            result::graph::launch(graph.exec, self.main).and_then(|()| result::stream::synchronize(self.main))
        }
        .map_err(|e| device_error("running a program", e))
    }

    /// Returns the seconds of one run of `steps`, as part of a graph that repeats them for about a millisecond.
    ///
    /// # Errors
    /// When the card fails.
    pub(crate) fn time(&mut self, steps: &[Step]) -> Result<f64, ExecError> {
        /// How long a measurement should last, seconds: far above a graph's launch.
        const LONG: f64 = 1e-3;
        const MOST: usize = 256;
        // The start of a copy and the wait for it belong to different instructions; alone, a copy is timed with its wait.
        let mut whole: Vec<Step> =
            steps.iter().filter(|s| !matches!(s, Step::Join { .. })).cloned().collect();
        let waits: Vec<Step> = steps
            .iter()
            .filter_map(|s| match s {
                Step::Fork { to, .. } => Some(Step::Join { to: *to }),
                Step::Exchange(exchange) => Some(Step::Join { to: exchange.token }),
                _ => None,
            })
            .collect();
        whole.extend(waits);
        if whole.is_empty() {
            return Ok(0.0);
        }
        let mut run = |n: usize| -> Result<f64, ExecError> {
            let many: Vec<Step> = whole.iter().cycle().take(n * whole.len()).cloned().collect();
            let graph = self.record(&many).map_err(|(_, why)| ExecError::Device(why))?;
            self.replay(&graph)?;
            let start = Instant::now();
            self.replay(&graph)?;
            Ok(start.elapsed().as_secs_f64() / n as f64)
        };
        let once = run(1)?;
        run(((LONG / once) as usize).clamp(2, MOST))
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
        unsafe { result::launch_kernel(function, grid, block, 0, stream, &mut parameters) }
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

    /// Records steps and drops them: what the card would refuse is refused now, and libraries load what they need.
    ///
    /// # Errors
    /// Steps that the card refuses, by index.
    pub(crate) fn rehearse(&mut self, steps: &[Step]) -> Result<(), (usize, String)> {
        let whole = |e| (steps.len(), failed("recording a program", e));
        self.enter().map_err(whole)?;
        let graph = self.capture(steps)?;
        // SAFETY: just recorded, used by nothing.
        unsafe { result::graph::destroy(graph) }.map_err(whole)
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
