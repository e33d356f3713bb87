//! A thread that serves connections: they stay with it, and so do their calls, so that nothing in it is locked.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use h2::RecvStream;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::LocalSet;

use crate::bridge::{CallId, CallInfo, Command, Inbox, call_id};
use crate::call::Begun;
use crate::call::parked::{Lot, Parked};
use crate::call::script::{Held, perform};
use crate::connection;
use crate::connection::gathered::Spare;
use crate::connection::heavy::HeavyTurns;
use crate::door::Arrived;
use crate::grpc::message::Assembler;
use crate::grpc::payload::Waiting;
use crate::shared::{Pending, Shared, Stage};

/// New connections that have their first turn at once. However many come, others wait for so many of them, and not for all.
const NEWCOMERS: usize = 4;

/// Connections that are taken apart at once.
const LEAVERS: usize = 4;

/// What the thread knows of one of its connections, and how it reaches it.
#[derive(Debug)]
pub(crate) struct Handle {
    number: u64,
    pub(crate) waiting: Rc<Waiting>,
    /// Set when it must close, because it holds most of what waits for readers.
    pub(crate) must_close: Cell<bool>,
    /// Calls that Python had and the client cancelled, since the last keepalive.
    pub(crate) cancels: Cell<u32>,
    /// Calls under way that are worth more than a connection's lifetime.
    pub(crate) holding: Cell<usize>,
    /// Calls that wait for a turn of Python's and have no task.
    pub(crate) parked: Cell<u32>,
    waker: RefCell<Option<Waker>>,
}

impl Handle {
    /// The client has cancelled a call that Python had.
    pub(crate) fn cancelled(&self) {
        self.cancels.set(self.cancels.get() + 1);
        self.wake();
    }

    pub(crate) fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    pub(crate) fn set_waker(&self, waker: &Waker) {
        let mut held = self.waker.borrow_mut();
        if !held.as_ref().is_some_and(|held| held.will_wake(waker)) {
            *held = Some(waker.clone());
        }
    }
}

/// Where the commands for one call wait for its task.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    commands: RefCell<VecDeque<Command>>,
    waker: RefCell<Option<Waker>>,
}

impl Mailbox {
    fn put(&self, command: Command) {
        self.commands.borrow_mut().push_back(command);
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// The next command that is wanted now; the others wait on.
    pub(crate) fn poll_next(&self, cx: &mut Context<'_>, wanted: impl Fn(&Command) -> bool) -> Poll<Command> {
        let mut commands = self.commands.borrow_mut();
        if let Some(at) = commands.iter().position(wanted) {
            if let Some(command) = commands.remove(at) {
                return Poll::Ready(command);
            }
        }
        *self.waker.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// The thread's own things.
pub(crate) struct Room {
    pub(crate) shared: Arc<Shared>,
    thread: usize,
    inbox: Arc<Inbox>,
    calls: RefCell<HashMap<CallId, Rc<Mailbox>>>,
    parked: Lot,
    connections: RefCell<HashMap<u64, Rc<Handle>>>,
    numbers: Cell<u64>,
    /// Bytes that wait for readers, of all connections of this thread.
    waiting: Rc<Cell<usize>>,
    /// Whose turn it is to unpack a message.
    pub(crate) unpacking: Semaphore,
    /// Whose turn it is to be new: between a few of these, all that are there have theirs.
    pub(crate) newcomers: Semaphore,
    /// Whose turn it is to end, the same way.
    pub(crate) leavers: Semaphore,
    /// Whose turn it is to bring much.
    pub(crate) heavy_turns: HeavyTurns,
    /// Where keys for the cache are built.
    pub(crate) key: RefCell<Vec<u8>>,
    /// Where the connection whose turn it is gathers what it writes.
    pub(crate) spare: Spare,
}

/// Serves connections until the engine has ended.
pub(crate) fn run(shared: Arc<Shared>, thread: usize, arrived: UnboundedReceiver<Arrived>) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
    let room = Rc::new(Room {
        inbox: shared.bridge.inbox(thread),
        shared,
        thread,
        calls: RefCell::default(),
        parked: Lot::default(),
        connections: RefCell::default(),
        numbers: Cell::new(0),
        waiting: Rc::default(),
        unpacking: Semaphore::new(1),
        newcomers: Semaphore::new(NEWCOMERS),
        leavers: Semaphore::new(LEAVERS),
        heavy_turns: HeavyTurns::default(),
        key: RefCell::default(),
        spare: Spare::default(),
    });
    let local = LocalSet::new();
    local.block_on(&runtime, room.serve(arrived));
}

impl Room {
    async fn serve(self: Rc<Self>, mut arrived: UnboundedReceiver<Arrived>) {
        let mut stage = Stage::Serving;
        let mut open = true;
        loop {
            tokio::select! {
                () = self.inbox.notify.notified() => self.deal(),
                came = arrived.recv(), if open => match came {
                    Some(came) => drop(tokio::task::spawn_local(connection::serve(Rc::clone(&self), came))),
                    None => open = false,
                },
            }
            let now = self.shared.stage();
            if now != stage {
                stage = now;
                self.wake_connections();
            }
            if stage == Stage::Leaving || (stage > Stage::Serving && !open && self.connections.borrow().is_empty()) {
                self.parked.clear(); // each of them holds this room
                return;
            }
        }
    }

    /// Gives each call the commands that came for it. Those for calls that are gone are dropped.
    fn deal(&self) {
        for (id, command) in self.inbox.take() {
            match (self.parked.take(id), command) {
                (Some(parked), Command::Answer(message)) => parked.answer(message),
                (Some(parked), command) => self.hold(parked.call, parked.info, parked.place, None).put(command),
                (None, command) => {
                    if let Some(mailbox) = self.calls.borrow().get(&id) {
                        mailbox.put(command);
                    }
                }
            }
        }
    }

    /// A new connection.
    pub(crate) fn enter(&self) -> Rc<Handle> {
        let number = self.number();
        let handle = Rc::new(Handle {
            number,
            waiting: Waiting::of(&self.waiting),
            must_close: Cell::new(false),
            cancels: Cell::new(0),
            holding: Cell::new(0),
            parked: Cell::new(0),
            waker: RefCell::new(None),
        });
        self.connections.borrow_mut().insert(number, Rc::clone(&handle));
        handle
    }

    /// A connection has ended.
    pub(crate) fn leave(&self, handle: &Handle) {
        self.connections.borrow_mut().remove(&handle.number);
        if self.shared.stage() > Stage::Serving {
            self.inbox.notify.notify_one();
        }
    }

    /// The number of a new call that Python is to have.
    pub(crate) fn call_id(&self) -> CallId {
        call_id(self.thread, self.number())
    }

    /// Has a call wait without a task for the turn of Python's in which it is answered.
    pub(crate) fn park(&self, call: Begun, info: Arc<CallInfo>, place: Pending) {
        self.parked.put(Parked { call, info, place });
    }

    /// Gives a call a task, which Python's commands reach.
    pub(crate) fn hold(
        &self,
        call: Begun,
        info: Arc<CallInfo>,
        place: Pending,
        body: Option<(RecvStream, Assembler)>,
    ) -> Rc<Mailbox> {
        let mailbox = Rc::new(Mailbox::default());
        self.calls.borrow_mut().insert(info.id, Rc::clone(&mailbox));
        tokio::task::spawn_local(perform(Held::new(call, info, Rc::clone(&mailbox), place, body)));
        mailbox
    }

    /// Such a call has ended.
    pub(crate) fn forget(&self, id: CallId) {
        self.calls.borrow_mut().remove(&id);
    }

    /// Closes the connections that hold most of what waits for readers, until the rest is within the bound.
    pub(crate) fn check_waiting(&self) {
        let most = self.shared.limits.max_waiting / self.shared.threads;
        let mut waiting = self.waiting.get();
        self.shared.counts.waiting.store(waiting * self.shared.threads, Ordering::Relaxed);
        if waiting <= most {
            return;
        }
        let connections = self.connections.borrow();
        let mut by_waiting: Vec<&Rc<Handle>> = connections.values().collect();
        by_waiting.sort_unstable_by_key(|handle| handle.waiting.bytes.get());
        while waiting > most {
            let Some(worst) = by_waiting.pop() else { return };
            waiting -= worst.waiting.bytes.get().min(waiting);
            if !worst.must_close.replace(true) {
                self.shared.counts.closed_for_waiting.fetch_add(1, Ordering::Relaxed);
                worst.wake();
            }
        }
    }

    fn wake_connections(&self) {
        for handle in self.connections.borrow().values() {
            handle.wake();
        }
    }

    fn number(&self) -> u64 {
        let number = self.numbers.get();
        self.numbers.set(number + 1);
        number
    }
}
