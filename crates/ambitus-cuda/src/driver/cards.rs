//! Which cards there are. Makes no context.

use super::failed;
use crate::libraries::{self, Needed};
use ambitus_ir::target::{Links, Rates};
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

/// Oldest compute capability with what the kernels need (Turing).
pub const OLDEST: (u32, u32) = (7, 5);

/// A card that can be opened.
#[derive(Clone, Debug, PartialEq)]
pub struct CardInfo {
    /// Number for `--device cuda:N`.
    pub index: usize,
    /// Name.
    pub name: String,
    /// Compute capability (major, minor).
    pub capability: (u32, u32),
    /// Bytes of its memory.
    pub total_bytes: u64,
    /// CUDA version that the driver supports, e.g. (12, 4).
    pub driver: (u32, u32),
    /// PCI address, e.g. `0000:01:00.0`.
    pub pci: String,
    /// Rates by its clocks and units.
    pub rates: Rates,
}

/// Bytes per second of copies from and to the host: the driver does not tell the link; PCIe 4 x16 reaches this.
const LINK: f64 = 25e9;

/// What a card's rates follow from.
struct Units {
    multiprocessors: u32,
    kilohertz: u32,
    memory_kilohertz: u32,
    memory_bits: u32,
}

impl Units {
    /// Two operations a cycle and fp32 unit (64 of them a multiprocessor on Turing and the A100, 128 on the others), two
    /// transfers a memory cycle; 85 % of either is what good code reaches.
    fn rates(&self, capability: (u32, u32)) -> Rates {
        let lanes = if matches!(capability, (7, _) | (8, 0)) { 64.0 } else { 128.0 };
        let cycles = f64::from(self.multiprocessors) * f64::from(self.kilohertz) * 1e3;
        let transfers = 2.0 * f64::from(self.memory_kilohertz) * 1e3 * f64::from(self.memory_bits) / 8.0;
        let good = |x: f64| (0.85 * x).max(1e9);
        // Tensor cores: 16 times fp32 in data centres' cards, where sums are fp32 twice in the others.
        let cores = if matches!(capability, (8, 0) | (9.., _)) { 16.0 } else { 2.0 };
        let gemm = good(2.0 * lanes * cycles);
        Rates {
            gemm,
            half: cores * gemm,
            bytes: good(transfers),
            link: LINK,
            links: Links::of_host(usize::MAX, LINK),
        }
    }
}

/// The cards of this machine.
///
/// # Errors
/// No driver, or no card: what to do is in the text.
pub fn cards() -> Result<Vec<CardInfo>, String> {
    libraries::find(Needed::Driver).map_err(|e| e.to_string())?;
    result::init().map_err(|e| match e.0 {
        sys::CUresult::CUDA_ERROR_NO_DEVICE => {
            "the NVIDIA driver finds no card: is one built in, and visible (CUDA_VISIBLE_DEVICES, the container's --gpus)?"
                .to_owned()
        }
        _ => failed("the NVIDIA driver does not start", e),
    })?;
    let mut version = 0;
    // SAFETY: the pointer is a live integer.
    unsafe { sys::cuDriverGetVersion(&mut version) }
        .result()
        .map_err(|e| failed("the driver's version", e))?;
    let driver = (version as u32 / 1000, version as u32 % 1000 / 10);
    let count = result::device::get_count().map_err(|e| failed("counting cards", e))?;
    (0..count).map(|i| card_info(i, driver).map_err(|e| failed(&format!("card {i}"), e))).collect()
}

/// The card of a number, if the kernels run on it.
///
/// # Errors
/// As [`cards`]; no such card, or an old one.
pub fn card(index: usize) -> Result<CardInfo, String> {
    let cards = cards()?;
    let count = cards.len();
    let info = cards.into_iter().nth(index).ok_or_else(|| {
        format!("there is no card cuda:{index}: this machine has {count} (`ambitus doctor` lists them)")
    })?;
    if info.capability < OLDEST {
        let (major, minor) = info.capability;
        return Err(format!(
            "{} has compute capability {major}.{minor}; the kernels need 7.5 (Turing) or newer",
            info.name
        ));
    }
    Ok(info)
}

fn card_info(index: i32, driver: (u32, u32)) -> Result<CardInfo, DriverError> {
    use sys::CUdevice_attribute_enum as Attribute;
    let device = result::device::get(index)?;
    // SAFETY: the device was just given by the driver.
    let attribute = |a| unsafe { result::device::get_attribute(device, a) }.map(|x| x as u32);
    let capability = (
        attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    );
    // SAFETY: as above.
    let total_bytes = unsafe { result::device::total_mem(device) }? as u64;
    let mut pci = [0; 32];
    // SAFETY: as above; the buffer has the length that is said.
    unsafe { sys::cuDeviceGetPCIBusId(pci.as_mut_ptr(), pci.len() as i32, device) }.result()?;
    let pci: String = pci.iter().take_while(|c| **c != 0).map(|c| *c as u8 as char).collect();
    let name = result::device::get_name(device)?;
    let units = Units {
        multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        kilohertz: attribute(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?,
        memory_kilohertz: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?,
        memory_bits: attribute(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?,
    };
    let rates = units.rates(capability);
    Ok(CardInfo { index: index as usize, name, capability, total_bytes, driver, pci, rates })
}
