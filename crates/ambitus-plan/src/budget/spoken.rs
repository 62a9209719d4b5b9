//! What speech takes while a run trains, and the model that hears it.

use ambitus_data::SoundWriter;
use ambitus_families::speech::Speech;

/// Bytes of the host's memory that a model takes which hears what a run speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeardBytes {
    /// While it is planned.
    pub planning: u64,
    /// While it hears, besides what stays.
    pub hearing: u64,
    /// What of it stays.
    pub resting: u64,
}

/// Bytes of the host's memory that speech takes besides its programs' arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpokenBytes {
    /// While it is read.
    pub(super) reading: u64,
    /// While it speaks.
    pub(super) speaking: u64,
    /// While it is heard, besides what stays; 0 if nobody hears it.
    pub(super) hearing: u64,
    /// What of it stays.
    pub(super) resting: u64,
}

impl SpokenBytes {
    /// Returns the bytes of speech that is written to files, and then heard by a model that takes these.
    pub fn of(speech: &dyn Speech, heard: HeardBytes) -> SpokenBytes {
        SpokenBytes {
            reading: speech.read_bytes().max(match heard.planning {
                0 => 0,
                bytes => speech.resting_bytes() + bytes,
            }),
            speaking: speech.bytes() + heard.resting + SoundWriter::BYTES,
            hearing: heard.hearing,
            resting: speech.resting_bytes() + heard.resting,
        }
    }
}
