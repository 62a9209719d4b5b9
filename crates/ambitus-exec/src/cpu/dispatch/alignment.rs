//! The search for a text's alignment.

use super::{Resolved, kernel};
use crate::cpu::kernels as k;
use crate::cpu::operand::Io;

pub fn monotonic_path(mut io: Io) -> Resolved {
    let (z, mean, scale, base) = (io.x(0)?, io.x(1)?, io.x(2)?, io.x(3)?);
    let (frames, texts, mut path, mut ws) = (io.x(4)?, io.x(5)?, io.y(0), io.ws());
    kernel(move |f| {
        let of = k::Densities { mean: mean.mat(f), scale: scale.mat(f), base: base.vec(f) };
        k::monotonic_path(f.pool, z.mat(f), &of, frames.ints(f), texts.ints(f), path.vec(f), ws.data(f));
    })
}
