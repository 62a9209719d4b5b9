//! The few callables whose effect is known. Any other call gives an inert object; nothing is ever run.

use super::{Machine, Node, Step, Storage, Tensor, Value, slice};

impl Machine<'_, '_> {
    pub(super) fn opaque(&mut self, callee: Value) -> Step<()> {
        let of = match callee {
            Value::Node(id) => match self.nodes[id as usize] {
                Node::Opaque { of } => of,
                _ => id,
            },
            _ => return Err("calls what is not callable".into()),
        };
        self.node(Node::Opaque { of })
    }

    /// Returns a call: of one of the known callables with the arguments that PyTorch gives it, or inert.
    pub(super) fn call(&mut self, callee: Value, args: Value) -> Step<()> {
        let args = match args {
            Value::Node(id) => match &self.nodes[id as usize] {
                Node::Tuple(args) => args.as_slice(),
                _ => return Err("calls with what is not a tuple".into()),
            },
            _ => return Err("calls with what is not a tuple".into()),
        };
        let known = match callee {
            Value::Node(id) => match self.nodes[id as usize] {
                Node::Global { module, name } => (slice(self.bytes, module), slice(self.bytes, name)),
                _ => ("", ""),
            },
            _ => ("", ""),
        };
        let as_node = |value: Option<&Value>| match value {
            Some(&Value::Node(id)) => Some((id, &self.nodes[id as usize])),
            _ => None,
        };
        match known {
            ("collections", "OrderedDict") if args.is_empty() => self.node(Node::Dict(Vec::new())),
            ("torch", "Size") => match as_node(args.first()) {
                Some((id, Node::Tuple(_))) if args.len() == 1 => self.push(Value::Node(id)),
                _ => Err("torch.Size of what is not a tuple".into()),
            },
            ("torch._utils", "_rebuild_parameter") => match as_node(args.first()) {
                Some((id, Node::Tensor(_) | Node::Opaque { .. })) => self.push(Value::Node(id)),
                _ => Err("a parameter without a tensor".into()),
            },
            ("torch._utils", "_rebuild_tensor_v2") => {
                let tensor = match args {
                    // A storage that is itself made by something unknown: so is the tensor.
                    &[storage @ Value::Node(id), ..]
                        if matches!(self.nodes[id as usize], Node::Opaque { .. }) =>
                    {
                        return self.opaque(storage);
                    }
                    [storage, Value::Int(offset), shape, strides, ..] => {
                        match (as_node(Some(storage)), as_node(Some(shape)), as_node(Some(strides))) {
                            (
                                Some((_, &Node::Storage(storage))),
                                Some((shape, Node::Tuple(_))),
                                Some((strides, Node::Tuple(_))),
                            ) => Some(Tensor { storage, offset: *offset, shape, strides }),
                            _ => None,
                        }
                    }
                    _ => None,
                };
                self.node(Node::Tensor(tensor.ok_or("a tensor without storage, offset, size and stride")?))
            }
            _ => self.opaque(callee),
        }
    }

    /// Reads `("storage", type, key, location, elements)`, the only persistent identifier that PyTorch writes.
    pub(super) fn persistent(&mut self) -> Step<()> {
        let storage = match self.pop()? {
            Value::Node(id) => match &self.nodes[id as usize] {
                Node::Tuple(items) => match items[..] {
                    [Value::Str(tag), Value::Node(kind), Value::Str(key), _, Value::Int(elements)]
                        if slice(self.bytes, tag) == "storage"
                            && matches!(self.nodes[kind as usize], Node::Global { .. }) =>
                    {
                        Some(Storage { kind, key, elements })
                    }
                    _ => None,
                },
                _ => None,
            },
            _ => None,
        };
        self.node(Node::Storage(storage.ok_or("a reference that is not to a storage")?))
    }
}
