//! The loop of an engine thread: new connections, Python's commands, and the stages of the engine's end.

use std::rc::Rc;
use std::sync::Arc;

use tokio::runtime::Builder;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::{LocalSet, spawn_local};

use crate::accept::Accepted;
use crate::connection;
use crate::door::Door;
use crate::remoting;
use crate::shared::{Shared, Stage};
use crate::worker::Worker;

/// Serves connections until the engine has ended.
///
/// # Errors
///
/// The system has no more descriptors, in words.
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
            () = worker.inbox.notify.notified() => worker.deliver_commands(),
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
            worker.remove_all_calls();
            return;
        }
    }
}
