//! The known word nearest to an unknown one.

/// Longest word that is compared.
const MOST: usize = 64;

/// Returns the nearest of `known` by letters changed, added and left out, where that is near at all.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.chars().count() > MOST {
        return None;
    }
    let allowed = (word.chars().count() / 2).min(3);
    let with_distance = known.into_iter().map(|k| (distance(word, k), k));
    with_distance.min().filter(|(d, _)| *d <= allowed).map(|(_, k)| k)
}

/// Returns the least number of insertions, deletions and replacements from one to the other (Levenshtein).
pub fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let change = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = change.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
