import dev.namesrv.client.KnownRoute;
import dev.namesrv.client.RouteChange;
import dev.namesrv.client.RouteClient;
import io.grpc.TlsChannelCredentials;
import java.io.File;
import java.util.Map;

/** Prints where a topic lives, and each change, until standard input ends: Routes HOST:PORT[,HOST:PORT...] TOPIC */
public final class Routes {
  public static void main(String[] arguments) throws Exception {
    String topic = arguments[1];
    Map<String, String> environment = System.getenv();
    RouteClient.Builder builder = RouteClient.builder(arguments[0]);
    if (environment.containsKey("NAMESRV_CA")) {
      var tls = TlsChannelCredentials.newBuilder().trustManager(new File(environment.get("NAMESRV_CA")));
      if (environment.containsKey("NAMESRV_CERT")) {
        tls.keyManager(new File(environment.get("NAMESRV_CERT")), new File(environment.get("NAMESRV_KEY")));
      }
      builder.credentials(tls.build());
    }
    if (environment.containsKey("NAMESRV_TOKEN")) {
      builder.token(() -> environment.get("NAMESRV_TOKEN"));
    }
    try (RouteClient client = builder.build()) {
      client.onChange(Routes::printChange); // before the first lookup, or the next change could be missed
      print(client.route(topic));
      System.out.println("the next message goes to " + client.selectQueue(topic, null).masterAddr());
      System.out.println("order-7 goes to queue " + client.selectQueueByKey(topic, "order-7").queueId());
      while (System.in.read() >= 0) {}
    }
  }

  /** A topic that becomes known has no route before: that one is printed once it is looked up. */
  private static void printChange(RouteChange change) {
    if (change.before() != null) {
      print(change.after());
    }
  }

  private static void print(KnownRoute known) {
    System.out.println(known.topic() + ": " + (known.route() == null ? "no route" : known.staleness()));
    if (known.route() != null) {
      for (var group : known.route().getBrokerDatasList()) {
        for (var broker : group.getBrokerAddrsList()) {
          System.out.println("  " + group.getBrokerName() + " " + broker.getBrokerId() + "=" + broker.getBrokerAddr());
        }
      }
    }
  }
}
