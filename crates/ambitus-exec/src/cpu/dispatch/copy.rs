//! Copies between the arena and the host's, in memory or on disk. All bytes move, pads included.

use super::{Resolved, kernel};
use crate::cpu::core_ops::elementwise;
use crate::cpu::disk::{bytes, bytes_mut};
use crate::cpu::executor::AsyncMode;
use crate::cpu::operand::{Frame, In, Io, Out};
use ambitus_ir::TensorType;

/// Returns the start of a copy of operand 0 to result 0; of a store, on the bytes of operand 1.
pub fn start(mut io: Io, copies: AsyncMode) -> Resolved {
    let (x, mut y) = (io.x(0)?, if io.operands() > 1 { io.donated(1, 0)? } else { io.y(0) });
    match copies {
        AsyncMode::Early => kernel(move |f| copy(f, &x, &mut y)),
        AsyncMode::Late => kernel(|_| ()),
    }
}

/// Returns the end of either.
pub fn done(mut io: Io, copies: AsyncMode) -> Resolved {
    let (x, mut y) = (io.x(0)?, io.donated(1, 0)?);
    match copies {
        AsyncMode::Early => kernel(|_| ()),
        AsyncMode::Late => kernel(move |f| copy(f, &x, &mut y)),
    }
}

fn copy(f: &Frame<'_>, x: &In, y: &mut Out) {
    let n = y.ty().bytes() as usize;
    match (f.disk, x.on_host(), y.on_host()) {
        (Some(disk), Some(at), None) => disk.fetch(at, &mut bytes_mut(y.data(f))[..n]),
        (Some(disk), None, Some(at)) => disk.store(at, &bytes(x.data(f))[..n]),
        _ => {
            // As words, whatever the elements are.
            let (x, y) = (x.data(f), y.data(f));
            elementwise::map(f.pool, TensorType::f32(&[x.len()]), Some(x), y, |x| x);
        }
    }
}
