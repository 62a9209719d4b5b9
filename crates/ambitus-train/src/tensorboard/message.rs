//! The messages of event files: protocol buffers, written by hand, because these few are all.
//!
//! Fields are those of TensorBoard's `compat/proto/{event,summary,tensor}.proto` and `plugins/hparams/plugin_data.proto`. A field is
//! a key, `number << 3 | wire`, and its value: a varint (wire 0), 8 bytes (1), a length and bytes (2), or 4 bytes (5).

use serde_json::Value;

/// `DataType::DT_FLOAT` of a tensor, and `DT_STRING`.
const DT_FLOAT: u64 = 1;
const DT_STRING: u64 = 7;
/// `ImageProto`'s colour space of red, green and blue.
const RGB: u64 = 3;
/// `Status::STATUS_SUCCESS` of a session.
const SUCCESS: u64 = 1;
/// The tag of a session's end.
pub const SESSION_END: &str = "_hparams_/session_end_info";

/// A message, or the front of one whose last bytes come from elsewhere.
#[derive(Clone, Debug, Default)]
pub struct Message {
    /// What is here.
    pub bytes: Vec<u8>,
    /// Bytes that follow.
    pub tail: u64,
}

impl Message {
    fn key(&mut self, field: u64, wire: u64) {
        debug_assert_eq!(self.tail, 0, "nothing comes after a tail");
        put_varint(&mut self.bytes, field << 3 | wire);
    }

    fn varint(mut self, field: u64, value: u64) -> Message {
        self.key(field, 0);
        put_varint(&mut self.bytes, value);
        self
    }

    fn double(mut self, field: u64, value: f64) -> Message {
        self.key(field, 1);
        self.bytes.extend(value.to_le_bytes());
        self
    }

    fn float(mut self, field: u64, value: f32) -> Message {
        self.key(field, 5);
        self.bytes.extend(value.to_le_bytes());
        self
    }

    fn text(self, field: u64, text: &str) -> Message {
        self.message(field, Message { bytes: text.as_bytes().to_vec(), tail: 0 })
    }

    fn message(mut self, field: u64, inner: Message) -> Message {
        self.key(field, 2);
        put_varint(&mut self.bytes, inner.bytes.len() as u64 + inner.tail);
        self.bytes.extend(inner.bytes);
        self.tail = inner.tail;
        self
    }

    /// A field of bytes that are written after the message.
    fn tail(self, field: u64, bytes: u64) -> Message {
        self.message(field, Message { bytes: Vec::new(), tail: bytes })
    }
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Returns an `Event` of a step with a summary. `seconds`: Unix time.
fn event(seconds: f64, step: u64, summary: Message) -> Message {
    Message::default().double(1, seconds).varint(2, step).message(5, summary)
}

/// Returns a `Summary.Value` with nothing but its tag.
fn value(tag: &str) -> Message {
    Message::default().text(1, tag)
}

/// Returns `SummaryMetadata`, which says whose value it is.
fn metadata(plugin: &str, content: Message) -> Message {
    Message::default().message(1, Message::default().text(1, plugin).message(2, content))
}

/// Returns the first record of a file.
pub fn version(seconds: f64) -> Message {
    Message::default().double(1, seconds).varint(2, 0).text(3, "brain.Event:2")
}

/// Returns the numbers of a step as they come, by tag. One record holds them all, so a step is there whole or not at all.
pub fn scalars(seconds: f64, step: u64, numbers: impl Iterator<Item = (String, f32)>) -> Message {
    let summary =
        numbers.fold(Message::default(), |all, (tag, number)| all.message(1, value(&tag).float(2, number)));
    event(seconds, step, summary)
}

/// Returns a text, which TensorBoard shows as Markdown.
pub fn text(seconds: f64, step: u64, tag: &str, markdown: &str) -> Message {
    let one = Message::default().message(2, Message::default().varint(1, 1));
    let tensor = Message::default().varint(1, DT_STRING).message(2, one).text(8, markdown);
    let value = value(tag).message(8, tensor).message(9, metadata("text", Message::default()));
    event(seconds, step, Message::default().message(1, value))
}

/// What a WAV file's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wav {
    /// Hz.
    pub rate: u32,
    /// Channels.
    pub channels: u16,
    /// Samples of each channel.
    pub frames: u64,
    /// Bytes of the file.
    pub bytes: u64,
}

/// Returns a sound up to the bytes of its file.
pub fn sound(seconds: f64, step: u64, tag: &str, wav: Wav) -> Message {
    let audio = Message::default()
        .float(1, wav.rate as f32)
        .varint(2, u64::from(wav.channels))
        .varint(3, wav.frames)
        .text(5, "audio/wav")
        .tail(4, wav.bytes);
    event(seconds, step, Message::default().message(1, value(tag).message(6, audio)))
}

/// Returns a picture up to the `bytes` of its PNG file.
pub fn picture(seconds: f64, step: u64, tag: &str, [width, height]: [usize; 2], bytes: u64) -> Message {
    let image =
        Message::default().varint(1, height as u64).varint(2, width as u64).varint(3, RGB).tail(4, bytes);
    event(seconds, step, Message::default().message(1, value(tag).message(4, image)))
}

/// Returns a record of the plugin "hparams": its `HParamsPluginData`, of version 0, has one of three parts, each with its tag.
fn hparams(seconds: f64, step: u64, tag: &str, field: u64, part: Message) -> Message {
    let content = Message::default().varint(1, 0).message(field, part);
    // The plugin reads no value, but SwanLab's converter wants one number of whatever is no text.
    let number = Message::default().varint(1, DT_FLOAT).message(2, Message::default());
    let number = number.message(5, Message { bytes: vec![0; 4], tail: 0 });
    let value = value(tag).message(8, number).message(9, metadata("hparams", content));
    event(seconds, step, Message::default().message(1, value))
}

/// Returns what may differ between runs, and the scalars that they are compared by.
pub fn experiment(seconds: f64, settings: &[(String, Value)], metrics: &[&str]) -> Message {
    let all = settings.iter().fold(Message::default(), |all, (name, value)| {
        let (kind, _) = of_setting(value);
        all.message(4, Message::default().text(1, name).varint(4, kind))
    });
    let all = metrics
        .iter()
        .fold(all, |all, tag| all.message(5, Message::default().message(1, Message::default().text(2, tag))));
    hparams(seconds, 0, "_hparams_/experiment", 2, all)
}

/// Returns a run's settings.
pub fn session_start(seconds: f64, settings: &[(String, Value)]) -> Message {
    let all = settings.iter().fold(Message::default(), |all, (name, value)| {
        let (_, value) = of_setting(value);
        all.message(1, Message::default().text(1, name).message(2, value))
    });
    hparams(seconds, 0, "_hparams_/session_start_info", 3, all.double(5, seconds))
}

/// Returns the end of a run that came to it.
pub fn session_end(seconds: f64, step: u64) -> Message {
    hparams(seconds, step, SESSION_END, 4, Message::default().varint(1, SUCCESS).double(2, seconds))
}

/// Returns a setting's `DataType` and its `google.protobuf.Value`. What is no truth value and no number is text.
fn of_setting(value: &Value) -> (u64, Message) {
    let none = Message::default();
    match value {
        Value::Bool(yes) => (2, none.varint(4, u64::from(*yes))),
        Value::Number(number) => (3, none.double(2, number.as_f64().unwrap_or(f64::NAN))),
        Value::String(text) => (1, none.text(3, text)),
        other => (1, none.text(3, &other.to_string())),
    }
}

/// Returns the step of an event, and the tag of its first value, from the first bytes of the message. Bytes that are no event of
/// ours have none.
pub fn step_and_tag(mut event: &[u8]) -> Option<(u64, &[u8])> {
    let fields = &mut event;
    let _time = expect(fields, 1, 1).and_then(|()| take(fields, 8))?;
    let step = expect(fields, 2, 0).and_then(|()| varint(fields))?;
    let mut tag: &[u8] = &[];
    // Of the summary's first value, the first field.
    if expect(fields, 5, 2).is_some() {
        varint(fields)?;
        expect(fields, 1, 2).and_then(|()| varint(fields))?;
        let len = expect(fields, 1, 2).and_then(|()| varint(fields))?;
        tag = take(fields, usize::try_from(len).ok()?)?;
    }
    Some((step, tag))
}

fn take<'a>(bytes: &mut &'a [u8], n: usize) -> Option<&'a [u8]> {
    let (front, rest) = bytes.split_at_checked(n)?;
    *bytes = rest;
    Some(front)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(bytes, 1)?[0];
        value |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// Reads a field's key, if it is this one's.
fn expect(bytes: &mut &[u8], field: u64, wire: u64) -> Option<()> {
    let mut rest = *bytes;
    (varint(&mut rest)? == field << 3 | wire).then(|| *bytes = rest)
}
