//! Asynchronous copies between spaces: two instructions on a named queue. Operand and result are in use from start to done;
//! planners must treat the whole stretch as live. Nothing else reads or writes the host's space.

use super::attr::words;
use super::{Moves, OpDef, Props, arity, op, want};
use crate::builder::Builder;
use crate::program::ValueId;
use crate::tensor::{DType, TensorType};

words! {
    /// Where a value's bytes are.
    Space {
        /// the executor's arena
        Device = "device",
        /// the host arena
        Host = "host",
    }
}

op! {
    /// Starts copying x: results (y like x in space `to`, a queue token u8 `[1]`). y may be read after the done only.
    CopyStart = "copy_start" {
        /// queue that runs copies in order
        queue: u32,
        /// space of the result
        to: Space,
    }
}

impl OpDef for CopyStart {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 1)?;
        Ok(vec![x[0], TensorType::new(DType::U8, &[1])])
    }

    fn props(&self) -> Props {
        Props::START
    }

    fn moves(&self, _: &[TensorType], y: &[TensorType]) -> Option<Moves> {
        Some(Moves::Host(y[0].bytes() as f64))
    }

    fn flops(&self, _: &[TensorType], _: &[TensorType]) -> f64 {
        0.0
    }

    fn queue(&self) -> Option<u32> {
        Some(self.queue)
    }

    fn reaches_host(&self) -> bool {
        true
    }

    fn makes_in(&self) -> Space {
        self.to
    }
}

op! {
    /// Starts copying x over the value of a state in the host's space: (x, that value); results (y, x's bytes on the
    /// state's, a queue token u8 `[1]`). y may be read after the done only.
    StoreStart = "store_start" {
        /// queue that runs copies in order
        queue: u32,
    }
}

impl OpDef for StoreStart {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 2)?;
        want(x[0] == x[1], "takes a value and the state's value of its type")?;
        Ok(vec![x[0], TensorType::new(DType::U8, &[1])])
    }

    fn props(&self) -> Props {
        Props::START
    }

    fn moves(&self, _: &[TensorType], y: &[TensorType]) -> Option<Moves> {
        Some(Moves::Host(y[0].bytes() as f64))
    }

    fn flops(&self, _: &[TensorType], _: &[TensorType]) -> f64 {
        0.0
    }

    fn donates(&self) -> Vec<(usize, usize)> {
        vec![(1, 0)]
    }

    fn queue(&self) -> Option<u32> {
        Some(self.queue)
    }

    fn reaches_host(&self) -> bool {
        true
    }

    fn makes_in(&self) -> Space {
        Space::Host
    }
}

op! {
    /// Ends a copy: (x, y, token) of its start; the result is y, ready, on the same bytes. Naming x keeps it in place
    /// until here.
    CopyDone = "copy_done" {
        /// queue of the start
        queue: u32,
    }
}

impl OpDef for CopyDone {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        arity(x, 3)?;
        want(x[0] == x[1] && x[2].dtype == DType::U8, "takes the copied value, its copy and the token")?;
        Ok(vec![x[1]])
    }

    fn props(&self) -> Props {
        Props::DONE
    }

    fn flops(&self, _: &[TensorType], _: &[TensorType]) -> f64 {
        0.0
    }

    fn donates(&self) -> Vec<(usize, usize)> {
        vec![(1, 0)]
    }

    fn queue(&self) -> Option<u32> {
        Some(self.queue)
    }

    fn reaches_host(&self) -> bool {
        true
    }
}

impl Builder<'_> {
    /// Starts a copy of `x`; returns (copy, token).
    pub fn copy_start(&mut self, x: ValueId, queue: u32, to: Space) -> (ValueId, ValueId) {
        let out = self.push(CopyStart { queue, to }, &[x]);
        (out[0], out[1])
    }
    /// Starts a copy of `x` over `old`, the value of a state in the host's space; returns (copy, token).
    pub fn store_start(&mut self, x: ValueId, old: ValueId, queue: u32) -> (ValueId, ValueId) {
        let out = self.push(StoreStart { queue }, &[x, old]);
        (out[0], out[1])
    }
    /// Waits for a copy of `x`; returns it ready.
    pub fn copy_done(&mut self, x: ValueId, copy: (ValueId, ValueId), queue: u32) -> ValueId {
        self.push1(CopyDone { queue }, &[x, copy.0, copy.1])
    }
}
