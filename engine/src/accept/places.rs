//! Places of connections: bounded in all and by address, and some kept for programs of this machine.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::limits::Limits;
use crate::peer::Owner;

/// All places, and who has them.
#[derive(Debug)]
pub(crate) struct Places {
    most: usize,
    most_of_site: usize,
    kept: usize,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    all: usize,
    by_site: HashMap<u64, usize>,
}

/// Why there is no place; the bound that is reached.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoPlace {
    /// All are taken together.
    InAll(usize),
    /// One address has as many as it may.
    OfSite(usize),
}

/// A place among the connections. Given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    owner: Owner,
}

impl Places {
    pub(crate) fn new(limits: &Limits) -> Arc<Self> {
        let Limits { max_connections: most, max_site_connections: most_of_site, kept_connections: kept, .. } = *limits;
        Arc::new(Self { most, most_of_site, kept, held: Mutex::default() })
    }

    /// A place for another connection.
    pub(crate) fn take(self: &Arc<Self>, owner: Owner) -> Result<Place, NoPlace> {
        let mut held = self.held();
        match owner {
            Owner::Machine if held.all >= self.most => return Err(NoPlace::InAll(self.most)),
            Owner::Machine => {}
            Owner::Site(site) => {
                let most = self.most.saturating_sub(self.kept);
                if held.by_site.get(&site).is_some_and(|count| *count >= self.most_of_site) {
                    return Err(NoPlace::OfSite(self.most_of_site));
                }
                if held.all >= most {
                    return Err(NoPlace::InAll(most));
                }
                *held.by_site.entry(site).or_default() += 1;
            }
        }
        held.all += 1;
        drop(held);
        Ok(Place { places: Arc::clone(self), owner })
    }

    /// How many are taken.
    pub(crate) fn taken(&self) -> usize {
        self.held().all
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut held = self.places.held();
        held.all -= 1;
        if let Owner::Site(site) = self.owner {
            if let Some(count) = held.by_site.get_mut(&site) {
                *count -= 1;
                if *count == 0 {
                    held.by_site.remove(&site);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(max_connections: usize, max_site_connections: usize, kept_connections: usize) -> Arc<Places> {
        Places::new(&Limits { max_connections, max_site_connections, kept_connections, ..Limits::default() })
    }

    fn taken(places: &Arc<Places>, owner: Owner, count: usize) -> Vec<Place> {
        (0..count).map(|_| places.take(owner).expect("a place")).collect()
    }

    #[test]
    fn an_address_has_so_many_and_one_more_has_none_until_one_is_given_back() {
        let places = places(10, 3, 0);
        let mut of_one = taken(&places, Owner::Site(1), 3);
        assert_eq!(places.take(Owner::Site(1)).expect_err("too many"), NoPlace::OfSite(3));
        let of_another = taken(&places, Owner::Site(2), 3);
        of_one.pop();
        of_one.extend(taken(&places, Owner::Site(1), 1));
        assert_eq!(places.take(Owner::Site(1)).expect_err("too many"), NoPlace::OfSite(3));
        drop((of_one, of_another));
        assert_eq!(places.taken(), 0);
        assert!(places.held().by_site.is_empty(), "nothing is kept of addresses that have gone");
    }

    #[test]
    fn programs_of_this_machine_have_no_bound_of_their_own_and_places_that_nobody_else_takes() {
        let places = places(10, 9, 2);
        let _others = taken(&places, Owner::Site(1), 8);
        assert_eq!(places.take(Owner::Site(2)).expect_err("these are kept"), NoPlace::InAll(8));
        let _ours = taken(&places, Owner::Machine, 2);
        assert_eq!(places.take(Owner::Machine).expect_err("none is left"), NoPlace::InAll(10));
    }
}
