//! Texts that a use of a clip may have in place of its description: with words left out, and with metadata, as audiocraft makes them
//! while it trains (`augment_music_info_description` and `T5Conditioner.tokenize` of 1.3.0). Each is drawn once, by its number and what is
//! told of the clip, so that its states can be kept.

use ambitus_data::sources::Entry;
use ambitus_ir::ops::random::philox4x32_10;

/// Stream of the generator.
const TEXTS: u32 = 6;

/// How texts are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Drawn {
    /// Texts of a clip; 0: the description alone.
    pub count: usize,
    /// Share of words that are left out.
    pub word_dropout: f64,
    /// Share of texts that have metadata.
    pub merge: f64,
    /// Of those, the share without the description.
    pub drop_description: f64,
    /// Share of metadata that such a text has.
    pub keep_metadata: f64,
}

impl Drawn {
    /// Returns a text of a clip; empty if nothing is left of it.
    pub fn text(&self, entry: &Entry, number: usize) -> String {
        let description = entry.description.as_deref().map(str::trim).filter(|text| !text.is_empty());
        let told = entry.fields.iter().flat_map(|(name, value)| [&**name, value]);
        let mut draws = Draws::new(description.into_iter().chain(told), number);
        let mut text = description.unwrap_or_default().to_owned();
        if self.merge > 0.0 {
            let (mut metadata, mut description) = (Vec::new(), description);
            if draws.next() < self.merge {
                let kept = entry.fields.iter().filter(|_| draws.next() < self.keep_metadata);
                metadata = kept.map(|(name, value)| format!("{name}: {value}")).collect();
                for i in (1..metadata.len()).rev() {
                    metadata.swap(i, (draws.next() * (i + 1) as f64) as usize);
                }
                description = description.filter(|_| draws.next() >= self.drop_description);
            }
            let metadata = metadata.join(". ");
            // A description ends in a period there, whether something follows it or not.
            text = match description {
                Some(said) => format!("{}. {metadata}", said.trim_end_matches('.')).trim().to_owned(),
                None => metadata,
            };
        }
        let words = text.split(' ').filter(|_| draws.next() >= self.word_dropout);
        words.collect::<Vec<_>>().join(" ")
    }
}

/// Numbers in 0..1 that follow from a text and a number.
struct Draws {
    key: [u32; 2],
    number: u32,
    drawn: u32,
}

impl Draws {
    fn new<'a>(told: impl Iterator<Item = &'a str>, number: usize) -> Draws {
        let mut hash = blake3::Hasher::new();
        told.for_each(|part| {
            hash.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
        });
        let hash = hash.finalize();
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| hash.as_bytes()[at + i]));
        Draws { key: [word(0), word(4)], number: number as u32, drawn: 0 }
    }

    fn next(&mut self) -> f64 {
        let counter = [self.drawn, self.number, 0, TEXTS];
        self.drawn += 1;
        super::clips::unit(philox4x32_10(counter, self.key)[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ambitus_data::sources::Audio;

    fn entry(description: Option<&str>, fields: &[(&str, &str)]) -> Entry {
        Entry {
            name: "a".to_owned(),
            audio: Audio::File("a.wav".into()),
            text: String::new(),
            voice: None,
            description: description.map(str::to_owned),
            fields: fields.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            ids: Vec::new(),
            weight: 1.0,
            file: "a.txt".into(),
            line: 1,
        }
    }

    fn drawn(word_dropout: f64, merge: f64, drop_description: f64, keep_metadata: f64) -> Drawn {
        Drawn { count: 1000, word_dropout, merge, drop_description, keep_metadata }
    }

    const FIELDS: &[(&str, &str)] = &[("bpm", "90.0"), ("genre", "jazz"), ("moods", "calm, sad")];

    /// The forms that audiocraft's function gives for each outcome of its draws.
    #[test]
    fn outcomes_are_audiocrafts() {
        let all = entry(Some("A slow song."), FIELDS);
        assert_eq!(drawn(0.0, 0.0, 0.5, 0.5).text(&all, 3), "A slow song.");
        assert_eq!(drawn(1.0, 0.0, 0.0, 0.0).text(&all, 3), "");
        // Nothing of metadata is kept.
        assert_eq!(drawn(0.0, 1.0, 0.0, 0.0).text(&all, 0), "A slow song.");
        assert_eq!(drawn(0.0, 1.0, 0.0, 0.0).text(&entry(Some("A song"), FIELDS), 0), "A song.");
        assert_eq!(drawn(0.0, 1.0, 1.0, 0.0).text(&all, 0), "");
        let one = &FIELDS[1..2];
        assert_eq!(drawn(0.0, 1.0, 0.0, 1.0).text(&entry(Some("A song"), one), 0), "A song. genre: jazz");
        assert_eq!(drawn(0.0, 1.0, 1.0, 1.0).text(&entry(Some("A song"), one), 0), "genre: jazz");
        assert_eq!(drawn(0.0, 1.0, 0.0, 1.0).text(&entry(None, one), 0), "genre: jazz");
        assert_eq!(drawn(0.0, 1.0, 0.0, 1.0).text(&entry(None, &[]), 0), "");
    }

    #[test]
    fn shares_are_those_that_are_asked_for() {
        let all = entry(Some("one two three four"), FIELDS);
        let texts = |of: Drawn| (0..of.count).map(|i| of.text(&all, i)).collect::<Vec<_>>();
        let share = |texts: &[String], has: &dyn Fn(&str) -> bool| {
            texts.iter().filter(|text| has(text)).count() as f64 / texts.len() as f64
        };
        let words = texts(drawn(0.3, 0.0, 0.0, 0.0));
        let kept: usize = words.iter().map(|text| text.split(' ').filter(|w| !w.is_empty()).count()).sum();
        assert!((kept as f64 / 4000.0 - 0.7).abs() < 0.03, "{kept}");
        let merged = texts(drawn(0.0, 0.25, 0.5, 0.5));
        let metadata = share(&merged, &|text| text.contains(": "));
        // Of those that are merged, one in eight keeps nothing.
        assert!((metadata - 0.25 * 7.0 / 8.0).abs() < 0.04, "{metadata}");
        let without = share(&merged, &|text| !text.contains("one two"));
        assert!((without - 0.125).abs() < 0.03, "{without}");
        let orders: std::collections::BTreeSet<String> =
            texts(drawn(0.0, 1.0, 1.0, 1.0)).into_iter().collect();
        assert_eq!(orders.len(), 6, "every order of three");
        // The same every time, and other texts have other draws.
        assert_eq!(texts(drawn(0.3, 0.25, 0.5, 0.5)), texts(drawn(0.3, 0.25, 0.5, 0.5)));
        let other = entry(Some("one two three fivv"), FIELDS);
        let same = (0..100).filter(|i| {
            let of = drawn(0.5, 0.0, 0.0, 0.0);
            of.text(&all, *i).replace("four", "fivv") == of.text(&other, *i)
        });
        assert!(same.count() < 30);
    }
}
