//! Long texts in pieces that a model speaks one at a time.

/// What ends a sentence or a part of it where white space follows.
const NARROW: [char; 6] = [';', ':', ',', '.', '!', '?'];
/// What ends one in any case.
const WIDE: [char; 6] = ['；', '：', '，', '。', '！', '？'];

/// Cuts a text at punctuation into pieces of at most `most` bytes, as few as follow one another: `chunk_text` of the
/// package whose vectors are in `parity/`. A sentence of more bytes, which the package leaves whole, is cut at spaces, and a word of more between
/// characters. White space alone is no piece.
pub fn chunks(text: &str, most: usize) -> Vec<String> {
    let mut pieces: Vec<String> = Vec::new();
    let mut piece = String::new();
    for sentence in sentences(text).into_iter().flat_map(|s| within(s, most)) {
        if !piece.is_empty() && piece.len() + sentence.len() > most {
            pieces.push(std::mem::take(&mut piece));
        }
        piece.push_str(sentence);
        if sentence.chars().next_back().is_some_and(|c| c.is_ascii()) {
            piece.push(' ');
        }
    }
    pieces.push(piece);
    pieces.iter().map(|p| p.trim().to_owned()).filter(|p| !p.is_empty()).collect()
}

/// Splits after wide punctuation, and after narrow punctuation at white space, which is left out.
fn sentences(text: &str) -> Vec<&str> {
    let (mut out, mut start, mut before) = (Vec::new(), 0, ' ');
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        if c.is_whitespace() && NARROW.contains(&before) {
            out.push(&text[start..at]);
            start = at + c.len_utf8();
            while let Some((at, c)) = chars.next_if(|(_, c)| c.is_whitespace()) {
                start = at + c.len_utf8();
            }
        } else if WIDE.contains(&c) {
            let end = at + c.len_utf8();
            out.push(&text[start..end]);
            start = end;
        }
        before = c;
    }
    out.push(&text[start..]);
    out
}

/// Cuts a sentence of more than `most` bytes: after the last space that fits, else after the last character that does.
fn within(mut sentence: &str, most: usize) -> Vec<&str> {
    let mut out = Vec::new();
    while sentence.len() > most {
        let ends = sentence.char_indices().map(|(at, c)| at + c.len_utf8());
        let fits = ends.take_while(|end| *end <= most).last();
        let fits = fits.unwrap_or_else(|| sentence.chars().next().map_or(sentence.len(), char::len_utf8));
        let end = sentence[..fits].rfind(char::is_whitespace).filter(|at| *at > 0).unwrap_or(fits);
        out.push(&sentence[..end]);
        sentence = sentence[end..].trim_start();
    }
    out.push(sentence);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded from the package.
    #[test]
    fn pieces_are_the_packages() {
        let text = "Hello there. How are you, friend? Fine; ok.";
        assert_eq!(chunks(text, 20), ["Hello there.", "How are you, friend?", "Fine; ok."]);
        assert_eq!(chunks("你好。你好吗？  好", 12), ["你好。", "你好吗？", "好"]);
        assert_eq!(chunks("你好。你好吗？好", 100), ["你好。你好吗？好"]);
        assert_eq!(chunks("a.b c. d", 100), ["a.b c. d"]);
        assert_eq!(chunks("  \n ", 5), Vec::<String>::new());
    }

    #[test]
    fn no_piece_is_longer_and_no_word_is_lost() {
        let long = "word ".repeat(5000) + &"x".repeat(100) + "你好".repeat(30).as_str();
        for most in [1, 2, 7, 40, 200] {
            let pieces = chunks(&long, most);
            // A character may be wider than the limit.
            assert!(pieces.iter().all(|p| p.len() <= most.max(3)), "{most}");
            let all = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
            assert_eq!(all(&pieces.concat()), all(&long), "{most}");
        }
    }
}
