//! The kernels: for each family the device code (`<family>.cu`) and, next to it, how its ops are launched.
//!
//! A kernel's arguments are one struct, declared once, here in Rust, by [`kernel!`]; its C declaration is made from that,
//! so the two cannot differ. [`source`] puts a family's whole source together.

pub(crate) mod activation;
pub(crate) mod alignment;
pub(crate) mod attention;
mod attention_mma;
mod attention_wgmma;
pub(crate) mod collective;
pub(crate) mod conv;
pub(crate) mod copy;
mod decoding;
pub(crate) mod elementwise;
pub(crate) mod head;
pub(crate) mod index;
pub(crate) mod layout;
pub(crate) mod loss;
pub(crate) mod matmul;
pub(crate) mod modulation;
pub(crate) mod narrow;
pub(crate) mod norm;
pub(crate) mod optim;
pub(crate) mod random;
pub(crate) mod reduce;
pub(crate) mod rotary;
pub(crate) mod segment;
pub(crate) mod spline;
pub(crate) mod windowed;

use crate::step::{Launch, Step};
use ambitus_ir::{DType, TensorType};

/// What is known of a kernel before anything runs.
pub(crate) struct KernelInfo {
    /// Name of the function.
    pub name: &'static str,
    /// Threads of a block; whole warps.
    pub block: u32,
    /// Most registers a thread may use: with the block's size it sets how many blocks a multiprocessor holds.
    pub registers: u32,
    /// Bytes of shared memory of a block whose size the launch says.
    pub shared: u32,
    /// C declaration of the arguments, the block's size and the registers.
    pub declare: fn() -> String,
}

/// A kernel with its arguments.
pub(crate) trait Kernel {
    /// What is known of it.
    const INFO: KernelInfo;
    /// Returns the arguments as the kernel reads them.
    fn bytes(&self) -> Vec<u8>;
}

/// A file of kernels, compiled as one module.
pub(crate) struct Family {
    /// The file's name.
    pub name: &'static str,
    /// The file.
    pub code: &'static str,
    /// Its kernels.
    pub kernels: &'static [KernelInfo],
}

/// Every family.
pub(crate) const FAMILIES: &[&Family] = &[
    &activation::FAMILY,
    &alignment::FAMILY,
    &attention::FAMILY,
    &attention_mma::FAMILY,
    &attention_wgmma::FAMILY,
    &collective::FAMILY,
    &conv::FAMILY,
    &decoding::FAMILY,
    &elementwise::FAMILY,
    &head::FAMILY,
    &index::FAMILY,
    &layout::FAMILY,
    &loss::FAMILY,
    &matmul::FAMILY,
    &modulation::FAMILY,
    &narrow::FAMILY,
    &norm::FAMILY,
    &optim::FAMILY,
    &random::FAMILY,
    &reduce::FAMILY,
    &rotary::FAMILY,
    &segment::FAMILY,
    &spline::FAMILY,
    &windowed::FAMILY,
];

/// The first card with all operations of `warp.h`: bfloat16 on tensor cores, copies to shared memory that land later.
pub(crate) const WARP_OPERATIONS: (u32, u32) = (8, 0);
/// The only cards with the operations of `warpgroup.h` (Hopper).
pub(crate) const WARPGROUP_OPERATIONS: (u32, u32) = (9, 0);
/// Elements of 16 bits that are copied at once.
pub(crate) const CHUNK: usize = 8;

/// Returns what every family's code stands after.
pub(crate) fn headers() -> String {
    let header = |name: &str, text: &str| format!("#line 1 \"{name}\"\n{text}");
    header("device.h", include_str!("device.h"))
        + &header("warp.h", include_str!("warp.h"))
        + &header("warpgroup.h", include_str!("warpgroup.h"))
        + &header("tiles.h", include_str!("tiles.h"))
}

/// Returns what a family's code is compiled from.
pub(crate) fn source(family: &Family) -> String {
    let mut text = headers();
    for kernel in family.kernels {
        text += &(kernel.declare)();
    }
    text += &format!("#line 1 \"{}.cu\"\n", family.name);
    text + family.code
}

/// Launches `kernel` on a grid of blocks.
pub(crate) fn launch<K: Kernel>(kernel: &K, grid: [u32; 2]) -> Step {
    let KernelInfo { name, block, shared, .. } = K::INFO;
    Step::Launch(Launch { kernel: name, block, shared, grid, args: kernel.bytes() })
}

/// Returns the blocks of a kernel whose threads stride through `n` elements.
pub(crate) fn blocks<K: Kernel>(n: u64) -> u64 {
    /// Blocks beyond which threads take several elements each: some waves on the largest cards.
    const MOST: u64 = 4096;
    n.div_ceil(u64::from(K::INFO.block)).min(MOST)
}

/// Launches `kernel` over `n` elements that its threads stride through; nothing when there are none.
pub(crate) fn launch_over<K: Kernel>(kernel: &K, n: u64) -> Vec<Step> {
    let blocks = blocks::<K>(n) as u32;
    if blocks == 0 { Vec::new() } else { vec![launch(kernel, [blocks, 1])] }
}

/// For a kernel of 256 threads that works row by row: 1 when rows are so narrow that a warp takes one, else 0, where a
/// block does; and the grid, empty when there are no rows. The mirror of `row_team` in `device.h`.
pub(crate) fn teams(y: &View) -> (i32, [u32; 2]) {
    /// Four columns a lane, eight times.
    const NARROW: i32 = 1024;
    let narrow = y.cols <= NARROW;
    let rows = if narrow { (y.rows as u64).div_ceil(8) } else { y.rows as u64 };
    (i32::from(narrow), [rows as u32, 1])
}

/// A type of kernel arguments.
pub(crate) trait Argument: Copy {
    /// Its name in C.
    const C: &'static str;
    /// Writes it as C lays it out.
    fn put(self, to: &mut [u8]);
}

macro_rules! plain_argument {
    ($($rust:ty = $c:literal),*) => {$(
        impl Argument for $rust {
            const C: &'static str = $c;
            fn put(self, to: &mut [u8]) {
                to[..size_of::<Self>()].copy_from_slice(&self.to_ne_bytes());
            }
        }
    )*};
}
plain_argument!(i32 = "int", u32 = "u32", i64 = "i64", u64 = "u64", f32 = "float", f64 = "double");

/// A tensor as kernels see it: the mirror of `View` in `device.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct View {
    /// Address.
    pub data: u64,
    /// Product of all axes but the last.
    pub rows: i64,
    /// The last axis.
    pub cols: i32,
    /// Elements from row to row.
    pub pitch: i32,
    /// Element type, numbered as in `device.h`.
    pub dtype: i32,
    reserved: i32,
}

impl View {
    /// Returns a tensor at an address.
    pub fn new(data: u64, ty: TensorType) -> View {
        let dtype = match ty.dtype {
            DType::F32 => 0,
            DType::BF16 => 1,
            DType::F16 => 2,
            DType::I32 => 3,
            DType::U8 => 4,
        };
        let (rows, cols, pitch) = (ty.shape.rows() as i64, ty.shape.cols() as i32, ty.pitch as i32);
        View { data, rows, cols, pitch, dtype, reserved: 0 }
    }

    /// No tensor: an operand that an op may lack.
    pub const NONE: View = View { data: 0, rows: 0, cols: 0, pitch: 0, dtype: 0, reserved: 0 };

    /// Returns the elements in memory, pads included.
    pub fn stored(&self) -> u64 {
        self.rows as u64 * self.pitch as u64
    }
}

impl Argument for View {
    const C: &'static str = "View";
    fn put(self, to: &mut [u8]) {
        self.data.put(to);
        self.rows.put(&mut to[8..]);
        for (i, x) in [self.cols, self.pitch, self.dtype, self.reserved].into_iter().enumerate() {
            x.put(&mut to[16 + 4 * i..]);
        }
    }
}

/// Up to four axis lengths or strides; in C `Axes`, an array in a struct.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Axes(pub [i64; 4]);

impl Argument for Axes {
    const C: &'static str = "Axes";
    fn put(self, to: &mut [u8]) {
        for (i, x) in self.0.into_iter().enumerate() {
            x.put(&mut to[8 * i..]);
        }
    }
}

/// Declares kernels: the struct of each one's arguments, in Rust and in C, and the list of the family's kernels.
///
/// ```text
/// kernels! { "elementwise";
///     /// y = f(x)
///     Unary "unary" [256 threads, 32 registers] { x: View, y: View, kind: i32 }
/// }
/// ```
///
/// A third number, as `69632 shared`: bytes of its `DYNAMIC_SHARED`.
macro_rules! kernels {
    ($family:literal; $(
        $(#[$meta:meta])*
        $name:ident $text:literal [$block:literal threads, $registers:literal registers $(, $shared:literal shared)?] {
            $($field:ident: $ty:ty),* $(,)?
        }
    )*) => {
        $(
            $(#[$meta])*
            #[derive(Clone, Copy, Debug)]
            #[repr(C)]
            struct $name { $($field: $ty),* }

            impl $crate::kernels::Kernel for $name {
                const INFO: $crate::kernels::KernelInfo = $crate::kernels::KernelInfo {
                    name: $text,
                    block: $block,
                    registers: $registers,
                    shared: 0 $(+ $shared)?,
                    declare: || {
                        use $crate::kernels::Argument;
                        let (args, size) = (concat!($text, "_args"), size_of::<$name>());
                        let fields: &[(&str, &str, usize)] = &[
                            $((<$ty>::C, stringify!($field), std::mem::offset_of!($name, $field))),*
                        ];
                        $crate::kernels::declaration(args, $text, ($block, $registers), size, fields)
                    },
                };

                fn bytes(&self) -> Vec<u8> {
                    use $crate::kernels::Argument;
                    let mut bytes = vec![0; size_of::<Self>()];
                    $(self.$field.put(&mut bytes[std::mem::offset_of!($name, $field)..]);)*
                    bytes
                }
            }
        )*

        /// The family.
        pub(crate) const FAMILY: $crate::kernels::Family = $crate::kernels::Family {
            name: $family,
            code: include_str!(concat!($family, ".cu")),
            kernels: &[$(<$name as $crate::kernels::Kernel>::INFO),*],
        };
    };
}
pub(crate) use kernels;

/// Returns the C side of a kernel's arguments; the compiler checks that both sides lay them out alike.
pub(crate) fn declaration(
    args: &str,
    name: &str,
    (block, registers): (u32, u32),
    size: usize,
    fields: &[(&str, &str, usize)],
) -> String {
    let mut text =
        format!("enum {{ {name}_block = {block}, {name}_registers = {registers} }};\nstruct {args} {{");
    for (c, field, _) in fields {
        text += &format!(" {c} {field};");
    }
    text += &format!(" }};\nstatic_assert(sizeof({args}) == {size}, \"{args}\");\n");
    // NVRTC has no offsetof; both compilers lay plain structs out alike, so the host's check is enough.
    text += "#ifndef __CUDACC__\n";
    for (_, field, offset) in fields {
        text +=
            &format!("static_assert(__builtin_offsetof({args}, {field}) == {offset}, \"{args}.{field}\");\n");
    }
    text + "#endif\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The driver's table of kernels is by name, over all families.
    #[test]
    fn no_two_kernels_have_one_name() {
        let mut names: Vec<&str> = FAMILIES.iter().flat_map(|f| f.kernels).map(|k| k.name).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all, "{names:?}");
    }
}
