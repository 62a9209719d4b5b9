//! Which bias each pair of a query and a key has: T5's relative positions (Raffel et al., arXiv 1910.10683, section 2.1).

use std::ops::Range;

/// Buckets of the table of biases: half of them for keys at or before the query.
pub const BUCKETS: usize = 32;
/// The distance up to which buckets grow (`relative_attention_max_distance`).
pub const FARTHEST: usize = 128;
/// In place of a bucket: the query does not see the key.
pub const UNSEEN: i32 = BUCKETS as i32;

/// Distances that have a bucket of their own.
const EXACT: usize = 8;

/// Returns the bucket of a key at `key` for a query at `query`.
///
/// With n = |key - query|: n below 8, then min(15, 8 + floor(8 ln(n / 8) / ln(128 / 8))) = min(15, 8 + floor(log2(n² / 64))); and 16 more
/// for keys after the query.
pub fn bucket(query: usize, key: usize) -> usize {
    let n = query.abs_diff(key);
    let by_distance = if n < EXACT {
        n
    } else {
        // Beyond, the square says nothing more, and would overflow.
        let n = n.min(FARTHEST);
        (EXACT + (n * n / (EXACT * EXACT)).ilog2() as usize).min(BUCKETS / 2 - 1)
    };
    by_distance + if key > query { BUCKETS / 2 } else { 0 }
}

/// Fills `pairs` `[U * U]`, the buckets of all keys of each query, for texts that lie in these rows. A query sees the keys of its own
/// text; a row of no text sees itself, so that every row sees something.
///
/// # Panics
/// When `pairs` is not U * U long, or a text ends past row U: that is a bug of the caller.
pub fn fill(tokens: usize, texts: &[Range<usize>], pairs: &mut [i32]) {
    assert_eq!(pairs.len(), tokens * tokens);
    pairs.fill(UNSEEN);
    (0..tokens).for_each(|i| pairs[i * tokens + i] = bucket(i, i) as i32);
    for text in texts {
        for query in text.clone() {
            for key in text.clone() {
                pairs[query * tokens + key] = bucket(query, key) as i32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first distance of each bucket from 8 on, as `T5Attention._relative_position_bucket` gives them (transformers 4.57.6).
    const FIRST: [usize; 8] = [8, 12, 16, 23, 32, 46, 64, 91];

    #[test]
    fn buckets_are_transformers() {
        for n in 0..=300 {
            let want = if n < 8 { n } else { 7 + FIRST.iter().filter(|first| **first <= n).count() };
            assert_eq!(bucket(n, 0), want, "{n} back");
            let ahead = if n == 0 { 0 } else { want + 16 };
            assert_eq!(bucket(500, 500 + n), ahead, "{n} ahead");
            // The formula of the paper's code, away from its steps, where it depends on rounding.
            let x = 8.0 * (n as f64 / 8.0).ln() / 16f64.ln();
            if n >= 8 && (x - x.round()).abs() > 1e-9 {
                assert_eq!(want, 15.min(8 + x.floor() as usize), "{n}");
            }
        }
        assert_eq!([bucket(0, usize::MAX), bucket(usize::MAX, 0)], [31, 15]);
    }

    #[test]
    fn texts_see_themselves_alone() {
        let mut pairs = [7; 25];
        fill(5, &[0..2, 2..4], &mut pairs);
        let no = UNSEEN;
        let want = [
            [0, 17, no, no, no],
            [1, 0, no, no, no],
            [no, no, 0, 17, no],
            [no, no, 1, 0, no],
            [no, no, no, no, 0],
        ];
        assert_eq!(pairs, *want.as_flattened());
    }
}
