//! Counts of what is in a tokenizer's file, before anything of it is built.

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// Entries of an object or a list.
pub(super) struct Count(pub(super) u64);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Counter;
        impl<'de> Visitor<'de> for Counter {
            type Value = Count;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object or a list")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Count, A::Error> {
                let mut count = 0;
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                    count += 1;
                }
                Ok(Count(count))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Count, A::Error> {
                let mut count = 0;
                while list.next_element::<IgnoredAny>()?.is_some() {
                    count += 1;
                }
                Ok(Count(count))
            }
        }
        deserializer.deserialize_any(Counter)
    }
}

/// Added tokens, and bytes of their spellings.
#[derive(Default)]
pub(super) struct Added {
    pub(super) tokens: u64,
    pub(super) bytes: u64,
}

/// Memory of each added token, and of each byte of it: a state of the automaton that finds them. Measured by tests.
const MEMORY_PER_ADDED: u64 = 400;
const MEMORY_PER_ADDED_BYTE: u64 = 200;

impl Added {
    /// Returns these and more.
    pub(super) fn and(&self, more: &Added) -> Added {
        Added { tokens: self.tokens + more.tokens, bytes: self.bytes + more.bytes }
    }

    /// Returns the bound on the memory that they take, bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        MEMORY_PER_ADDED * self.tokens + MEMORY_PER_ADDED_BYTE * self.bytes
    }
}

impl<'de> Deserialize<'de> for Added {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Token<'a> {
            #[serde(borrow)]
            content: &'a RawValue,
        }
        struct Summer;
        impl<'de> Visitor<'de> for Summer {
            type Value = Added;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a list of tokens")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Added, A::Error> {
                let mut added = Added::default();
                while let Some(token) = list.next_element::<Token<'de>>()? {
                    added.tokens += 1;
                    added.bytes += token.content.get().len() as u64;
                }
                Ok(added)
            }
        }
        deserializer.deserialize_seq(Summer)
    }
}
