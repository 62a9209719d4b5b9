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
    fn rates(&self, name: &str, capability: (u32, u32)) -> Rates {
        let lanes = if matches!(capability, (7, _) | (8, 0)) { 64.0 } else { 128.0 };
        let cycles = f64::from(self.multiprocessors) * f64::from(self.kilohertz) * 1e3;
        let transfers = 2.0 * f64::from(self.memory_kilohertz) * 1e3 * f64::from(self.memory_bits) / 8.0;
        let good = |x: f64| (0.85 * x).max(1e9);
        let gemm = good(2.0 * lanes * cycles);
        Rates {
            gemm,
            half: tensor_ratio(name, capability) * gemm,
            bytes: good(transfers),
            link: LINK,
            links: Links::of_host(usize::MAX, LINK),
        }
    }
}

/// Returns the rate of products of 16-bit operands with sums in fp32 over that of fp32, by NVIDIA's data sheets: GeForce cards sum in
/// fp32 at half rate, and the GTX 16 have no tensor cores.
fn tensor_ratio(name: &str, capability: (u32, u32)) -> f64 {
    let geforce = name.contains("GeForce");
    match capability {
        (7, _) if name.contains("GTX") => 1.0,
        (7, _) if geforce => 4.0,
        (7, _) => 8.0,
        (8, 0) => 16.0,
        (8, 7) => 8.0,
        (9, _) => 15.0,
        (10 | 11, _) => 30.0,
        _ if geforce || name.contains("A10G") => 2.0,
        _ => 4.0,
    }
}

/// Returns the cards of this machine.
///
/// # Errors
/// No driver, or no card: what to do is in the text.
pub fn cards() -> Result<Vec<CardInfo>, String> {
    libraries::find(Needed::Driver).map_err(|e| e.to_string())?;
    result::init().map_err(|e| match e.0 {
        sys::CUresult::CUDA_ERROR_NO_DEVICE => {
            "the NVIDIA driver finds no GPU: is one installed, and visible (CUDA_VISIBLE_DEVICES, the container's --gpus)?"
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

/// Returns the card of a number, if the kernels run on it.
///
/// # Errors
/// As [`cards`]; no such card, or an old one.
pub fn card(index: usize) -> Result<CardInfo, String> {
    let cards = cards()?;
    let count = cards.len();
    let info = cards.into_iter().nth(index).ok_or_else(|| {
        format!("there is no GPU cuda:{index}: this machine has {count} (`ambitus doctor` lists them)")
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
    let rates = units.rates(&name, capability);
    Ok(CardInfo { index: index as usize, name, capability, total_bytes, driver, pci, rates })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// TFLOP/s of the data sheets, dense, with fp32 sums, over fp32.
    #[test]
    fn tensor_cores_are_as_fast_as_the_data_sheets_say() {
        for (name, capability, half, fp32) in [
            ("NVIDIA GeForce GTX 1650", (7, 5), 2.98, 2.98),
            ("NVIDIA GeForce RTX 2080", (7, 5), 40.3, 10.1),
            ("Tesla T4", (7, 5), 65.0, 8.1),
            ("NVIDIA A100-SXM4-80GB", (8, 0), 312.0, 19.5),
            ("NVIDIA GeForce RTX 3090", (8, 6), 71.0, 35.6),
            ("NVIDIA A10", (8, 6), 125.0, 31.2),
            ("NVIDIA A10G", (8, 6), 70.0, 35.0),
            ("NVIDIA RTX A6000", (8, 6), 154.8, 38.7),
            ("NVIDIA GeForce RTX 4090", (8, 9), 165.2, 82.6),
            ("NVIDIA L40S", (8, 9), 362.0, 91.6),
            ("NVIDIA H100 80GB HBM3", (9, 0), 989.0, 66.9),
            ("NVIDIA B200", (10, 0), 2250.0, 75.0),
            ("NVIDIA GeForce RTX 5090", (12, 0), 209.5, 104.8),
        ] {
            let ratio = tensor_ratio(name, capability);
            assert!((ratio / (half / fp32) - 1.0).abs() < 0.05, "{name}: {ratio}");
        }
    }

    /// A rate of the table has the data sheet's figure first in its comment.
    #[test]
    fn the_table_of_cards_has_the_same_ratios() {
        let table = include_str!("../../../../cards.toml");
        let mut cards = 0;
        for card in table.split("\n[").skip(1) {
            let line = |key: &str| card.lines().find(|l| l.starts_with(key)).expect(key);
            let text = |key: &str| line(key).split('"').nth(1).expect(key).to_owned();
            let sheet = |key: &str| -> f64 {
                let said = line(key).split_once("# ").and_then(|(_, said)| said.split(' ').next());
                said.and_then(|x| x.parse().ok()).expect(key)
            };
            let (name, capability) = (text("name"), text("capability"));
            let (major, minor) = capability.split_once('.').expect("two numbers");
            let capability = (major.parse().expect("a number"), minor.parse().expect("a number"));
            let (ratio, want) =
                (tensor_ratio(&name, capability), sheet("half_tflops") / sheet("fp32_tflops"));
            assert!((ratio / want - 1.0).abs() < 0.05, "{name}: {ratio}, {want}");
            cards += 1;
        }
        assert!(cards > 20, "{cards}");
    }
}
