//! A planned program on a slot, as steps with final addresses.

use crate::bind::{Here, Io, Tensor};
use crate::driver::{Arenas, OLDEST};
use crate::step::Step;
use crate::{ops, together};
use ambitus_exec::executor::{ExecError, plan_error};
use ambitus_ir::plan::{Address, PlannedProgram, PlannedSession, Region};
use ambitus_ir::{Instr, TensorType, ValueId};

/// Returns the address of a place on a slot.
pub(crate) fn address(planned: &PlannedSession, arenas: Arenas, at: Address, slot: usize) -> u64 {
    let arena = if at.region == Region::Host { arenas.host } else { arenas.device };
    arena + planned.base(at.region, slot) + at.offset
}

/// Returns the steps of a program on a slot in the order in which a card takes them, each with the number of its instruction, or of
/// the first of those that one launch carries out.
pub(crate) fn in_order(
    planned: &PlannedSession,
    p: &PlannedProgram,
    arenas: Arenas,
    (slot, here): (usize, Here),
) -> Result<Vec<(usize, Step)>, ExecError> {
    let instrs = &p.program.instrs;
    let ios: Vec<Io> = (0..instrs.len()).map(|i| io(planned, p, arenas, (slot, here), i)).collect();
    let mut all = Vec::new();
    for group in together::groups(instrs, &ios) {
        let first = group[0];
        let of: Vec<Io> = group.iter().map(|i| ios[*i].clone()).collect();
        let steps = ops::bind_all(&instrs[first].op, &of).map_err(|what| plan_error(p, first, &what))?;
        all.extend(steps.into_iter().map(|step| (first, step)));
    }
    Ok(all)
}

/// Returns how many kernels, products and copies a card is asked for when a program of a plan runs once; no card is needed to know.
///
/// # Errors
/// An instruction that cannot run where it is planned.
pub fn launches(planned: &PlannedSession, p: &PlannedProgram) -> Result<usize, ExecError> {
    let arenas = Arenas { device: TensorType::ALIGN, host: planned.arena_bytes().next_power_of_two() };
    let here = Here { rank: 0, ranks: 1, capability: OLDEST };
    let all = in_order(planned, p, arenas, (0, here))?;
    Ok(all.iter().filter(|(_, step)| !matches!(step, Step::Join { .. })).count())
}

/// Returns the steps of every instruction of a program on a slot.
pub(crate) fn steps(
    planned: &PlannedSession,
    p: &PlannedProgram,
    arenas: Arenas,
    slot: usize,
    here: Here,
) -> Result<Vec<Vec<Step>>, ExecError> {
    let of_one = |(i, instr): (usize, &Instr)| {
        let io = io(planned, p, arenas, (slot, here), i);
        ops::bind(&instr.op, &io).map_err(|what| plan_error(p, i, &what))
    };
    p.program.instrs.iter().enumerate().map(of_one).collect()
}

/// Returns what instruction `i` of a program works on, on a slot.
pub(crate) fn io(
    planned: &PlannedSession,
    p: &PlannedProgram,
    arenas: Arenas,
    (slot, here): (usize, Here),
    i: usize,
) -> Io {
    let instr = &p.program.instrs[i];
    let tensor =
        |v: &ValueId| Tensor { at: address(planned, arenas, p.place(*v), slot), ty: p.program.ty(*v) };
    let workspace = p.workspaces.get(i).copied().flatten();
    Io {
        x: instr.inputs.iter().map(tensor).collect(),
        y: instr.outputs.iter().map(tensor).collect(),
        workspace: workspace.map_or(0, |at| address(planned, arenas, at, slot)),
        workspace_bytes: workspace.map_or(0, |at| at.bytes),
        here,
        path: instr.origin.path.clone(),
    }
}
