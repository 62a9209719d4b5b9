//! What the gate takes of a test that has more cases than a change needs: the long part, with `AMBITUS_LONG=1`, takes all of them.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns whether tests take all of their cases.
pub fn long() -> bool {
    std::env::var_os("AMBITUS_LONG").is_some()
}

/// Returns every `of`th of the cases, from one of the first `of`, drawn anew each time; all of them where tests are [`long`].
pub fn share<T>(cases: impl IntoIterator<Item = T>, of: usize) -> Vec<T> {
    let cases = cases.into_iter();
    if long() {
        return cases.collect();
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").subsec_nanos() as usize;
    cases.skip(now / 1000 % of).step_by(of).collect()
}
