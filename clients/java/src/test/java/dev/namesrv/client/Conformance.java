package dev.namesrv.client;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import dev.namesrv.api.v1.BrokerData;
import dev.namesrv.client.KnownRoute.Staleness;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Scanner;

/** The program that shows this client to the conformance cases, as clients/conformance/README.md says. */
public final class Conformance {
  private static final Gson GSON = new GsonBuilder().serializeNulls().create();

  public static void main(String[] arguments) {
    var lines = new Scanner(System.in);
    JsonObject first = JsonParser.parseString(lines.nextLine()).getAsJsonObject();
    var builder =
        RouteClient.builder(texts(first, "servers").toArray(String[]::new))
            .hold(Duration.ofMillis(first.get("hold_millis").getAsLong()))
            .timeout(Duration.ofMillis(first.get("timeout_millis").getAsLong()));
    try (RouteClient client = builder.build()) {
      client.onChange(change -> print(shown("change", change.topic(), change.after())));
      client.watch(texts(first, "topics"));
      while (lines.hasNextLine()) {
        var command = JsonParser.parseString(lines.nextLine()).getAsJsonObject().entrySet().iterator().next();
        print(run(client, command.getKey(), command.getValue().getAsString()));
      }
    }
  }

  private static Map<String, Object> run(RouteClient client, String command, String topic) {
    try {
      if (command.equals("forget")) {
        client.forget(topic);
        return Map.of();
      }
      return switch (command) {
        case "route" -> shown(command, topic, client.route(topic));
        case "cached" -> shown(command, topic, client.cached(topic).orElse(null));
        case "queues" -> Map.of("queues", client.writableQueues(topic).stream().map(Conformance::text).toList());
        default -> throw new IllegalArgumentException(command);
      };
    } catch (TopicNotFoundException notFound) {
      return Map.of("error", "NOT_FOUND");
    } catch (RouteException failure) {
      return Map.of("error", failure.isElsewhere() ? "NO_ANSWER" : "REFUSED");
    }
  }

  private static Map<String, Object> shown(String key, String topic, KnownRoute known) {
    Map<String, Object> line = new HashMap<>(Map.of(key, topic));
    line.put("brokers", known == null || known.route() == null ? null : brokers(known));
    boolean isFresh = known == null || known.staleness() == Staleness.FRESH;
    line.put("stale", isFresh ? null : known.staleness().name().toLowerCase(Locale.ROOT));
    return line;
  }

  private static String text(MessageQueue queue) {
    return queue.brokerName() + ":" + queue.queueId();
  }

  private static List<String> brokers(KnownRoute known) {
    List<String> brokers = new ArrayList<>();
    for (BrokerData group : known.route().getBrokerDatasList()) {
      for (var addr : group.getBrokerAddrsList()) {
        String mark = group.getUnconfirmedBrokerIdsList().contains(addr.getBrokerId()) ? "?" : "";
        brokers.add(group.getClusterName() + "/" + group.getBrokerName() + ":" + addr.getBrokerId() + mark);
      }
    }
    return brokers.stream().sorted().toList();
  }

  private static List<String> texts(JsonObject from, String name) {
    return from.getAsJsonArray(name).asList().stream().map(element -> element.getAsString()).toList();
  }

  private static synchronized void print(Map<String, Object> line) {
    System.out.println(GSON.toJson(line));
  }
}
