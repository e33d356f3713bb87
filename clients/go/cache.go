package routes

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	pb "namesrv.dev/protos/namesrv_api/v1"
)

// Stale says why a route may be out of date.
type Stale string

const (
	// Fresh: a name server confirms the route now.
	Fresh Stale = ""
	// Held: the last answer had no brokers, and no good reason for their loss. The route before it stays for a while.
	Held Stale = "held"
	// Disconnected: no name server can be reached, so nobody would tell of a change.
	Disconnected Stale = "disconnected"
)

// Known is the route of a topic as the client knows it.
type Known struct {
	Topic string
	// Route is nil if the topic does not exist. Do not change it: all callers share it.
	Route *pb.TopicRouteData
	Stale Stale
	// Namesrv and Epoch name the name server that the route is from, and Revision is its revision.
	Namesrv  string
	Epoch    string
	Revision int64
}

// Change is a difference that a user of a route can see.
type Change struct {
	Before, After Known
	// Removals say why brokers left, as far as the name server said.
	Removals []*pb.BrokerRemoval
}

// maxQueues is the most that a broker can have.
const maxQueues = 65_535

// reallyWent has the reasons that somebody decided or observed. Others only say that the name server hears nothing:
// the network may be at fault.
var reallyWent = map[pb.RemovalReason]bool{
	pb.RemovalReason_REMOVAL_REASON_UNREGISTERED:        true,
	pb.RemovalReason_REMOVAL_REASON_BROKER_DOWN:         true,
	pb.RemovalReason_REMOVAL_REASON_REPLACED:            true,
	pb.RemovalReason_REMOVAL_REASON_NOT_IN_REGISTRATION: true,
	pb.RemovalReason_REMOVAL_REASON_DELETED_BY_OPERATOR: true,
	pb.RemovalReason_REMOVAL_REASON_LOSS_CONFIRMED:      true,
}

// answer is what a name server says about a topic.
type answer struct {
	known    Known
	removals []*pb.BrokerRemoval
}

func (a answer) sameOrigin(other answer) bool {
	return a.known.Namesrv == other.known.Namesrv && a.known.Epoch == other.known.Epoch
}

type entry struct {
	known Known
	// last is the last answer, held back or not.
	last answer
	// heldUntil is zero if the last answer is not held back.
	heldUntil time.Time
}

// cache has the routes by topic. Its owner locks it, and gives it the time.
type cache struct {
	hold    time.Duration
	entries map[string]*entry
	// cutOff: no name server keeps the routes up to date.
	cutOff bool
}

func newCache(hold time.Duration) *cache {
	return &cache{hold: hold, entries: map[string]*entry{}}
}

func (c *cache) get(topic string) (Known, bool) {
	if found := c.entries[topic]; found != nil {
		return c.shown(found.known), true
	}
	return Known{Topic: topic}, false
}

// offer takes an answer in, or holds it back; it returns the change for users of the route, nil for none.
func (c *cache) offer(told answer, now time.Time) *Change {
	found := c.entries[told.known.Topic]
	if found == nil {
		found = &entry{known: Known{Topic: told.known.Topic}}
		c.entries[told.known.Topic] = found
	} else if found.last.sameOrigin(told) && told.known.Revision < found.last.known.Revision {
		return nil
	}
	found.last = told
	lost := hasBrokers(found.known.Route) && !hasBrokers(told.known.Route)
	if lost && c.hold > 0 && !allWent(found.known.Route, told.removals) {
		if found.heldUntil.IsZero() {
			found.heldUntil = now.Add(c.hold)
		}
		held := found.known
		held.Stale = Held
		return c.show(found, held)
	}
	return c.take(found)
}

// expire takes the losses whose time has run out.
func (c *cache) expire(now time.Time) []*Change {
	var changes []*Change
	for _, found := range c.entries {
		if !found.heldUntil.IsZero() && !found.heldUntil.After(now) {
			changes = append(changes, c.take(found))
		}
	}
	return changes
}

// nextExpiry is when the next hold runs out; zero for never.
func (c *cache) nextExpiry() time.Time {
	var next time.Time
	for _, found := range c.entries {
		if end := found.heldUntil; !end.IsZero() && (next.IsZero() || end.Before(next)) {
			next = end
		}
	}
	return next
}

// setCutOff notes that no name server keeps the routes up to date, or that one does again.
func (c *cache) setCutOff(cutOff bool) []*Change {
	if c.cutOff == cutOff {
		return nil
	}
	var changes []*Change
	for _, found := range c.entries {
		if found.known.Route != nil && found.known.Stale == Fresh {
			before := c.shown(found.known)
			c.cutOff = cutOff
			changes = append(changes, &Change{Before: before, After: c.shown(found.known)})
			c.cutOff = !cutOff
		}
	}
	c.cutOff = cutOff
	return changes
}

func (c *cache) forget(topic string) { delete(c.entries, topic) }

func (c *cache) held() []string {
	var topics []string
	for topic, found := range c.entries {
		if !found.heldUntil.IsZero() {
			topics = append(topics, topic)
		}
	}
	return slices.Sorted(slices.Values(topics))
}

func (c *cache) take(found *entry) *Change {
	found.heldUntil = time.Time{}
	return c.show(found, found.last.known)
}

func (c *cache) show(found *entry, known Known) *Change {
	before := found.known
	found.known = known
	if before.Stale == known.Stale && proto.Equal(before.Route, known.Route) {
		return nil
	}
	return &Change{Before: c.shown(before), After: c.shown(known), Removals: found.last.removals}
}

// shown is a route as users see it.
func (c *cache) shown(known Known) Known {
	if c.cutOff && known.Route != nil && known.Stale == Fresh {
		known.Stale = Disconnected
	}
	return known
}

func hasBrokers(route *pb.TopicRouteData) bool {
	return slices.ContainsFunc(route.GetBrokerDatas(), func(group *pb.BrokerData) bool { return len(group.GetBrokerAddrs()) > 0 })
}

// allWent says whether each broker of a route is named with a reason that is a decision or an observation.
func allWent(route *pb.TopicRouteData, removals []*pb.BrokerRemoval) bool {
	for _, group := range route.GetBrokerDatas() {
		for _, broker := range group.GetBrokerAddrs() {
			went := func(gone *pb.BrokerRemoval) bool { return reallyWent[gone.GetReason()] && covers(gone, group, broker) }
			if !slices.ContainsFunc(removals, went) {
				return false
			}
		}
	}
	return true
}

// covers says whether a broker is among those that left: one, a whole group, or without a name all of the topic.
func covers(gone *pb.BrokerRemoval, group *pb.BrokerData, broker *pb.BrokerAddr) bool {
	if gone.GetBrokerName() == "" {
		return true
	}
	sameGroup := gone.GetClusterName() == group.GetClusterName() && gone.GetBrokerName() == group.GetBrokerName()
	return sameGroup && (gone.BrokerId == nil || gone.GetBrokerId() == broker.GetBrokerId())
}

// checked sorts a route, so that equal routes are equal messages. A queue count that no broker can have is an error:
// every queue becomes a value here.
func checked(route *pb.TopicRouteData) error {
	for _, queues := range route.GetQueueDatas() {
		for _, count := range []int32{queues.GetReadQueueNums(), queues.GetWriteQueueNums(), queues.GetMapping().GetTotalQueueNums()} {
			if count < 0 || count > maxQueues {
				return fmt.Errorf("broker %q has %d queues, not 0 to %d", queues.GetBrokerName(), count, maxQueues)
			}
		}
	}
	slices.SortFunc(route.GetQueueDatas(), func(a, b *pb.QueueData) int {
		return cmp.Or(cmp.Compare(a.GetBrokerName(), b.GetBrokerName()), cmp.Compare(a.GetClusterName(), b.GetClusterName()))
	})
	slices.SortFunc(route.GetBrokerDatas(), func(a, b *pb.BrokerData) int {
		return cmp.Or(cmp.Compare(a.GetBrokerName(), b.GetBrokerName()), cmp.Compare(a.GetClusterName(), b.GetClusterName()))
	})
	for _, group := range route.GetBrokerDatas() {
		slices.SortFunc(group.GetBrokerAddrs(), func(a, b *pb.BrokerAddr) int { return cmp.Compare(a.GetBrokerId(), b.GetBrokerId()) })
	}
	return nil
}

// additions are topics, each with the number of its addition: one that is dropped and added again begins anew.
type additions map[string]uint64

func (a additions) names() []string { return slices.Sorted(maps.Keys(a)) }
