//! Checks before the first update whether the disk has room for a run's checkpoints.

use crate::doctor::disk_free;
use crate::saved;
use ambitus_families::error::RunError;
use ambitus_ir::StateDecl;
use ambitus_plan::resolved::Resolved;
use ambitus_plan::session;
use ambitus_recipe::size::ByteSize;
use ambitus_store::CheckpointDir;

/// Compares the free space of the disk with the checkpoints that are still to be written, from `update` on. Returns a warning if
/// it is short of those that the recipe keeps.
///
/// # Errors
/// [`RunError::Full`] where not even one more fits.
pub(crate) fn check(r: &Resolved, dir: &CheckpointDir, update: u64) -> Result<Option<String>, RunError> {
    let left = r.updates.saturating_sub(update);
    let folder = dir.parent().ancestors().find(|folder| folder.is_dir());
    let (1.., Some(free)) = (left, folder.and_then(disk_free)) else { return Ok(None) };
    // The newest and the best, and the one that is written before an older one goes.
    let most = u64::from(r.recipe.keep.max(1)) + 2;
    let every = |n: u64| left.checked_div(n).unwrap_or(0);
    let gains = if r.recipe.stop.is_some() { every(r.recipe.validate_every) } else { 0 };
    let saves = every(r.recipe.save_every) + gains + 1;
    let there = dir.list()?.len() as u64;
    let more = most.saturating_sub(there).min(saves).max(1);
    let at = dir.parent().display();
    compare(bytes(r)?, more, free)
        .map_err(|why| RunError::Full(format!("{at}: {why}, or set run_dir on another disk")))
        .map(|said| said.map(|why| format!("{at}: {why}")))
}

/// Returns a warning if `free` is too little for `more` checkpoints of `bytes` each, an error if it is too little for one.
fn compare(bytes: u64, more: u64, free: u64) -> Result<Option<String>, String> {
    let (each, free_now) = (ByteSize(bytes), ByteSize(free));
    if bytes > free {
        return Err(format!("a checkpoint takes {each}, the disk has {free_now} free: free some space"));
    }
    let all = bytes.saturating_mul(more);
    Ok((all > free).then(|| {
        format!(
            "a checkpoint takes {each}, the run keeps and writes {more} more, the disk has {free_now} free: free {}, or set a \
             smaller `keep`",
            ByteSize(all - free)
        )
    }))
}

/// Returns the bytes of a checkpoint: what of all ranks' states it holds, each in its own type.
fn bytes(r: &Resolved) -> Result<u64, RunError> {
    let shape = &r.plan.shape;
    let states: Vec<StateDecl> = r.plan.whole().iter().flat_map(|p| p.session.states.clone()).collect();
    let layout = session::layout(&*shape.model, &shape.session)?;
    let states = layout.map_or_else(|| states.clone(), |layout| layout.tensors(&states));
    let saved = states.iter().filter(|s| saved::keeps(s.kind));
    Ok(saved.map(|s| (s.ty.shape.elements() * s.ty.dtype.size()) as u64).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_must_fit_and_all_should() {
        const MIB: u64 = 1 << 20;
        assert_eq!(compare(10 * MIB, 4, 40 * MIB), Ok(None));
        let said = compare(10 * MIB, 4, 33 * MIB).unwrap().unwrap();
        assert!(
            said.contains("takes 10 MiB") && said.contains("4 more") && said.contains("free 7"),
            "{said}"
        );
        assert!(compare(10 * MIB, 1, 10 * MIB - 1).unwrap_err().contains("free some space"));
        assert!(compare(u64::MAX / 2, u64::MAX, u64::MAX - 1).unwrap().is_some());
    }
}
