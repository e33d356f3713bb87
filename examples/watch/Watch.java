import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import dev.namesrv.api.v1.BrokerData;
import dev.namesrv.api.v1.BrokerRemoval;
import dev.namesrv.api.v1.RemovalReason;
import dev.namesrv.api.v1.ResumePoint;
import dev.namesrv.api.v1.RouteServiceGrpc;
import dev.namesrv.api.v1.TopicRouteChange;
import dev.namesrv.api.v1.WatchTopicRoutesRequest;
import dev.namesrv.api.v1.WatchTopicRoutesResponse;
import io.grpc.CallCredentials;
import io.grpc.ChannelCredentials;
import io.grpc.CompositeChannelCredentials;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.StatusException;
import io.grpc.TlsChannelCredentials;
import io.grpc.protobuf.StatusProto;
import java.io.File;
import java.io.IOException;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Executor;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;

/** Prints where topics live, each time that it changes: java Watch HOST:PORT[,HOST:PORT...] TOPIC... */
public final class Watch {
  /** A watch has no deadline. Its first message has one: a first message is always sent. */
  private static final long FIRST_MESSAGE_SECONDS = 5;

  private static final long SHORTEST_PAUSE_MILLIS = 100;
  private static final long LONGEST_PAUSE_MILLIS = 5000;

  /** Pings find a name server that vanished within 15 s: gRPC's Java library sends one every 10 s at most. */
  private static final long KEEPALIVE_SECONDS = 10;

  private static final long KEEPALIVE_TIMEOUT_SECONDS = 5;

  private static final Set<String> BOOKMARK_IS_OLD = Set.of("EPOCH_CHANGED", "REVISION_COMPACTED");

  /** How long a topic keeps its route when all its brokers vanish and the name server does not know that they ended. */
  private static final long HOLD_SECONDS = 120;

  private static final Set<RemovalReason> ENDED =
      Set.of(
          RemovalReason.REMOVAL_REASON_UNREGISTERED,
          RemovalReason.REMOVAL_REASON_BROKER_DOWN,
          RemovalReason.REMOVAL_REASON_REPLACED,
          RemovalReason.REMOVAL_REASON_NOT_IN_REGISTRATION,
          RemovalReason.REMOVAL_REASON_DELETED_BY_OPERATOR,
          RemovalReason.REMOVAL_REASON_LOSS_CONFIRMED);

  /** Codes with which every name server would answer the same. */
  private static final Set<Status.Code> MY_MISTAKE =
      Set.of(
          Status.Code.INVALID_ARGUMENT,
          Status.Code.UNAUTHENTICATED,
          Status.Code.PERMISSION_DENIED,
          Status.Code.UNIMPLEMENTED);

  private record Broker(String name, long id) {}

  /** Why a stream ended: the reason of the name server's table, and when it wants to be asked again. */
  private record Refusal(Status status, String reason, long wantedMillis) {}

  private final List<String> topics;
  private final ChannelCredentials credentials;

  /** The name server sent everything up to this point. It is of one name server, and means nothing to another. */
  private ResumePoint bookmark;

  /** Failures since the last message. */
  private int failures;

  /** The brokers of each topic's route. Timers use them, too, so methods that change routes are synchronized. */
  private final Map<String, Set<Broker>> brokers = new HashMap<>();

  /** Topics whose lost route is kept for now, with the System.nanoTime at which the loss is believed. */
  private final Map<String, Long> holds = new HashMap<>();

  private final ScheduledExecutorService timers =
      Executors.newSingleThreadScheduledExecutor(
          task -> {
            Thread thread = new Thread(task, "timers");
            thread.setDaemon(true);
            return thread;
          });

  private Watch(List<String> topics, ChannelCredentials credentials) {
    this.topics = topics;
    this.credentials = credentials;
  }


  /** Reads the credentials from the environment. Without NAMESRV_CA, connections are plaintext. */
  private static ChannelCredentials readCredentials() throws IOException {
    Map<String, String> environment = System.getenv();
    if (!environment.containsKey("NAMESRV_CA")) {
      return InsecureChannelCredentials.create();
    }
    var tls = TlsChannelCredentials.newBuilder().trustManager(new File(environment.get("NAMESRV_CA")));
    if (environment.containsKey("NAMESRV_CERT")) {
      tls.keyManager(new File(environment.get("NAMESRV_CERT")), new File(environment.get("NAMESRV_KEY")));
    }
    if (!environment.containsKey("NAMESRV_TOKEN")) {
      return tls.build();
    }
    return CompositeChannelCredentials.create(tls.build(), new Bearer(environment.get("NAMESRV_TOKEN")));
  }

  /** A token, which gRPC sends with each call. */
  private static final class Bearer extends CallCredentials {
    private static final Metadata.Key<String> AUTHORIZATION =
        Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);

    private final Metadata headers = new Metadata();

    private Bearer(String token) {
      headers.put(AUTHORIZATION, "Bearer " + token);
    }

    @Override
    public void applyRequestMetadata(RequestInfo call, Executor executor, MetadataApplier applier) {
      applier.apply(headers);
    }
  }


  /** Prints what a name server sends, until the stream breaks. */
  private void follow(String namesrv) throws StatusException, InterruptedException {
    var request = WatchTopicRoutesRequest.newBuilder().addAllTopics(topics);
    String after = "from the beginning";
    if (bookmark != null) {
      request.setResumeAfter(bookmark);
      after = "after " + bookmark.getRevision();
    }
    System.out.println("watching " + namesrv + " " + after);
    ManagedChannel connection =
        Grpc.newChannelBuilder(namesrv, credentials)
            .keepAliveTime(KEEPALIVE_SECONDS, TimeUnit.SECONDS)
            .keepAliveTimeout(KEEPALIVE_TIMEOUT_SECONDS, TimeUnit.SECONDS)
            .build();
    try {
      var stream = RouteServiceGrpc.newBlockingV2Stub(connection).watchTopicRoutes();
      var firstMessage =
          timers.schedule(
              () -> stream.cancel("no first message in time", null), FIRST_MESSAGE_SECONDS, TimeUnit.SECONDS);
      try {
        // Later messages would add topics to the open watch.
        stream.write(request.build());
        for (var message = stream.read(); message != null; message = stream.read()) {
          firstMessage.cancel(false);
          take(message);
        }
      } finally {
        firstMessage.cancel(false);
      }
    } finally {
      connection.shutdownNow();
    }
  }

  private void take(WatchTopicRoutesResponse message) {
    failures = 0;
    message.getChangesList().forEach(this::take);
    if (message.getBookmark()) {
      var header = message.getHeader();
      bookmark = ResumePoint.newBuilder().setEpoch(header.getEpoch()).setRevision(header.getRevision()).build();
    }
  }

  /** Prints who left the route of a topic since the last message, and its whole route, if it has one. */
  private synchronized void take(TopicRouteChange change) {
    String topic = change.getTopic();
    holds.remove(topic);
    Set<Broker> known = brokers.computeIfAbsent(topic, unknown -> new HashSet<>());
    for (BrokerRemoval gone : change.getRemovalsList()) {
      String reason = gone.getReason().name().replace("REMOVAL_REASON_", "");
      System.out.printf("%s: %s %s left, %s%n", topic, gone.getBrokerName(), gone.getBrokerAddr(), reason);
      if (ENDED.contains(gone.getReason())) {
        known.removeIf(broker -> isOf(gone, broker));
      }
    }
    if (!change.hasRoute() && !known.isEmpty()) {
      System.out.printf("%s: its brokers may live, so its route is kept for %d s%n", topic, HOLD_SECONDS);
      holds.put(topic, System.nanoTime() + TimeUnit.SECONDS.toNanos(HOLD_SECONDS));
      timers.schedule(() -> loseIfOverdue(topic), HOLD_SECONDS, TimeUnit.SECONDS);
    } else if (!change.hasRoute()) { // not there yet, deleted, or its last broker left: the watch goes on
      lose(topic);
    } else {
      known.clear();
      for (BrokerData group : change.getRoute().getBrokerDatasList()) {
        var line = new StringBuilder(topic + ": " + group.getBrokerName());
        for (var one : group.getBrokerAddrsList()) {
          known.add(new Broker(group.getBrokerName(), one.getBrokerId()));
          line.append(" ").append(one.getBrokerId()).append("=").append(one.getBrokerAddr());
        }
        System.out.println(line);
      }
    }
  }

  /** Believes that a topic has no route, unless a message about it came after its timer was set. */
  private synchronized void loseIfOverdue(String topic) {
    Long until = holds.get(topic);
    if (until != null && until - System.nanoTime() <= 0) {
      lose(topic);
    }
  }

  private void lose(String topic) {
    brokers.remove(topic);
    holds.remove(topic);
    System.out.println(topic + ": no route");
  }

  /** Whether a broker is among those that left: one, a whole group, or without a name all of the topic. */
  private static boolean isOf(BrokerRemoval gone, Broker broker) {
    boolean sameId = !gone.hasBrokerId() || gone.getBrokerId() == broker.id();
    return gone.getBrokerName().isEmpty() || (gone.getBrokerName().equals(broker.name()) && sameId);
  }

  private static Refusal refusalOf(StatusException failure) {
    String reason = "";
    long wantedMillis = 0;
    try {
      for (Any detail : StatusProto.fromThrowable(failure).getDetailsList()) {
        if (detail.is(ErrorInfo.class) && detail.unpack(ErrorInfo.class).getDomain().equals("namesrv.dev")) {
          reason = detail.unpack(ErrorInfo.class).getReason();
        } else if (detail.is(RetryInfo.class)) {
          var delay = detail.unpack(RetryInfo.class).getRetryDelay();
          wantedMillis = delay.getSeconds() * 1000 + delay.getNanos() / 1_000_000;
        }
      }
    } catch (InvalidProtocolBufferException unreadable) {
      // Details of something between here and the name server: the code decides alone.
    }
    return new Refusal(failure.getStatus(), reason, wantedMillis);
  }

  /** Watches until a name server says that this cannot work. */
  private void run(List<String> namesrvs) throws InterruptedException {
    int at = 0;
    while (true) {
      var refusal = new Refusal(Status.OK, "", 0);
      try {
        follow(namesrvs.get(at));
      } catch (StatusException failure) {
        refusal = refusalOf(failure);
        System.err.printf(
            "%s: %s %s: %s%n",
            namesrvs.get(at), refusal.status().getCode(), refusal.reason(), refusal.status().getDescription());
      }
      String reason = refusal.reason();
      long wantedMillis = refusal.wantedMillis();
      if (MY_MISTAKE.contains(refusal.status().getCode()) || reason.equals("LIMIT_EXCEEDED")) {
        return;
      }
      if (BOOKMARK_IS_OLD.contains(reason)) {
        bookmark = null;
        continue;
      }
      failures++;
      long most = Math.min(LONGEST_PAUSE_MILLIS, SHORTEST_PAUSE_MILLIS << Math.min(failures, 10));
      // A connection breaks more often than a name server: the same one is asked once more, after the bookmark.
      boolean stays = bookmark != null && failures == 1 && !reason.equals("SHUTTING_DOWN");
      int following = stays ? at : (at + 1) % namesrvs.size();
      if (reason.equals("WATCH_EXPIRED")) { // so that watches spread over all name servers again
        following = ThreadLocalRandom.current().nextInt(namesrvs.size());
      }
      if (following != at) {
        at = following;
        bookmark = null;
        wantedMillis = 0;
      }
      Thread.sleep(Math.max(ThreadLocalRandom.current().nextLong(most), wantedMillis));
    }
  }

  public static void main(String[] arguments) throws IOException, InterruptedException {
    if (arguments.length < 2) {
      System.err.println("usage: java Watch HOST:PORT[,HOST:PORT...] TOPIC...");
      System.exit(2);
    }
    var words = List.of(arguments);
    new Watch(words.subList(1, words.size()), readCredentials()).run(List.of(arguments[0].split(",")));
    System.exit(1);
  }
}
