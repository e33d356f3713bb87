package routes

import (
	"fmt"
	"slices"

	"google.golang.org/grpc/resolver"

	pb "namesrv.dev/protos/namesrv_api/v1"
)

// Resolver resolves the target namesrv:///TOPIC to the masters of a topic's broker groups, and follows its changes: for
// programs that call brokers over gRPC. Unconfirmed brokers are left out if there are others.
func (c *Client) Resolver() resolver.Builder { return &topicBuilder{c} }

type topicBuilder struct{ client *Client }

func (*topicBuilder) Scheme() string { return "namesrv" }

func (b *topicBuilder) Build(target resolver.Target, connection resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver, error) {
	built := &topicResolver{client: b.client, topic: target.Endpoint(), connection: connection}
	built.stop = b.client.OnChange(func(change Change) {
		if change.After.Topic == built.topic {
			built.update(change.After.Route)
		}
	})
	if err := b.client.Keep(built.topic); err != nil {
		built.stop()
		return nil, err
	}
	built.ResolveNow(resolver.ResolveNowOptions{})
	return built, nil
}

type topicResolver struct {
	client     *Client
	topic      string
	connection resolver.ClientConn
	stop       func()
}

// ResolveNow looks the topic up if nothing is known of it yet; changes come by themselves.
func (r *topicResolver) ResolveNow(resolver.ResolveNowOptions) {
	go func() {
		if known, err := r.client.Route(r.client.ctx, r.topic); err != nil {
			r.connection.ReportError(err)
		} else {
			r.update(known.Route)
		}
	}()
}

func (r *topicResolver) Close() { r.stop() }

func (r *topicResolver) update(route *pb.TopicRouteData) {
	state := resolver.State{Endpoints: endpointsOf(route)}
	if len(state.Endpoints) == 0 {
		r.connection.ReportError(fmt.Errorf("%w: topic %q has no master", ErrNoQueue, r.topic))
		return
	}
	_ = r.connection.UpdateState(state) // its error asks for another ResolveNow, which would say the same
}

func endpointsOf(route *pb.TopicRouteData) []resolver.Endpoint {
	var confirmed, all []resolver.Endpoint
	for _, group := range route.GetBrokerDatas() {
		master := masterOf(group)
		if master == "" {
			continue
		}
		endpoint := resolver.Endpoint{Addresses: []resolver.Address{{Addr: master, ServerName: master}}}
		all = append(all, endpoint)
		if !slices.Contains(group.GetUnconfirmedBrokerIds(), 0) {
			confirmed = append(confirmed, endpoint)
		}
	}
	if len(confirmed) > 0 {
		return confirmed
	}
	return all
}
