//! Calls that were encoded beforehand. `bench/peers/generator.py` writes the file and tells its layout.

use std::io;
use std::path::Path;

use bytes::{Buf, Bytes};
use serde::Deserialize;

/// One call.
#[derive(Deserialize)]
pub struct Call {
    /// Index into `Script::kinds`.
    pub kind: usize,
    /// Where the ten digits of a remoting frame's `opaque` begin.
    pub opaque_at: usize,
    length: usize,
    /// The whole gRPC message with its prefix, or the whole remoting frame.
    #[serde(skip)]
    pub data: Bytes,
}

/// All calls of a group.
#[derive(Deserialize)]
pub struct Script {
    /// The path of a gRPC call, or the name of a remoting request.
    pub kinds: Vec<String>,
    calls: Vec<Call>,
    /// Indexes into `calls`.
    order: Vec<u32>,
}

impl Script {
    /// Reads a file; its bytes stay in memory once.
    pub fn read(path: &Path) -> io::Result<Script> {
        let mut data = Bytes::from(std::fs::read(path)?);
        let first = data.split_to(data.iter().position(|byte| *byte == b'\n').unwrap_or(0));
        let mut script: Script = serde_json::from_slice(&first).map_err(io::Error::other)?;
        data.advance(1);
        for call in &mut script.calls {
            call.data = data.split_to(call.length);
        }
        Ok(script)
    }

    /// The number of calls.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// The call of a number from 0 on; after the last one comes the first one again.
    pub fn call(&self, number: usize) -> &Call {
        &self.calls[self.order[number % self.order.len()] as usize]
    }
}
