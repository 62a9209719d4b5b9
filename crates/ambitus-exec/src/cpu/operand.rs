//! Typed views of planned places: what an instruction may read and write.
//!
//! An [`Io`] is one instruction's operands and results while a program is resolved. It hands out each result once, as an
//! [`Out`], and operands as [`In`], and refuses when a result's bytes overlap an operand, another result or the workspace,
//! unless the pair shares bytes as a whole and the kernel asked for that. So, within a running instruction, every
//! exclusive view is disjoint from all others; and instructions run one after the other. That values of *different*
//! instructions which are live at one time do not overlap is the plan checker's proof: a fault there would give wrong
//! numbers, never a view outside the arena.

use super::core_ops::elementwise;
use super::disk::Disk;
use super::kernels::{Half, Mat, MatMut, Pool, Rows, RowsMut};
use super::ranks::Ranks;
use ambitus_ir::plan::{Address, Region};
use ambitus_ir::{DType, TensorType};
use std::marker::PhantomData;

/// Start of every region, for one run of a program, and the threads to run on.
pub(super) struct Frame<'a> {
    bases: [*mut u8; 4],
    /// All threads.
    pub pool: &'a Pool,
    /// The calling thread only, same instruction set: for kernels called inside tasks.
    pub one: &'a Pool,
    /// The host arena, where it is a file: then its region has no memory.
    pub disk: Option<&'a Disk>,
    /// The other ranks, where there are some.
    pub ranks: Option<&'a Ranks>,
    life: PhantomData<&'a mut [u8]>,
}

// SAFETY: the pointers are the arenas' exclusive borrow, used only through `In` and `Out`, whose views obey borrowing.
unsafe impl Send for Frame<'_> {}
// SAFETY: as above.
unsafe impl Sync for Frame<'_> {}

impl<'a> Frame<'a> {
    /// # Safety
    /// `base(region)` must be the start of a stretch that holds every place of that region in the program that runs, and
    /// nothing else may use those bytes during `'a`.
    pub unsafe fn new(
        base: impl Fn(Region) -> *mut u8,
        pool: &'a Pool,
        one: &'a Pool,
        disk: Option<&'a Disk>,
        ranks: Option<&'a Ranks>,
    ) -> Frame<'a> {
        let order = [Region::State, Region::Transient, Region::Slot, Region::Host];
        debug_assert!(order.iter().enumerate().all(|(i, r)| *r as usize == i));
        Frame { bases: order.map(base), pool, one, disk, ranks, life: PhantomData }
    }

    fn at(&self, place: &Place) -> *mut f32 {
        // SAFETY: inside the region, by `Frame::new`'s contract and the check of places at open.
        unsafe { self.bases[place.at.region as usize].add(place.at.offset as usize).cast() }
    }
}

/// A planned value: type and bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Element type, shape, pitch; for a workspace, a vector of floats.
    pub ty: TensorType,
    /// Where it lies.
    pub at: Address,
}

impl Place {
    /// Whole words: a value owns its bytes up to the next multiple of [`TensorType::ALIGN`].
    fn words(&self) -> usize {
        self.ty.bytes().div_ceil(4) as usize
    }

    fn on_host(&self) -> Option<u64> {
        (self.at.region == Region::Host).then_some(self.at.offset)
    }

    /// Returns the elements of this width, pads included.
    fn len<E: Element>(&self) -> usize {
        assert!(self.ty.dtype.size() == size_of::<E>(), "{} as {} bytes", self.ty, size_of::<E>());
        self.ty.bytes() as usize / size_of::<E>()
    }

    fn half(&self) -> Option<Half> {
        half(self.ty)
    }

    fn overlaps(&self, other: &Place) -> bool {
        let (a, b) = (&self.at, &other.at);
        let end = |p: &Place| p.at.offset + p.ty.bytes();
        a.region == b.region && a.offset < end(other) && b.offset < end(self)
    }

    fn same_start(&self, other: &Place) -> bool {
        self.at.region == other.at.region && self.at.offset == other.at.offset
    }
}

/// How elements are moved: words of 32 bits, whatever they mean, or of 16, or bytes.
pub(super) trait Element: Copy + Default + Send + Sync + 'static {}
impl Element for f32 {}
impl Element for u16 {}
impl Element for u8 {}

/// Runs an expression with the type `E` of a value's elements as they are moved.
macro_rules! by_width {
    ($ty:expr, $E:ident => $body:expr) => {
        if $ty.dtype.size() == 2 {
            type $E = u16;
            $body
        } else {
            type $E = f32;
            $body
        }
    };
}
pub(super) use by_width;

/// Returns the 16-bit type of a value's elements, if they have one.
pub(super) fn half(ty: TensorType) -> Option<Half> {
    match ty.dtype {
        DType::BF16 => Some(Half::Bf16),
        DType::F16 => Some(Half::F16),
        _ => None,
    }
}

/// An operand, to read.
#[derive(Clone, Debug)]
pub(super) struct In(Place);

impl In {
    /// Returns the 32-bit words of a value without inner pads.
    pub fn words<'s>(&'s self, f: &'s Frame) -> &'s [u32] {
        let data = self.vec(f);
        // SAFETY: u32 has f32's size and alignment, and every bit pattern is one.
        unsafe { std::slice::from_raw_parts(data.as_ptr().cast(), data.len()) }
    }

    /// Returns the type of the value.
    pub fn ty(&self) -> TensorType {
        self.0.ty
    }

    /// Returns its place in the host arena, if it is there.
    pub fn on_host(&self) -> Option<u64> {
        self.0.on_host()
    }

    /// Returns all elements with their pads.
    pub fn data<'s>(&'s self, f: &'s Frame) -> &'s [f32] {
        // SAFETY: inside the region, 256-aligned; `Io` made sure that no `Out` of this instruction overlaps it.
        unsafe { std::slice::from_raw_parts(f.at(&self.0), self.0.words()) }
    }

    /// As rows of the last axis.
    pub fn mat<'s>(&'s self, f: &'s Frame) -> Mat<'s> {
        let TensorType { shape, pitch, .. } = self.0.ty;
        Mat::new(self.data(f), shape.rows(), shape.cols(), pitch)
    }

    /// Returns all elements with their pads, by their width: 32-bit words as `f32`, 16-bit ones as `u16`.
    pub fn slice<'s, E: Element>(&'s self, f: &'s Frame) -> &'s [E] {
        // SAFETY: inside the region, 256-aligned; every bit pattern is an `E`; `Io` made sure that no `Out` of this
        // instruction overlaps it.
        unsafe { std::slice::from_raw_parts(f.at(&self.0).cast(), self.0.len::<E>()) }
    }

    /// As rows of the last axis, in any float type.
    pub fn rows<'s>(&'s self, f: &'s Frame) -> Rows<'s> {
        let TensorType { shape, pitch, .. } = self.0.ty;
        match self.0.half() {
            None => Rows::F32(self.mat(f)),
            Some(half) => Rows::Half(half, Mat::new(self.slice(f), shape.rows(), shape.cols(), pitch)),
        }
    }

    /// Returns the elements of a value without inner pads (a vector, one row, or dense).
    pub fn vec<'s>(&'s self, f: &'s Frame) -> &'s [f32] {
        debug_assert!(contiguous(self.0.ty));
        &self.data(f)[..self.0.ty.shape.elements()]
    }

    /// Returns the i32 elements of a value without inner pads.
    pub fn ints<'s>(&'s self, f: &'s Frame) -> &'s [i32] {
        let data = self.vec(f);
        // SAFETY: i32 has f32's size and alignment, and every bit pattern is one.
        unsafe { std::slice::from_raw_parts(data.as_ptr().cast(), data.len()) }
    }

    /// Returns the single element.
    pub fn scalar(&self, f: &Frame) -> f32 {
        self.data(f)[0]
    }
}

/// A result, or scratch, to write.
#[derive(Debug)]
pub(super) struct Out(Place);

impl Out {
    /// Returns the type of the value.
    pub fn ty(&self) -> TensorType {
        self.0.ty
    }

    /// Returns its place in the host arena, if it is there.
    pub fn on_host(&self) -> Option<u64> {
        self.0.on_host()
    }

    /// Returns all elements with their pads.
    pub fn data<'s>(&'s mut self, f: &'s Frame) -> &'s mut [f32] {
        // SAFETY: inside the region, 256-aligned; `Io` handed this place out once and overlapping no other; `&mut self`.
        unsafe { std::slice::from_raw_parts_mut(f.at(&self.0), self.0.words()) }
    }

    /// Returns all elements with their pads, by their width: 32-bit words as `f32`, 16-bit ones as `u16`.
    pub fn slice<'s, E: Element>(&'s mut self, f: &'s Frame) -> &'s mut [E] {
        // SAFETY: inside the region, 256-aligned; every bit pattern is an `E`; `Io` handed this place out once and
        // overlapping no other; `&mut self`.
        unsafe { std::slice::from_raw_parts_mut(f.at(&self.0).cast(), self.0.len::<E>()) }
    }

    /// As rows of the last axis, in any float type; kernels zero the pads.
    pub fn rows<'s>(&'s mut self, f: &'s Frame) -> RowsMut<'s> {
        let TensorType { shape, pitch, .. } = self.0.ty;
        match self.0.half() {
            None => RowsMut::F32(self.mat(f)),
            Some(half) => RowsMut::Half(half, MatMut::new(self.slice(f), shape.rows(), shape.cols(), pitch)),
        }
    }

    /// As rows of the last axis; kernels zero the pads.
    pub fn mat<'s>(&'s mut self, f: &'s Frame) -> MatMut<'s> {
        let TensorType { shape, pitch, .. } = self.0.ty;
        MatMut::new(self.data(f), shape.rows(), shape.cols(), pitch)
    }

    /// Returns the elements of a value without inner pads, its tail zeroed.
    pub fn vec<'s>(&'s mut self, f: &'s Frame) -> &'s mut [f32] {
        debug_assert!(contiguous(self.0.ty));
        let len = self.0.ty.shape.elements();
        let (data, pad) = self.data(f).split_at_mut(len);
        pad.fill(0.0);
        data
    }
}

/// An operand that the result may overwrite.
#[derive(Debug)]
pub(super) enum Source {
    /// Its bytes are the result's.
    Result,
    /// Elsewhere.
    In(In),
}

impl Source {
    /// Returns the operand's elements with pads, or `None` if they are the result's.
    pub fn data<'s>(&'s self, f: &'s Frame) -> Option<&'s [f32]> {
        self.slice(f)
    }

    /// Returns the operand's elements by their width, or `None` if they are the result's.
    pub fn slice<'s, E: Element>(&'s self, f: &'s Frame) -> Option<&'s [E]> {
        match self {
            Source::Result => None,
            Source::In(x) => Some(x.slice(f)),
        }
    }

    /// Copies the operand's elements, of 32 bits, into the result `to`, which continues from them.
    pub fn put(&self, f: &Frame, to: &mut Out) {
        if let Source::In(x) = self {
            let (ty, x) = (TensorType::f32(&[x.0.words()]), x.data(f));
            elementwise::map(f.pool, ty, Some(x), to.data(f), |x| x);
        }
    }

    /// Returns the operand's rows, or `None` if they are the result's.
    pub fn rows<'s>(&'s self, f: &'s Frame) -> Option<Rows<'s>> {
        match self {
            Source::Result => None,
            Source::In(x) => Some(x.rows(f)),
        }
    }
}

/// Returns true when all elements follow each other.
pub(super) fn contiguous(ty: TensorType) -> bool {
    ty.is_dense() || ty.shape.rows() <= 1
}

/// One instruction's places while it is resolved.
pub(super) struct Io {
    x: Vec<Place>,
    y: Vec<Place>,
    taken: Vec<bool>,
    ws: Option<Place>,
}

impl Io {
    /// Operand and result places and scratch. Refuses results that overlap each other or the scratch, and scratch that
    /// overlaps operands.
    pub fn new(x: Vec<Place>, y: Vec<Place>, ws: Option<Place>) -> Result<Io, String> {
        for (i, a) in y.iter().enumerate() {
            if y[..i].iter().chain(&ws).any(|b| a.overlaps(b)) {
                return Err(format!("result {i} overlaps another result or the workspace"));
            }
        }
        if let Some(i) = x.iter().position(|a| ws.iter().any(|b| a.overlaps(b))) {
            return Err(format!("operand {i} overlaps the workspace"));
        }
        let taken = vec![false; y.len()];
        Ok(Io { x, y, taken, ws })
    }

    /// Returns the number of operands.
    pub fn operands(&self) -> usize {
        self.x.len()
    }

    /// Returns the number of results.
    pub fn results(&self) -> usize {
        self.y.len()
    }

    /// Operand `i`, which no result overlaps.
    pub fn x(&self, i: usize) -> Result<In, String> {
        match self.y.iter().position(|y| y.overlaps(&self.x[i])) {
            None => Ok(In(self.x[i])),
            Some(o) => Err(format!("result {o} overwrites operand {i}, which the kernel cannot do")),
        }
    }

    /// Operand `i`, which result `o` may overwrite exactly.
    pub fn source(&self, i: usize, o: usize) -> Result<Source, String> {
        if self.shared(i, o) { Ok(Source::Result) } else { self.x(i).map(Source::In) }
    }

    /// Returns true when result `o` starts on operand `i`'s first byte.
    pub fn shared(&self, i: usize, o: usize) -> bool {
        self.x[i].same_start(&self.y[o]) && self.x[i].ty.bytes() > 0
    }

    /// Returns the type of operand `i`.
    pub fn x_ty(&self, i: usize) -> TensorType {
        self.x[i].ty
    }

    /// Returns result `o`; once.
    pub fn y(&mut self, o: usize) -> Out {
        let taken = std::mem::replace(&mut self.taken[o], true);
        assert!(!taken, "result {o} is handed out twice");
        Out(self.y[o])
    }

    /// Returns the type of result `o`.
    pub fn y_ty(&self, o: usize) -> TensorType {
        self.y[o].ty
    }

    /// Returns result `o`, which starts on operand `i`'s first byte, with a type that covers the bytes of both. Refuses when
    /// what it covers overlaps anything else of the instruction.
    pub fn longer(&mut self, i: usize, o: usize) -> Result<Out, String> {
        let y = self.donated(i, o)?;
        let longer = if self.x[i].ty.bytes() > y.0.ty.bytes() { self.x[i] } else { y.0 };
        let besides = |of: &[Place], at: usize| {
            of.iter().enumerate().any(|(k, other)| k != at && other.overlaps(&longer))
        };
        if besides(&self.x, i) || besides(&self.y, o) || self.ws.iter().any(|ws| ws.overlaps(&longer)) {
            return Err(format!("operand {i}, under result {o}, overlaps another value or the workspace"));
        }
        Ok(Out(longer))
    }

    /// Returns result `o` on the bytes of operand `i`, for ops that donate.
    pub fn donated(&mut self, i: usize, o: usize) -> Result<Out, String> {
        if self.x[i].same_start(&self.y[o]) {
            Ok(self.y(o))
        } else {
            Err(format!("result {o} is not on the bytes of operand {i}"))
        }
    }

    /// Returns the scratch; once.
    pub fn ws(&mut self) -> Scratch {
        Scratch(self.ws.take().map(Out))
    }
}

/// An instruction's scratch, perhaps none.
#[derive(Debug)]
pub(super) struct Scratch(Option<Out>);

impl Scratch {
    /// Returns its floats.
    pub fn data<'s>(&'s mut self, f: &'s Frame) -> &'s mut [f32] {
        self.0.as_mut().map_or(&mut [], |out| out.data(f))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(offset: u64, floats: usize) -> Place {
        let ty = TensorType::f32(&[floats]);
        Place { ty, at: Address { region: Region::Transient, offset, bytes: ty.bytes() } }
    }

    #[test]
    fn a_tail_is_not_handed_out_over_another_value() {
        let io =
            |x: &[Place], ws| Io::new(x.to_vec(), vec![place(0, 64)], ws).expect("nothing is overwritten");
        let (long, in_its_tail) = (place(0, 128), place(256, 64));
        let all = io(&[long], None).longer(0, 0).expect("nothing else is there");
        assert_eq!(all.ty().bytes(), 512);
        assert!(io(&[long, in_its_tail], None).longer(0, 0).is_err());
        assert!(io(&[place(512, 64)], None).longer(0, 0).is_err(), "elsewhere");
    }

    #[test]
    #[should_panic(expected = "as 2 bytes")]
    fn elements_are_not_taken_in_another_width() {
        place(0, 64).len::<u16>();
    }
}
