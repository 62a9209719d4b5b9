//! Lifetimes: from a program to the stretches of memory that it needs and when.
//!
//! The instant of instruction i is i. A value lives from the instruction that makes it to its last reader; operands and
//! results of one instruction live together. Values that must share bytes (donation) or may (the last reader of one makes
//! the other, and the target can overwrite) are one stretch.

use super::problem::Buffer;
use ambitus_ir::ops::copy::Space;
use ambitus_ir::target::Target;
use ambitus_ir::{Program, TensorType, ValueId};

/// Where a value lies, before offsets are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// On the bytes of `program.states[k]`.
    State(usize),
    /// On the host input `program.inputs[k]`.
    Input(usize),
    /// On the host output `program.outputs[k]`.
    Output(usize),
    /// On transient stretch k.
    Device(usize),
    /// On stretch k of the host arena.
    Host(usize),
}

/// All stretches of one program.
#[derive(Debug, Default)]
pub struct Lifetimes {
    /// By value.
    pub homes: Vec<Option<Home>>,
    /// Stretches of the transient region: values first, then workspaces.
    pub device: Vec<Buffer>,
    /// The first value of each value stretch.
    pub first_value: Vec<ValueId>,
    /// The stretch of each instruction's workspace.
    pub workspaces: Vec<Option<usize>>,
    /// Stretches of the host arena.
    pub host: Vec<Buffer>,
}

fn buffer(ty: TensorType, at: u32) -> Buffer {
    Buffer { first: at, last: at, size: ty.bytes(), align: TensorType::ALIGN }
}

/// Computes all stretches of a verified program.
pub fn lifetimes(p: &Program, target: &dyn Target) -> Lifetimes {
    let end = p.instrs.len() as u32;
    let mut last_use = vec![0u32; p.types.len()];
    for (i, instr) in p.instrs.iter().enumerate() {
        instr.inputs.iter().for_each(|v| last_use[v.index()] = i as u32);
    }
    let mut out = Lifetimes { homes: vec![None; p.types.len()], ..Lifetimes::default() };
    let mut read_by_host = vec![None; p.types.len()];
    for (k, o) in p.outputs.iter().enumerate() {
        read_by_host[o.value.index()].get_or_insert(k);
        last_use[o.value.index()] = end;
    }
    for (k, s) in p.states.iter().enumerate() {
        out.homes[s.enters.index()] = Some(Home::State(k));
    }
    for (k, i) in p.inputs.iter().enumerate() {
        out.homes[i.value.index()] = Some(Home::Input(k));
    }

    for (i, instr) in p.instrs.iter().enumerate() {
        let at = i as u32;
        let def = instr.op.def();
        let (donates, may_share) = (def.donates(), def.may_share());
        let mut taken = Vec::new();
        for (o, v) in instr.outputs.iter().enumerate() {
            let ty = p.ty(*v);
            let given = donates.iter().find(|(_, to)| *to == o).map(|(from, _)| instr.inputs[*from]);
            if let Some(from) = given {
                out.homes[v.index()] = out.homes[from.index()];
                continue;
            }
            if let Some(k) = read_by_host[v.index()] {
                out.homes[v.index()] = Some(Home::Output(k));
                continue;
            }
            if o == 0 && def.makes_in() == Space::Host {
                out.homes[v.index()] = Some(Home::Host(out.host.len()));
                out.host.push(buffer(ty, at));
                continue;
            }
            let shared = may_share.iter().filter(|(_, to)| *to == o).find_map(|&(from, _)| {
                let x = instr.inputs[from];
                let Some(Home::Device(k)) = out.homes[x.index()] else {
                    return None;
                };
                let alone = instr.inputs.iter().filter(|y| **y == x).count() == 1;
                let fits = p.ty(x).bytes() == ty.bytes() && last_use[x.index()] == at;
                (alone && fits && !taken.contains(&k) && target.shares(&instr.op, from, o)).then_some(k)
            });
            let k = shared.unwrap_or(out.device.len());
            if shared.is_none() {
                out.device.push(buffer(ty, at));
                out.first_value.push(*v);
            }
            taken.push(k);
            out.homes[v.index()] = Some(Home::Device(k));
        }
        for v in instr.inputs.iter().chain(&instr.outputs) {
            let stretch = match out.homes[v.index()] {
                Some(Home::Device(k)) => &mut out.device[k],
                Some(Home::Host(k)) => &mut out.host[k],
                _ => continue,
            };
            stretch.last = stretch.last.max(at);
        }
    }
    let (mut x, mut y) = (Vec::new(), Vec::new());
    for (i, instr) in p.instrs.iter().enumerate() {
        p.signature_into(instr, &mut x, &mut y);
        let size = target.workspace(&instr.op, &x, &y);
        out.workspaces.push((size > 0).then(|| {
            let at = i as u32;
            // What runs alongside the instructions up to its done, which is the last to name its token, keeps its scratch.
            let beside = instr.op.def().props().starts && target.copies_beside();
            let done = instr.outputs.last().filter(|_| beside).map_or(at, |token| last_use[token.index()]);
            out.device.push(Buffer { first: at, last: done.max(at), size, align: TensorType::ALIGN });
            out.device.len() - 1
        }));
    }
    out
}
