//! The package's `convert_char_to_pinyin`.

use std::sync::OnceLock;

use jieba_rs::Jieba;

/// Changes whenever the tokens of some text may change.
pub(super) const VERSION: &str = "jieba-rs 0.11";

/// Splits text into the package's tokens. The dictionary (about 5 MB of text) is loaded at first use.
#[derive(Default)]
pub(super) struct Segmenter {
    jieba: OnceLock<Jieba>,
}

impl Segmenter {
    pub(super) fn tokens(&self, text: &str) -> Vec<String> {
        let text: String = text
            .chars()
            .map(|c| match c {
                ';' => ',',
                '“' | '”' => '"',
                '‘' | '’' => '\'',
                c => c,
            })
            .collect();
        let mut out: Vec<String> = Vec::new();
        for token in self.jieba.get_or_init(Jieba::new).cut(&text, true) {
            let segment = token.word;
            if segment.is_ascii() {
                let glued = out
                    .last()
                    .is_some_and(|last| !matches!(last.as_str(), " " | ":" | "'" | "\""));
                if segment.len() > 1 && glued {
                    out.push(" ".into());
                }
            }
            out.extend(segment.chars().map(String::from));
        }
        out
    }
}
