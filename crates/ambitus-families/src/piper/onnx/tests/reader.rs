//! A reader of ONNX files: the fields of protocol buffers (protobuf.dev, "Encoding") and what `onnx.proto` calls them.

/// What a field holds.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Field<'a> {
    Int(u64),
    Float(f32),
    Bytes(&'a [u8]),
}

impl<'a> Field<'a> {
    fn int(self) -> u64 {
        match self {
            Field::Int(n) => n,
            other => panic!("no number: {other:?}"),
        }
    }

    fn bytes(self) -> &'a [u8] {
        match self {
            Field::Bytes(bytes) => bytes,
            other => panic!("no bytes: {other:?}"),
        }
    }

    fn text(self) -> String {
        String::from_utf8(self.bytes().to_vec()).unwrap()
    }
}

/// Returns a message's fields, in their order.
fn fields(mut bytes: &[u8]) -> Vec<(u32, Field<'_>)> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut n = 0;
        for shift in (0..).step_by(7) {
            let (first, rest) = bytes.split_first().unwrap();
            *bytes = rest;
            n |= u64::from(first & 0x7f) << shift;
            if first & 0x80 == 0 {
                break;
            }
        }
        n
    }
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let field = match tag & 7 {
            0 => Field::Int(varint(&mut bytes)),
            2 => {
                let length = varint(&mut bytes) as usize;
                let (of, rest) = bytes.split_at(length);
                bytes = rest;
                Field::Bytes(of)
            }
            5 => {
                let (of, rest) = bytes.split_at(4);
                bytes = rest;
                Field::Float(f32::from_le_bytes(of.try_into().unwrap()))
            }
            other => panic!("kind {other}"),
        };
        all.push(((tag >> 3) as u32, field));
    }
    all
}

/// A node.
#[derive(Debug, Default)]
pub struct Node {
    pub inputs: Vec<String>,
    pub outputs: Vec<String>,
    pub name: String,
    pub op: String,
    /// Names and the numbers that they are.
    pub attrs: Vec<(String, Vec<f64>)>,
}

/// A tensor in the file.
#[derive(Debug, Default)]
pub struct Tensor {
    pub name: String,
    pub dims: Vec<usize>,
    pub kind: u64,
    pub raw: Vec<u8>,
}

impl Tensor {
    pub fn floats(&self) -> Vec<f32> {
        assert_eq!(self.kind, 1, "{}", self.name);
        self.raw.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    }
}

/// An input or output: name, type, axes.
#[derive(Debug, Default, PartialEq)]
pub struct End(pub String, pub u64, pub Vec<String>);

/// A file.
#[derive(Debug, Default)]
pub struct Model {
    pub ir: u64,
    pub opset: u64,
    pub producer: String,
    pub metadata: Vec<(String, String)>,
    pub nodes: Vec<Node>,
    pub tensors: Vec<Tensor>,
    pub inputs: Vec<End>,
    pub outputs: Vec<End>,
}

/// Reads a file.
pub fn model(bytes: &[u8]) -> Model {
    let mut model = Model::default();
    for (field, of) in fields(bytes) {
        match field {
            1 => model.ir = of.int(),
            2 => model.producer = of.text(),
            3 => {}
            7 => graph(of.bytes(), &mut model),
            8 => model.opset = fields(of.bytes()).iter().find(|(field, _)| *field == 2).unwrap().1.int(),
            14 => {
                let entry = fields(of.bytes());
                assert!(entry.len() == 2 && entry[0].0 == 1 && entry[1].0 == 2);
                model.metadata.push((entry[0].1.text(), entry[1].1.text()));
            }
            other => panic!("ModelProto has no field {other} here"),
        }
    }
    model
}

fn graph(bytes: &[u8], model: &mut Model) {
    for (field, of) in fields(bytes) {
        match field {
            1 => model.nodes.push(node(of.bytes())),
            2 => assert!(!of.text().is_empty()),
            5 => model.tensors.push(tensor(of.bytes())),
            11 => model.inputs.push(end(of.bytes())),
            12 => model.outputs.push(end(of.bytes())),
            other => panic!("GraphProto has no field {other} here"),
        }
    }
}

fn node(bytes: &[u8]) -> Node {
    let mut node = Node::default();
    for (field, of) in fields(bytes) {
        match field {
            1 => node.inputs.push(of.text()),
            2 => node.outputs.push(of.text()),
            3 => node.name = of.text(),
            4 => node.op = of.text(),
            5 => node.attrs.push(attribute(of.bytes())),
            other => panic!("NodeProto has no field {other} here"),
        }
    }
    node
}

fn attribute(bytes: &[u8]) -> (String, Vec<f64>) {
    let (mut name, mut kind, mut numbers) = (String::new(), 0, Vec::new());
    for (field, of) in fields(bytes) {
        match (field, of) {
            (1, of) => name = of.text(),
            (2, Field::Float(x)) => numbers.push((1, f64::from(x))),
            (3, of) => numbers.push((2, of.int() as i64 as f64)),
            (8, of) => numbers.push((7, of.int() as i64 as f64)),
            (20, of) => kind = of.int(),
            other => panic!("AttributeProto has no {other:?} here"),
        }
    }
    assert!(numbers.iter().all(|(of, _)| *of == kind), "{name}");
    (name, numbers.into_iter().map(|(_, x)| x).collect())
}

fn tensor(bytes: &[u8]) -> Tensor {
    let mut tensor = Tensor::default();
    for (field, of) in fields(bytes) {
        match field {
            1 => tensor.dims.push(of.int() as usize),
            2 => tensor.kind = of.int(),
            8 => tensor.name = of.text(),
            9 => tensor.raw = of.bytes().to_vec(),
            other => panic!("TensorProto has no field {other} here"),
        }
    }
    tensor
}

fn end(bytes: &[u8]) -> End {
    let mut end = End::default();
    for (field, of) in fields(bytes) {
        match field {
            1 => end.0 = of.text(),
            2 => {
                let ty = fields(of.bytes());
                assert!(ty.len() == 1 && ty[0].0 == 1);
                for (field, of) in fields(ty[0].1.bytes()) {
                    match field {
                        1 => end.1 = of.int(),
                        2 => {
                            end.2 = fields(of.bytes()).into_iter().map(|(_, dim)| axis(dim.bytes())).collect()
                        }
                        other => panic!("TypeProto.Tensor has no field {other}"),
                    }
                }
            }
            other => panic!("ValueInfoProto has no field {other} here"),
        }
    }
    end
}

fn axis(bytes: &[u8]) -> String {
    match fields(bytes)[..] {
        [(1, of)] => of.int().to_string(),
        [(2, of)] => of.text(),
        ref other => panic!("no axis: {other:?}"),
    }
}
