//! What one run is to do, as a JSON file has it.

use std::path::PathBuf;

use serde::Deserialize;

/// The protocol of the server.
#[derive(Clone, Copy, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    Grpc,
    Remoting,
}

/// One run.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The server, host:port.
    pub target: String,
    pub protocol: Protocol,
    /// A file of certificates (PEM) that the server's is checked with; absent means no TLS.
    pub tls_ca: Option<PathBuf>,
    /// The process of the server, whose CPU time is read.
    pub server_pid: u32,
    /// Sent once, in order, before anything is measured; its connections stay open until the end.
    pub fill: Group,
    /// Time in which calls are made and not counted.
    pub warm_up_seconds: f64,
    /// Time that is measured.
    pub seconds: f64,
    /// Run at the same time.
    pub groups: Vec<Group>,
}

/// Connections that send one script.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    pub name: String,
    /// File of the calls; read from the start again when it is through.
    pub script: PathBuf,
    pub connections: usize,
    /// Calls under way at once on each connection.
    pub in_flight: usize,
    /// Calls per second of all connections together, whether or not answers come (open loop); absent means that each
    /// answer is followed by the next call (closed loop).
    pub rate: Option<f64>,
}
