//! A part of a long table, where all of it takes too long for every change.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns whether long tables are tried whole: `AMBITUS_LONG` is set, as `.ci/long` does.
pub fn is_long() -> bool {
    std::env::var_os("AMBITUS_LONG").is_some()
}

/// Returns one in `of` of a table, drawn anew each time; all of it where [`is_long`].
pub fn drawn<T>(all: impl IntoIterator<Item = T>, of: usize) -> Vec<T> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().subsec_nanos() as usize;
    let (of, long) = (of.max(1), is_long());
    all.into_iter().enumerate().filter(|(i, _)| long || i % of == now % of).map(|(_, x)| x).collect()
}
