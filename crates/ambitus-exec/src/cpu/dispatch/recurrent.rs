//! Layers that read rows one after another.

use super::{Resolved, kernel};
use crate::cpu::kernels as k;
use crate::cpu::operand::Io;

pub fn lstm(mut io: Io) -> Resolved {
    let (x, w, h, c, seg) = (io.x(0)?, io.x(1)?, io.x(2)?, io.x(3)?, io.x(4)?);
    let (mut y, mut new_h, mut new_c, mut ws) = (io.y(0), io.y(1), io.y(2), io.ws());
    kernel(move |f| {
        let (x, w, start, seg) = (x.mat(f), w.mat(f), [h.mat(f), c.mat(f)], seg.ints(f));
        k::lstm(f.pool, x, w, start, seg, y.mat(f), [new_h.mat(f), new_c.mat(f)], ws.data(f));
    })
}
