//! Transfers: one rank sends a value to another. Like collectives, each is two instructions on a named queue, of which
//! [`CollectiveDone`](super::collective::CollectiveDone) is the second; unlike in collectives, ranks run programs of their
//! own, and the two ends stand in two of them.
//!
//! Ranks that exchange have their transfers in the same order: the k-th that one sends to another is the k-th that the other
//! gets from it. So a transfer needs no name.

use super::attr::{Attr, words};
use super::{Moves, OpDef, Props, arity, bytes, op, want};
use crate::builder::Builder;
use crate::program::ValueId;
use crate::tensor::{DType, Shape, TensorType};

/// Queue of transfers, both ways: they happen in order.
pub const TRANSFER: u32 = 4;

words! {
    /// Which end of a transfer a rank is.
    End {
        /// it sends an operand, and gets nothing
        Send = "send",
        /// it has no operand, and gets a result
        Receive = "receive",
        /// both, of a rank alone: a copy
        Both = "both",
    }
}

/// From which rank to which, of how many; shown as `0>1/2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// The rank that sends.
    pub from: usize,
    /// The rank that gets.
    pub to: usize,
    /// Ranks in all.
    pub ranks: usize,
}

impl Route {
    /// Returns the ranks of a route, ascending.
    pub fn members(&self) -> [usize; 2] {
        [self.from.min(self.to), self.from.max(self.to)]
    }
}

impl Attr for Route {
    fn show(&self) -> String {
        format!("{}>{}/{}", self.from, self.to, self.ranks)
    }
    fn read(s: &str) -> Option<Self> {
        let (ends, ranks) = s.split_once('/')?;
        let (from, to) = ends.split_once('>')?;
        let route = Route { from: from.parse().ok()?, to: to.parse().ok()?, ranks: ranks.parse().ok()? };
        (route.from.max(route.to) < route.ranks).then_some(route)
    }
}

op! {
    /// Starts sending a value to another rank, or getting one from it. The end that sends has the operand, of the type
    /// `dtype` and `shape`; the end that gets has such a result before the queue token u8 `[1]`, to be read after the done only.
    TransferStart = "transfer_start" {
        /// queue that runs transfers in order
        queue: u32,
        /// the ranks
        route: Route,
        /// which of them this is
        end: End,
        /// element type of what is sent
        dtype: DType,
        /// its axes
        shape: Shape,
    }
}

impl TransferStart {
    /// Of a value of type `ty`.
    pub fn new(route: Route, end: End, ty: TensorType) -> TransferStart {
        TransferStart { queue: TRANSFER, route, end, dtype: ty.dtype, shape: ty.shape }
    }

    /// Returns the type of what is sent.
    pub fn ty(&self) -> TensorType {
        TensorType::new(self.dtype, &self.shape)
    }

    /// Returns the rank that runs this end; either of [`End::Both`].
    pub fn rank(&self) -> usize {
        if self.end == End::Receive { self.route.to } else { self.route.from }
    }
}

impl OpDef for TransferStart {
    fn infer(&self, x: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let Route { from, to, .. } = self.route;
        want((self.end == End::Both) == (from == to), "a rank alone is both ends, two ranks have one each")?;
        arity(x, usize::from(self.end != End::Receive))?;
        let ty = self.ty();
        if let Some(x) = x.first() {
            want(*x == ty, format_args!("{x} is not {ty}"))?;
        }
        let token = TensorType::new(DType::U8, &[1]);
        Ok(if self.end == End::Send { vec![token] } else { vec![ty, token] })
    }

    fn props(&self) -> Props {
        Props::START
    }

    fn moves(&self, x: &[TensorType], _: &[TensorType]) -> Option<Moves> {
        Some(match self.end {
            End::Both => Moves::Device(bytes(x)),
            End::Send | End::Receive => Moves::Route(self.route, self.ty().bytes() as f64),
        })
    }

    fn flops(&self, _: &[TensorType], _: &[TensorType]) -> f64 {
        0.0
    }

    fn queue(&self) -> Option<u32> {
        Some(self.queue)
    }
}

impl Builder<'_> {
    /// This rank's end of a transfer, waiting for it at once: of `x` where it sends. The result where it gets one.
    pub fn transfer(&mut self, op: TransferStart, x: Option<ValueId>) -> Option<ValueId> {
        let (queue, members) = (op.queue, if op.end == End::Both { 1 } else { 2 });
        let x: Vec<ValueId> = x.into_iter().collect();
        let made = self.push(op, &x);
        self.collective_done(queue, members, &x, &made).pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_read_back_and_bad_ones_do_not() {
        let route = Route { from: 2, to: 0, ranks: 3 };
        assert_eq!((route.show().as_str(), Route::read("2>0/3")), ("2>0/3", Some(route)));
        assert_eq!(route.members(), [0, 2]);
        for bad in ["", "0>1", "0/2", "0>2/2", "2>0/2", "->1/2", "0>1/0", "0>1/2/3"] {
            assert_eq!(Route::read(bad), None, "{bad}");
        }
    }

    #[test]
    fn ends_have_what_they_send_and_get() {
        let (ty, token) = (TensorType::f32(&[3, 40]), TensorType::new(DType::U8, &[1]));
        let end = |end, to| TransferStart::new(Route { from: 0, to, ranks: 2 }, end, ty);
        assert_eq!(end(End::Send, 1).infer(&[ty]), Ok(vec![token]));
        assert_eq!(end(End::Receive, 1).infer(&[]), Ok(vec![ty, token]));
        assert_eq!(end(End::Both, 0).infer(&[ty]), Ok(vec![ty, token]));
        assert_eq!((end(End::Send, 1).rank(), end(End::Receive, 1).rank()), (0, 1));
        for (end, x) in [
            (end(End::Send, 1), vec![]),
            (end(End::Receive, 1), vec![ty]),
            (end(End::Send, 1), vec![token]),
            (end(End::Both, 1), vec![ty]),
            (end(End::Send, 0), vec![ty]),
        ] {
            assert!(end.infer(&x).is_err(), "{end:?} of {x:?}");
        }
    }
}
