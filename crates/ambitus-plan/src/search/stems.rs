//! What the plans of a search share.

use crate::budget::{Draft, RunPlan, Shape};
use crate::session::{SessionOptions, Stem};
use crate::threads::THREADS;
use ambitus_compile::plan::{Heights, Solutions};
use ambitus_families::error::RunError;
use ambitus_ir::target::{Packed, Target};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Stems that are kept: the first, from which those of other sizes are made, and the latest that each thread works on.
const KEPT: usize = 1 + THREADS;
/// Stems that searches on several cards share.
const SHARED: usize = 8;
/// Solved arenas that they share: those of a few sessions.
const SOLVED: usize = 64;

/// What searches for one model share on targets with the same kernels.
pub struct Known {
    /// By options. Nothing of a target but its kernels is in a stem.
    stems: Mutex<Vec<(SessionOptions, Arc<Stem>)>>,
    /// How many are kept.
    most: usize,
    /// How many are kept of sizes that are each tried once.
    sizes: usize,
    solutions: Solutions,
}

impl Known {
    /// Returns nothing yet, for searches on several cards.
    pub fn shared() -> Arc<Known> {
        let (stems, solutions) = (Mutex::default(), Solutions::keeping(SOLVED));
        Arc::new(Known { stems, most: SHARED, sizes: SHARED, solutions })
    }
}

/// What the plans of a search on one target share.
pub struct Stems<'t> {
    pub(crate) target: &'t dyn Target,
    known: Arc<Known>,
    pub(crate) heights: Heights,
}

impl<'t> Stems<'t> {
    pub(crate) fn of(target: &'t dyn Target) -> Stems<'t> {
        let (stems, solutions) = (Mutex::default(), Solutions::default());
        Stems::sharing(target, Arc::new(Known { stems, most: KEPT, sizes: 1, solutions }))
    }

    /// Returns what a search starts with that shares with others.
    pub(crate) fn sharing(target: &'t dyn Target, known: Arc<Known>) -> Stems<'t> {
        Stems { target, known, heights: Heights::default() }
    }

    /// Compiles a shape from its stem, and keeps that for others.
    pub fn draft(&self, shape: Shape) -> Result<Draft, RunError> {
        let known = self.find(&shape.session);
        let stem = match known {
            Some(stem) => stem,
            None => {
                let stem = Arc::new(self.stem(&shape)?);
                let mut known = self.known();
                if known.len() == self.known.most {
                    known.remove(1);
                }
                known.push((shape.session.clone(), stem.clone()));
                stem
            }
        };
        Draft::from_stem(shape, (*stem).clone(), self.target)
    }

    /// Compiles and plans the last shape, for which no other stem has to stay. See [`Stems::draft`].
    pub fn into_plan(self, shape: Shape) -> Result<RunPlan, RunError> {
        let stem = self.find(&shape.session);
        // What nobody shares goes before the shape is compiled.
        if Arc::strong_count(&self.known) == 1 {
            self.known().clear();
        }
        let Stems { target, known, heights } = self;
        drop(heights);
        let draft = match stem {
            Some(stem) => Draft::from_stem(shape, Arc::unwrap_or_clone(stem), target),
            None => Draft::new(shape, target),
        };
        Ok(draft?.plan_sharing(target, &known.solutions))
    }

    /// Compiles one of many sizes, each tried once on a target: keeps only the stem of the first, unless others share them. See
    /// [`Stems::draft`].
    pub fn draft_of_size(&self, shape: Shape) -> Result<Draft, RunError> {
        if let Some(stem) = self.find(&shape.session) {
            return Draft::from_stem(shape, (*stem).clone(), self.target);
        }
        let stem = self.stem(&shape)?;
        if self.known().len() < self.known.sizes {
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
        self.known.stems.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
