//! What may be written next where times are written: the package's rules (`decoding.py`, 20250625).

use super::tokens::Tokens;

/// The latest first time, 1 s, in steps of 20 ms.
const LATEST_FIRST: u32 = 50;

/// Makes impossible what may not follow `new`, the tokens that were written so far of a window.
///
/// Times come in pairs, the end of one segment and the beginning of the next; they never decrease, and a segment has a length. The first
/// token is a time. Where all times together are likelier than any text, a time follows.
pub(super) fn apply(tokens: &Tokens, logits: &mut [f32], new: &[u32]) {
    let (times, eot) = (tokens.times as usize, tokens.eot as usize);
    let never = |logits: &mut [f32]| logits.fill(f32::NEG_INFINITY);
    logits[tokens.no_timestamps as usize] = f32::NEG_INFINITY;
    let is_time = |id: &u32| *id >= tokens.times;
    let last = new.last().is_some_and(is_time);
    let before = new.len() < 2 || is_time(&new[new.len() - 2]);
    match (last, before) {
        (true, true) => never(&mut logits[times..]),
        (true, false) => never(&mut logits[..eot]),
        (false, _) => {}
    }
    if let Some(time) = new.iter().rev().find(|id| is_time(id)) {
        let from = *time as usize + usize::from(!last || before);
        never(&mut logits[times..from]);
    }
    if new.is_empty() {
        never(&mut logits[..times]);
        let past = (tokens.times + LATEST_FIRST + 1) as usize;
        if past < logits.len() {
            never(&mut logits[past..]);
        }
    }
    let (text, of_times) = logits.split_at(times);
    let high = of_times.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let all = high + of_times.iter().map(|x| (x - high).exp()).sum::<f32>().ln();
    if high > f32::NEG_INFINITY && text.iter().all(|x| *x < all) {
        never(&mut logits[..times]);
    }
}

/// Returns the logarithm of the sum of e to the power of logits.
pub(super) fn log_sum(logits: &[f32]) -> f64 {
    let high = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    high + logits.iter().map(|x| (f64::from(*x) - high).exp()).sum::<f64>().ln()
}
