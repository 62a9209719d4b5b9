//! How much of a text has room on a terminal.

/// Between the parts of a progress line.
pub const SEPARATOR: &str = " · ";

/// Characters that take two columns, in blocks: also some that take one, so that no line is wider than it is thought to be.
const WIDE: [(char, char); 14] = [
    ('\u{1100}', '\u{115f}'),
    ('\u{231a}', '\u{23ff}'),
    ('\u{25fd}', '\u{27bf}'),
    ('\u{2b1b}', '\u{2b55}'),
    ('\u{2e80}', '\u{a4cf}'),
    ('\u{a960}', '\u{a97f}'),
    ('\u{ac00}', '\u{d7ff}'),
    ('\u{f900}', '\u{faff}'),
    ('\u{fe10}', '\u{fe6f}'),
    ('\u{ff01}', '\u{ff60}'),
    ('\u{ffe0}', '\u{ffe6}'),
    ('\u{16fe0}', '\u{18dff}'),
    ('\u{1aff0}', '\u{1b2ff}'),
    ('\u{1f000}', '\u{3ffff}'),
];

fn of_char(c: char) -> usize {
    1 + usize::from(WIDE.iter().any(|(first, last)| (*first..=*last).contains(&c)))
}

/// Returns the columns that a text takes, at most.
pub fn columns(text: &str) -> usize {
    text.chars().map(of_char).sum()
}

/// Returns a text without what a terminal would obey: control characters but line ends, and those that turn the direction of
/// writing. Names of files and clips are anybody's.
pub fn printable(text: &str) -> String {
    let turns = |c| matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let shown = |c: char| match c {
        '\t' => ' ',
        c if turns(c) || (c.is_control() && c != '\n') => '?',
        c => c,
    };
    text.chars().map(shown).collect()
}

/// Returns a line cut to `columns`, without the parts that have no room. The last column stays free: some terminals wrap when it is
/// written.
pub fn narrowed(line: &str, columns: usize) -> String {
    let (room, mut taken, mut out) = (columns.saturating_sub(1), 0, String::new());
    for c in line.chars() {
        taken += of_char(c);
        if taken > room {
            if let Some(end) = out.rfind(SEPARATOR) {
                out.truncate(end);
            }
            break;
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_narrow_terminal_gets_whole_parts() {
        let line = "update  12/200 · loss 0.5123 · 1 min 34 s left · 1840 frames/s";
        for columns in 1..100 {
            let shown = narrowed(line, columns);
            assert!(shown.chars().count() < columns.max(2), "{columns}: {shown}");
            let cut = line.strip_prefix(shown.as_str()).expect("its beginning");
            assert!(cut.is_empty() || cut.starts_with(SEPARATOR) || !shown.contains(SEPARATOR));
        }
        assert_eq!(narrowed(line, 60), "update  12/200 · loss 0.5123 · 1 min 34 s left");
    }

    #[test]
    fn characters_of_two_columns_count_twice() {
        assert_eq!(columns("preparing 声音か한글.wav"), 10 + 10 + 4);
        assert_eq!(columns("café · naïve"), 12);
        assert!(columns("🎵⏳✨") >= 6);
        // The one that has half a place is left out.
        assert_eq!([5, 4, 3, 2].map(|columns| narrowed("声音", columns)), ["声音", "声", "声", ""]);
    }

    #[test]
    fn names_give_a_terminal_no_orders() {
        assert_eq!(printable("a\u{1b}[2Jb\rc\u{7}\u{9b}1m\u{202e}d\te\nf声"), "a?[2Jb?c??1m?d e\nf声");
    }
}
