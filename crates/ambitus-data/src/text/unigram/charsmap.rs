//! SentencePiece's table of replacements (`precompiled_charsmap`): a trie of what is replaced, then what it becomes, each ended by a 0.

use tokenizers::normalizers::Precompiled;

/// Largest table, bytes. That of NFKC has 240 kB.
pub(super) const MAX_CHARSMAP: usize = 4 << 20;
/// Longest replacement of one or a few characters, bytes. The longest of NFKC has 33 (U+FDFA).
pub(super) const MAX_REPLACEMENT: usize = 40;

/// Returns the table, whose replacements are short: so a text grows by a fixed factor at most.
pub(super) fn charsmap(bytes: &[u8]) -> Result<Precompiled, String> {
    if bytes.len() > MAX_CHARSMAP {
        return Err(format!("a table of replacements of {} bytes, more than {MAX_CHARSMAP}", bytes.len()));
    }
    let broken = || "its table of replacements is broken".to_owned();
    let (length, rest) = bytes.split_first_chunk::<4>().ok_or_else(broken)?;
    // The package makes room for as much as this says.
    let trie = u32::from_le_bytes(*length) as usize;
    if trie == 0 || !trie.is_multiple_of(4) || trie > rest.len() {
        return Err(broken());
    }
    if rest[trie..].split(|b| *b == 0).any(|replacement| replacement.len() > MAX_REPLACEMENT) {
        return Err(format!("a replacement of more than {MAX_REPLACEMENT} bytes"));
    }
    Precompiled::from(bytes).map_err(|_| broken())
}
