//! Connections that are almost right: those of the corpus, changed at random.
//!
//! It runs for `FUZZ_SECONDS`. A failure prints its input; `FUZZ_INPUT` repeats it.
#![cfg(not(feature = "loom"))]

mod harness;

use std::collections::hash_map::RandomState;
use std::fmt::{Debug, Formatter, Write as _};
use std::hash::BuildHasher;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::SendRequest;
use harness::raw::{Frame, PREFACE, field, frame};
use harness::{KEPT, Served, call, framed};
use namesrv_engine::Limits;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const CORPUS: &str = include_str!("corpus/connections.txt");

/// What a connection may take, from its first byte to its end.
const PATIENCE: Duration = Duration::from_secs(20);

/// The time without `FUZZ_SECONDS`.
const SECONDS: f64 = 0.5;

/// What every second client gives the server after its last byte.
const TIME_FOR_ANSWERS: Duration = Duration::from_millis(5);

/// Inputs between two looks at the clock.
const BATCH: u32 = 50;

const HEAD: usize = 9;

/// The kinds of frames, and a few that HTTP/2 does not have.
const KINDS: RangeInclusive<u8> = 0..=11;

/// Fields that the engine reads.
const NAMES: [&str; 12] = [
    ":authority",
    ":path",
    ":method",
    "host",
    "te",
    "content-type",
    "grpc-timeout",
    "grpc-encoding",
    "authorization",
    "traceparent",
    "grpc-accept-encoding",
    "x",
];

const VALUES: [&str; 10] = [
    "",
    "gzip",
    "deflate",
    "identity",
    "1n",
    "99999999H",
    "Bearer token",
    "application/grpc-web",
    "/a.B/Again",
    "trailers",
];

type Edit<T> = dyn Fn(&mut Vec<T>, usize);

/// A change of a connection at a position: of its frames, or of its bytes.
#[derive(Clone)]
struct Change<T>(Rc<Edit<T>>);

impl<T> Debug for Change<T> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a change")
    }
}

/// Changes that need a value that is drawn.
fn changed<T, S: Strategy<Value: Clone + 'static>>(
    drawn: S,
    change: impl Fn(&mut Vec<T>, usize, S::Value) + Copy + 'static,
) -> impl Strategy<Value = Change<T>> {
    drawn.prop_map(move |value| Change(Rc::new(move |items, at| change(items, at, value.clone()))))
}

/// Applies changes at positions from the first that may be changed on.
fn apply<T>(items: &mut Vec<T>, changes: Vec<(Index, Change<T>)>, first: usize) {
    for (at, Change(change)) in changes {
        if !items.is_empty() {
            change(items, at.index(items.len()).max(first).min(items.len() - 1));
        }
    }
}

fn a_change(corpus: Vec<Vec<Frame>>) -> impl Strategy<Value = Change<Frame>> {
    let bytes = || vec(any::<u8>(), 0..40);
    let value = prop_oneof![bytes(), select(&VALUES[..]).prop_map(|value| value.as_bytes().to_vec())];
    let payload =
        prop_oneof![vec(any::<u8>(), 0..9), vec(any::<u8>(), 100..20_000), Just(vec![0; 4]), Just(vec![0; 8])];
    prop_oneof![
        changed(Just(()), |frames, at, ()| drop(frames.remove(at))),
        changed(1_u8..20, |frames: &mut Vec<Frame>, at, times| {
            let frame = frames[at].clone();
            frames.splice(at..at, std::iter::repeat_n(frame, times.into()));
        }),
        changed(any::<Index>(), |frames, at, to| {
            let frame = frames.remove(at);
            frames.insert(to.index(frames.len() + 1), frame);
        }),
        changed(KINDS, |frames: &mut Vec<Frame>, at, kind| frames[at].kind = kind),
        changed(any::<u8>(), |frames: &mut Vec<Frame>, at, flags| frames[at].flags = flags),
        changed(prop_oneof![0_u32..12, any::<u32>()], |frames: &mut Vec<Frame>, at, stream| frames[at].stream = stream),
        changed((any::<Index>(), 0_u8..8), |frames: &mut Vec<Frame>, at, (byte, bit)| {
            let payload = &mut frames[at].payload;
            if !payload.is_empty() {
                let byte = byte.index(payload.len());
                payload[byte] ^= 1 << bit;
            }
        }),
        changed(any::<Index>(), |frames: &mut Vec<Frame>, at, end| {
            let payload = &mut frames[at].payload;
            payload.truncate(end.index(payload.len() + 1));
        }),
        changed((any::<Index>(), bytes()), |frames: &mut Vec<Frame>, at, (place, bytes)| {
            let payload = &mut frames[at].payload;
            let place = place.index(payload.len() + 1);
            payload.splice(place..place, bytes);
        }),
        changed((any::<bool>(), select(&NAMES[..]), value), |frames: &mut Vec<Frame>, at, (is_first, name, value)| {
            let payload = &mut frames[at].payload;
            let place = if is_first { 0 } else { payload.len() };
            payload.splice(place..place, field(name, value));
        }),
        changed(
            (prop_oneof![0_u8..3, any::<u8>()], vec(any::<u8>(), 0..300)),
            |frames: &mut Vec<Frame>, at, (flag, message)| frames[at].payload = framed(flag, &message),
        ),
        changed((KINDS, any::<u8>(), 0_u32..12, payload), |frames, at, (kind, flags, stream, payload)| {
            frames.insert(at + 1, Frame { kind, flags, stream, payload });
        }),
        // Another connection before it, with streams that are so much higher.
        changed((select(corpus), 0_u32..6), |frames, at, (others, more)| {
            let shifted = others.into_iter().map(|frame| match frame.stream {
                0 => frame,
                stream => Frame { stream: stream.saturating_add(2 * more), ..frame },
            });
            frames.splice(at..at, shifted);
        }),
    ]
}

/// The bytes after the preface.
fn an_input() -> impl Strategy<Value = Vec<u8>> {
    let corpus: Vec<Vec<Frame>> = corpus().into_iter().map(|(_, bytes)| frames_of(&bytes)).collect();
    let damage = prop_oneof![
        changed(0_u8..8, |bytes: &mut Vec<u8>, at, bit| bytes[at] ^= 1 << bit),
        changed(1_usize..9, |bytes, at, length| drop(bytes.drain(at..bytes.len().min(at + length)))),
        changed(Just(()), |bytes, at, ()| bytes.truncate(at)),
    ];
    let damages = prop_oneof![3 => Just(Vec::new()), 1 => vec((any::<Index>(), damage), 1..4)];
    let changes = vec((any::<Index>(), a_change(corpus.clone())), 0..6);
    (select(corpus), changes, damages).prop_map(|(mut frames, changes, damages)| {
        apply(&mut frames, changes, 1); // most connections begin with SETTINGS, or the rest is refused
        let frames = frames.iter().flat_map(|one| frame(one.kind, one.flags, one.stream, &one.payload));
        let mut bytes: Vec<u8> = frames.collect();
        apply(&mut bytes, damages, 0);
        bytes
    })
}

/// The connections of the corpus, by their names.
fn corpus() -> Vec<(&'static str, Vec<u8>)> {
    let lines: Vec<&str> = CORPUS.lines().skip(1).collect();
    lines.chunks(2).map(|pair| (pair[0], bytes_of(pair[1]))).collect()
}

fn bytes_of(hexadecimal: &str) -> Vec<u8> {
    let pairs = (0..hexadecimal.len()).step_by(2).map(|at| &hexadecimal[at..at + 2]);
    pairs.map(|pair| u8::from_str_radix(pair, 16).expect("two digits")).collect()
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The frames that are whole.
fn frames_of(mut bytes: &[u8]) -> Vec<Frame> {
    let mut frames = Vec::new();
    while let Some((&[high, middle, low, kind, flags, a, b, c, d], rest)) = bytes.split_first_chunk::<HEAD>() {
        let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        let Some((payload, rest)) = rest.split_at_checked(length) else { break };
        frames.push(Frame { kind, flags, stream: u32::from_be_bytes([a, b, c, d]), payload: payload.to_vec() });
        bytes = rest;
    }
    frames
}

/// Panics of the engine's threads.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn collect_panics() {
    let rusts_own = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if std::thread::current().name().is_some_and(|name| name.starts_with("engine")) {
            PANICS.lock().unwrap_or_else(PoisonError::into_inner).push(panic.to_string());
        }
        rusts_own(panic);
    }));
}

/// Sends it all; returns what the server sent before it ended the connection.
async fn converse(address: SocketAddr, input: &[u8]) -> Vec<u8> {
    let (mut read, mut write) = TcpStream::connect(address).await.expect("connects").into_split();
    let mut answer = Vec::new();
    let send = async {
        // The server may have ended the connection already.
        let _ = write.write_all(&[PREFACE, input].concat()).await;
        if input.len() % 2 == 0 {
            tokio::time::sleep(TIME_FOR_ANSWERS).await;
        }
        let _ = write.shutdown().await;
    };
    let receive = async { drop(read.read_to_end(&mut answer).await) };
    tokio::join!(send, receive);
    answer
}

/// Sends an input. Then another client must be served as before, and the engine must hold nothing of the connection.
async fn check(served: &Served, honest: &mut SendRequest<Bytes>, input: &[u8]) -> Result<(), String> {
    let Ok(answer) = timeout(PATIENCE, converse(served.address, input)).await else {
        return Err("the connection does not end".to_owned());
    };
    let whole: usize = frames_of(&answer).iter().map(|frame| HEAD + frame.payload.len()).sum();
    if whole < answer.len() {
        return Err(format!("{} bytes at the end of the answer are no frame", answer.len() - whole));
    }
    let (bytes, status) = timeout(PATIENCE, call(honest, KEPT, b"topic", "19S")).await.map_err(|_| "others wait")?;
    if (&bytes[..], &status[..]) != (b"\0\0\0\0\x0cheader topic", "0") {
        return Err(format!("another client is answered {bytes:?} with status {status}"));
    }
    let gone = Instant::now() + PATIENCE;
    for (gauge, expected) in [("connections", 1), ("calls_under_way", 0), ("request_bytes", 0), ("waiting_bytes", 0)] {
        while served.stat(gauge) != expected {
            if Instant::now() > gone {
                return Err(format!("{gauge} stays {}", served.stat(gauge)));
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    match PANICS.lock().unwrap_or_else(PoisonError::into_inner).pop() {
        Some(panic) => Err(panic),
        None => Ok(()),
    }
}

#[test]
fn a_client_that_sends_anything_harms_no_other_and_leaves_nothing() {
    collect_panics();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let _entered = runtime.enter();
    let served = Served::with_permits(Limits { max_connection_rate: 1_000_000, ..Limits::default() });
    let mut honest = runtime.block_on(served.connect());
    if let Ok(input) = std::env::var("FUZZ_INPUT") {
        runtime.block_on(check(&served, &mut honest, &bytes_of(&input))).expect("harmless");
        return;
    }
    for (name, input) in corpus() {
        let checked = runtime.block_on(check(&served, &mut honest, &input));
        assert_eq!(checked, Ok(()), "{name}");
    }
    let honest = Mutex::new(honest);
    let seed = std::env::var("FUZZ_SEED")
        .map_or_else(|_| RandomState::new().hash_one(0), |seed| seed.parse().expect("a number"));
    let seconds = std::env::var("FUZZ_SECONDS").map_or(SECONDS, |seconds| seconds.parse().expect("a number"));
    let mut rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed.to_be_bytes(); 4].concat());
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let mut inputs = 0;
    while Instant::now() < end {
        let config = Config {
            cases: BATCH,
            failure_persistence: None,
            max_shrink_iters: 5_000,
            max_shrink_time: 60_000,
            ..Config::default()
        };
        let mut runner = TestRunner::new_with_rng(config, rng);
        let result = runner.run(&an_input(), |input| {
            let mut honest = honest.lock().unwrap_or_else(PoisonError::into_inner);
            runtime.block_on(check(&served, &mut honest, &input)).map_err(TestCaseError::fail)
        });
        match result {
            Ok(()) => inputs += BATCH,
            Err(TestError::Fail(why, input)) => {
                let repeat = format!("FUZZ_INPUT={} cargo test --no-default-features --test fuzz", hexadecimal(&input));
                panic!("{why}, seed {seed}; to repeat it: {repeat}");
            }
            Err(error) => panic!("{error}"),
        }
        rng = runner.new_rng();
    }
    println!("fuzz: {inputs} inputs, seed {seed}");
}
