package routes

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/resolver"
	"google.golang.org/protobuf/proto"
)

func TestQueuesAreWritableAndTheirGroupsHaveMasters(t *testing.T) {
	route := routeOn("X", "Y", "Z")
	route.QueueDatas[1].Perm = proto.Int32(4)
	route.BrokerDatas[2].BrokerAddrs[0].BrokerId = proto.Int64(1)
	queues, err := QueuesOf("T", route)
	if wanted := "[{T c1 X 0} {T c1 X 1}]"; err != nil || fmt.Sprint(queues) != wanted {
		t.Fatalf("%v, %v", queues, err)
	}
	if _, err := QueuesOf("T", routeOn()); !errors.Is(err, ErrNoQueue) {
		t.Fatal(err)
	}
}

func TestAnOrderedConfigurationHasItsOwnQueues(t *testing.T) {
	route := routeOn("X")
	route.OrderTopicConf = proto.String("10.0.0.1:4:2;Y:1;")
	queues, err := QueuesOf("T", route)
	if wanted := "[{T  10.0.0.1:4 0} {T  10.0.0.1:4 1} {T  Y 0}]"; err != nil || fmt.Sprint(queues) != wanted {
		t.Fatalf("%v, %v", queues, err)
	}
	for _, bad := range []string{"X", "X:", ":1", "X:-1", "X:70000", "X:1;;Y:1"} {
		route.OrderTopicConf = proto.String(bad)
		if queues, err := QueuesOf("T", route); !errors.Is(err, ErrNoQueue) {
			t.Errorf("%q has %v", bad, queues)
		}
	}
}

func TestRoundRobinTakesEachQueueAndAvoidsAFailedBroker(t *testing.T) {
	queues, _ := QueuesOf("T", routeOn("X", "Y"))
	robin, taken := NewRoundRobin(), map[Queue]int{}
	for range 4 {
		taken[robin.Next(queues, "")]++
	}
	for range 40 {
		if queue := robin.Next(queues, "X"); queue.Broker != "Y" {
			t.Fatalf("%v after a failure of X", queue)
		}
	}
	if len(taken) != 4 {
		t.Fatalf("only %v", taken)
	}
	if queue := robin.Next(queues[:2], "X"); queue.Broker != "X" {
		t.Fatal("no queue where there is only the failed broker")
	}
}

// The numbers are those of Java's String.hashCode, modulo 7, without its sign.
func TestAKeyHasTheQueueThatRocketMQGivesIt(t *testing.T) {
	var queues []Queue
	for id := range int32(7) {
		queues = append(queues, Queue{ID: id})
	}
	for key, wanted := range map[string]int32{"": 0, "a": 6, "order-1": 6, "polygenelubricants": 2, "漢字": 2, "😀": 2} {
		if got := ByKey(queues, key).ID; got != wanted {
			t.Errorf("%q has queue %d, not %d", key, got, wanted)
		}
	}
}

func TestTheResolverPrefersConfirmedMasters(t *testing.T) {
	addresses := func(endpoints []resolver.Endpoint) (all []string) {
		for _, one := range endpoints {
			all = append(all, one.Addresses[0].Addr)
		}
		return all
	}
	route := routeOn("X", "Y")
	route.BrokerDatas[0].UnconfirmedBrokerIds = []int64{0}
	if got := addresses(endpointsOf(route)); fmt.Sprint(got) != "[Y:10911]" {
		t.Fatal(got)
	}
	route.BrokerDatas[1].UnconfirmedBrokerIds = []int64{0}
	if got := addresses(endpointsOf(route)); fmt.Sprint(got) != "[X:10911 Y:10911]" {
		t.Fatal(got)
	}
}

func TestWhatCannotWorkIsRefusedAtOnce(t *testing.T) {
	for _, namesrvs := range [][]string{nil, {"a"}, {":9876"}, {"a:"}, {"a:1", "a:1"}} {
		if _, err := Open(namesrvs, Settings{}); err == nil {
			t.Errorf("%v is opened", namesrvs)
		}
	}
	token := func(context.Context) (string, error) { return "secret", nil }
	if _, err := Open([]string{"a:1"}, Settings{Security: Security{Token: token}}); err == nil {
		t.Error("a token goes over plain text")
	}
	client, err := Open(Endpoints("127.0.0.1:1; localhost:1"), Settings{})
	if err != nil {
		t.Fatal(err)
	}
	for _, topic := range []string{"", "no\ttopic", string(make([]byte, 401))} {
		if _, err := client.Route(t.Context(), topic); !errors.Is(err, ErrBadTopic) {
			t.Errorf("%q: %v", topic, err)
		}
	}
	if _, err := client.Route(t.Context(), "T"); !errors.Is(err, ErrNoAnswer) {
		t.Error(err)
	}
	client.Close()
	if _, err := client.Route(t.Context(), "T"); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}
