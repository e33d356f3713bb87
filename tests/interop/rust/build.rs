//! Generates the client's code from protos/, which stands where it does in the repository.

use std::error::Error;

const PROTOS: &str = "../../../protos";
const FILES: [&str; 1] = ["namesrv_api/v1/route_service.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={PROTOS}");
    let descriptors = protox::compile(FILES, [PROTOS])?;
    tonic_prost_build::configure().build_server(false).compile_fds(descriptors)?;
    Ok(())
}
