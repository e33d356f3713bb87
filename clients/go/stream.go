package routes

import (
	"fmt"
	"maps"

	"google.golang.org/protobuf/proto"

	pb "namesrv.dev/protos/namesrv_api/v1"
)

// stream is one watch: its requests and its messages, without the connection. At most one request is unanswered:
// topics that are added until then are gathered into the next one.
type stream struct {
	// asked are the topics of all requests, which never change the map.
	asked    additions
	requests int64
	answered int64
	// sent are the topics that were told up to a bookmark, sinceBookmark those that were told after it.
	sent, sinceBookmark map[string]bool
	// resume is where another watch of the counted topics can resume; nil for from the beginning.
	resume  *pb.ResumePoint
	counted additions
	// header is that of the last message.
	header *pb.NamesrvHeader
}

func newStream(topics additions, resume *pb.ResumePoint) *stream {
	s := &stream{asked: topics, requests: 1, sent: map[string]bool{}, sinceBookmark: map[string]bool{}, resume: resume}
	if resume != nil {
		s.counted = topics
		for topic := range topics {
			s.sinceBookmark[topic] = true
		}
	}
	return s
}

// waiting says whether a request has no bookmark yet that counts it.
func (s *stream) waiting() bool { return s.answered < s.requests }

// hasSent says whether the name server has told of a topic, and would tell of each change.
func (s *stream) hasSent(topic string, addition uint64) bool {
	return s.sent[topic] && s.asked[topic] == addition
}

func (s *stream) opening() *pb.WatchTopicRoutesRequest {
	return &pb.WatchTopicRoutesRequest{Topics: s.asked.names(), ResumeAfter: s.resume}
}

// update returns the next request; nil if these topics are watched, or a request has no answer yet. A request either
// removes or adds: both together could be larger than a name server accepts.
func (s *stream) update(topics additions) *pb.WatchTopicRoutesRequest {
	if s.waiting() {
		return nil
	}
	removed, added := additions{}, additions{}
	for topic, number := range s.asked {
		if topics[topic] != number {
			removed[topic] = number
		}
	}
	for topic, number := range topics {
		if s.asked[topic] != number {
			added[topic] = number
		}
	}
	asked, request := maps.Clone(s.asked), &pb.WatchTopicRoutesRequest{}
	switch {
	case len(removed) > 0:
		request.RemovedTopics = removed.names()
		for topic := range removed {
			delete(asked, topic)
			delete(s.sent, topic)
			delete(s.sinceBookmark, topic)
		}
	case len(added) > 0:
		request.Topics = added.names()
		maps.Copy(asked, added)
	default:
		return nil
	}
	s.asked = asked
	s.requests++
	return request
}

// take returns the answers of a message, and the routes that cannot be used. An error means that the stream does not
// keep the contract.
func (s *stream) take(message *pb.WatchTopicRoutesResponse) (answers []answer, unusable []error, err error) {
	header := message.GetHeader()
	if err := s.check(header); err != nil {
		s.resume = nil
		return nil, nil, err
	}
	for _, change := range message.GetChanges() {
		if s.asked[change.GetTopic()] == 0 {
			continue
		}
		if err := checked(change.GetRoute()); err != nil {
			unusable = append(unusable, fmt.Errorf("the route of topic %q: %w", change.GetTopic(), err))
			continue
		}
		s.sinceBookmark[change.GetTopic()] = true
		answers = append(answers, answer{known(change.GetTopic(), change.GetRoute(), header), change.GetRemovals()})
	}
	if message.GetBookmark() {
		count := message.GetRequestCount()
		if count < max(1, s.answered) || count > s.requests {
			s.resume = nil
			return nil, nil, fmt.Errorf("a bookmark counts %d requests of %d", count, s.requests)
		}
		s.answered = count
		if !s.waiting() {
			s.counted = s.asked
		}
		s.resume = &pb.ResumePoint{Epoch: header.GetEpoch(), Revision: proto.Int64(header.GetRevision())}
		maps.Copy(s.sent, s.sinceBookmark)
		clear(s.sinceBookmark)
	}
	return answers, unusable, nil
}

func (s *stream) check(header *pb.NamesrvHeader) error {
	last := s.header
	if last == nil {
		last = &pb.NamesrvHeader{NamesrvName: header.GetNamesrvName(), Epoch: header.GetEpoch(), Revision: proto.Int64(-1)}
		if s.resume != nil {
			last.Epoch, last.Revision = s.resume.GetEpoch(), s.resume.Revision
		}
	}
	if header.GetNamesrvName() != last.GetNamesrvName() || header.GetEpoch() != last.GetEpoch() || header.GetRevision() < last.GetRevision() {
		return fmt.Errorf("the watch went from %v to %v", last, header)
	}
	s.header = header
	return nil
}

func known(topic string, route *pb.TopicRouteData, header *pb.NamesrvHeader) Known {
	return Known{Topic: topic, Route: route, Namesrv: header.GetNamesrvName(), Epoch: header.GetEpoch(), Revision: header.GetRevision()}
}
