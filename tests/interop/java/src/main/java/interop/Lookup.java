package interop;

import io.grpc.ManagedChannel;
import io.grpc.StatusRuntimeException;
import java.util.concurrent.TimeUnit;
import dev.namesrv.api.v1.GetTopicRouteRequest;
import dev.namesrv.api.v1.RouteServiceGrpc;

/**
 * Prints where a topic lives: a name server's route as JSON.
 *
 * <p>Usage: Lookup HOST:PORT TOPIC
 *
 * <p>It exits 1 with one line on standard error if the call fails.
 */
public final class Lookup {
  private Lookup() {}

  public static void main(String[] arguments) throws Exception {
    if (arguments.length != 2) {
      System.err.println("usage: Lookup HOST:PORT TOPIC");
      System.exit(2);
    }
    ManagedChannel connection = Namesrv.connect(arguments[0]);
    try {
      var request = GetTopicRouteRequest.newBuilder().setTopic(arguments[1]).build();
      var routes = RouteServiceGrpc.newBlockingStub(connection).withDeadlineAfter(20, TimeUnit.SECONDS);
      System.out.println(Namesrv.JSON.print(routes.getTopicRoute(request)));
    } catch (StatusRuntimeException failure) {
      System.err.println(Namesrv.describe(failure));
      System.exit(1);
    } finally {
      connection.shutdownNow();
    }
  }
}
