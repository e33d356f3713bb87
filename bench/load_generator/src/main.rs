//! Sends prepared calls to a name server and tells, as JSON, how many were answered how soon.
//!
//! ```text
//! load-generator run PLAN.json       runs a plan (plan.rs), prints what came of it
//! load-generator watch PLAN.json     opens the streams of a plan, tells when messages came (watch.rs)
//! load-generator null grpc|remoting  serves answers without meaning, until it is killed
//! ```

mod connection;
mod event_loop;
mod grpc;
mod load;
mod null_server;
mod outcome;
mod pacer;
mod plan;
mod process;
mod remoting;
mod script;
mod watch;

use std::env;
use std::io;
use std::process::ExitCode;

use plan::Protocol;

const USAGE: &str = "usage: load-generator run PLAN.json | watch PLAN.json | null grpc | null remoting";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["run", path] => run(path),
        ["watch", path] => plan_of(path).and_then(watch::run),
        ["null", "grpc"] => null(Protocol::Grpc),
        ["null", "remoting"] => null(Protocol::Remoting),
        _ => Err(io::Error::other(USAGE)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(path: &str) -> io::Result<()> {
    println!("{}", load::run(plan_of(path)?)?);
    Ok(())
}

fn plan_of(path: &str) -> io::Result<plan::Plan> {
    serde_json::from_slice(&std::fs::read(path)?).map_err(io::Error::other)
}

fn null(protocol: Protocol) -> io::Result<()> {
    event_loop::block_on(null_server::serve(protocol))
}
