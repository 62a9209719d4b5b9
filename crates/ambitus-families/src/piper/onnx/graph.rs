//! A graph of ONNX nodes: names, attributes, and which tensors there are. Names are those of the trainer's modules.

use super::proto::Message;
use std::collections::BTreeMap;

/// Types of elements (`TensorProto.DataType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Float = 1,
    Int = 7,
}

/// Types of attributes (`AttributeProto.AttributeType`).
const FLOAT_ATTRIBUTE: i64 = 1;
const INT_ATTRIBUTE: i64 = 2;
const INTS_ATTRIBUTE: i64 = 7;

/// What a node reads or gives: an input of the graph, an initializer, or the output of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Value(usize);

/// An attribute of a node.
#[derive(Clone, Debug)]
pub(super) enum Attr {
    Int(&'static str, i64),
    Ints(&'static str, Vec<i64>),
    Float(&'static str, f32),
}

/// An axis of an input or output.
#[derive(Clone, Copy, Debug)]
pub(super) enum Axis {
    Of(usize),
    Any(&'static str),
}

/// Where the values of an initializer come from.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Source {
    /// The checkpoint's tensor of the initializer's name.
    Tensor,
    /// The checkpoint's lengths and directions of this layer: `LAYER.weight_g`, `LAYER.weight_v`.
    Normed(String),
    /// These.
    Floats(Vec<f32>),
    /// These.
    Ints(Vec<i64>),
}

/// A tensor that is in the file.
#[derive(Clone, Debug)]
pub(super) struct Initializer {
    /// The checkpoint's name without `model_g.`, or `constant.N`.
    pub name: String,
    /// Its shape.
    pub dims: Vec<usize>,
    /// Its values.
    pub source: Source,
}

impl Initializer {
    /// Returns its number of elements.
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// Returns its type.
    pub fn kind(&self) -> Kind {
        match self.source {
            Source::Ints(_) => Kind::Int,
            _ => Kind::Float,
        }
    }

    /// Returns the bytes of its values.
    pub fn value_bytes(&self) -> u64 {
        let each = if self.kind() == Kind::Int { 8 } else { 4 };
        each * self.elements() as u64
    }
}

/// A graph in the making. Nodes come in the order in which they compute.
#[derive(Debug, Default)]
pub(super) struct Graph {
    names: Vec<String>,
    scope: Vec<String>,
    /// Nodes of an operator in a scope.
    count: BTreeMap<String, usize>,
    constants: BTreeMap<String, Value>,
    /// Fields of the message: nodes.
    nodes: Message,
    /// Fields of the message: inputs and outputs.
    ends: Message,
    initializers: Vec<Initializer>,
}

impl Graph {
    /// Calls `f` with a module's name before those of tensors and nodes.
    pub fn scope<T>(&mut self, name: &str, f: impl FnOnce(&mut Graph) -> T) -> T {
        self.scope.push(name.to_owned());
        let made = f(self);
        self.scope.pop();
        made
    }

    /// Returns the fields of nodes.
    pub fn nodes(&self) -> &[u8] {
        self.nodes.bytes()
    }

    /// Returns the fields of inputs and outputs.
    pub fn ends(&self) -> &[u8] {
        self.ends.bytes()
    }

    /// Returns the tensors that are in the file, in the order of their first use.
    pub fn initializers(&self) -> &[Initializer] {
        &self.initializers
    }

    /// Declares an input.
    pub fn input(&mut self, name: &str, kind: Kind, shape: &[Axis]) -> Value {
        let end = end(name, kind, shape);
        self.ends.message(11, &end);
        self.value(name.to_owned())
    }

    /// Adds a node whose output is an output of the graph, of floats.
    pub fn output(&mut self, name: &str, op: &'static str, inputs: &[Value], shape: &[Axis]) {
        let end = end(name, Kind::Float, shape);
        self.ends.message(12, &end);
        let made = self.value(name.to_owned());
        self.push(op, inputs, &[made], &[]);
    }

    /// Returns a weight or bias of the module in scope.
    pub fn weight(&mut self, leaf: &str, dims: &[usize]) -> Value {
        let name = self.name_of(leaf);
        self.initializer(name, dims, Source::Tensor)
    }

    /// Returns the weight of the module in scope that is stored as lengths and directions, g v / |v|, with |v| over all axes but the first
    /// (Salimans & Kingma, arXiv 1602.07868).
    pub fn normed(&mut self, dims: &[usize]) -> Value {
        let name = self.name_of("weight");
        let layer = self.scope.join(".");
        self.initializer(name, dims, Source::Normed(layer))
    }

    /// Returns a constant of no axes.
    pub fn float(&mut self, x: f32) -> Value {
        self.constant(format!("f32 {:08x}", x.to_bits()), &[], Source::Floats(vec![x]))
    }

    /// Returns a constant of no axes.
    pub fn int(&mut self, n: i64) -> Value {
        self.constant(format!("i64 {n}"), &[], Source::Ints(vec![n]))
    }

    /// Returns a constant of one axis.
    pub fn ints(&mut self, all: &[i64]) -> Value {
        self.constant(format!("i64 {all:?}"), &[all.len()], Source::Ints(all.to_vec()))
    }

    /// Adds a node without attributes; returns its output.
    pub fn op(&mut self, op: &'static str, inputs: &[Value]) -> Value {
        self.with(op, inputs, &[])
    }

    /// Adds a node; returns its output.
    pub fn with(&mut self, op: &'static str, inputs: &[Value], attrs: &[Attr]) -> Value {
        let [made] = self.several(op, inputs, attrs);
        made
    }

    /// Adds a node of N outputs; returns them.
    pub fn several<const N: usize>(
        &mut self,
        op: &'static str,
        inputs: &[Value],
        attrs: &[Attr],
    ) -> [Value; N] {
        let path = self.path(op);
        let nth = self.count.get(&path).copied().unwrap_or(0);
        let node = named(&path, nth);
        let made = std::array::from_fn(|i| self.value(format!("{node}_output_{i}")));
        self.push(op, inputs, &made, attrs);
        made
    }

    fn push(&mut self, op: &'static str, inputs: &[Value], outputs: &[Value], attrs: &[Attr]) {
        let path = self.path(op);
        let nth = self.count.entry(path.clone()).or_insert(0);
        let name = named(&path, *nth);
        *nth += 1;
        let mut node = Message::default();
        for (field, values) in [(1, inputs), (2, outputs)] {
            for &Value(i) in values {
                node.text(field, &self.names[i]);
            }
        }
        node.text(3, &name);
        node.text(4, op);
        for attr in attrs {
            node.message(5, &attribute(attr));
        }
        self.nodes.message(1, &node);
    }

    /// Returns `/module/module/Op`.
    fn path(&self, op: &str) -> String {
        self.scope.iter().map(String::as_str).chain([op]).fold(String::new(), |path, name| path + "/" + name)
    }

    /// Returns `module.module.leaf`.
    fn name_of(&self, leaf: &str) -> String {
        self.scope.iter().fold(String::new(), |name, module| name + module + ".") + leaf
    }

    fn value(&mut self, name: String) -> Value {
        self.names.push(name);
        Value(self.names.len() - 1)
    }

    fn initializer(&mut self, name: String, dims: &[usize], source: Source) -> Value {
        let value = self.value(name.clone());
        self.initializers.push(Initializer { name, dims: dims.to_vec(), source });
        value
    }

    /// Returns the constant, which is in the file once.
    fn constant(&mut self, key: String, dims: &[usize], source: Source) -> Value {
        if let Some(made) = self.constants.get(&key) {
            return *made;
        }
        let name = format!("constant.{}", self.constants.len());
        let made = self.initializer(name, dims, source);
        self.constants.insert(key, made);
        made
    }
}

/// Returns the name of the n-th node of a path.
fn named(path: &str, nth: usize) -> String {
    if nth == 0 { path.to_owned() } else { format!("{path}_{nth}") }
}

/// Returns an `AttributeProto`.
fn attribute(attr: &Attr) -> Message {
    let mut m = Message::default();
    match attr {
        Attr::Int(name, n) => {
            m.text(1, name);
            m.int(3, *n);
            m.int(20, INT_ATTRIBUTE);
        }
        Attr::Ints(name, all) => {
            m.text(1, name);
            for n in all {
                m.int(8, *n);
            }
            m.int(20, INTS_ATTRIBUTE);
        }
        Attr::Float(name, x) => {
            m.text(1, name);
            m.float(2, *x);
            m.int(20, FLOAT_ATTRIBUTE);
        }
    }
    m
}

/// Returns a `ValueInfoProto`.
fn end(name: &str, kind: Kind, shape: &[Axis]) -> Message {
    let mut dims = Message::default();
    for axis in shape {
        let mut dim = Message::default();
        match axis {
            Axis::Of(n) => dim.int(1, *n as i64),
            Axis::Any(name) => dim.text(2, name),
        }
        dims.message(1, &dim);
    }
    let (mut tensor, mut ty, mut value) = (Message::default(), Message::default(), Message::default());
    tensor.int(1, kind as i64);
    tensor.message(2, &dims);
    ty.message(1, &tensor);
    value.text(1, name);
    value.message(2, &ty);
    value
}
