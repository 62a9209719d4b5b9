//! What the plans of a search share.

use crate::budget::{Draft, Shape};
use crate::session::{SessionOptions, Stem};
use crate::threads::THREADS;
use ambitus_compile::plan::Heights;
use ambitus_families::error::RunError;
use ambitus_ir::target::{Packed, Target};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Stems that are kept: the first, from which those of other sizes are made, and the latest that each thread works on.
const KEPT: usize = 1 + THREADS;

/// Stems by options, of one model.
pub struct Stems<'t> {
    pub(crate) target: &'t dyn Target,
    known: Mutex<Vec<(SessionOptions, Arc<Stem>)>>,
    pub(crate) heights: Heights,
}

impl<'t> Stems<'t> {
    pub(crate) fn of(target: &'t dyn Target) -> Stems<'t> {
        Stems { target, known: Mutex::default(), heights: Heights::default() }
    }

    /// Compiles a shape from its stem, and keeps that for others.
    pub fn draft(&self, shape: Shape) -> Result<Draft, RunError> {
        let known = self.find(&shape.session);
        let stem = match known {
            Some(stem) => stem,
            None => {
                let stem = Arc::new(self.stem(&shape)?);
                let mut known = self.known();
                if known.len() == KEPT {
                    known.remove(1);
                }
                known.push((shape.session.clone(), stem.clone()));
                stem
            }
        };
        Draft::from_stem(shape, (*stem).clone(), self.target)
    }

    /// Compiles the last shape, for which no other stem has to stay. See [`Stems::draft`].
    pub fn into_draft(self, shape: Shape) -> Result<Draft, RunError> {
        let stem = self.find(&shape.session);
        let target = self.target;
        drop(self);
        match stem {
            Some(stem) => Draft::from_stem(shape, Arc::unwrap_or_clone(stem), target),
            None => Draft::new(shape, target),
        }
    }

    /// Compiles one of many sizes, each tried once: keeps only the stem of the first. See [`Stems::draft`].
    pub fn draft_of_size(&self, shape: Shape) -> Result<Draft, RunError> {
        let stem = self.stem(&shape)?;
        if self.known().is_empty() {
            self.known().push((shape.session.clone(), Arc::new(stem.clone())));
        }
        Draft::from_stem(shape, stem, self.target)
    }

    /// Returns the stem of a shape, from that of another size where there is one.
    fn stem(&self, shape: &Shape) -> Result<Stem, RunError> {
        let packed = &Packed { target: self.target, rows: shape.clip_rows };
        let capacities: Vec<_> = self.known().iter().map(|(options, _)| options.capacity).collect();
        let of = |capacity| self.find(&SessionOptions { capacity, ..shape.session.clone() });
        let other_size = capacities.into_iter().find_map(of);
        Ok(Stem::new(&*shape.model, &shape.session, packed, other_size.as_deref())?)
    }

    fn find(&self, session: &SessionOptions) -> Option<Arc<Stem>> {
        self.known().iter().find(|(options, _)| options.has_stem_of(session)).map(|(_, stem)| stem.clone())
    }

    fn known(&self) -> MutexGuard<'_, Vec<(SessionOptions, Arc<Stem>)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
