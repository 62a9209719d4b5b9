//! Ranks that are threads, each with an interpreter: what one sends waits until the other takes it.

use super::core::Data;
use crate::tensor::Tensor;
use ambitus_ir::ops::collective::{AllGatherStart, ReduceScatterStart};
use ambitus_ir::ops::transfer::End;
use ambitus_ir::{Op, TensorType};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// A rank that waits longer waits for one that has failed.
const PATIENCE: Duration = Duration::from_secs(120);

/// What is on its way, by the ranks that send and get it, in order.
#[derive(Default)]
pub struct World {
    sent: Mutex<HashMap<(usize, usize), VecDeque<Data>>>,
    more: Condvar,
}

impl World {
    fn send(&self, from: usize, to: usize, data: Data) {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        sent.entry((from, to)).or_default().push_back(data);
        self.more.notify_all();
    }

    /// # Panics
    /// When nothing comes.
    fn take(&self, from: usize, to: usize) -> Data {
        let sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        let nothing = |sent: &mut HashMap<(usize, usize), VecDeque<Data>>| {
            sent.get(&(from, to)).is_none_or(VecDeque::is_empty)
        };
        let waited = self.more.wait_timeout_while(sent, PATIENCE, nothing);
        let (mut sent, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let data = sent.get_mut(&(from, to)).and_then(VecDeque::pop_front);
        data.unwrap_or_else(|| panic!("rank {to} waits for rank {from} in vain"))
    }

    /// Starts an exchange, which is over at once; `None` for other ops, and where there is one rank.
    pub(super) fn run(&self, rank: usize, op: &Op, x: &[Rc<Tensor>], y: &[TensorType]) -> Option<Vec<Data>> {
        match op {
            Op::AllGatherStart(op) if op.mesh.ranks > 1 => Some(self.gather(rank, op, x, y)),
            Op::ReduceScatterStart(op) if op.mesh.ranks > 1 => Some(self.reduce(rank, op, x, y)),
            Op::TransferStart(op) if op.end == End::Send => {
                self.send(op.route.from, op.route.to, x[0].data.clone());
                Some(vec![vec![0.0]])
            }
            Op::TransferStart(op) if op.end == End::Receive => {
                Some(vec![self.take(op.route.from, op.route.to), vec![0.0]])
            }
            _ => None,
        }
    }

    fn gather(&self, rank: usize, op: &AllGatherStart, x: &[Rc<Tensor>], y: &[TensorType]) -> Vec<Data> {
        let members = op.mesh.members(op.group, rank);
        members.iter().for_each(|to| self.send(rank, *to, x[0].data.clone()));
        let whole: Data = members.iter().flat_map(|from| self.take(*from, rank)).collect();
        let tensors = op.parts.0.iter().map(|p| whole[p.at..][..p.shape.elements()].to_vec());
        tensors.chain([vec![0.0; y[y.len() - 1].shape.elements()]]).collect()
    }

    /// Sums in the order of ranks, in fp32.
    fn reduce(&self, rank: usize, op: &ReduceScatterStart, x: &[Rc<Tensor>], y: &[TensorType]) -> Vec<Data> {
        let n = y[0].shape.elements();
        let mut flat = vec![0.0; n * op.mesh.ranks];
        for (part, t) in op.parts.0.iter().zip(x) {
            flat[part.at..][..t.data.len()].copy_from_slice(&t.data);
        }
        for to in 0..op.mesh.ranks {
            self.send(rank, to, flat[op.mesh.piece_of(to) * n..][..n].to_vec());
        }
        let mut sum = self.take(0, rank);
        for from in 1..op.mesh.ranks {
            let add = |(sum, x): (&mut f64, f64)| *sum = f64::from((*sum + x) as f32);
            sum.iter_mut().zip(self.take(from, rank)).for_each(add);
        }
        vec![sum, vec![0.0]]
    }
}
