//! Messages of protocol buffers, as they are written (protobuf.dev, "Encoding"): an ONNX file is one.

/// Numbers of variable length.
const VARINT: u32 = 0;
/// Bytes behind their number: texts and messages.
const BYTES: u32 = 2;
/// Four bytes.
const FOUR: u32 = 5;

/// A message, field by field. What fields mean is said by its type (`onnx.proto`).
#[derive(Clone, Debug, Default)]
pub(super) struct Message(Vec<u8>);

impl Message {
    /// Returns what is written so far.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Adds fields that are written already.
    pub fn extend(&mut self, fields: &[u8]) {
        self.0.extend(fields);
    }

    /// Adds a number.
    pub fn int(&mut self, field: u32, n: i64) {
        self.tag(field, VARINT);
        // Negative ones as their two's complement.
        self.varint(n as u64);
    }

    /// Adds a number of four bytes.
    pub fn float(&mut self, field: u32, x: f32) {
        self.tag(field, FOUR);
        self.0.extend(x.to_le_bytes());
    }

    /// Adds a text.
    pub fn text(&mut self, field: u32, text: &str) {
        self.head(field, text.len() as u64);
        self.0.extend(text.as_bytes());
    }

    /// Adds a message.
    pub fn message(&mut self, field: u32, message: &Message) {
        self.head(field, message.0.len() as u64);
        self.0.extend(&message.0);
    }

    /// Adds what stands before a field of that many bytes, which follow it.
    pub fn head(&mut self, field: u32, bytes: u64) {
        self.tag(field, BYTES);
        self.varint(bytes);
    }

    fn tag(&mut self, field: u32, kind: u32) {
        self.varint(u64::from(field << 3 | kind));
    }

    /// Seven bits a byte, the lowest first; all but the last have the eighth.
    fn varint(&mut self, mut n: u64) {
        while n >= 0x80 {
            self.0.push(n as u8 | 0x80);
            n >>= 7;
        }
        self.0.push(n as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of protobuf.dev.
    #[test]
    fn fields_are_encoded_as_the_specification_says() {
        let mut m = Message::default();
        m.int(1, 150);
        assert_eq!(m.bytes(), [0x08, 0x96, 0x01]);
        let mut outer = Message::default();
        outer.message(3, &m);
        assert_eq!(outer.bytes(), [0x1a, 0x03, 0x08, 0x96, 0x01]);
        let mut m = Message::default();
        m.text(2, "testing");
        assert_eq!(m.bytes(), b"\x12\x07testing");
        let mut m = Message::default();
        m.int(1, -2);
        assert_eq!(m.bytes(), [&[0x08, 0xfe][..], &[0xff; 8], &[0x01]].concat());
        let mut m = Message::default();
        m.float(2, 1.0);
        assert_eq!(m.bytes(), [0x15, 0, 0, 0x80, 0x3f]);
    }
}
