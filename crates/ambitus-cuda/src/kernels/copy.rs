//! Copies between the device's and the host's space: no kernels, the card's queues do them.

use crate::bind::{Io, Steps};
use crate::step::Step;

pub(crate) fn start(queue: u32, io: &Io) -> Steps {
    let (from, to) = (io.x[0].at, io.y[0].at);
    Ok(vec![Step::Fork { queue, from, to, bytes: io.y[0].ty.bytes() }])
}

pub(crate) fn done(io: &Io) -> Steps {
    Ok(vec![Step::Join { to: io.y[0].at }])
}
