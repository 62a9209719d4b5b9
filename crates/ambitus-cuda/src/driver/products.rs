//! Matrix products by cuBLASLt, each with its algorithm chosen once.

use super::algorithms::Algorithms;
use crate::step::{Gemm, Matrix};
use ambitus_ir::DType;
use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;
use cudarc::driver::sys::CUstream;
use std::ffi::c_void;
use std::path::{Path, PathBuf};

/// The library's handle and the algorithms chosen so far.
pub struct Products {
    handle: sys::cublasLtHandle_t,
    /// What products use.
    pub(super) chosen: Algorithms,
    /// What a run was begun with, and what earlier ones left, unchecked.
    known: [Algorithms; 2],
    /// Where to leave what is chosen.
    pub(super) cache: Option<PathBuf>,
    /// Address of the constant 1 on the card.
    one: u64,
    /// fp32 operands are read as TF32.
    pub tf32: bool,
}

impl Products {
    /// Takes a handle; `one` is the address of the constant 1 in f32 on the card, `card` its kind, and `cache` a folder in which
    /// chosen algorithms are kept.
    ///
    /// # Errors
    /// When the library refuses.
    pub fn new(one: u64, card: &str, cache: Option<&Path>) -> Result<Products, String> {
        let handle = result::create_handle().map_err(|e| format!("cuBLASLt: {e}"))?;
        // SAFETY: the library is loaded; the call has no arguments.
        let title = format!("cuBLASLt {} on {card}", unsafe { sys::cublasLtGetVersion() });
        let none = Algorithms::new(title.clone());
        let known = [none.clone(), Algorithms::cached(title, cache)];
        Ok(Products { handle, chosen: none, known, cache: cache.map(Path::to_owned), one, tf32: false })
    }

    /// Puts a product on a stream.
    ///
    /// # Errors
    /// Products that the library has no algorithm for.
    pub fn launch(&mut self, g: &Gemm, stream: CUstream) -> Result<(), String> {
        let what = || format!("product [{}, {}] x [{}, {}] of {}", g.m, g.k, g.k, g.n, g.a.dtype.name());
        self.launch_inner(g, stream).map_err(|e| format!("cuBLASLt: {}: {e}", what()))
    }

    fn launch_inner(&mut self, g: &Gemm, stream: CUstream) -> Result<(), CublasError> {
        let call = Call::new(g, compute(g, self.tf32))?;
        let key = self.key(g);
        let algorithm = match self.chosen.get(&key) {
            Some(algorithm) => algorithm,
            None => {
                let found = call.choices(self.handle, g, 1)?.remove(0);
                self.chosen.set(key, found);
                found
            }
        };
        let (one, zero) = (1.0f32, 0.0f32);
        let host = |x: &f32| std::ptr::from_ref(x).cast::<c_void>();
        let device = |at: u64| at as *const c_void;
        let (alpha, beta) =
            if g.beta == 0 { (host(&one), host(&zero)) } else { (device(self.one), device(g.beta)) };
        // SAFETY: the descriptors are live; addresses lie in the arena by the plan's check, with the shapes and pitches that
        // the descriptors say; host scalars are read before the call returns.
        unsafe {
            sys::cublasLtMatmul(
                self.handle,
                call.operation,
                alpha,
                device(g.a.at),
                call.a,
                device(g.b.at),
                call.b,
                beta,
                device(g.d.at),
                call.d,
                g.d.at as *mut c_void,
                call.d,
                &algorithm,
                g.workspace as *mut c_void,
                g.workspace_bytes as usize,
                stream.cast(),
            )
            .result()
        }
    }
}

impl Products {
    /// Returns the library's first choices for a product, at most `most`.
    ///
    /// # Errors
    /// Products that the library has no algorithm for.
    pub fn choices(&self, g: &Gemm, most: usize) -> Result<Vec<sys::cublasLtMatmulAlgo_t>, String> {
        Call::new(g, compute(g, self.tf32))
            .and_then(|call| call.choices(self.handle, g, most))
            .map_err(|e| format!("cuBLASLt: {e}"))
    }

    /// Chooses an algorithm for a product, and all that have its [`Products::key`].
    pub fn choose(&mut self, g: &Gemm, algorithm: sys::cublasLtMatmulAlgo_t) {
        self.chosen.set(self.key(g), algorithm);
    }

    /// Takes what a run was begun with before anything else.
    pub fn recall(&mut self, kept: &str) {
        self.known[0].add(kept);
    }

    /// Takes what all ranks chose instead of its own choices: of each product the first rank's.
    pub fn agree(&mut self, said: &[Vec<u8>]) {
        let none = self.chosen.only(std::iter::empty());
        let mut all = none.clone();
        said.iter().for_each(|text| all.add(&String::from_utf8_lossy(text)));
        (self.known[0], self.chosen) = (all, none);
    }

    /// Returns whether a product has its algorithm: chosen, or known from before and good for it.
    pub fn is_settled(&mut self, g: &Gemm) -> bool {
        let key = self.key(g);
        if self.chosen.get(&key).is_none() {
            let known = self.known.iter().filter_map(|k| k.get(&key)).find(|algorithm| {
                let call = Call::new(g, compute(g, self.tf32));
                call.is_ok_and(|call| call.takes(self.handle, g, algorithm))
            });
            known.into_iter().for_each(|algorithm| self.chosen.set(key.clone(), algorithm));
        }
        self.chosen.get(&key).is_some()
    }

    /// Returns the algorithms of products as text, for [`Products::recall`].
    pub fn text_of(&self, gemms: &[Gemm]) -> String {
        if gemms.is_empty() {
            return String::new();
        }
        self.chosen.only(gemms.iter().map(|g| self.key(g))).text()
    }

    /// Returns what an algorithm depends on: everything but addresses, of which only the alignment counts.
    pub fn key(&self, g: &Gemm) -> String {
        let operand = |m: Matrix| {
            let t = if m.transposed { "t" } else { "" };
            format!("{}{t}/{}/{}@{}", m.dtype.name(), m.ld, m.stride, alignment(m.at))
        };
        let (a, b, d) = (operand(g.a), operand(g.b), operand(g.d));
        let (beta, bias) = (if g.beta == 0 { "" } else { " +c" }, if g.bias == 0 { "" } else { " +bias" });
        let tf32 = if self.tf32 && g.a.dtype == DType::F32 { " tf32" } else { "" };
        let (m, n, k, batch, scratch) = (g.m, g.n, g.k, g.batch, g.workspace_bytes);
        format!("{m}x{n}x{k}x{batch} {a} {b} {d}{beta}{bias}{tf32} {scratch}")
    }
}

impl Drop for Products {
    fn drop(&mut self) {
        // SAFETY: created in `new`, destroyed once.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

/// Returns how a product is computed: with sums in fp32 of what was read. TF32 only where it is asked for: results must not depend
/// on the card's generation.
fn compute(g: &Gemm, tf32: bool) -> sys::cublasComputeType_t {
    match tf32 && g.a.dtype == DType::F32 {
        true => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
        false => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
    }
}

/// Returns the bytes that an address is a multiple of, at most 256.
fn alignment(at: u64) -> u32 {
    1 << at.trailing_zeros().min(8)
}

/// Descriptors of one product.
struct Call {
    operation: sys::cublasLtMatmulDesc_t,
    a: sys::cublasLtMatrixLayout_t,
    b: sys::cublasLtMatrixLayout_t,
    d: sys::cublasLtMatrixLayout_t,
}

impl Call {
    fn new(g: &Gemm, compute: sys::cublasComputeType_t) -> Result<Call, CublasError> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let operation = result::create_matmul_desc(compute, sys::cudaDataType_t::CUDA_R_32F)?;
        let null = std::ptr::null_mut();
        let mut call = Call { operation, a: null, b: null, d: null };
        let set = |attribute, value: &[u8]| {
            // SAFETY: the descriptor is live; the buffer is as long as it says.
            unsafe {
                result::set_matmul_desc_attribute(operation, attribute, value.as_ptr().cast(), value.len())
            }
        };
        // CUBLAS_OP_T and CUBLAS_OP_N.
        let transposed = |m: Matrix| i32::from(m.transposed).to_ne_bytes();
        set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &transposed(g.a))?;
        set(Attribute::CUBLASLT_MATMUL_DESC_TRANSB, &transposed(g.b))?;
        if g.beta != 0 {
            let mode = sys::cublasLtPointerMode_t::CUBLASLT_POINTER_MODE_DEVICE as u32;
            set(Attribute::CUBLASLT_MATMUL_DESC_POINTER_MODE, &mode.to_ne_bytes())?;
        }
        if g.bias != 0 {
            let epilogue = sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS as u32;
            set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue.to_ne_bytes())?;
            set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &g.bias.to_ne_bytes())?;
        }
        // As stored: op(A) is [m, k].
        let stored = |m: Matrix, rows: u64, cols: u64| if m.transposed { (cols, rows) } else { (rows, cols) };
        call.a = layout(g.a, stored(g.a, g.m, g.k), g.batch)?;
        call.b = layout(g.b, stored(g.b, g.k, g.n), g.batch)?;
        call.d = layout(g.d, (g.m, g.n), g.batch)?;
        Ok(call)
    }

    /// Returns the library's first choices, one at least and at most `most`, that need no more than the planned scratch and add parts
    /// of sums in a fixed order.
    fn choices(
        &self,
        handle: sys::cublasLtHandle_t,
        g: &Gemm,
        most: usize,
    ) -> Result<Vec<sys::cublasLtMatmulAlgo_t>, CublasError> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
        let preference = Preference(result::create_matmul_pref()?);
        let set = |attribute, value: &[u8]| {
            // SAFETY: the preference is live; the buffer is as long as it says.
            unsafe {
                result::set_matmul_pref_attribute(preference.0, attribute, value.as_ptr().cast(), value.len())
            }
        };
        set(Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &g.workspace_bytes.to_ne_bytes())?;
        let reduction = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
        set(Attribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction.to_ne_bytes())?;
        let alignment = |at| alignment(at).to_ne_bytes();
        set(Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &alignment(g.a.at))?;
        set(Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &alignment(g.b.at))?;
        set(Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &alignment(g.d.at))?;
        set(Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &alignment(g.d.at))?;
        // SAFETY: plain numbers and pointers, all of which may be zero: the library fills what it finds.
        let mut found: Vec<sys::cublasLtMatmulHeuristicResult_t> =
            vec![unsafe { std::mem::zeroed() }; most.max(1)];
        let mut count = 0;
        // SAFETY: all descriptors are live; the buffer has as many results as are asked for.
        unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                handle,
                self.operation,
                self.a,
                self.b,
                self.d,
                self.d,
                preference.0,
                found.len() as i32,
                found.as_mut_ptr(),
                &mut count,
            )
        }
        .result()?;
        found.truncate(count.max(0) as usize);
        if found.is_empty() {
            return Err(CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED));
        }
        Ok(found.into_iter().map(|f| f.algo).collect())
    }

    /// Returns whether the library takes an algorithm for this product, and with the planned scratch.
    fn takes(&self, handle: sys::cublasLtHandle_t, g: &Gemm, algorithm: &sys::cublasLtMatmulAlgo_t) -> bool {
        // SAFETY: plain numbers, which may be zero: the library fills them.
        let mut found: sys::cublasLtMatmulHeuristicResult_t = unsafe { std::mem::zeroed() };
        // SAFETY: all descriptors are live; what is read and what is written is of the types that are asked for.
        let answer = unsafe {
            sys::cublasLtMatmulAlgoCheck(
                handle,
                self.operation,
                self.a,
                self.b,
                self.d,
                self.d,
                algorithm,
                &mut found,
            )
        };
        answer.result().is_ok() && found.workspaceSize as u64 <= g.workspace_bytes
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        for layout in [self.a, self.b, self.d] {
            if !layout.is_null() {
                // SAFETY: created in `new`, destroyed once.
                let _ = unsafe { result::destroy_matrix_layout(layout) };
            }
        }
        // SAFETY: as above.
        let _ = unsafe { result::destroy_matmul_desc(self.operation) };
    }
}

struct Preference(sys::cublasLtMatmulPreference_t);

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: created by `choose`, destroyed once.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}

/// Returns a matrix as it is stored: rows and columns before any transposition.
fn layout(
    m: Matrix,
    (rows, cols): (u64, u64),
    batch: u64,
) -> Result<sys::cublasLtMatrixLayout_t, CublasError> {
    use sys::cublasLtMatrixLayoutAttribute_t as Attribute;
    let dtype = match m.dtype {
        DType::BF16 => sys::cudaDataType_t::CUDA_R_16BF,
        DType::F16 => sys::cudaDataType_t::CUDA_R_16F,
        _ => sys::cudaDataType_t::CUDA_R_32F,
    };
    let layout = result::create_matrix_layout(dtype, rows, cols, m.ld as i64)?;
    if batch > 1 {
        let set = |attribute, value: &[u8]| {
            // SAFETY: the layout is live; the buffer is as long as it says.
            unsafe {
                result::set_matrix_layout_attribute(layout, attribute, value.as_ptr().cast(), value.len())
            }
        };
        set(Attribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &(batch as i32).to_ne_bytes())?;
        set(Attribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &(m.stride as i64).to_ne_bytes())?;
    }
    Ok(layout)
}
