//! Connections that are almost right: those of the corpus, changed at random.
//!
//! It runs for `FUZZ_SECONDS`. A failure prints its input; `FUZZ_INPUT` repeats it.
#![cfg(not(feature = "loom"))]

mod harness;

use std::collections::hash_map::RandomState;
use std::fmt::Write as _;
use std::hash::BuildHasher;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
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

/// A change of a frame.
#[derive(Debug, Clone)]
enum Change {
    Leave,
    Repeat(u8),
    Move(Index),
    Kind(u8),
    Flags(u8),
    Stream(u32),
    Flip(Index, u8),
    Cut(Index),
    Put(Index, Vec<u8>),
    /// A field before the others or after them.
    Field(bool, &'static str, Vec<u8>),
    /// A message instead of the payload.
    Message(u8, Vec<u8>),
    /// A frame after it.
    Add(u8, u8, u32, Vec<u8>),
    /// Another connection before it, with streams that are so much higher.
    Join(Vec<Frame>, u32),
}

/// A change of the bytes, after those of the frames.
#[derive(Debug, Clone)]
enum Damage {
    Flip(Index, u8),
    Remove(Index, usize),
    End(Index),
}

fn a_change(corpus: Vec<Vec<Frame>>) -> impl Strategy<Value = Change> {
    let bytes = || vec(any::<u8>(), 0..40);
    let value = prop_oneof![bytes(), select(&VALUES[..]).prop_map(|value| value.as_bytes().to_vec())];
    let payload =
        prop_oneof![vec(any::<u8>(), 0..9), vec(any::<u8>(), 100..20_000), Just(vec![0; 4]), Just(vec![0; 8])];
    prop_oneof![
        Just(Change::Leave),
        (1_u8..20).prop_map(Change::Repeat),
        any::<Index>().prop_map(Change::Move),
        KINDS.prop_map(Change::Kind),
        any::<u8>().prop_map(Change::Flags),
        prop_oneof![0_u32..12, any::<u32>()].prop_map(Change::Stream),
        (any::<Index>(), 0_u8..8).prop_map(|(at, bit)| Change::Flip(at, bit)),
        any::<Index>().prop_map(Change::Cut),
        (any::<Index>(), bytes()).prop_map(|(at, bytes)| Change::Put(at, bytes)),
        (any::<bool>(), select(&NAMES[..]), value).prop_map(|(first, name, value)| Change::Field(first, name, value)),
        (prop_oneof![0_u8..3, any::<u8>()], vec(any::<u8>(), 0..300))
            .prop_map(|(flag, message)| Change::Message(flag, message)),
        (KINDS, any::<u8>(), 0_u32..12, payload)
            .prop_map(|(kind, flags, stream, payload)| Change::Add(kind, flags, stream, payload)),
        (select(corpus), 0_u32..6).prop_map(|(frames, more)| Change::Join(frames, 2 * more)),
    ]
}

/// Applies a change to the frame at a position.
fn apply(frames: &mut Vec<Frame>, at: usize, change: Change) {
    let frame = &mut frames[at];
    match change {
        Change::Leave => drop(frames.remove(at)),
        Change::Repeat(times) => {
            let frame = frame.clone();
            frames.splice(at..at, std::iter::repeat_n(frame, times.into()));
        }
        Change::Move(to) => {
            let frame = frames.remove(at);
            frames.insert(to.index(frames.len() + 1), frame);
        }
        Change::Kind(kind) => frame.kind = kind,
        Change::Flags(flags) => frame.flags = flags,
        Change::Stream(stream) => frame.stream = stream,
        Change::Flip(byte, bit) if !frame.payload.is_empty() => {
            let byte = byte.index(frame.payload.len());
            frame.payload[byte] ^= 1 << bit;
        }
        Change::Flip(..) => {}
        Change::Cut(end) => frame.payload.truncate(end.index(frame.payload.len() + 1)),
        Change::Put(place, bytes) => {
            let place = place.index(frame.payload.len() + 1);
            frame.payload.splice(place..place, bytes);
        }
        Change::Field(first, name, value) => {
            let place = if first { 0 } else { frame.payload.len() };
            frame.payload.splice(place..place, field(name, value));
        }
        Change::Message(flag, message) => frame.payload = framed(flag, &message),
        Change::Add(kind, flags, stream, payload) => frames.insert(at + 1, Frame { kind, flags, stream, payload }),
        Change::Join(others, more) => {
            let shifted = others.into_iter().map(|frame| match frame.stream {
                0 => frame,
                stream => Frame { stream: stream.saturating_add(more), ..frame },
            });
            frames.splice(at..at, shifted);
        }
    }
}

/// The bytes after the preface.
fn an_input() -> impl Strategy<Value = Vec<u8>> {
    let corpus: Vec<Vec<Frame>> = corpus().into_iter().map(|(_, bytes)| frames_of(&bytes)).collect();
    let damage = prop_oneof![
        (any::<Index>(), 0_u8..8).prop_map(|(at, bit)| Damage::Flip(at, bit)),
        (any::<Index>(), 1_usize..9).prop_map(|(at, length)| Damage::Remove(at, length)),
        any::<Index>().prop_map(Damage::End),
    ];
    let damages = prop_oneof![3 => Just(Vec::new()), 1 => vec(damage, 1..4)];
    let changes = vec((any::<Index>(), a_change(corpus.clone())), 0..6);
    (select(corpus), changes, damages).prop_map(|(mut frames, changes, damages)| {
        for (at, change) in changes {
            if !frames.is_empty() {
                // Most connections begin with SETTINGS, or the rest is refused.
                let at = at.index(frames.len()).max(1).min(frames.len() - 1);
                apply(&mut frames, at, change);
            }
        }
        let mut bytes: Vec<u8> =
            frames.iter().flat_map(|one| frame(one.kind, one.flags, one.stream, &one.payload)).collect();
        for damage in damages {
            if bytes.is_empty() {
                break;
            }
            match damage {
                Damage::Flip(at, bit) => {
                    let at = at.index(bytes.len());
                    bytes[at] ^= 1 << bit;
                }
                Damage::Remove(at, length) => {
                    let at = at.index(bytes.len());
                    bytes.drain(at..bytes.len().min(at + length));
                }
                Damage::End(at) => bytes.truncate(at.index(bytes.len())),
            }
        }
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
