//! The file of loss and gradients, whichever ranks hold them.

use ambitus_comm::{Communicator, staging};
use ambitus_compile::passes::accumulate::GRAD;
use ambitus_compile::passes::shard::Layout;
use ambitus_exec::executor::Executor;
use ambitus_families::error::RunError;
use ambitus_ir::plan::PlannedSession;
use ambitus_ir::{StateId, StateKind};
use ambitus_store::{DType, SafetensorsWriter, TensorSpec};
use std::path::Path;
use std::sync::Arc;

/// Who has the gradients.
pub enum Gathered<'a> {
    /// One rank.
    Alone,
    /// Ranks that share them.
    Shared(Holders<'a>),
    /// Ranks that each have those of a part of the model, by their sessions.
    Placed(&'a [Arc<PlannedSession>], &'a dyn Communicator),
}

/// The ranks that hold one copy together: the first `ranks` of all.
pub struct Holders<'a> {
    /// What lies where.
    pub layout: &'a Layout,
    /// How many they are.
    pub ranks: usize,
    /// What connects them.
    pub comm: &'a dyn Communicator,
}

/// `read(first, values)` gives a tensor's values from the first on.
type Read<'r> = dyn Fn(usize, &mut [f32]) -> Result<(), RunError> + 'r;

/// Hands values that rank `owner` reads to rank 0; the others pass.
fn hand_over(
    comm: &dyn Communicator,
    what: &str,
    owner: usize,
    values: &mut [f32],
    read: &Read<'_>,
) -> Result<(), RunError> {
    let rank = comm.rank();
    if rank != 0 && rank != owner {
        return Ok(());
    }
    let most = (staging(comm.ranks()) / 4).min(values.len()).max(1);
    let (mut mine, mut both) = (vec![0u8; 4 * most], vec![0u8; 8 * most]);
    for (k, part) in values.chunks_mut(most).enumerate() {
        if rank == owner {
            read(k * most, part)?;
        }
        if owner == 0 {
            continue;
        }
        let n = part.len();
        if rank == owner {
            let bytes = mine.as_chunks_mut().0.iter_mut();
            bytes.zip(part.iter()).for_each(|(b, x)| *b = x.to_le_bytes());
        }
        let both = &mut both[..8 * n];
        comm.all_gather(what, &[0, owner], &mine[..4 * n], both)?;
        if rank == 0 {
            let bytes = both[4 * n..].as_chunks().0.iter();
            part.iter_mut().zip(bytes).for_each(|(x, b)| *x = f32::from_le_bytes(*b));
        }
    }
    Ok(())
}

impl Holders<'_> {
    /// Gathers elements `at..` of a state that lies across the holders, `held` on each, on rank 0; the others hand in theirs.
    fn read(
        &self,
        exec: &dyn Executor,
        state: StateId,
        held: usize,
        at: usize,
        values: &mut [f32],
    ) -> Result<(), RunError> {
        let name = &exec.planned().session.states[state.0 as usize].name;
        for k in 0..self.ranks {
            let (from, to) = ((k * held).max(at), ((k + 1) * held).min(at + values.len()));
            if from < to {
                let read = |first: usize, part: &mut [f32]| {
                    Ok(exec.read_state_at(state, from + first - k * held, part)?)
                };
                hand_over(self.comm, name, k, &mut values[from - at..to - at], &read)?;
            }
        }
        Ok(())
    }
}

/// A gradient of a file: its tensor, the rank that has all of it or shares it with others, the state there, and where it begins.
struct Gradient {
    spec: TensorSpec,
    owner: usize,
    state: StateId,
    at: usize,
}

impl Gathered<'_> {
    /// Returns every gradient, whichever rank holds it.
    fn all(&self, exec: &dyn Executor) -> Vec<Gradient> {
        let mut out = Vec::new();
        let sessions: Vec<&PlannedSession> = match self {
            Gathered::Placed(parts, _) => parts.iter().map(|p| &**p).collect(),
            _ => vec![exec.planned()],
        };
        for (owner, planned) in sessions.into_iter().enumerate() {
            let states = planned.session.states.iter().enumerate();
            for (i, s) in states.filter(|(_, s)| s.kind == StateKind::Gradient) {
                let state = StateId(i as u32);
                let flat = match self {
                    Gathered::Shared(holders) => {
                        s.name.strip_prefix(GRAD).and_then(|name| holders.layout.flat(name))
                    }
                    _ => None,
                };
                let of = |name: &str, shape: &[usize], at| Gradient {
                    spec: TensorSpec::new(name, DType::F32, shape),
                    owner,
                    state,
                    at,
                };
                match flat {
                    None => out.push(of(&s.name, &s.ty.shape, 0)),
                    Some(flat) => {
                        let tensors = flat.tensors.iter();
                        out.extend(tensors.map(|t| of(&format!("{GRAD}{}", t.name), &t.shape, t.at)));
                    }
                }
            }
        }
        out
    }

    /// Reads a gradient's values, for the rank that writes.
    fn read(&self, exec: &dyn Executor, g: &Gradient, values: &mut [f32]) -> Result<(), RunError> {
        match self {
            Gathered::Alone => Ok(exec.read_state_at(g.state, g.at, values)?),
            Gathered::Shared(holders) => {
                let held = exec.planned().session.states[g.state.index()].ty.shape.elements();
                holders.read(exec, g.state, held, g.at, values)
            }
            Gathered::Placed(_, comm) => {
                let read = |first: usize, part: &mut [f32]| Ok(exec.read_state_at(g.state, first, part)?);
                hand_over(*comm, &g.spec.name, g.owner, values, &read)
            }
        }
    }

    /// Returns whether this is the rank that writes.
    fn writes(&self) -> bool {
        match self {
            Gathered::Alone => true,
            Gathered::Shared(Holders { comm, .. }) | Gathered::Placed(_, comm) => comm.rank() == 0,
        }
    }
}

/// Writes losses, what was traced of clips, and gradients; these are `scale` times too large in the executor. Of several ranks, which all
/// call it, rank 0 writes.
///
/// # Errors
/// From the disk and the executor, and ranks that are gone.
pub fn write(
    exec: &dyn Executor,
    who: &Gathered<'_>,
    losses: &[(String, f64)],
    traced: &[(String, Vec<i64>)],
    scale: f32,
    out: &Path,
) -> Result<(), RunError> {
    let gradients = who.all(exec);
    let mut specs: Vec<TensorSpec> = gradients.iter().map(|g| g.spec.clone()).collect();
    specs.extend(losses.iter().map(|(name, _)| TensorSpec::new(name, DType::F32, &[1])));
    specs.extend(traced.iter().map(|(name, rows)| TensorSpec::new(name, DType::I64, &[rows.len()])));
    // The order of the file, on every rank.
    specs.sort_by(|a, b| a.name.cmp(&b.name));
    let create = || SafetensorsWriter::create(out, specs.clone(), &Default::default());
    let mut writer = who.writes().then(create).transpose()?;
    let mut values = Vec::new();
    for spec in &specs {
        if let Some((name, rows)) = traced.iter().find(|(name, _)| *name == spec.name) {
            if let Some(writer) = &mut writer {
                writer.write_i64(name, rows)?;
            }
            continue;
        }
        values.resize(spec.shape.iter().product(), 0.0);
        if let Some(g) = gradients.iter().find(|g| g.spec.name == spec.name) {
            who.read(exec, g, &mut values)?;
            values.iter_mut().for_each(|x| *x /= scale);
        } else if let Some((_, loss)) = losses.iter().find(|(name, _)| *name == spec.name) {
            values.fill(*loss as f32);
        }
        if let Some(writer) = &mut writer {
            writer.write_f32(&spec.name, &values)?;
        }
    }
    writer.map(SafetensorsWriter::finish).transpose()?;
    Ok(())
}
