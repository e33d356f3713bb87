package interop;

import com.google.gson.Gson;
import com.google.gson.reflect.TypeToken;
import dev.namesrv.api.v1.GetTopicRouteRequest;
import dev.namesrv.api.v1.RouteServiceGrpc;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.StatusRuntimeException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Scanner;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;

/**
 * Looks a topic up at several name servers again and again, as a service config says.
 *
 * <p>Usage: Balanced FILE HOST:PORT,HOST:PORT... TOPIC
 *
 * <p>For each line of standard input it prints the calls since the line before: {"answers": {EPOCH: number of answers},
 * "failures": [...]}.
 */
public final class Balanced {
  private static final int CALLERS = 2;

  /** Bounds the list where every call fails. */
  private static final int MOST_FAILURES = 10;

  private static final Gson GSON = new Gson();

  private record Tally(Map<String, Integer> answers, List<String> failures) {
    Tally() {
      this(new TreeMap<>(), new ArrayList<>());
    }
  }

  private Tally tally = new Tally();

  private Balanced() {}

  private void callForever(RouteServiceGrpc.RouteServiceBlockingStub routes, String topic) {
    var request = GetTopicRouteRequest.newBuilder().setTopic(topic).build();
    while (true) {
      try {
        String epoch = routes.getTopicRoute(request).getHeader().getEpoch();
        synchronized (this) {
          tally.answers().merge(epoch, 1, Integer::sum);
        }
      } catch (StatusRuntimeException failure) {
        synchronized (this) {
          if (tally.failures().size() < MOST_FAILURES) {
            tally.failures().add(failure.getMessage());
          }
        }
      }
    }
  }

  private synchronized String take() {
    String text = GSON.toJson(tally);
    tally = new Tally();
    return text;
  }

  public static void main(String[] arguments) throws Exception {
    if (arguments.length != 3) {
      System.err.println("usage: Balanced FILE HOST:PORT,HOST:PORT... TOPIC");
      System.exit(2);
    }
    // Gson reads numbers as Double, as gRPC wants them.
    Map<String, ?> serviceConfig =
        GSON.fromJson(Files.readString(Path.of(arguments[0])), new TypeToken<Map<String, Object>>() {}.getType());
    // The client module has the resolver of such targets.
    ManagedChannel connections =
        Grpc.newChannelBuilder("list:///" + arguments[1], InsecureChannelCredentials.create())
            .defaultServiceConfig(serviceConfig)
            .keepAliveTime(10, TimeUnit.SECONDS)
            .keepAliveTimeout(5, TimeUnit.SECONDS)
            .build();
    var balanced = new Balanced();
    for (int caller = 0; caller < CALLERS; caller++) {
      var routes = RouteServiceGrpc.newBlockingStub(connections);
      var thread = new Thread(() -> balanced.callForever(routes, arguments[2]));
      thread.setDaemon(true);
      thread.start();
    }
    var lines = new Scanner(System.in);
    while (lines.hasNextLine()) {
      lines.nextLine();
      System.out.println(balanced.take());
    }
  }
}
