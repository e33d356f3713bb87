//! Between the engine's threads and the event loop: events one way, commands the other.
//!
//! What crosses is Rust data only, so that no thread but the event loop's ever touches what Python counts references
//! of. Events wait in one list. A thread wakes Python once it has run the connections that were ready, so that a burst costs
//! one wake-up, also where Python runs on the same processor.
//! A call brings one event, and at most one more of each kind at a time, so the list is bounded by the calls under way.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::HeaderMap;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io;
use tokio::sync::Notify;

use crate::call::CALL_BYTES;
use crate::ledger::Hold;
use crate::peer::{Owner, Peer};
use crate::remoting::head::key_of;

/// Number of a call: which thread has it, and which of its calls it is.
pub type CallId = u64;

/// Calls of one thread, by number: enough for a million a second over thousands of years.
const THREAD_SHIFT: u32 = 56;

/// The number of a thread's call.
pub(crate) fn call_id(thread: usize, number: u64) -> CallId {
    (thread as u64) << THREAD_SHIFT | number
}

/// Which thread has a call.
fn thread_of(id: CallId) -> usize {
    usize::try_from(id >> THREAD_SHIFT).unwrap_or(usize::MAX)
}

/// What Python may ask about a call.
#[derive(Debug)]
pub struct CallInfo {
    /// Its number.
    pub id: CallId,
    /// The number of its method.
    pub method: u16,
    /// What the client sent before it.
    pub headers: HeaderMap,
    /// The frame of a request in `RocketMQ`'s protocol, which has no other headers.
    pub frame: Option<FrameInfo>,
    /// The caller.
    pub peer: Arc<Peer>,
    /// The key of callers with the same credentials, or None without credentials.
    pub credentials: Option<Bytes>,
    /// The number by which Python knows its request.
    pub known: Option<u64>,
    /// The generation of permits in force when it began. What it teaches the engine counts while that lasts.
    pub generation: u64,
    pub(crate) body: Mutex<Body>,
}

/// The frame of a request: the request is its header and its body.
#[derive(Debug)]
pub struct FrameInfo {
    /// The number of its connection.
    pub connection: CallId,
    /// Of its header.
    pub encoding: u8,
    /// Bytes of its header.
    pub header: usize,
}

impl FrameInfo {
    /// The key by which a repeated request is known, and its body. A broker's registration is its connection's.
    pub(crate) fn known_key<'a>(&self, request: &'a [u8]) -> Option<(Bytes, &'a [u8])> {
        let (header, body) = request.split_at_checked(self.header)?;
        Some((key_of(&self.connection.to_be_bytes(), self.encoding, header)?, body))
    }
}

/// The request of a call, its bytes in the account of its caller, and what became of it.
#[derive(Debug, Default)]
pub(crate) struct Body {
    request: Option<Bytes>,
    held: Option<Hold>,
    /// Whether it was cancelled before Python took it.
    cancelled: bool,
    /// Whether Python took it.
    delivered: bool,
}

impl Body {
    pub(crate) fn of(request: Option<Bytes>, held: Hold) -> Mutex<Self> {
        Mutex::new(Self { request, held: Some(held), ..Self::default() })
    }
}

impl CallInfo {
    /// The request. None if it is a stream, or was released.
    #[must_use]
    pub fn request(&self) -> Option<Bytes> {
        locked(&self.body).request.clone()
    }

    /// The key of a cached answer: the request, without what differs between equal ones.
    pub(crate) fn key(&self) -> Option<Bytes> {
        let request = self.request()?;
        let Some(frame) = &self.frame else { return Some(request) };
        let (header, body) = request.split_at_checked(frame.header)?;
        body.is_empty().then(|| key_of(&[], frame.encoding, header)).flatten()
    }

    /// Python takes it. Whether it was not cancelled before.
    fn deliver(&self) -> bool {
        let mut body = locked(&self.body);
        body.delivered = !body.cancelled;
        body.delivered
    }

    /// Releases the request of a stream that Python has admitted: it has a copy, and limits streams. The metadata stays.
    pub fn release_request(&self) {
        let mut body = locked(&self.body);
        let length = body.request.take().map_or(0, |request| request.len());
        let released = body.held.as_mut().map(|held| held.split(length + CALL_BYTES));
        drop(released);
    }
}

/// Something that an operator should read.
#[derive(Debug)]
pub struct Notice {
    /// Its kind, which is the event in the log.
    pub kind: &'static str,
    /// The peer that it is about, as gRPC writes addresses, or an empty text.
    pub peer: String,
    /// What is wrong, and what to do.
    pub text: String,
    /// How many of this kind were suppressed since the last.
    pub not_told: u64,
}

/// A message of a request that streams, with its bytes in the account of its sender.
#[derive(Debug)]
pub struct HeldMessage {
    /// The message.
    pub bytes: Bytes,
    pub(crate) held: Hold,
}

/// Why a call ended that Python had not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Its client ended it, or left, or is dead.
    Client,
    /// Its deadline passed.
    Deadline,
    /// This server closed its connection.
    ClosedHere,
    /// Its client left, and before that this server had served it late.
    ServedLate,
}

/// Something that Python is told.
#[derive(Debug)]
pub enum Event {
    /// A call arrived.
    Call(Arc<CallInfo>),
    /// A call that Python has was ended by somebody else.
    Cancelled(CallId, Cause),
    /// A connection of `RocketMQ`'s protocol has ended. Nothing more comes of it.
    Left(CallId, Cause),
    /// The client has taken the last message that was written.
    Writable(CallId),
    /// A message of a request that streams, or None after the last.
    Message(CallId, Option<HeldMessage>),
    /// Something that an operator should read: what, who, and the words.
    Notice(Notice),
    /// A thread of the engine has ended although nobody asked it to: the cause, in words.
    Failed(String),
    /// All threads have ended.
    Stopped,
}

/// Something that Python wants done with a call.
#[derive(Debug)]
pub enum Command {
    /// Answer it, and end it well.
    Answer(Bytes),
    /// Send one message, which so many streams share.
    Write(Bytes, usize),
    /// End it with these trailers, the status among them. The last message has some time to leave before them.
    Finish(HeaderMap),
    /// Bring the next message of the request.
    Read,
    /// End the connection with this number once its answers have left.
    Close,
}

/// Where the commands for the calls of one thread wait for it.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    commands: Mutex<Vec<(CallId, Command)>>,
    pub(crate) notify: Notify,
}

impl Inbox {
    /// All that wait.
    pub(crate) fn take(&self) -> Vec<(CallId, Command)> {
        std::mem::take(&mut locked(&self.commands))
    }
}

/// Events that one address has in an iteration of the event loop: others of its calls, and new calls.
const SHARES: [usize; 2] = [32, 16];

/// Events of one address, of either kind, that are taken before those of the next address.
const EVENTS_IN_A_ROW: usize = 4;

/// Calls that were cancelled before Python took them and that are dropped in an iteration: about a millisecond.
const MAX_CANCELLED: usize = 1_024;

/// What leaves the queues at once.
struct Taken {
    events: Vec<Event>,
    cancelled: Vec<Arc<CallInfo>>,
}

/// Events that wait for Python. Events of calls wait by address, and the addresses are served round robin.
#[derive(Debug, Default)]
struct Events {
    of_engine: VecDeque<Event>,
    by_address: HashMap<Owner, OfAddress>,
    /// Addresses with events, in the order in which they are served.
    turns: VecDeque<Owner>,
    count: usize,
    /// Whether Python was woken for them.
    are_told: bool,
}

/// The events of one address: others of its calls, and new calls.
#[derive(Debug, Default)]
struct OfAddress([VecDeque<Event>; 2]);

impl OfAddress {
    /// Takes some events of either kind, and apart from them calls that were cancelled. `shares` is how many more it may have.
    fn take(&mut self, most: usize, shares: &mut [usize; 2], taken: &mut Taken) {
        for (events, share) in self.0.iter_mut().zip(shares) {
            let mut more = EVENTS_IN_A_ROW.min(*share);
            while more > 0 && taken.events.len() < most && taken.cancelled.len() < MAX_CANCELLED {
                match events.pop_front() {
                    Some(Event::Call(call)) if !call.deliver() => taken.cancelled.push(call),
                    Some(event) => {
                        taken.events.push(event);
                        *share -= 1;
                        more -= 1;
                    }
                    None => break,
                }
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(VecDeque::is_empty)
    }

    /// Whether nothing waits that may be taken with these shares.
    fn is_over(&self, shares: [usize; 2]) -> bool {
        self.0.iter().zip(shares).all(|(events, share)| events.is_empty() || share == 0)
    }
}

impl Events {
    fn add(&mut self, owner: Owner, event: Event) {
        self.count += 1;
        let events = self.by_address.entry(owner).or_default();
        if events.is_empty() {
            self.turns.push_back(owner);
        }
        events.0[usize::from(matches!(event, Event::Call(_)))].push_back(event);
    }

    fn take(&mut self, most: usize) -> Taken {
        let events = self.of_engine.drain(..most.min(self.of_engine.len())).collect();
        let mut taken = Taken { events, cancelled: Vec::new() };
        let mut all_shares: HashMap<Owner, [usize; 2]> = HashMap::new();
        let mut served = VecDeque::new();
        while taken.events.len() < most && taken.cancelled.len() < MAX_CANCELLED {
            let Some(owner) = self.turns.pop_front() else { break };
            let Some(events) = self.by_address.get_mut(&owner) else { continue };
            let of_owner = if owner == Owner::Machine { [usize::MAX; 2] } else { SHARES };
            let shares = all_shares.entry(owner).or_insert(of_owner);
            events.take(most, shares, &mut taken);
            if events.is_empty() {
                self.by_address.remove(&owner);
            } else if events.is_over(*shares) {
                served.push_back(owner);
            } else {
                self.turns.push_back(owner);
            }
        }
        self.turns.append(&mut served);
        self.count -= taken.events.len() + taken.cancelled.len();
        taken
    }
}

/// The events, the commands, and what wakes either side.
#[derive(Debug)]
pub(crate) struct Bridge {
    events: Mutex<Events>,
    /// Readable while there are events that Python was woken for.
    pub(crate) wakeup: OwnedFd,
    inboxes: Vec<Arc<Inbox>>,
}

impl Bridge {
    /// Between Python and so many threads.
    pub(crate) fn new(threads: usize) -> std::io::Result<Self> {
        Ok(Self {
            events: Mutex::default(),
            wakeup: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            inboxes: (0..threads).map(|_| Arc::default()).collect(),
        })
    }

    pub(crate) fn inbox(&self, thread: usize) -> Arc<Inbox> {
        Arc::clone(&self.inboxes[thread])
    }

    /// Tells Python something about the engine, at once.
    pub(crate) fn tell(&self, event: Event) {
        {
            let mut events = locked(&self.events);
            events.count += 1;
            events.of_engine.push_back(event);
        }
        self.wake();
    }

    /// Tells Python that a call arrived.
    pub(crate) fn tell_call(&self, call: Arc<CallInfo>) {
        self.tell_of(call.peer.account.owner, call.id, Event::Call(call));
    }

    /// Tells Python something about a call of an owner, or about a connection. Its thread wakes Python when it looks for
    /// commands.
    pub(crate) fn tell_of(&self, owner: Owner, id: CallId, event: Event) {
        let mut events = locked(&self.events);
        events.add(owner, event);
        if let (false, Some(inbox)) = (events.are_told, self.inboxes.get(thread_of(id))) {
            inbox.notify.notify_one();
        }
    }

    /// Tells Python that a call was cancelled, unless the call never reached Python.
    pub(crate) fn tell_cancelled(&self, call: &CallInfo, cause: Cause) {
        let delivered = {
            let mut body = locked(&call.body);
            body.cancelled = !body.delivered;
            body.delivered
        };
        if delivered {
            self.tell_of(call.peer.account.owner, call.id, Event::Cancelled(call.id, cause));
        }
    }

    /// Wakes Python if events wait that it was not woken for.
    pub(crate) fn wake(&self) {
        let mut events = locked(&self.events);
        if events.count > 0 && !std::mem::replace(&mut events.are_told, true) {
            // It only fails when the counter is full, and then the descriptor is readable all the same.
            let _ = io::write(&self.wakeup, &1_u64.to_ne_bytes());
        }
    }

    /// At most so many events. Each address has a share. The descriptor stays readable while there are more.
    pub(crate) fn take(&self, most: usize) -> Vec<Event> {
        let mut events = locked(&self.events);
        let Taken { events: taken, cancelled } = events.take(most);
        if events.count == 0 && std::mem::take(&mut events.are_told) {
            let _ = io::read(&self.wakeup, &mut [0_u8; 8]);
        }
        drop(events);
        drop(cancelled); // outside of the lock: each has much to give back
        taken
    }

    /// Hands commands over to the threads that have their calls.
    pub(crate) fn give(&self, commands: &mut Vec<(CallId, Command)>) {
        let mut by_thread: Vec<Vec<(CallId, Command)>> = self.inboxes.iter().map(|_| Vec::new()).collect();
        for (id, command) in commands.drain(..) {
            if let Some(of_thread) = by_thread.get_mut(thread_of(id)) {
                of_thread.push((id, command));
            }
        }
        for (inbox, mut of_thread) in self.inboxes.iter().zip(by_thread) {
            if !of_thread.is_empty() {
                locked(&inbox.commands).append(&mut of_thread);
                inbox.notify.notify_one();
            }
        }
    }

    pub(crate) fn wake_threads(&self) {
        for inbox in &self.inboxes {
            inbox.notify.notify_one();
        }
    }
}

/// The value of a lock. A thread that panicked while it held one left the list whole.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Ledger;
    use crate::limits::Limits;
    use proptest::prelude::*;

    impl CallInfo {
        /// A call without any content.
        pub(crate) fn unknown() -> Self {
            Self {
                id: 0,
                method: 0,
                headers: HeaderMap::new(),
                frame: None,
                peer: Arc::new(Peer::unknown()),
                credentials: None,
                known: None,
                generation: 0,
                body: Mutex::default(),
            }
        }
    }

    fn is_readable(bridge: &Bridge) -> bool {
        let mut polled = [rustix::event::PollFd::new(&bridge.wakeup, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut polled, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })).expect("polls") > 0
    }

    fn call_of(id: CallId, ledger: &Arc<Ledger>, owner: Owner) -> Arc<CallInfo> {
        let peer = Arc::new(Peer::of(([10, 0, 0, 1], 1).into(), ledger.account(owner), crate::accept::Door::Grpc));
        Arc::new(CallInfo { id, peer, ..CallInfo::unknown() })
    }

    fn ids(events: &[Event]) -> Vec<CallId> {
        let of = |event: &Event| match event {
            Event::Call(call) => call.id,
            Event::Writable(id) => *id,
            other => panic!("{other:?}"),
        };
        events.iter().map(of).collect()
    }

    #[test]
    fn an_event_waits_for_a_few_of_another_address_and_not_for_all() {
        let ledger = Ledger::new(&Limits::default());
        for (is_call, share) in [false, true].into_iter().zip(SHARES) {
            let bridge = Bridge::new(1).expect("an eventfd");
            let tell = |id, owner| {
                let event = if is_call { Event::Call(call_of(id, &ledger, owner)) } else { Event::Writable(id) };
                bridge.tell_of(owner, id, event);
            };
            (0..1_000).for_each(|id| tell(id, Owner::Site(1)));
            tell(1_000, Owner::Site(2));
            tell(1_001, Owner::Machine);
            bridge.wake();
            let taken = ids(&bridge.take(256));
            assert_eq!(taken[..6], [0, 1, 2, 3, 1_000, 1_001]);
            assert_eq!(taken.len(), share + 2, "one address has its share of a turn");
            let mut rest = Vec::new();
            while is_readable(&bridge) {
                rest.extend(ids(&bridge.take(256)));
            }
            assert_eq!(rest, (share as CallId..1_000).collect::<Vec<_>>(), "in their order");
        }
    }

    #[test]
    fn calls_that_were_cancelled_leave_in_parts() {
        let (bridge, ledger) = (Bridge::new(1).expect("an eventfd"), Ledger::new(&Limits::default()));
        for id in 0..2 * MAX_CANCELLED as CallId {
            let call = call_of(id, &ledger, Owner::Site(1));
            bridge.tell_call(Arc::clone(&call));
            bridge.tell_cancelled(&call, Cause::Client);
        }
        bridge.tell_call(call_of(CallId::MAX, &ledger, Owner::Site(2)));
        bridge.wake();
        let mut taken = Vec::new();
        let mut times = 0;
        while is_readable(&bridge) {
            taken.extend(ids(&bridge.take(256)));
            times += 1;
        }
        assert_eq!((taken, times), (vec![CallId::MAX], 2));
    }

    proptest! {
        /// Steps: a call comes (0, 1), the oldest that lives is cancelled (2), Python takes some (3 and above).
        #[test]
        fn python_hears_of_a_cancellation_exactly_if_it_heard_of_the_call(steps in proptest::collection::vec(0_u8..8, 1..200)) {
            let (bridge, ledger) = (Bridge::new(1).expect("an eventfd"), Ledger::new(&Limits::default()));
            let (mut living, mut next) = (VecDeque::new(), 0_u64);
            let (mut heard, mut cancelled_before) = (Vec::new(), Vec::new());
            for step in steps {
                match step {
                    0 | 1 => {
                        let call = call_of(next, &ledger, Owner::Machine);
                        bridge.tell_call(Arc::clone(&call));
                        living.push_back(call);
                        next += 1;
                    }
                    2 => if let Some(call) = living.pop_front() {
                        if !heard.contains(&call.id) { cancelled_before.push(call.id); }
                        bridge.tell_cancelled(&call, Cause::Client);
                    },
                    most => for event in bridge.take(usize::from(most)) {
                        match event {
                            Event::Call(call) => { prop_assert!(!cancelled_before.contains(&call.id)); heard.push(call.id); }
                            Event::Cancelled(id, _) => prop_assert!(heard.contains(&id)),
                            _ => prop_assert!(false),
                        }
                    },
                }
                bridge.wake();
                prop_assert_eq!(is_readable(&bridge), locked(&bridge.events).count > 0);
            }
        }

        #[test]
        fn each_command_reaches_the_thread_of_its_call_in_order(calls in proptest::collection::vec(0_usize..3, 0..100)) {
            let bridge = Bridge::new(3).expect("an eventfd");
            let mut commands: Vec<_> = (0_u64..).zip(&calls).map(|(number, thread)| (call_id(*thread, number), Command::Read)).collect();
            bridge.give(&mut commands);
            prop_assert!(commands.is_empty());
            for thread in 0..3 {
                let numbers: Vec<u64> = bridge.inbox(thread).take().iter().map(|(id, _)| id & 0xFF_FFFF).collect();
                let expected: Vec<u64> = (0_u64..).zip(&calls).filter(|(_, of)| **of == thread).map(|(number, _)| number).collect();
                prop_assert_eq!(numbers, expected);
            }
        }
    }
}
