//! What goes before the bytes of every message: where its sender is, so that ranks that are elsewhere are noticed.

/// Bytes of a header: four numbers, and the collective's name as far as it fits.
pub const BYTES: usize = 160;
/// Bytes before the name.
const NUMBERS: usize = 32;

/// Where a rank is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes that it sends in this call.
    pub bytes: u64,
    /// The first of them that the message has.
    pub first: u64,
    /// Of kind, name and members.
    pub call: u64,
    /// The collective, for messages.
    pub what: String,
}

/// Returns a number of a collective: its kind, name and members.
pub fn call(kind: u8, what: &str, members: &[usize]) -> u64 {
    let members = members.iter().flat_map(|m| (*m as u64).to_le_bytes());
    // FNV-1a.
    let bytes = [kind].into_iter().chain(what.bytes()).chain([0xff]).chain(members);
    bytes.fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

impl Header {
    /// Writes [`BYTES`] bytes.
    pub fn write(&self, to: &mut [u8]) {
        let mut cut = self.what.len().min(BYTES - NUMBERS);
        while !self.what.is_char_boundary(cut) {
            cut -= 1;
        }
        let numbers = [self.bytes, self.first, self.call, cut as u64];
        for (part, n) in to.chunks_exact_mut(8).zip(numbers) {
            part.copy_from_slice(&n.to_le_bytes());
        }
        to[NUMBERS..][..cut].copy_from_slice(&self.what.as_bytes()[..cut]);
    }

    /// Reads [`BYTES`] bytes.
    pub fn read(from: &[u8]) -> Header {
        let mut numbers = [0u64; 4];
        for (n, part) in numbers.iter_mut().zip(from.chunks_exact(8)) {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(part);
            *n = u64::from_le_bytes(bytes);
        }
        let [bytes, first, call, length] = numbers;
        let name = &from[NUMBERS..BYTES];
        let what = String::from_utf8_lossy(&name[..(length as usize).min(name.len())]).into_owned();
        Header { bytes, first, call, what }
    }

    /// Returns true when both are at the same place of the same call.
    pub fn meets(&self, other: &Header) -> bool {
        (self.bytes, self.first, self.call) == (other.bytes, other.first, other.call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back_and_names_are_cut_between_characters() {
        for (what, kept) in
            [("blocks.0.attn", 13), (&"é".repeat(100), 128), (&format!("a{}", "é".repeat(100)), 127)]
        {
            let header =
                Header { bytes: 5, first: u64::MAX, call: call(1, what, &[0, 3]), what: what.to_owned() };
            let mut bytes = [7; BYTES];
            header.write(&mut bytes);
            let read = Header::read(&bytes);
            assert!(read.meets(&header) && read.what == what[..kept], "{read:?}");
        }
        // Whatever came, it is read.
        assert_eq!(Header::read(&[0xff; BYTES]).what.chars().count(), BYTES - NUMBERS);
    }

    #[test]
    fn calls_differ_in_kind_name_and_members() {
        let one = call(0, "x", &[0, 1]);
        assert_eq!(one, call(0, "x", &[0, 1]));
        assert!(
            [call(1, "x", &[0, 1]), call(0, "y", &[0, 1]), call(0, "x", &[0, 2])].iter().all(|c| *c != one)
        );
    }
}
