//! A worker: one engine thread, with its state and its loop. Its connections and their calls stay with it, so nothing here is
//! locked. The loop takes new connections and Python's commands, and follows the stages of the engine's end.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;

use tokio::runtime::Builder;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::{LocalSet, spawn_local};

use crate::accept::{Accepted, Door};
use crate::bridge::{CallId, Command, Inbox, call_id};
use crate::connection;
use crate::connections::{ConnectionHandle, Connections};
use crate::grpc::inflate;
use crate::remoting;
use crate::remoting::incoming::READ;
use crate::scheduler::Scheduler;
use crate::shared::{Shared, Stage};

/// A call that Python's commands reach.
pub(crate) trait Recipient {
    /// Takes a command for a call of its.
    fn receive(self: Rc<Self>, id: CallId, command: Command);

    /// Has the call look at its connection again.
    fn wake(&self) {}
}

pub(crate) struct Worker {
    pub(crate) shared: Arc<Shared>,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) connections: Connections,
    number: usize,
    next_call: Cell<u64>,
    recipients: RefCell<HashMap<CallId, Rc<dyn Recipient>>>,
    /// Whether calls have to look at their connections again: some were refused since all calls were woken.
    has_refused: Cell<bool>,
    /// Has one message at a time be decompressed.
    pub(crate) unpacking: Rc<Scheduler>,
    /// Shares the time of the thread between the owners of its connections.
    pub(crate) scheduler: Rc<Scheduler>,
    /// Buffer in which cache keys are built.
    pub(crate) key: RefCell<Vec<u8>>,
    /// Buffer into which the connection of `RocketMQ`'s protocol that runs reads.
    pub(crate) read_buffer: RefCell<Box<[u8]>>,
}

impl Worker {
    pub(crate) fn new(shared: Arc<Shared>, number: usize) -> Rc<Self> {
        Rc::new(Self {
            inbox: shared.bridge.inbox(number),
            connections: Connections::new(&shared),
            number,
            next_call: Cell::new(1), // 0 is no call: events of the engine itself have it
            recipients: RefCell::default(),
            has_refused: Cell::new(false),
            unpacking: inflate::scheduler(),
            scheduler: Scheduler::of_thread(),
            key: RefCell::default(),
            read_buffer: RefCell::new(vec![0; READ].into()),
            shared,
        })
    }

    /// The id of a new call.
    pub(crate) fn call_id(&self) -> CallId {
        let number = self.next_call.get();
        self.next_call.set(number + 1);
        call_id(self.number, number)
    }

    /// Has the commands for a call reach it.
    pub(crate) fn add_call(&self, id: CallId, recipient: Rc<dyn Recipient>) {
        self.recipients.borrow_mut().insert(id, recipient);
    }

    /// Forgets a call that has ended.
    pub(crate) fn remove_call(&self, id: CallId) {
        let removed = self.recipients.borrow_mut().remove(&id);
        drop(removed); // outside of the borrow: what it holds may come back here
    }

    /// Refuses a connection. Its calls end once `wake_refused` has woken them: they may have run before it.
    pub(crate) fn refuse(&self, connection: &ConnectionHandle) {
        connection.is_refused.set(true);
        self.has_refused.set(true);
        self.inbox.notify.notify_one();
    }

    /// Has every call look again, if connections were refused since the last time.
    pub(crate) fn wake_refused(&self) {
        if self.has_refused.take() {
            self.recipients.borrow().values().for_each(|recipient| recipient.wake());
        }
    }

    /// Gives each call its commands. Drops those of calls that have ended.
    pub(crate) fn deliver_commands(&self) {
        for (id, command) in self.inbox.take() {
            let recipient = self.recipients.borrow().get(&id).map(Rc::clone);
            if let Some(recipient) = recipient {
                // A defect of one connection stays with it: HTTP/2 panics again where what it holds is dropped.
                let _ = catch_unwind(AssertUnwindSafe(|| recipient.receive(id, command)));
            }
        }
    }

    /// Removes a connection that has ended.
    pub(crate) fn remove_connection(&self, handle: &ConnectionHandle) {
        self.connections.remove(handle);
        if self.shared.stage() > Stage::Serving {
            self.inbox.notify.notify_one();
        }
    }
}

/// Serves connections until the engine has ended. Fails, in words, if the system has no more descriptors.
pub(crate) fn run(shared: Arc<Shared>, number: usize, accepted: UnboundedReceiver<Accepted>) -> Result<(), String> {
    let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
    let worker = Worker::new(shared, number);
    let scheduler = Rc::clone(&worker.scheduler);
    LocalSet::new().block_on(&runtime, scheduler.drive(serve(worker, accepted)));
    Ok(())
}

async fn serve(worker: Rc<Worker>, mut accepted: UnboundedReceiver<Accepted>) {
    let mut stage = Stage::Serving;
    let mut authorities_generation = worker.shared.authorities_generation();
    let mut accepting = true;
    loop {
        tokio::select! {
            () = worker.inbox.notify.notified() => {
                worker.shared.bridge.wake();
                worker.deliver_commands();
            }
            next = accepted.recv(), if accepting => match next {
                Some(next) if next.door == Door::Grpc => drop(spawn_local(connection::serve(Rc::clone(&worker), next))),
                Some(next) => drop(spawn_local(remoting::connection::serve(Rc::clone(&worker), next))),
                None => accepting = false,
            },
        }
        let (now, authorities) = (worker.shared.stage(), worker.shared.authorities_generation());
        if (now, authorities) != (stage, authorities_generation) {
            (stage, authorities_generation) = (now, authorities);
            worker.connections.wake_all();
        }
        worker.wake_refused();
        if stage == Stage::Leaving || (stage > Stage::Serving && !accepting && worker.connections.is_empty()) {
            drop(worker.recipients.take()); // each may hold the worker
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;

    /// Counts its commands, or panics at each.
    struct Told {
        count: Cell<u32>,
        panics: bool,
    }

    impl Recipient for Told {
        fn receive(self: Rc<Self>, _id: CallId, _command: Command) {
            assert!(!self.panics, "a lock of HTTP/2 is poisoned");
            self.count.set(self.count.get() + 1);
        }
    }

    #[test]
    fn a_call_that_panics_takes_no_command_from_others() {
        let worker = Worker::new(Shared::of(Limits::default(), Vec::new()), 0);
        let [broken, other] = [true, false].map(|panics| {
            let (id, told) = (worker.call_id(), Rc::new(Told { count: Cell::new(0), panics }));
            worker.add_call(id, Rc::clone(&told) as Rc<dyn Recipient>);
            (id, told)
        });
        worker.shared.bridge.give(&mut vec![(broken.0, Command::Read), (other.0, Command::Read)]);
        worker.deliver_commands();
        assert_eq!(other.1.count.get(), 1);
        assert_ne!(broken.0, 0, "events without a call have this id");
    }
}
