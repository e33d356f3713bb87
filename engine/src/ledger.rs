//! The ledger: the account of every address, with all that its callers hold.
//!
//! Whatever a peer can make the engine keep is a `Hold` in the account of its address. The hold travels with the work and
//! gives the amount back where the work ends. Each kind has a limit in all, and one for each address. A part of each is
//! reserved for programs of this machine.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::bridge::locked;
use crate::limits::Limits;
use crate::peer::Owner;

/// What can be held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Kind {
    /// Open connections.
    Connections,
    /// TLS handshakes under way.
    Handshakes,
    /// Calls that wait for their request or for Python, without those of the next two kinds.
    #[default]
    Calls,
    /// The same of health.
    HealthCalls,
    /// The same of reflection.
    ReflectionCalls,
    /// Bytes of requests: metadata and messages, until Python has released them.
    BytesIn,
}

const KINDS: usize = 6;

/// The kinds of open calls.
pub(crate) const CALLS: [Kind; 3] = [Kind::Calls, Kind::HealthCalls, Kind::ReflectionCalls];

/// TLS handshakes under way at once.
const MAX_HANDSHAKES: usize = 4_096;

/// The limits of one kind.
#[derive(Debug, Clone, Copy)]
struct Bound {
    in_all: usize,
    of_address: usize,
    /// What only programs of this machine may take.
    kept: usize,
}

/// The limit that is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    /// All hold so much together.
    InAll(usize),
    /// One address holds so much.
    OfAddress(usize),
}

#[derive(Debug)]
pub(crate) struct Ledger {
    bounds: [Bound; KINDS],
    held: [AtomicUsize; KINDS],
    accounts: Mutex<HashMap<Owner, Weak<Account>>>,
    /// Whether somebody exceeds the limits.
    is_exceeded: AtomicBool,
}

#[derive(Debug)]
pub(crate) struct Account {
    ledger: Arc<Ledger>,
    pub(crate) owner: Owner,
    held: [AtomicUsize; KINDS],
}

/// The right to take what one frame takes beyond the limits. Only one peer has it at a time.
#[derive(Debug)]
pub(crate) struct Exceeding(Arc<Account>);

impl Drop for Exceeding {
    fn drop(&mut self) {
        self.0.ledger.is_exceeded.store(false, Ordering::Release);
    }
}

/// An amount that work holds. Given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) account: Arc<Account>,
    kind: Kind,
    amount: usize,
}

impl Ledger {
    pub(crate) fn new(limits: &Limits) -> Arc<Self> {
        let bound = |in_all: usize| Bound {
            in_all,
            of_address: limits.of_address(in_all),
            kept: in_all * limits.kept_percent / 100,
        };
        let bounds = [
            limits.max_connections,
            MAX_HANDSHAKES,
            limits.max_calls,
            limits.max_health_calls,
            limits.max_reflection_calls,
            limits.max_bytes_in,
        ];
        Arc::new(Self {
            bounds: bounds.map(bound),
            held: Default::default(),
            accounts: Mutex::default(),
            is_exceeded: AtomicBool::new(false),
        })
    }

    /// The account of an owner, which lasts as long as anything of it is held or a connection refers to it.
    pub(crate) fn account(self: &Arc<Self>, owner: Owner) -> Arc<Account> {
        let mut accounts = locked(&self.accounts);
        if let Some(account) = accounts.get(&owner).and_then(Weak::upgrade) {
            return account;
        }
        let account = Arc::new(Account { ledger: Arc::clone(self), owner, held: Default::default() });
        accounts.insert(owner, Arc::downgrade(&account));
        account
    }

    pub(crate) fn held(&self, kind: Kind) -> usize {
        self.held[kind as usize].load(Ordering::Relaxed)
    }
}

impl Account {
    /// Holds an amount. Refused if the address or all addresses together would hold too much.
    pub(crate) fn hold(self: &Arc<Self>, kind: Kind, amount: usize) -> Result<Hold, Over> {
        self.take(kind, amount, usize::MAX)?;
        Ok(Hold { account: Arc::clone(self), kind, amount })
    }

    /// Lets work that has begun end where work that has begun holds everything and waits for more. None while other work has
    /// this right.
    pub(crate) fn exceed(self: &Arc<Self>) -> Option<Exceeding> {
        let was_exceeded = self.ledger.is_exceeded.swap(true, Ordering::Acquire);
        (!was_exceeded).then(|| Exceeding(Arc::clone(self)))
    }

    /// Takes an amount, unless all together would hold more than `most`.
    fn take(&self, kind: Kind, amount: usize, most: usize) -> Result<(), Over> {
        let kind = kind as usize;
        let Bound { in_all, of_address, kept } = self.ledger.bounds[kind];
        let (most, of_address) = match self.owner {
            Owner::Machine => (in_all.min(most), usize::MAX),
            Owner::Site(_) => (in_all.saturating_sub(kept).min(most), of_address),
        };
        let (mine, all) = (&self.held[kind], &self.ledger.held[kind]);
        if mine.fetch_add(amount, Ordering::Relaxed) + amount > of_address {
            mine.fetch_sub(amount, Ordering::Relaxed);
            return Err(Over::OfAddress(of_address));
        }
        if all.fetch_add(amount, Ordering::Relaxed) + amount > most {
            all.fetch_sub(amount, Ordering::Relaxed);
            mine.fetch_sub(amount, Ordering::Relaxed);
            return Err(Over::InAll(most));
        }
        Ok(())
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let mut accounts = locked(&self.ledger.accounts);
        // Another one of the same owner may exist by now.
        if accounts.get(&self.owner).is_some_and(|account| account.strong_count() == 0) {
            accounts.remove(&self.owner);
        }
    }
}

impl Hold {
    /// Holds more. Refused as `Account::hold` is, and if all together would hold more than three quarters: work that grows
    /// leaves a quarter to work that is there whole. Then it holds as much as before.
    pub(crate) fn grow(&mut self, amount: usize) -> Result<(), Over> {
        let in_all = self.account.ledger.bounds[self.kind as usize].in_all;
        self.account.take(self.kind, amount, in_all - in_all / 4)?;
        self.amount += amount;
        Ok(())
    }

    /// Cuts off so much, at most the whole amount, as a hold of its own.
    pub(crate) fn split(&mut self, amount: usize) -> Self {
        let amount = amount.min(self.amount);
        self.amount -= amount;
        Self { account: Arc::clone(&self.account), kind: self.kind, amount }
    }

    /// Adds a hold of the same account and kind.
    pub(crate) fn merge(&mut self, mut other: Self) {
        self.amount += std::mem::take(&mut other.amount);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let kind = self.kind as usize;
        self.account.held[kind].fetch_sub(self.amount, Ordering::Relaxed);
        self.account.ledger.held[kind].fetch_sub(self.amount, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ledger(max_bytes_in: usize, caller_percent: usize, kept_percent: usize) -> Arc<Ledger> {
        Ledger::new(&Limits { max_bytes_in, caller_percent, kept_percent, ..Limits::default() })
    }

    fn hold(ledger: &Arc<Ledger>, owner: Owner, amount: usize) -> Result<Hold, Over> {
        ledger.account(owner).hold(Kind::BytesIn, amount)
    }

    #[test]
    fn a_hold_that_is_split_and_merged_is_given_back_once() {
        let ledger = ledger(10, 100, 0);
        let mut whole = hold(&ledger, Owner::Site(1), 10).expect("all");
        let mut part = whole.split(4);
        assert_eq!(ledger.held(Kind::BytesIn), 10);
        part.merge(whole.split(99));
        drop(whole);
        assert_eq!(ledger.held(Kind::BytesIn), 10);
        drop(part);
        assert_eq!(ledger.held(Kind::BytesIn), 0);
    }

    proptest! {
        /// Steps: a hold is given back (0), one grows (1), or a new one is taken (2), of this machine (0) or another address.
        #[test]
        fn what_is_held_is_the_sum_of_all_holds_and_within_the_limits(
            steps in proptest::collection::vec((0_u8..3, 0_u64..4, 0_usize..6), 0..60),
        ) {
            let ledger = ledger(20, 40, 20);
            let mut holds: Vec<Hold> = Vec::new();
            for (step, site, amount) in steps {
                let at = amount % holds.len().max(1);
                let grows = step == 1 && !holds.is_empty();
                if step == 0 && !holds.is_empty() {
                    holds.swap_remove(at);
                } else {
                    let new = if site == 0 { Owner::Machine } else { Owner::Site(site) };
                    let owner = if grows { holds[at].account.owner } else { new };
                    let mine: usize = holds.iter().filter(|hold| hold.account.owner == owner).map(|hold| hold.amount).sum();
                    let all: usize = holds.iter().map(|hold| hold.amount).sum();
                    let reserved = if owner == Owner::Machine { 20 } else { 16 };
                    let most = if grows { 15 } else { reserved }; // growing holds leave a quarter to others
                    let of_all = (all + amount > most).then_some(Over::InAll(most));
                    let of_address = (owner != Owner::Machine && mine + amount > 8).then_some(Over::OfAddress(8));
                    let taken = if grows {
                        holds[at].grow(amount)
                    } else {
                        hold(&ledger, owner, amount).map(|hold| holds.push(hold))
                    };
                    prop_assert_eq!(taken.err(), of_address.or(of_all));
                }
                let sum = holds.iter().map(|hold| hold.amount).sum::<usize>();
                prop_assert_eq!(ledger.held(Kind::BytesIn), sum);
            }
            drop(holds);
            prop_assert!(locked(&ledger.accounts).is_empty(), "nothing is kept of addresses that hold nothing");
        }
    }
}
