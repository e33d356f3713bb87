package routes

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pb "namesrv.dev/protos/namesrv_api/v1"
)

// The cases of clients/conformance say what the hold does over a real connection. Here: its clock, and the order of
// answers.

func routeOn(brokers ...string) *pb.TopicRouteData {
	route := &pb.TopicRouteData{}
	for _, name := range brokers {
		route.BrokerDatas = append(route.BrokerDatas, &pb.BrokerData{
			ClusterName: "c1", BrokerName: name,
			BrokerAddrs: []*pb.BrokerAddr{{BrokerId: proto.Int64(0), BrokerAddr: name + ":10911"}},
		})
		route.QueueDatas = append(route.QueueDatas, &pb.QueueData{
			ClusterName: "c1", BrokerName: name, Perm: proto.Int32(6),
			ReadQueueNums: proto.Int32(2), WriteQueueNums: proto.Int32(2),
		})
	}
	return route
}

func told(route *pb.TopicRouteData, revision int64, removals ...*pb.BrokerRemoval) answer {
	return answer{Known{Topic: "T", Route: route, Namesrv: "ns-a", Epoch: "1", Revision: revision}, removals}
}

func brokers(known Known) string {
	names := []string{}
	for _, group := range known.Route.GetBrokerDatas() {
		names = append(names, group.GetBrokerName())
	}
	return fmt.Sprint(names, known.Stale)
}

func shows(t *testing.T, c *cache, wanted string) {
	t.Helper()
	if known, _ := c.get("T"); brokers(known) != wanted {
		t.Fatalf("the cache shows %s, not %s", brokers(known), wanted)
	}
}

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func TestAHoldEndsByItsFirstLoss(t *testing.T) {
	c := newCache(time.Minute)
	c.offer(told(routeOn("X"), 1), noon)
	c.offer(told(nil, 2), noon)
	c.offer(told(nil, 3), noon.Add(50*time.Second))
	if end := c.nextExpiry(); !end.Equal(noon.Add(time.Minute)) {
		t.Fatalf("the hold ends at %s", end)
	}
	if changes := c.expire(noon.Add(59 * time.Second)); len(changes) != 0 {
		t.Fatalf("%d changes before the end", len(changes))
	}
	shows(t, c, "[X]held")
	c.expire(noon.Add(time.Minute))
	shows(t, c, "[]")
}

func TestARouteOfTheSameOriginNeverGoesBack(t *testing.T) {
	c := newCache(time.Minute)
	c.offer(told(routeOn("X"), 5), noon)
	if change := c.offer(told(routeOn("Y"), 4), noon); change != nil {
		t.Fatal("an older answer is a change")
	}
	other := told(routeOn("Z"), 1)
	other.known.Epoch = "2"
	c.offer(other, noon)
	shows(t, c, "[Z]")
}

func TestTheSameRouteInAnotherOrderIsNoChange(t *testing.T) {
	c, one, two := newCache(time.Minute), routeOn("X", "Y"), routeOn("Y", "X")
	for _, route := range []*pb.TopicRouteData{one, two} {
		if err := checked(route); err != nil {
			t.Fatal(err)
		}
	}
	c.offer(told(one, 1), noon)
	if change := c.offer(told(two, 2), noon); change != nil {
		t.Fatal("the order of the groups is a change")
	}
}

func TestQueueCountsThatNoBrokerHasAreRefused(t *testing.T) {
	route := routeOn("X")
	route.QueueDatas[0].WriteQueueNums = proto.Int32(70_000)
	if checked(route) == nil {
		t.Fatal("70,000 queues are taken")
	}
}

func TestOnlyRoutesAreDisconnectedAndFreshAgain(t *testing.T) {
	c := newCache(time.Minute)
	c.offer(told(routeOn("X"), 1), noon)
	c.offer(answer{known: Known{Topic: "absent"}}, noon)
	for _, cutOff := range []bool{true, false} {
		changes := c.setCutOff(cutOff)
		if len(changes) != 1 || changes[0].After.Topic != "T" || (changes[0].After.Stale == Disconnected) != cutOff {
			t.Fatalf("changes %v", changes)
		}
		if again := c.setCutOff(cutOff); again != nil {
			t.Fatalf("told twice: %v", again)
		}
	}
	shows(t, c, "[X]")
}

func TestAStreamThatGoesBackIsBroken(t *testing.T) {
	message := func(epoch string, revision, count int64) *pb.WatchTopicRoutesResponse {
		header := &pb.NamesrvHeader{NamesrvName: "ns-a", Epoch: epoch, Revision: proto.Int64(revision)}
		return &pb.WatchTopicRoutesResponse{Header: header, Bookmark: true, RequestCount: count}
	}
	for _, bad := range []*pb.WatchTopicRoutesResponse{message("1", 4, 1), message("2", 6, 1), message("1", 6, 2), message("1", 6, 0)} {
		s := newStream(additions{"T": 1}, nil)
		if _, _, err := s.take(message("1", 5, 1)); err != nil || s.resume.GetRevision() != 5 {
			t.Fatalf("the first message: %v, %v", err, s.resume)
		}
		if _, _, err := s.take(bad); err == nil || s.resume != nil {
			t.Fatalf("%v is taken: %v", bad, s.resume)
		}
	}
}

func TestAChooserStaysGoesOnAndWaitsOnlyAfterARound(t *testing.T) {
	c := newChooser([]string{"a:1", "b:1"})
	first := c.at()
	if c.failed(nil, noon); c.at() == first || c.delay(noon) != 0 {
		t.Fatalf("%s after %s, in %s", c.at(), first, c.delay(noon))
	}
	long := time.Hour
	c.failed(&long, noon) // the second one wants to be left alone
	if delay := c.delay(noon); c.at() != first || delay < 160*time.Millisecond || delay > 240*time.Millisecond {
		t.Fatalf("%s in %s", c.at(), delay)
	}
	if c.failed(nil, noon); c.at() != first {
		t.Fatal("a name server that wants to be left alone is tried")
	}
	c.worked(first)
	for range 20 {
		if c.anew(noon); c.at() != first || c.delay(noon) != 0 {
			t.Fatal("a name server that wants to be left alone is chosen")
		}
	}
	c.failed(&long, noon)
	if delay := c.delay(noon); delay != maxRetryAfter {
		t.Fatalf("both are left alone for %s", delay)
	}
	c.doubt(c.order[0], noon)
	if order := c.inOrder(noon); order[1] != c.order[0] {
		t.Fatalf("the doubted one is not the last of %v", order)
	}
	if order := c.inOrder(noon.Add(doubtFor)); !slices.Equal(order, slices.Concat(c.order[c.current:], c.order[:c.current])) {
		t.Fatalf("doubted for too long: %v", order)
	}
}

func TestAFirstWatchResumesAfterTheFirstLookupThere(t *testing.T) {
	c := &Client{kept: additions{"a": 1, "b": 2, "c": 3}}
	looked := func(endpoint, epoch string, revision int64, topics ...string) {
		answers := []answer{}
		for _, topic := range topics {
			answers = append(answers, answer{known: Known{Topic: topic}})
		}
		c.lookedUp(endpoint, &pb.NamesrvHeader{Epoch: epoch, Revision: proto.Int64(revision)}, answers)
	}
	looked("b:1", "1", 5) // it knows none of them yet
	looked("a:1", "1", 7, "a", "forgotten")
	looked("a:1", "1", 8, "b")
	looked("a:1", "1", 6, "c")
	looked("a:1", "2", 9, "c")
	looked("b:1", "1", 9, "c")
	if s := c.newStreamAt("a:1"); fmt.Sprint(s.asked) != "map[a:1 b:2]" || s.resume.GetRevision() != 7 {
		t.Fatalf("%v after %v", s.asked, s.resume)
	}
	if looked("a:1", "1", 9, "c"); c.watched.topics["c"] != 0 {
		t.Fatal("an open watch asks for it")
	}
}
