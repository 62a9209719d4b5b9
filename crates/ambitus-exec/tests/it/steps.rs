//! Running programs on inputs that are given by name.

use ambitus_exec::cpu::CpuExecutor;
use ambitus_exec::executor::{ExecError, Executor};
use ambitus_ir::DType;
use ambitus_testkit::Tensors;

/// Writes inputs, which are given by name, and runs a program.
pub fn step(exec: &mut CpuExecutor, name: &str, given: &Tensors) -> Result<(), ExecError> {
    let planned = exec.planned().program(name).expect("a program").program.clone();
    for input in &planned.inputs {
        let t = &given[&input.name];
        if t.ty.dtype == DType::I32 {
            let ints: Vec<i32> = t.data.iter().map(|x| *x as i32).collect();
            exec.write_i32(name, &input.name, 0, &ints)?;
        } else {
            exec.write_f32(name, &input.name, 0, &t.to_f32())?;
        }
    }
    exec.run(name, 0)
}
