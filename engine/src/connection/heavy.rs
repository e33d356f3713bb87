//! Turns of connections that bring much: a few have one at a time, in the order in which they asked.
//!
//! Connections that bring little have theirs at once. So a lookup waits for a few heavy turns and not for all of them,
//! however many connections send large messages.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::PollSemaphore;

/// Heavy turns between two looks at the sockets.
pub(crate) const HEAVY_TURNS: usize = 4;

/// The heavy turns of a thread.
#[derive(Debug)]
pub(crate) struct HeavyTurns(Arc<Semaphore>);

impl Default for HeavyTurns {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(HEAVY_TURNS)))
    }
}

impl HeavyTurns {
    /// What a connection has of them.
    pub(crate) fn turn(&self) -> HeavyTurn {
        HeavyTurn { all: PollSemaphore::new(Arc::clone(&self.0)), held: None, queued: false, asked: false }
    }
}

/// A connection's heavy turn, if it has one, or its place in the queue.
#[derive(Debug)]
pub(crate) struct HeavyTurn {
    all: PollSemaphore,
    held: Option<OwnedSemaphorePermit>,
    /// Whether the connection stands in the queue.
    queued: bool,
    /// Whether it has asked since the last `end`.
    asked: bool,
}

impl HeavyTurn {
    /// Ready once it has one, which it has until its `end`.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.asked = true;
        if self.held.is_none() {
            self.queued = true;
            self.held = ready!(self.all.poll_acquire(cx)); // none only if somebody closed it, which nobody does
            self.queued = false;
        }
        Poll::Ready(())
    }

    /// Ends a turn of the connection: gives back what it has, after everybody else who is ready, and the calls that it
    /// brought, have had their turn. Who stands in the queue and did not ask, as it pauses or cannot write, leaves it: a
    /// place that came to it now would be nobody's for as long.
    pub(crate) fn end(&mut self) {
        if !std::mem::take(&mut self.asked) {
            self.leave_queue();
        }
        if let Some(held) = self.held.take() {
            tokio::task::spawn_local(async {
                tokio::task::yield_now().await;
                drop(held);
            });
        }
    }

    /// Has the next in the queue come instead of a connection that reads no more.
    pub(crate) fn leave_queue(&mut self) {
        if std::mem::take(&mut self.queued) {
            self.all = PollSemaphore::new(self.all.clone_inner());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::pin::Pin;
    use std::rc::Rc;

    use tokio::io::{AsyncRead, AsyncWriteExt, DuplexStream, ReadBuf};
    use tokio::task::{LocalSet, spawn_local, yield_now};

    use super::*;
    use crate::connection::pace::{PaceState, Paced};

    const PING: [u8; 17] = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    const CONNECTIONS: usize = 100;
    const FRAMES: usize = 20;

    /// A frame of a message, as large as it may be.
    fn large() -> Vec<u8> {
        let mut frame = vec![0, 0x40, 0, 0, 0, 0, 0, 0, 1];
        frame.resize(9 + 0x4000, 7);
        frame
    }

    /// A connection that is read in turns, as `Connection` does it, and counts those that brought something.
    struct Reader {
        paced: Paced<DuplexStream>,
        pace: Rc<PaceState>,
        turns: Rc<Cell<usize>>,
    }

    impl Reader {
        fn spawn(server: DuplexStream, all: &HeavyTurns, turns: &Rc<Cell<usize>>) {
            let pace = PaceState::new(all);
            drop(spawn_local(Self { paced: Paced::new(server, Rc::clone(&pace)), pace, turns: Rc::clone(turns) }));
        }
    }

    impl Future for Reader {
        type Output = ();

        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
            let this = &mut *self;
            this.pace.turn.set(this.pace.turn.get() + 1);
            let mut read = 0;
            loop {
                let mut bytes = [0; 8 << 10];
                let mut buffer = ReadBuf::new(&mut bytes);
                let polled = Pin::new(&mut this.paced).poll_read(cx, &mut buffer);
                read += buffer.filled().len();
                if polled.is_pending() || buffer.filled().is_empty() {
                    this.pace.heavy.borrow_mut().end();
                    this.turns.set(this.turns.get() + usize::from(read > 0));
                    return polled.map(drop);
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_light_turn_waits_for_a_few_heavy_ones_however_many_want_one() {
        LocalSet::new().run_until(waits_for_a_few()).await;
    }

    async fn waits_for_a_few() {
        let (all, heavy, light) = (HeavyTurns::default(), Rc::default(), Rc::default());
        let mut clients = Vec::new();
        for _ in 0..CONNECTIONS {
            let (mut client, server) = tokio::io::duplex(1 << 20);
            client.write_all(&large().repeat(FRAMES)).await.expect("room");
            Reader::spawn(server, &all, &heavy);
            clients.push(client);
        }
        let (mut client, server) = tokio::io::duplex(1 << 20);
        Reader::spawn(server, &all, &light);
        while heavy.get() < CONNECTIONS {
            yield_now().await; // nobody's first turn is heavy before it has begun
        }
        let mut waited = Vec::new();
        while heavy.get() < 3 * CONNECTIONS {
            let (before, turns) = (heavy.get(), light.get());
            client.write_all(&PING).await.expect("room");
            while light.get() == turns {
                yield_now().await;
            }
            waited.push(heavy.get() - before);
        }
        assert!(waited.iter().all(|turns| *turns <= 2 * HEAVY_TURNS), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_cannot_read_when_its_heavy_turn_comes_leaves_it_to_the_next() {
        LocalSet::new().run_until(passes_it_on()).await;
    }

    async fn passes_it_on() {
        let all = HeavyTurns::default();
        let mut having: Vec<HeavyTurn> = (0..HEAVY_TURNS).map(|_| all.turn()).collect();
        let mut cx = Context::from_waker(std::task::Waker::noop());
        assert!(having.iter_mut().all(|turn| turn.poll(&mut cx).is_ready()));

        let (mut client, server) = tokio::io::duplex(1 << 20);
        let pace = PaceState::new(&all);
        let mut paced = Paced::new(server, Rc::clone(&pace));
        client.write_all(&large()).await.expect("room");
        pace.turn.set(1);
        let read = |paced: &mut Paced<DuplexStream>, cx: &mut Context<'_>| {
            let mut bytes = [0; 8 << 10];
            Pin::new(paced).poll_read(cx, &mut ReadBuf::new(&mut bytes)).is_ready()
        };
        assert!(read(&mut paced, &mut cx) && read(&mut paced, &mut cx), "the preface, and a part of the frame");
        assert!(!read(&mut paced, &mut cx), "what follows waits for a heavy turn");
        pace.call_has(100_000);
        assert!(!read(&mut paced, &mut cx), "and for seconds, until its many fields are paid for");
        pace.heavy.borrow_mut().end();
        let mut next = all.turn();
        assert!(next.poll(&mut cx).is_pending());

        having[0].end();
        yield_now().await;
        yield_now().await;
        pace.turn.set(2);
        assert!(!read(&mut paced, &mut cx));
        pace.heavy.borrow_mut().end();
        assert!(next.poll(&mut cx).is_ready());
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_for_a_heavy_turn_and_goes_leaves_it_to_the_next() {
        LocalSet::new().run_until(leaves_it_to_the_next()).await;
    }

    async fn leaves_it_to_the_next() {
        let all = HeavyTurns::default();
        let mut having: Vec<HeavyTurn> = (0..HEAVY_TURNS).map(|_| all.turn()).collect();
        let (mut going, mut next) = (all.turn(), all.turn());
        let mut cx = Context::from_waker(std::task::Waker::noop());
        assert!(having.iter_mut().all(|turn| turn.poll(&mut cx).is_ready()));
        assert!(going.poll(&mut cx).is_pending() && next.poll(&mut cx).is_pending());
        drop(going);
        having[0].end();
        assert!(next.poll(&mut cx).is_pending(), "others have their turn first");
        yield_now().await;
        yield_now().await;
        assert!(next.poll(&mut cx).is_ready());
    }
}
