//! The thread pool and its one way to run tasks.

use super::Isa;
use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A fixed set of threads, and the instruction set that kernels run on them use.
#[derive(Debug)]
pub struct Pool {
    threads: usize,
    isa: Isa,
    /// None for one thread: tasks run on the caller.
    inner: Option<ThreadPool>,
}

impl Pool {
    /// Returns a pool of `threads` threads (0 counts as 1) with the best instruction set of this processor.
    pub fn new(threads: usize) -> Result<Self, ThreadPoolBuildError> {
        Self::with_isa(threads, Isa::best())
    }

    /// Returns a pool of `threads` threads (0 counts as 1) with a chosen instruction set.
    pub fn with_isa(threads: usize, isa: Isa) -> Result<Self, ThreadPoolBuildError> {
        let threads = threads.max(1);
        let inner = match threads {
            1 => None,
            n => Some(
                ThreadPoolBuilder::new().num_threads(n).thread_name(|i| format!("ambitus-{i}")).build()?,
            ),
        };
        Ok(Self { threads, isa, inner })
    }

    /// Returns the number of threads.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Returns the instruction set kernels use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Runs `body` on a thread of the pool. Kernels called inside skip the hand-over from a foreign thread, so an executor wraps a
    /// whole program in one call.
    pub fn enter<R: Send>(&self, body: impl FnOnce() -> R + Send) -> R {
        match &self.inner {
            None => body(),
            Some(pool) => pool.install(body),
        }
    }

    /// Runs `task(0)..task(tasks - 1)`, each once, in any order and on any thread. Allocates nothing itself.
    pub fn run(&self, tasks: usize, task: impl Fn(usize) + Sync) {
        self.run_with(tasks, |i, _| task(i));
    }

    /// Runs `task(i, worker)` for every task, where `worker` is a number below `threads` that no other running task has (to find
    /// its own scratch). See [`Pool::run`].
    pub fn run_with(&self, tasks: usize, task: impl Fn(usize, usize) + Sync) {
        match &self.inner {
            Some(pool) if tasks > 1 => {
                let next = AtomicUsize::new(0);
                let workers = self.threads.min(tasks);
                let pull = |worker: usize| {
                    loop {
                        let i = next.fetch_add(1, Ordering::Relaxed);
                        if i >= tasks {
                            break;
                        }
                        task(i, worker);
                    }
                };
                spread(pool, workers, &pull);
            }
            _ => (0..tasks).for_each(|i| task(i, 0)),
        }
    }
}

/// Runs `pull(w)` for w below `workers` on the pool. Not generic, as [`fan_out`] is not: for each closure of a kernel, rayon's part would be
/// compiled again.
fn spread(pool: &ThreadPool, workers: usize, pull: &(dyn Fn(usize) + Sync)) {
    pool.install(|| fan_out(0, workers, pull));
}

/// Calls `pull(w)` for w in `first..first + count` through a tree of joins. Worker numbers are distinct, so two that run at once
/// never share one; when no thread steals a branch it runs later and finds nothing left.
fn fan_out(first: usize, count: usize, pull: &(dyn Fn(usize) + Sync)) {
    if count <= 1 {
        pull(first);
    } else {
        let half = count / 2;
        rayon::join(|| fan_out(first, half, pull), || fan_out(first + half, count - half, pull));
    }
}

/// A mutable slice that tasks share and write in disjoint pieces.
#[derive(Clone, Copy)]
pub struct DisjointMut<'a, T = f32> {
    ptr: *mut T,
    len: usize,
    life: std::marker::PhantomData<&'a mut [T]>,
}

// SAFETY: the only access is `slice`, whose contract forbids overlapping live pieces.
unsafe impl<T: Send> Send for DisjointMut<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for DisjointMut<'_, T> {}

impl<'a, T> DisjointMut<'a, T> {
    /// Takes the slice over for as long as pieces of it are used.
    pub fn new(data: &'a mut [T]) -> Self {
        Self { ptr: data.as_mut_ptr(), len: data.len(), life: std::marker::PhantomData }
    }

    /// Returns the first element.
    pub(super) fn as_ptr(&self) -> *mut T {
        self.ptr
    }

    /// Returns the piece `start..start + len`; panics outside the slice.
    ///
    /// # Safety
    /// No other piece that is alive at the same time may overlap it.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn slice(&self, start: usize, len: usize) -> &'a mut [T] {
        assert!(start <= self.len && len <= self.len - start, "piece outside the slice");
        // SAFETY: inside the slice by the assertion, exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(start), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once() {
        for threads in [1, 2, 5] {
            let pool = Pool::new(threads).unwrap();
            for tasks in [0, 1, 2, 7, 100] {
                let mut out = vec![0.0; tasks];
                let shared = DisjointMut::new(&mut out);
                pool.run_with(tasks, |i, worker| {
                    assert!(worker < threads);
                    // SAFETY: one element per task.
                    unsafe { shared.slice(i, 1)[0] += 1.0 + i as f32 };
                });
                assert!(out.iter().enumerate().all(|(i, &v)| v == 1.0 + i as f32));
            }
        }
    }
}
