//! Sends prepared calls to a name server and prints, as JSON, how many were answered how soon.
//!
//! ```text
//! load-generator run PLAN.json  runs a plan (plan.rs), prints the outcome
//! load-generator null           serves answers without meaning, until it is killed
//! ```

mod connection;
mod grpc;
mod load;
mod null_server;
mod outcome;
mod plan;
mod remoting;
mod script;

use std::env;
use std::io;

use tokio::runtime::{Builder, LocalOptions};

const USAGE: &str = "usage: load-generator run PLAN.json | null";

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let Err(error) = start(&arguments) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

/// Everything runs on one event loop of one thread.
fn start(arguments: &[&str]) -> io::Result<()> {
    let event_loop = Builder::new_current_thread()
        .enable_all()
        .build_local(LocalOptions::default())?;
    match arguments {
        ["run", path] => {
            let plan = serde_json::from_slice(&std::fs::read(path)?).map_err(io::Error::other)?;
            println!("{}", event_loop.block_on(load::run(plan))?);
            // The connections of the fill stay open until the process ends.
            std::process::exit(0)
        }
        ["null"] => event_loop.block_on(null_server::serve()),
        _ => Err(io::Error::other(USAGE)),
    }
}
