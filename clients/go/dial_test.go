package routes

import (
	"context"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	states "google.golang.org/grpc/health/grpc_health_v1"

	pb "namesrv.dev/protos/namesrv_api/v1"
)

// oneRoute answers lookups with one route, in an epoch that says which server it is.
type oneRoute struct {
	pb.UnimplementedRouteServiceServer
	epoch string
	route *pb.TopicRouteData
}

func (s *oneRoute) header() *pb.NamesrvHeader {
	return &pb.NamesrvHeader{NamesrvName: "ns", Epoch: s.epoch}
}

func (s *oneRoute) GetTopicRoute(context.Context, *pb.GetTopicRouteRequest) (*pb.GetTopicRouteResponse, error) {
	return &pb.GetTopicRouteResponse{Header: s.header(), Route: s.route}, nil
}

func (s *oneRoute) BatchGetTopicRoutes(_ context.Context, asked *pb.BatchGetTopicRoutesRequest) (*pb.BatchGetTopicRoutesResponse, error) {
	routes := []*pb.NamedTopicRoute{{Topic: asked.GetTopics()[0], Route: s.route}}
	return &pb.BatchGetTopicRoutesResponse{Header: s.header(), Routes: routes}, nil
}

func serve(t *testing.T, service *oneRoute) (string, *grpc.Server) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, health := grpc.NewServer(), health.NewServer()
	health.SetServingStatus(pb.RouteService_ServiceDesc.ServiceName, states.HealthCheckResponse_SERVING)
	states.RegisterHealthServer(server, health)
	pb.RegisterRouteServiceServer(server, service)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return listener.Addr().String(), server
}

func TestADialledListIsUsedInTurnAndSurvivesTheLossOfOne(t *testing.T) {
	first, lost := serve(t, &oneRoute{epoch: "first"})
	second, _ := serve(t, &oneRoute{epoch: "second"})
	connection, err := Dial([]string{first, second}, Security{})
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	stub, ask := pb.NewRouteServiceClient(connection), &pb.GetTopicRouteRequest{Topic: "T"}
	call := func() string {
		answer, err := stub.GetTopicRoute(t.Context(), ask)
		if err != nil {
			t.Fatal(err)
		}
		return answer.GetHeader().GetEpoch()
	}
	for answered := map[string]bool{}; len(answered) < 2; {
		answered[call()] = true
	}
	lost.Stop()
	for range 20 {
		if epoch := call(); epoch != "second" {
			t.Fatalf("%s answers after its end", epoch)
		}
	}
}

func TestATargetOfATopicIsItsMaster(t *testing.T) {
	route := routeOn("X")
	broker, _ := serve(t, &oneRoute{epoch: "broker"})
	route.BrokerDatas[0].BrokerAddrs[0].BrokerAddr = broker
	namesrv, _ := serve(t, &oneRoute{epoch: "namesrv", route: route})
	client, err := Open([]string{namesrv}, Settings{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	options, _ := Security{}.options()
	connection, err := grpc.NewClient("namesrv:///T", append(options, grpc.WithResolvers(client.Resolver()))...)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	answer, err := pb.NewRouteServiceClient(connection).GetTopicRoute(t.Context(), &pb.GetTopicRouteRequest{Topic: "T"})
	if epoch := answer.GetHeader().GetEpoch(); err != nil || epoch != "broker" {
		t.Fatalf("%q answers: %v", epoch, err)
	}
}
