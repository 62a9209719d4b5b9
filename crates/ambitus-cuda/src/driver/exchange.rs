//! Exchanges with other ranks: on a stream for each queue, and waiting for them with a watchdog.

use super::graphs::Piece;
use super::{Card, failed};
use crate::nccl::{Rank, Seen};
use crate::step::{Exchange, Work};
use ambitus_comm::CommError;
use ambitus_exec::executor::ExecError;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use std::collections::HashMap;
use std::sync::Arc;

/// A program on its way to the streams.
#[derive(Default)]
pub(super) struct Running<'r> {
    /// The end of every copy and exchange that is not joined yet, by its destination or token: what was put on its queue later
    /// is not waited for.
    pub ends: HashMap<u64, sys::CUevent>,
    /// What connects this rank with others; `None` while a program is recorded, which leaves out what travels.
    rank: Option<&'r Rank>,
    /// Exchanges that were put on their streams, in order.
    marks: Vec<Mark>,
    /// Why an exchange did not start.
    fault: Option<CommError>,
}

/// An exchange between its two events.
struct Mark {
    what: Arc<str>,
    begun: Event,
    ended: Event,
}

/// An event that is destroyed once.
struct Event(sys::CUevent);

impl Event {
    /// Returns whether all work before it is done.
    fn has_come(&self) -> Result<bool, DriverError> {
        // SAFETY: the event is live.
        come(unsafe { sys::cuEventQuery(self.0) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made by `Card::mark`, destroyed once; an event may be destroyed before it has come.
        let _ = unsafe { result::event::destroy(self.0) };
    }
}

/// Returns whether what was asked for is done, by the answer of a query.
pub(crate) fn come(said: sys::CUresult) -> Result<bool, DriverError> {
    match said {
        sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        said => said.result().map(|()| true),
    }
}

impl Card {
    /// Puts an exchange on its queue's stream.
    pub(super) fn exchange(&mut self, e: &Exchange, running: &mut Running<'_>) -> Result<(), String> {
        let named = |err: DriverError| failed(&format!("exchanging ({})", e.what), err);
        let stream = self.queue(e.queue).map_err(named)?;
        let main = self.main;
        Card::mark(main).and_then(|now| Card::follow(stream, now)).map_err(named)?;
        let begun = match running.rank {
            Some(_) if e.is_between_ranks() => Some(Event(Card::mark(stream).map_err(named)?)),
            _ => None,
        };
        for work in &e.work {
            match (work, running.rank) {
                (Work::Launch(l), _) => self.launch(l, stream)?,
                (Work::Zero { at, bytes }, _) => {
                    // SAFETY: the range lies in the arena by the plan's check.
                    unsafe { result::memset_d8_async(*at, 0, *bytes as usize, stream) }.map_err(named)?;
                }
                (Work::Copy { from, to, bytes }, _) => {
                    // SAFETY: as above.
                    unsafe { sys::cuMemcpyAsync(*to, *from, *bytes as usize, stream) }
                        .result()
                        .map_err(named)?;
                }
                (Work::Gather { .. } | Work::Messages(_), None) => {}
                (Work::Gather { from, to, bytes }, Some(rank)) => {
                    // SAFETY: the ranges lie in the arena by the plan's check, and stay as they are until the exchange is
                    // joined: operands, results and scratch live until the done.
                    let put = unsafe { rank.gather(&e.what, (*from, *to), *bytes, stream) };
                    put.map_err(|why| running.failed(why))?;
                }
                (Work::Messages(messages), Some(rank)) => {
                    // SAFETY: as above.
                    let put = unsafe { rank.messages(&e.what, messages, stream) };
                    put.map_err(|why| running.failed(why))?;
                }
            }
        }
        if let Some(begun) = begun {
            let ended = Event(Card::mark(stream).map_err(named)?);
            running.marks.push(Mark { what: e.what.clone(), begun, ended });
        }
        let end = Card::mark(stream).map_err(named)?;
        running.ends.insert(e.token, end);
        Ok(())
    }

    /// Runs a program to its end, watching over its exchanges.
    ///
    /// # Errors
    /// When the card fails, or another rank is gone or does not come; nothing can be exchanged afterwards.
    pub(crate) fn run(&mut self, pieces: &[Piece], rank: &Rank) -> Result<(), ExecError> {
        self.enter().map_err(|e| super::device_error("entering the context", e))?;
        let mut running = Running { rank: Some(rank), ..Running::default() };
        for piece in pieces {
            let put = match piece {
                Piece::Graph(graph) => self.start(graph).map_err(|e| failed("starting a program", e)),
                Piece::Step(step) => self.put(step, &mut running),
            };
            if let Err(what) = put {
                let fault = running.fault.take();
                // What is on its way reads and writes the arenas: without the other ranks it ends only so.
                rank.give_up();
                return Err(fault.map_or(ExecError::Device(what), ExecError::Ranks));
            }
        }
        let streams: Vec<sys::CUstream> = self.copies.values().chain([&self.main]).copied().collect();
        let waited = rank.wait(|| {
            // An exchange that has begun and not ended is what is waited for; before, this rank still computes.
            let over = running.marks.iter().position(|m| !matches!(m.ended.has_come(), Ok(true)));
            running.marks.drain(..over.unwrap_or(running.marks.len()));
            if let Some(first) = running.marks.first() {
                first.ended.has_come().map_err(|e| failed(&first.what, e))?;
                let begun = first.begun.has_come().map_err(|e| failed(&first.what, e))?;
                return Ok(if begun { Seen::Exchanges(first.what.clone()) } else { Seen::Computes });
            }
            for stream in &streams {
                // SAFETY: the streams are live.
                if !come(unsafe { sys::cuStreamQuery(*stream) })
                    .map_err(|e| failed("running a program", e))?
                {
                    return Ok(Seen::Computes);
                }
            }
            Ok(Seen::Over)
        });
        waited.map_err(ExecError::Ranks)
    }
}

impl Running<'_> {
    /// Keeps the cause as it is.
    fn failed(&mut self, why: CommError) -> String {
        let said = why.to_string();
        self.fault = Some(why);
        said
    }
}
