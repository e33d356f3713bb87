//! The scheduler of a thread: it shares the thread's time by owner.
//!
//! Work of a peer runs in slices, one at a time. A slice begins at once while the thread has time for all. Once the slices
//! between two looks at the sockets have taken `PASS`, further ones wait. Then owners are served round robin, each for a
//! quantum of time (deficit round robin), and the work of one owner in the order in which it asked.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::time::Instant;

use crate::peer::Owner;

/// Time of an owner before the next owner is served, nanoseconds: half of the longest slice of lookups.
const QUANTUM: u64 = 250_000;

/// Time of all slices between two looks at the sockets, nanoseconds. The first bytes of an owner wait for so long at most.
const PASS: u64 = 500_000;

/// The highest cost of a slice, in quanta: the system may stop the thread in the middle of one.
const MOST_QUANTA: u64 = 20;

/// Shares the time of a thread, or anything else that one piece of work has at a time.
#[derive(Debug)]
pub(crate) struct Scheduler {
    quantum: u64,
    pass: u64,
    /// Whether a slice costs the time that it takes.
    timed: bool,
    state: RefCell<State>,
}

#[derive(Debug, Default)]
struct State {
    queues: HashMap<Owner, Queue>,
    /// Owners with a queue, in the order in which they are served.
    order: VecDeque<Owner>,
    waiting: usize,
    /// Whether a slice runs, or its work was woken for it.
    taken: bool,
    /// The cost of all slices since the last pass.
    spent: u64,
    /// Begins the next pass.
    driver: Option<Waker>,
}

/// The work of one owner that waits.
#[derive(Debug)]
struct Queue {
    credit: i64,
    waiting: VecDeque<Rc<Entry>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Idle,
    Waiting,
    Called,
    Running,
}

/// One piece of work, as the queues have it.
#[derive(Debug)]
struct Entry {
    stage: Cell<Stage>,
    waker: RefCell<Option<Waker>>,
}

impl Scheduler {
    /// The scheduler of the running thread, where `drive` must run.
    pub(crate) fn of_thread() -> Rc<Self> {
        Rc::new(Self { quantum: QUANTUM, pass: PASS, timed: true, state: RefCell::default() })
    }

    /// A scheduler of anything else. Slices cost what they are charged with.
    pub(crate) fn of_other(quantum: u64) -> Rc<Self> {
        Rc::new(Self { quantum, pass: u64::MAX, timed: false, state: RefCell::default() })
    }

    /// The slices of one piece of an owner's work.
    pub(crate) fn of(self: &Rc<Self>, owner: Owner) -> Slice {
        let entry = Rc::new(Entry { stage: Cell::new(Stage::Idle), waker: RefCell::default() });
        Slice {
            scheduler: Rc::clone(self),
            owner,
            entry,
            asked: None,
            began: Instant::now(),
            waited: Duration::ZERO,
            cost: 0,
        }
    }

    /// Begins a pass whenever the thread has looked at its sockets, and then polls its main work.
    pub(crate) async fn drive<F: Future>(&self, work: F) -> F::Output {
        let mut work = pin!(work);
        poll_fn(|cx| {
            self.begin_pass(cx);
            work.as_mut().poll(cx)
        })
        .await
    }

    fn begin_pass(&self, cx: &Context<'_>) {
        let mut state = self.state.borrow_mut();
        state.spent = 0;
        state.driver.get_or_insert_with(|| cx.waker().clone()).clone_from(cx.waker());
        if state.waiting > 0 {
            cx.waker().wake_by_ref();
        }
        let next = state.next(self.quantum, self.pass);
        drop(state);
        wake(next);
    }

    /// Begins a slice if no other runs or waits, and there is time. Returns whether it did.
    fn take(&self) -> bool {
        let mut state = self.state.borrow_mut();
        let free = !state.taken && state.waiting == 0 && state.spent < self.pass;
        state.taken |= free;
        free
    }

    fn enqueue(&self, owner: Owner, entry: &Rc<Entry>) {
        let state = &mut *self.state.borrow_mut();
        let queue = state.queues.entry(owner).or_insert_with(|| {
            state.order.push_back(owner);
            Queue { credit: i64::try_from(self.quantum).unwrap_or(i64::MAX), waiting: VecDeque::new() }
        });
        queue.waiting.push_back(Rc::clone(entry));
        entry.stage.set(Stage::Waiting);
        state.waiting += 1;
        if let Some(driver) = state.driver.as_ref().filter(|_| state.waiting == 1) {
            driver.wake_by_ref();
        }
    }

    /// Ends the slice that runs, and wakes the work that is next.
    fn end(&self, owner: Owner, cost: u64) {
        let cost = cost.min(self.quantum * MOST_QUANTA);
        let mut state = self.state.borrow_mut();
        state.taken = false;
        state.spent = state.spent.saturating_add(cost);
        if state.order.is_empty() {
            return;
        }
        if let Some(queue) = state.queues.get_mut(&owner) {
            queue.credit -= i64::try_from(cost).unwrap_or(i64::MAX);
        }
        let next = state.next(self.quantum, self.pass);
        drop(state);
        wake(next);
    }
}

fn wake(next: Option<Rc<Entry>>) {
    if let Some(waker) = next.and_then(|entry| entry.waker.take()) {
        waker.wake();
    }
}

impl State {
    fn next(&mut self, quantum: u64, pass: u64) -> Option<Rc<Entry>> {
        if self.waiting == 0 {
            self.queues.clear();
            self.order.clear();
            return None;
        }
        if self.taken || self.spent >= pass {
            return None;
        }
        loop {
            let owner = *self.order.front()?;
            let queue = self.queues.get_mut(&owner)?;
            if queue.credit <= 0 {
                queue.credit = queue.credit.saturating_add_unsigned(quantum);
                self.order.rotate_left(1);
            } else if let Some(entry) = queue.waiting.pop_front() {
                if entry.stage.get() == Stage::Waiting {
                    entry.stage.set(Stage::Called);
                    self.waiting -= 1;
                    self.taken = true;
                    return Some(entry);
                }
            } else {
                self.queues.remove(&owner); // it has no debt
                self.order.pop_front();
            }
        }
    }
}

/// The slices of one piece of work. When it is dropped, the next work runs.
#[derive(Debug)]
pub(crate) struct Slice {
    scheduler: Rc<Scheduler>,
    owner: Owner,
    entry: Rc<Entry>,
    /// Since when it waits.
    asked: Option<Instant>,
    /// When the slice began.
    pub(crate) began: Instant,
    /// How long it has waited for its slice.
    pub(crate) waited: Duration,
    /// The cost of the slice without its time.
    cost: u64,
}

impl Slice {
    /// Ready once a slice begins, which lasts until `end`.
    pub(crate) fn poll(&mut self, cx: &Context<'_>) -> Poll<()> {
        match self.entry.stage.get() {
            Stage::Running => return Poll::Ready(()),
            Stage::Waiting => return self.wait(cx),
            Stage::Idle if !self.scheduler.take() => {
                self.asked = Some(Instant::now());
                self.scheduler.enqueue(self.owner, &self.entry);
                return self.wait(cx);
            }
            Stage::Called | Stage::Idle => {}
        }
        self.entry.stage.set(Stage::Running);
        self.began = Instant::now();
        self.waited = self.asked.take().map_or(Duration::ZERO, |asked| self.began - asked);
        Poll::Ready(())
    }

    fn wait(&self, cx: &Context<'_>) -> Poll<()> {
        self.entry.waker.borrow_mut().get_or_insert_with(|| cx.waker().clone()).clone_from(cx.waker());
        Poll::Pending
    }

    /// Adds to the cost of the slice.
    pub(crate) fn charge(&mut self, cost: u64) {
        self.cost += cost;
    }

    /// Ends the slice.
    pub(crate) fn end(&mut self) {
        if self.scheduler.timed {
            self.charge(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX));
        }
        self.entry.stage.set(Stage::Idle);
        self.scheduler.end(self.owner, std::mem::take(&mut self.cost));
    }

    /// Polls work in slices, and drops it in the last one.
    pub(crate) async fn run<F: Future>(&mut self, work: F) -> F::Output {
        let mut work = pin!(Some(work));
        poll_fn(|cx| {
            ready!(self.poll(cx));
            let Some(running) = work.as_mut().as_pin_mut() else { return Poll::Pending };
            let polled = running.poll(cx);
            if polled.is_ready() {
                work.set(None);
            }
            self.end();
            polled
        })
        .await
    }
}

impl Drop for Slice {
    fn drop(&mut self) {
        match self.entry.stage.replace(Stage::Idle) {
            Stage::Idle => {}
            Stage::Waiting => self.scheduler.state.borrow_mut().waiting -= 1, // its entry is passed over
            Stage::Called => self.scheduler.end(self.owner, 0),
            Stage::Running => self.end(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::task::{LocalSet, spawn_local, yield_now};

    const FLOODER: Owner = Owner::Site(1);
    const OTHER: Owner = Owner::Site(2);

    type Count = Rc<Cell<usize>>;

    /// Has as many connections of an owner want slices of a cost, all the time. Returns how many they have had.
    fn flood(scheduler: &Rc<Scheduler>, owner: Owner, connections: usize, cost: u64) -> Count {
        let count = Count::default();
        for _ in 0..connections {
            let (mut slice, count) = (scheduler.of(owner), Rc::clone(&count));
            spawn_local(async move {
                loop {
                    poll_fn(|cx| slice.poll(cx)).await;
                    count.set(count.get() + 1);
                    slice.charge(cost);
                    slice.end();
                    yield_now().await;
                }
            });
        }
        count
    }

    fn run<F: Future<Output = ()>>(test: impl FnOnce(Rc<Scheduler>) -> F) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("descriptors");
        // Slices cost what the test charges, however busy the machine is.
        let scheduler = Rc::new(Scheduler { quantum: QUANTUM, pass: PASS, timed: false, state: RefCell::default() });
        LocalSet::new().block_on(&runtime, scheduler.drive(test(Rc::clone(&scheduler))));
    }

    async fn until(count: &Count, least: usize) {
        while count.get() < least {
            yield_now().await;
        }
    }

    #[test]
    fn beside_thousands_of_another_owner_old_and_new_work_waits_for_a_few_slices() {
        run(|scheduler| async move {
            let count = flood(&scheduler, FLOODER, 5_000, 2 * QUANTUM);
            until(&count, 10).await;
            let mut old = scheduler.of(OTHER);
            for _ in 0..100 {
                for slice in [&mut old, &mut scheduler.of(OTHER)] {
                    let before = count.get();
                    slice.run(async {}).await;
                    assert!(count.get() - before <= 2, "{}", count.get() - before);
                }
            }
        });
    }

    #[test]
    fn owners_that_want_more_than_there_is_have_the_same_time() {
        run(|scheduler| async move {
            let dear = flood(&scheduler, FLOODER, 1_000, 2 * QUANTUM);
            let cheap = flood(&scheduler, OTHER, 1_000, QUANTUM / 2);
            until(&dear, 200).await;
            let (dear, cheap) = (dear.get() * 4, cheap.get());
            assert!(cheap.abs_diff(dear) * 20 < dear, "{cheap} cheap ones, and {dear} would be fair");
        });
    }

    #[test]
    fn work_that_ends_lets_the_next_run() {
        let (scheduler, cx) = (Scheduler::of_other(1), Context::from_waker(Waker::noop()));
        let [mut having, mut going, mut called, mut next] = [(); 4].map(|()| scheduler.of(OTHER));
        assert!(having.poll(&cx).is_ready());
        assert!(going.poll(&cx).is_pending() && called.poll(&cx).is_pending() && next.poll(&cx).is_pending());
        drop(going);
        drop(having);
        assert!(next.poll(&cx).is_pending(), "the one before it has been called");
        drop(called);
        assert!(next.poll(&cx).is_ready());
    }
}
