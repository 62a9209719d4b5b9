//! Where the elements of a tensor lie in its storage; all in elements, outermost axis first.

/// Walks a multi-index in row-major order, keeping Σ index·stride.
pub(crate) struct Odometer<'a> {
    dims: &'a [usize],
    strides: &'a [usize],
    index: Vec<usize>,
    pub offset: usize,
}

impl<'a> Odometer<'a> {
    pub fn new(dims: &'a [usize], strides: &'a [usize]) -> Self {
        Self { dims, strides, index: vec![0; dims.len()], offset: 0 }
    }

    pub fn step(&mut self) {
        for d in (0..self.dims.len()).rev() {
            self.index[d] += 1;
            self.offset += self.strides[d];
            if self.index[d] < self.dims[d] {
                return;
            }
            self.offset -= self.strides[d] * self.dims[d];
            self.index[d] = 0;
        }
    }
}

/// Returns the strides of a row-major tensor, in elements.
pub(crate) fn row_major(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for d in (1..shape.len()).rev() {
        strides[d - 1] = strides[d] * shape[d];
    }
    strides
}

/// Returns the axes, outermost in storage first, if the strides are a permuted row-major layout without gaps.
pub(crate) fn dense_order(shape: &[usize], strides: &[usize]) -> Option<Vec<usize>> {
    let mut order: Vec<usize> = (0..shape.len()).filter(|&d| shape[d] > 1).collect();
    order.sort_by_key(|&d| std::cmp::Reverse(strides[d]));
    let mut expected = 1;
    for &d in order.iter().rev() {
        if strides[d] != expected {
            return None;
        }
        expected *= shape[d];
    }
    Some(order)
}

/// Returns the number of outer axes to walk, and elements in one piece, for a tensor with no empty axis.
pub(crate) fn rows(shape: &[usize], strides: &[usize]) -> (usize, usize) {
    let (mut outer, mut run) = (shape.len(), 1);
    while outer > 0 && (shape[outer - 1] == 1 || strides[outer - 1] == run) {
        outer -= 1;
        run *= shape[outer];
    }
    (outer, run)
}
