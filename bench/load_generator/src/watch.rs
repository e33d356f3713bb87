//! Reads streams that stay open, and tells when which message came. Nothing is decoded here.
//!
//! Says `ready` when each stream has its first message. Then answers each line on standard input with one of JSON: the
//! messages since the line before, in hexadecimal, each with the times at which it came, by the monotonic clock.

use std::collections::HashMap;
use std::io::{self, BufRead};
use std::sync::{mpsc, Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use rustix::time::{clock_gettime, ClockId};

use crate::connection::Connection;
use crate::event_loop::block_on;
use crate::plan::Plan;
use crate::script::Script;

/// It ends by then even if whoever started it is gone.
const LONGEST_LIFE: Duration = Duration::from_secs(900);

const PREFIX: usize = 5;

type Arrivals = Arc<Mutex<Vec<(f64, Bytes)>>>;

/// Opens as many streams as the only group of the plan has calls in flight, and reads them until its input ends.
pub fn run(plan: Plan) -> io::Result<()> {
    let [group] = plan.groups.as_slice() else {
        return Err(io::Error::other("a plan of watches has one group"));
    };
    let streams = group.connections * group.in_flight;
    let script = Arc::new(Script::read(&group.script)?);
    let (opened, all_opened) = mpsc::channel();
    let arrivals = Arrivals::default();
    let plan = Arc::new(plan);
    for number in 0..plan.threads {
        let (plan, script, opened) = (Arc::clone(&plan), Arc::clone(&script), opened.clone());
        let arrivals = Arc::clone(&arrivals);
        thread::spawn(move || {
            let done = block_on(read_all(&plan, &script, number, &arrivals, &opened));
            fail(done.err().unwrap_or_else(|| io::Error::other("a stream has ended")));
        });
    }
    thread::spawn(|| {
        thread::sleep(LONGEST_LIFE);
        fail(io::Error::other("it was forgotten"));
    });
    for _ in 0..streams {
        all_opened.recv().map_err(io::Error::other)?;
    }
    locked(&arrivals).clear();
    println!("ready");
    for line in io::stdin().lock().lines() {
        line?;
        println!("{}", described(std::mem::take(&mut locked(&arrivals))));
    }
    Ok(())
}

/// Reads this thread's share of the streams; returns only if one of them ends.
async fn read_all(
    plan: &Plan,
    script: &Arc<Script>,
    thread: usize,
    arrivals: &Arrivals,
    opened: &mpsc::Sender<()>,
) -> io::Result<()> {
    let group = &plan.groups[0];
    let mut reading = tokio::task::JoinSet::new();
    for _ in (thread..group.connections).step_by(plan.threads) {
        let Connection::Grpc(connection) = Connection::open(plan, script).await? else {
            return Err(io::Error::other("only gRPC has streams"));
        };
        for number in 0..group.in_flight {
            let (connection, script) = (connection.clone(), Arc::clone(script));
            let (arrivals, opened) = (Arc::clone(arrivals), opened.clone());
            reading.spawn_local(async move {
                let mut body = connection.open_stream(script.call(number)).await?;
                let (mut buffer, mut is_first) = (BytesMut::new(), true);
                while let Some(chunk) = body.data().await {
                    let chunk = chunk?;
                    body.flow_control().release_capacity(chunk.len())?;
                    buffer.extend_from_slice(&chunk);
                    while let Some(message) = next_message(&mut buffer) {
                        locked(&arrivals).push((now(), message));
                        if std::mem::take(&mut is_first) {
                            // Whoever waits for it has ended if nobody takes it.
                            let _ = opened.send(());
                        }
                    }
                }
                Ok::<(), h2::Error>(())
            });
        }
    }
    match reading.join_next().await {
        Some(ended) => ended.map_err(io::Error::other)?.map_err(io::Error::other),
        None => std::future::pending().await,
    }
}

fn next_message(buffer: &mut BytesMut) -> Option<Bytes> {
    let length = u32::from_be_bytes(buffer.get(1..PREFIX)?.try_into().ok()?) as usize;
    (buffer.len() >= PREFIX + length).then(|| {
        buffer.advance(PREFIX);
        buffer.split_to(length).freeze()
    })
}

/// Seconds of the clock that Python's `time.monotonic` reads.
fn now() -> f64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn described(arrivals: Vec<(f64, Bytes)>) -> serde_json::Value {
    let mut by_message: HashMap<Bytes, Vec<f64>> = HashMap::new();
    for (seconds, message) in arrivals {
        by_message.entry(message).or_default().push(seconds);
    }
    let hexadecimal = |bytes: &Bytes| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    by_message
        .iter()
        .map(|(message, seconds)| (hexadecimal(message), seconds.clone()))
        .collect()
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the program: the other threads would wait for this one.
fn fail(error: io::Error) -> ! {
    eprintln!("watches: {error}");
    std::process::exit(1)
}
