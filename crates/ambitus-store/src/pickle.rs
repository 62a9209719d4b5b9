//! A reader of pickles that builds plain data and executes nothing.
//!
//! Opcodes of protocols 2 to 5 (Python's `pickletools`). Four callables are known by name; a call of any other gives
//! an inert [`Node::Opaque`] that remembers which one it was. Values live in one table and refer to each other by
//! index, so that neither depth nor cycles cost stack, and everything kept is counted against the file's size.

mod calls;

use std::collections::HashMap;

use crate::budget::Budget;
use crate::error::printable;

/// Values on the stack at most: the pickler flushes containers every 1000 items.
const MAX_STACK: usize = 1 << 16;
/// Open marks at most, which is about the depth of nesting; Python itself stops near 1000.
const MAX_MARKS: usize = 1 << 12;

/// A place in the pickle's bytes that holds text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Text {
    at: u32,
    len: u32,
}

/// A value; compound ones are an index into [`Pickle::nodes`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(Text),
    /// Something read and dropped: bytes, a very large integer.
    Ignored,
    Node(u32),
}

/// A compound value.
#[derive(Debug)]
pub(crate) enum Node {
    Tuple(Vec<Value>),
    List(Vec<Value>),
    Dict(Vec<(Value, Value)>),
    Global {
        module: Text,
        name: Text,
    },
    /// Result of something that is not executed; `of` is the global that would have made it.
    Opaque {
        of: u32,
    },
    Storage(Storage),
    Tensor(Tensor),
    /// A set; its members are of no use here.
    Set,
}

/// A storage: an entry of the archive, seen as elements of one type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Storage {
    /// Global that names the type, such as `torch.FloatStorage`.
    pub kind: u32,
    /// Name of the entry under `data/`.
    pub key: Text,
    pub elements: i64,
}

/// A view of a storage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tensor {
    pub storage: Storage,
    pub offset: i64,
    /// Tuples of int.
    pub shape: u32,
    pub strides: u32,
}

/// What a pickle holds.
pub(crate) struct Pickle<'a> {
    bytes: &'a [u8],
    pub nodes: Vec<Node>,
    pub root: Value,
}

impl<'a> Pickle<'a> {
    /// Returns its bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the characters of a text; it was checked to be UTF-8.
    pub fn text(&self, text: Text) -> &'a str {
        slice(self.bytes, text)
    }

    /// Returns `module.name` of a global, fit to be shown.
    pub fn global(&self, node: u32) -> String {
        match &self.nodes[node as usize] {
            &Node::Global { module, name } => {
                printable(&format!("{}.{}", self.text(module), self.text(name)))
            }
            _ => "an object".into(),
        }
    }
}

fn slice(bytes: &[u8], text: Text) -> &str {
    let raw = &bytes[text.at as usize..][..text.len as usize];
    std::str::from_utf8(raw).unwrap_or_default()
}

/// Reads a whole pickle of at most 4 GiB.
pub(crate) fn read<'a>(bytes: &'a [u8], budget: &mut Budget) -> Result<Pickle<'a>, String> {
    let mut m = Machine {
        bytes,
        at: 0,
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
        nodes: Vec::new(),
        budget,
    };
    loop {
        let op_at = m.at;
        match m.step() {
            Ok(None) => {}
            Ok(Some(root)) => {
                return Ok(Pickle { bytes, nodes: m.nodes, root });
            }
            Err(what) => return Err(format!("bad pickle at byte {op_at}: {what}")),
        }
    }
}

struct Machine<'a, 'b> {
    bytes: &'a [u8],
    at: usize,
    stack: Vec<Value>,
    /// Heights of the stack at the open marks.
    marks: Vec<usize>,
    memo: HashMap<u32, Value>,
    nodes: Vec<Node>,
    budget: &'b mut Budget,
}

type Step<T> = Result<T, String>;

impl<'a> Machine<'a, '_> {
    /// Executes one opcode; returns the root at STOP.
    fn step(&mut self) -> Step<Option<Value>> {
        match self.take(1)?[0] {
            0x80 => match self.take(1)?[0] {
                2..=5 => {}
                other => return Err(format!("protocol {other} is not supported")),
            },
            0x95 => drop(self.take(8)?), // FRAME: a hint for buffering
            b'.' => return self.pop().map(Some),
            b'(' => {
                if self.marks.len() == MAX_MARKS {
                    return Err("is nested too deeply".into());
                }
                self.marks.push(self.stack.len());
            }
            b'0' => {
                // POP of a mark is POP_MARK, as in the reference implementation.
                if self.marks.last() == Some(&self.stack.len()) {
                    self.marks.pop();
                } else {
                    self.pop()?;
                }
            }
            b'1' => drop(self.pop_mark()?),
            b'2' => {
                let top = *self.stack.last().ok_or("takes from an empty stack")?;
                self.push(top)?;
            }
            b'N' => self.push(Value::None)?,
            0x88 => self.push(Value::Bool(true))?,
            0x89 => self.push(Value::Bool(false))?,
            b'J' => self.int(4, true)?,
            b'K' => self.int(1, false)?,
            b'M' => self.int(2, false)?,
            0x8a => {
                let n = self.length(1)?;
                self.long(n)?;
            }
            0x8b => {
                let n = self.length(4)?;
                self.long(n)?;
            }
            b'G' => {
                let raw = self.take(8)?.try_into().expect("8 bytes were taken");
                self.push(Value::Float(f64::from_be_bytes(raw)))?;
            }
            b'X' => self.string(4)?,
            0x8c => self.string(1)?,
            0x8d => self.string(8)?,
            b'U' | b'C' => self.ignored(1)?,
            b'T' | b'B' => self.ignored(4)?,
            0x8e | 0x96 => self.ignored(8)?,
            b')' => self.node(Node::Tuple(Vec::new()))?,
            b']' => self.node(Node::List(Vec::new()))?,
            b'}' => self.node(Node::Dict(Vec::new()))?,
            0x8f => self.node(Node::Set)?,
            b't' => self.tuple_from_mark()?,
            0x85 => self.tuple(1)?,
            0x86 => self.tuple(2)?,
            0x87 => self.tuple(3)?,
            b'l' => {
                let items = self.pop_mark()?;
                self.charge(&items)?;
                self.node(Node::List(items))?;
            }
            b'd' => {
                let items = self.pop_mark()?;
                self.node(Node::Dict(Vec::new()))?;
                self.set_items(items)?;
            }
            0x91 => {
                self.pop_mark()?;
                self.node(Node::Set)?;
            }
            b'a' => {
                let item = self.pop()?;
                self.append(&[item])?;
            }
            b'e' => {
                let items = self.pop_mark()?;
                self.append(&items)?;
            }
            b's' => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.set_items(vec![key, value])?;
            }
            b'u' => {
                let items = self.pop_mark()?;
                self.set_items(items)?;
            }
            0x90 => {
                self.pop_mark()?;
                self.top_node()?;
            }
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.node(Node::Global { module, name })?;
            }
            0x93 => match (self.pop()?, self.pop()?) {
                (Value::Str(name), Value::Str(module)) => self.node(Node::Global { module, name })?,
                _ => return Err("a global without a name".into()),
            },
            b'R' | 0x81 => {
                let args = self.pop()?;
                let callee = self.pop()?;
                self.call(callee, args)?;
            }
            0x92 => {
                let _keywords = self.pop()?;
                let args = self.pop()?;
                let callee = self.pop()?;
                self.call(callee, args)?;
            }
            b'o' => match self.pop_mark()?.first() {
                Some(&callee) => self.opaque(callee)?,
                None => return Err("an object without a class".into()),
            },
            b'i' => {
                let (module, name) = (self.line()?, self.line()?);
                self.pop_mark()?;
                self.node(Node::Global { module, name })?;
                let callee = self.pop()?;
                self.opaque(callee)?;
            }
            b'b' => {
                // State of an object. Ours have none that matters (`_metadata` of a state dict, flags of a parameter).
                self.pop()?;
                self.top_node()?;
            }
            b'Q' => self.persistent()?,
            b'q' => {
                let key = self.length(1)? as u32;
                self.remember(key)?;
            }
            b'r' => {
                let key = self.length(4)? as u32;
                self.remember(key)?;
            }
            0x94 => {
                let key = self.memo.len() as u32;
                self.remember(key)?;
            }
            b'h' => self.recall(1)?,
            b'j' => self.recall(4)?,
            other => {
                return Err(match char::from(other) {
                    'S' | 'V' | 'I' | 'L' | 'F' | 'P' | 'g' | 'p' => {
                        "the text form of pickles is not supported".into()
                    }
                    _ => format!("opcode 0x{other:02x} is not supported"),
                });
            }
        }
        Ok(None)
    }

    fn take(&mut self, n: usize) -> Step<&'a [u8]> {
        let rest = &self.bytes[self.at..];
        let taken = rest.get(..n).ok_or("ends in the middle")?;
        self.at += n;
        Ok(taken)
    }

    /// Returns a little-endian length of `width` bytes. It is only ever compared with what is there, never allocated.
    fn length(&mut self, width: usize) -> Step<usize> {
        let value = self.take(width)?.iter().rev().fold(0u64, |v, &b| v << 8 | u64::from(b));
        usize::try_from(value).map_err(|_| "a length beyond the file".into())
    }

    fn text(&mut self, len: usize) -> Step<Text> {
        let at = self.at;
        let raw = self.take(len)?;
        std::str::from_utf8(raw).map_err(|_| "text that is not UTF-8")?;
        Ok(Text { at: at as u32, len: len as u32 })
    }

    fn line(&mut self) -> Step<Text> {
        let rest = &self.bytes[self.at..];
        let len = rest.iter().position(|&b| b == b'\n').ok_or("ends in the middle")?;
        let text = self.text(len)?;
        self.at += 1;
        Ok(text)
    }

    fn push(&mut self, value: Value) -> Step<()> {
        if self.stack.len() == MAX_STACK {
            return Err("needs too large a stack".into());
        }
        self.stack.push(value);
        Ok(())
    }

    fn pop(&mut self) -> Step<Value> {
        if self.marks.last().is_some_and(|&mark| mark >= self.stack.len()) {
            return Err("takes more than was put".into());
        }
        self.stack.pop().ok_or_else(|| "takes from an empty stack".into())
    }

    fn pop_mark(&mut self) -> Step<Vec<Value>> {
        let mark = self.marks.pop().ok_or("closes what was not opened")?;
        Ok(self.stack.split_off(mark))
    }

    /// Counts values that a container keeps (twice: it grows by doubling).
    fn charge(&mut self, items: &[Value]) -> Step<()> {
        self.budget.take(2 * size_of_val(items))
    }

    fn node(&mut self, node: Node) -> Step<()> {
        self.budget.take(2 * size_of::<Node>())?;
        let id = u32::try_from(self.nodes.len()).map_err(|_| "too many objects")?;
        self.nodes.push(node);
        self.push(Value::Node(id))
    }

    /// Returns the node on top of the stack, which stays there.
    fn top_node(&mut self) -> Step<&mut Node> {
        if self.marks.last().is_some_and(|&mark| mark >= self.stack.len()) {
            return Err("changes an object that is not there".into());
        }
        match self.stack.last() {
            Some(&Value::Node(id)) => Ok(&mut self.nodes[id as usize]),
            _ => Err("changes an object that is not there".into()),
        }
    }

    fn int(&mut self, width: usize, signed: bool) -> Step<()> {
        let raw = self.length(width)?;
        self.push(Value::Int(if signed { i64::from(raw as u32 as i32) } else { raw as i64 }))
    }

    fn long(&mut self, n: usize) -> Step<()> {
        let raw = self.take(n)?;
        let mut wide = [if raw.last().is_some_and(|b| b & 0x80 != 0) { 0xff } else { 0 }; 8];
        let value = if n <= 8 {
            wide[..n].copy_from_slice(raw);
            Value::Int(i64::from_le_bytes(wide))
        } else {
            Value::Ignored
        };
        self.push(value)
    }

    fn string(&mut self, width: usize) -> Step<()> {
        let len = self.length(width)?;
        let text = self.text(len)?;
        self.push(Value::Str(text))
    }

    fn ignored(&mut self, width: usize) -> Step<()> {
        let len = self.length(width)?;
        self.take(len)?;
        self.push(Value::Ignored)
    }

    fn tuple(&mut self, n: usize) -> Step<()> {
        let mut items = Vec::with_capacity(n);
        for _ in 0..n {
            items.push(self.pop()?);
        }
        items.reverse();
        self.charge(&items)?;
        self.node(Node::Tuple(items))
    }

    fn tuple_from_mark(&mut self) -> Step<()> {
        let items = self.pop_mark()?;
        self.charge(&items)?;
        self.node(Node::Tuple(items))
    }

    fn append(&mut self, items: &[Value]) -> Step<()> {
        self.charge(items)?;
        match self.top_node()? {
            Node::List(list) => list.extend(items),
            Node::Opaque { .. } => {}
            _ => return Err("appends to what is not a list".into()),
        }
        Ok(())
    }

    fn set_items(&mut self, items: Vec<Value>) -> Step<()> {
        self.charge(&items)?;
        if !items.len().is_multiple_of(2) {
            return Err("a key without a value".into());
        }
        match self.top_node()? {
            Node::Dict(dict) => dict.extend(items.chunks_exact(2).map(|kv| (kv[0], kv[1]))),
            Node::Opaque { .. } => {}
            _ => return Err("sets a key of what is not a dictionary".into()),
        }
        Ok(())
    }

    fn remember(&mut self, key: u32) -> Step<()> {
        let top = *self.stack.last().ok_or("remembers what is not there")?;
        // A hash table at half load, while it is copied to one of twice the size.
        self.budget.take(4 * size_of::<(u32, Value)>())?;
        self.memo.insert(key, top);
        Ok(())
    }

    fn recall(&mut self, width: usize) -> Step<()> {
        let key = self.length(width)? as u32;
        let value = *self.memo.get(&key).ok_or("recalls what was not remembered")?;
        self.push(value)
    }
}
