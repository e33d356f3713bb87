package routes

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"unicode/utf16"

	pb "namesrv.dev/protos/namesrv_api/v1"
)

const permWrite = 2

// Queue is one queue of a topic.
type Queue struct {
	Topic string
	// Cluster is empty for queues of an ordered configuration, which names none.
	Cluster string
	Broker  string
	ID      int32
}

// Queues returns the queues that a producer may send to, in an order that is the same for all producers: those of an
// ordered configuration, or the writable queues of groups with a master. Errors are those of Route, and ErrNoQueue.
func (c *Client) Queues(ctx context.Context, topic string) ([]Queue, error) {
	known, err := c.Route(ctx, topic)
	if err != nil {
		return nil, err
	}
	return QueuesOf(topic, known.Route)
}

// QueuesOf returns the queues of a route that a producer may send to.
func QueuesOf(topic string, route *pb.TopicRouteData) ([]Queue, error) {
	if conf := route.GetOrderTopicConf(); conf != "" {
		return orderedQueues(topic, conf)
	}
	var queues []Queue
	for _, data := range route.GetQueueDatas() {
		if data.GetMapping() != nil {
			return nil, fmt.Errorf("%w: topic %q is static, which this client does not read", ErrNoQueue, topic)
		}
		if data.GetPerm()&permWrite == 0 || !hasMaster(route, data) {
			continue
		}
		for id := range data.GetWriteQueueNums() {
			queues = append(queues, Queue{topic, data.GetClusterName(), data.GetBrokerName(), id})
		}
	}
	if len(queues) == 0 {
		return nil, fmt.Errorf("%w: topic %q", ErrNoQueue, topic)
	}
	return queues, nil
}

func hasMaster(route *pb.TopicRouteData, queues *pb.QueueData) bool {
	return slices.ContainsFunc(route.GetBrokerDatas(), func(group *pb.BrokerData) bool {
		same := group.GetBrokerName() == queues.GetBrokerName() && group.GetClusterName() == queues.GetClusterName()
		return same && masterOf(group) != ""
	})
}

// masterOf is the address of a group's master; empty if there is none.
func masterOf(group *pb.BrokerData) string {
	for _, broker := range group.GetBrokerAddrs() {
		if broker.GetBrokerId() == 0 {
			return broker.GetBrokerAddr()
		}
	}
	return ""
}

// orderedQueues are those of "name:number;...", in its order.
func orderedQueues(topic, conf string) ([]Queue, error) {
	var queues []Queue
	for piece := range strings.SplitSeq(strings.TrimRight(conf, ";"), ";") {
		at := strings.LastIndex(piece, ":") // names may be addresses
		count, err := strconv.ParseUint(piece[at+1:], 10, 16)
		if at < 1 || err != nil {
			return nil, fmt.Errorf("%w: the ordered configuration of topic %q has the piece %.80q, not name:queues", ErrNoQueue, topic, piece)
		}
		for id := range int32(count) {
			queues = append(queues, Queue{Topic: topic, Broker: piece[:at], ID: id})
		}
	}
	return queues, nil
}

// RoundRobin takes queues in turn, from a random one on. It may be used from any goroutine, for several topics.
type RoundRobin struct{ next atomic.Uint32 }

// NewRoundRobin begins at a random queue.
func NewRoundRobin() *RoundRobin {
	robin := &RoundRobin{}
	robin.next.Store(rand.Uint32N(1 << 16))
	return robin
}

// Next returns the next of some queues, of which there must be one. For another try, name the broker that the last one
// failed at: a queue of another broker is taken if there is one.
func (r *RoundRobin) Next(queues []Queue, lastBroker string) Queue {
	for range queues {
		if queue := r.take(queues); queue.Broker != lastBroker {
			return queue
		}
	}
	return r.take(queues)
}

func (r *RoundRobin) take(queues []Queue) Queue {
	return queues[(r.next.Add(1)-1)%uint32(len(queues))]
}

// ByKey returns the queue of a key, the same as RocketMQ's SelectMessageQueueByHash for a text. It changes with the
// number of queues.
func ByKey(queues []Queue, key string) Queue {
	var hash int32
	for _, unit := range utf16.Encode([]rune(key)) {
		hash = 31*hash + int32(unit)
	}
	at := int64(hash) % int64(len(queues))
	return queues[max(at, -at)]
}
