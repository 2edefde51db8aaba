//! Compiles the protocol with protox, so that no `protoc` is needed, and the library that interpreters load.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    compile_protocol(&out)?;
    compile_template(&out)
}

fn compile_protocol(out: &Path) -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto");
    let file = root.join("stepbox/v1/sandbox.proto");
    println!("cargo:rerun-if-changed={}", file.display());
    let descriptors = protox::compile([&file], [&root])?;
    std::fs::write(
        out.join("stepbox_descriptor.bin"),
        prost::Message::encode_to_vec(&descriptors),
    )?;
    tonic_prost_build::configure()
        .bytes(".")
        .compile_fds(descriptors)?;
    Ok(())
}

/// By the compiler itself: it has no dependency, not even the library that the engine is linked with, and whatever flags
/// the engine is built with are not for it.
fn compile_template(out: &Path) -> Result<(), Box<dyn Error>> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("template/src");
    println!("cargo:rerun-if-changed={}", source.display());
    #[expect(
        clippy::disallowed_methods,
        reason = "the compiler that builds the engine, at build time"
    )]
    let mut compiler = Command::new(std::env::var("RUSTC")?);
    // Of another architecture it cannot be the default one; cargo says which one the engine is linked by.
    if let Ok(linker) = std::env::var("RUSTC_LINKER") {
        compiler.arg("-C").arg(format!("linker={linker}"));
    }
    let compiled = compiler
        .args(["--crate-name", "stepbox_template", "--crate-type", "cdylib"])
        .args(["--edition", "2024", "--target", &std::env::var("TARGET")?])
        .args(["-C", "panic=abort", "-C", "opt-level=3"])
        .args(["-C", "codegen-units=1", "-C", "strip=symbols"])
        .args(["-C", "link-arg=-nostartfiles"])
        .arg("-o")
        .arg(out.join("template.so"))
        .arg(source.join("lib.rs"))
        .status()?;
    if !compiled.success() {
        return Err("the library for interpreters could not be compiled".into());
    }
    Ok(())
}
