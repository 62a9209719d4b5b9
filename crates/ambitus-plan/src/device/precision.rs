//! Which precisions a device has.

use super::Device;
use crate::cards::OLDEST_BF16;
use ambitus_compile::passes::precision::Precision;
use ambitus_cuda::CudaTarget;
use ambitus_families::error::RunError;
use ambitus_ir::DType;

impl Device {
    /// Returns this device with its matrix products as a precision has them.
    ///
    /// # Errors
    /// As [`Device::require`].
    pub fn computing_in(mut self, precision: Precision) -> Result<Device, RunError> {
        self.require(precision)?;
        self.tf32 = precision == Precision::Tf32Mixed;
        if let Some(card) = self.card.as_ref().filter(|_| self.tf32) {
            self.target = Box::new(CudaTarget::new(card.capability, card.rates).with_tf32());
        }
        Ok(self)
    }

    /// Refuses a precision that the device does not have.
    ///
    /// # Errors
    /// [`RunError::Usage`] with what to set instead.
    pub fn require(&self, precision: Precision) -> Result<(), RunError> {
        // From the same capability on.
        let has_tf32 = self.card.as_ref().is_some_and(|card| card.capability >= OLDEST_BF16);
        if precision == Precision::Tf32Mixed && !has_tf32 {
            let half = if self.has_tensor_cores() { self.half() } else { Precision::Fp32 };
            return Err(RunError::Usage(format!(
                "precision: tf32-mixed is for tensor cores that take TF32 (GPUs have them from capability 8.0 on), and {} has none: \
                 use {half} (--precision {half})",
                self.name()
            )));
        }
        if precision.narrow() == Some(DType::BF16) && !self.computes_bf16() {
            return Err(RunError::Usage(format!(
                "precision: {} has no bfloat16 (GPUs have it from capability 8.0 on): use fp16-mixed (--precision fp16-mixed)",
                self.name()
            )));
        }
        Ok(())
    }

    /// Returns whether it computes in bfloat16 as fast as in any 16-bit type.
    pub fn computes_bf16(&self) -> bool {
        self.card.as_ref().is_none_or(|card| card.bf16)
    }

    /// Returns the 16-bit precision of activations that it is best at.
    pub fn half(&self) -> Precision {
        if self.computes_bf16() { Precision::Bf16Mixed } else { Precision::Fp16Mixed }
    }

    /// Returns whether it multiplies 16-bit operands faster than fp32 ones: that is what tensor cores are for.
    pub fn has_tensor_cores(&self) -> bool {
        self.card.as_ref().is_some_and(|card| card.rates.half > card.rates.gemm)
    }
}
