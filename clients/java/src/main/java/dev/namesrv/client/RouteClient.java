package dev.namesrv.client;

import dev.namesrv.client.KnownRoute.Staleness;
import dev.namesrv.client.RouteCache.Answer;
import io.grpc.ChannelCredentials;
import io.grpc.InsecureChannelCredentials;
import io.grpc.Status;
import io.grpc.TlsChannelCredentials;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.LongSupplier;
import java.util.function.Supplier;

/**
 * A client of name servers: the routes of topics, kept up to date by whichever name server answers.
 *
 * <p>Any thread may use it. Routes in the cache are returned without waiting, also while no name server can be reached.
 */
public final class RouteClient implements AutoCloseable {
  private static final System.Logger LOG = System.getLogger(RouteClient.class.getName());
  private static final int MAX_TOPIC_BYTES = 400;

  /** Kinds of characters that are not printable; of the separators, only the space is. */
  private static final Set<Byte> NOT_PRINTABLE =
      Set.of(
          Character.CONTROL,
          Character.FORMAT,
          Character.SURROGATE,
          Character.PRIVATE_USE,
          Character.UNASSIGNED,
          Character.LINE_SEPARATOR,
          Character.PARAGRAPH_SEPARATOR,
          Character.SPACE_SEPARATOR);

  /** The event loop: one thread, to which everything but the cache and the listeners belongs. */
  private final ScheduledThreadPoolExecutor loop;

  private final Connections connections;
  private final RouteCache cache;
  private final KeptTopics topics = new KeptTopics();
  private final Lookups lookups;
  private final RouteKeeper keeper;
  private final LongSupplier clockMillis;
  private final Subscriptions subscriptions = new Subscriptions();
  private final QueueSelector selector = new QueueSelector();
  private ScheduledFuture<?> holdTimer;

  private RouteClient(Builder builder) {
    loop = new ScheduledThreadPoolExecutor(1, RouteClient::newThread);
    loop.setRemoveOnCancelPolicy(true);
    loop.setExecuteExistingDelayedTasksAfterShutdownPolicy(false);
    long startNanos = System.nanoTime();
    clockMillis = () -> TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - startNanos);
    cache = new RouteCache(builder.hold.toMillis(), clockMillis);
    connections = new Connections(builder.endpoints, builder.credentials, builder.token, loop);
    long timeoutMillis = builder.timeout.toMillis();
    lookups = new Lookups(connections, builder.endpoints, this::takeLookedUp, loop, timeoutMillis);
    var chooser = new EndpointChooser(builder.endpoints, new Random(), clockMillis);
    keeper = new RouteKeeper(connections, chooser, topics, new CacheSink(), loop, clockMillis, timeoutMillis);
    loop.execute(keeper::start);
  }

  /** Begins a client of name servers, each HOST:PORT, which uses plaintext unless told otherwise. */
  public static Builder builder(String... namesrvs) {
    return new Builder(Endpoint.parseList(String.join(",", namesrvs)));
  }

  /**
   * Returns a topic's route from the cache or from the first name server that answers, and keeps the topic.
   *
   * @throws TopicNotFoundException a name server has no such topic
   * @throws RouteException no name server has answered, or one has refused the request
   */
  public KnownRoute route(String topic) {
    KnownRoute known = cache.get(checked(topic));
    return known != null && known.route() != null ? known : await(() -> lookUp(topic));
  }

  /** Returns what is known of a topic, without asking anybody. The route is null if the topic does not exist. */
  public Optional<KnownRoute> cached(String topic) {
    return Optional.ofNullable(cache.get(topic));
  }

  /** Keeps topics: a watch brings their routes and each change. */
  public void watch(Collection<String> added) {
    added.forEach(RouteClient::checked);
    await(
        () -> {
          added.forEach(this::keep);
          lookups.lookUp(added.stream().filter(topic -> cache.get(topic) == null).toList());
          return CompletableFuture.completedFuture(null);
        });
  }

  /** Keeps a topic no longer, until it is asked for again. */
  public void forget(String topic) {
    await(
        () -> {
          lookups.forget(topic);
          topics.drop(topic);
          cache.forget(topic);
          keeper.topicsChanged();
          return CompletableFuture.completedFuture(null);
        });
  }

  /**
   * Calls a listener with each change of the kept topics, on a thread of the listener's own.
   *
   * <p>Changes of a topic that wait for the listener are merged. To end the calls, run the result.
   */
  public Runnable onChange(Consumer<RouteChange> listener) {
    return subscriptions.add(listener);
  }

  /** Returns the queues that a producer may send to, by broker name and number. Throws as {@link #route}. */
  public List<MessageQueue> writableQueues(String topic) {
    List<MessageQueue> queues = QueueSelector.writableQueues(topic, route(topic).route());
    if (queues.isEmpty()) {
      throw new RouteException(Status.Code.FAILED_PRECONDITION, "", "topic '" + topic + "' has no writable queue");
    }
    return queues;
  }

  /**
   * Returns the queue for the next message, round robin.
   *
   * @param failed the queue at which the last try failed, whose broker is avoided; null for a first try
   */
  public MessageQueue selectQueue(String topic, MessageQueue failed) {
    return selector.next(writableQueues(topic), failed);
  }

  /** Returns the queue of all messages with a key, which changes only with the route. */
  public MessageQueue selectQueueByKey(String topic, String key) {
    return QueueSelector.ofKey(writableQueues(topic), key);
  }

  /** Returns the status of the client. */
  public ClientStatus status() {
    Endpoint namesrv = keeper.connectedTo();
    String address = namesrv == null ? null : namesrv.toString();
    return new ClientStatus(
        address, keeper.lastError(), keeper.sessions(), topics.additions().size(), cache.heldTopics());
  }

  /** Ends all calls and threads. A listener's call that is under way continues. */
  @Override
  public void close() {
    if (loop.isShutdown()) {
      return;
    }
    await(
        () -> {
          keeper.close();
          lookups.close();
          connections.close();
          return CompletableFuture.completedFuture(null);
        });
    connections.awaitEnd();
    loop.shutdownNow();
    subscriptions.close();
  }

  private CompletableFuture<KnownRoute> lookUp(String topic) {
    KnownRoute known = cache.get(topic);
    if (known != null && (known.route() != null || topics.isCurrent(topic))) {
      return CompletableFuture.completedFuture(known).thenApply(RouteClient::found);
    }
    return lookups
        .lookUp(List.of(topic))
        .get(topic)
        .handle(
            (done, failure) -> {
              KnownRoute now = cache.get(topic);
              if (failure == null || (now != null && now.route() != null)) {
                return found(now);
              }
              if (failure instanceof RouteException error && error.isElsewhere()) {
                keep(topic);
              }
              throw new CompletionException(failure);
            });
  }

  /** Keeps a topic that a name server knows or may know. One whose name is refused would break the whole watch. */
  private void keep(String topic) {
    if (topics.add(topic)) {
      keeper.topicsChanged();
    }
  }

  private void takeLookedUp(Answer answer) {
    keep(answer.topic());
    tell(cache.offer(answer));
  }

  private void tell(RouteChange change) {
    if (change == null) {
      return;
    }
    if (change.after().staleness() == Staleness.HELD) {
      LOG.log(
          System.Logger.Level.WARNING,
          "topic {0} lost all brokers without a convincing reason: its route stays for now",
          change.topic());
      armHoldTimer();
    }
    subscriptions.put(change);
  }

  /** All holds last equally long, so a timer that is set already ends first. */
  private void armHoldTimer() {
    OptionalLong ends = cache.nextHoldEndMillis();
    if (holdTimer == null && ends.isPresent()) {
      long delay = Math.max(0, ends.getAsLong() - clockMillis.getAsLong());
      holdTimer = loop.schedule(this::expireHolds, delay, TimeUnit.MILLISECONDS);
    }
  }

  private void expireHolds() {
    holdTimer = null;
    cache.expireHolds().forEach(this::tell);
    armHoldTimer();
  }

  /** Runs work on the event loop and waits for its result. */
  private <T> T await(Supplier<CompletableFuture<T>> work) {
    try {
      return CompletableFuture.supplyAsync(work, loop).thenCompose(result -> result).join();
    } catch (CompletionException failure) {
      if (failure.getCause() instanceof RuntimeException cause) {
        throw cause;
      }
      throw failure;
    } catch (RejectedExecutionException closed) {
      throw new IllegalStateException("the client is closed", closed);
    }
  }

  private static KnownRoute found(KnownRoute known) {
    if (known.route() == null) {
      throw new TopicNotFoundException(known.topic(), known.namesrv());
    }
    return known;
  }

  /** Checks a name as name servers do: one refused name would end the watch of all topics. */
  private static String checked(String topic) {
    boolean printable = topic.codePoints().allMatch(at -> at == ' ' || !NOT_PRINTABLE.contains((byte) Character.getType(at)));
    int size = topic.getBytes(StandardCharsets.UTF_8).length;
    if (!printable || size == 0 || size > MAX_TOPIC_BYTES) {
      throw new IllegalArgumentException(
          "a topic has 1 to " + MAX_TOPIC_BYTES + " bytes of printable characters, this one has " + size);
    }
    return topic;
  }

  private static Thread newThread(Runnable task) {
    var thread = new Thread(task, "route-client");
    thread.setDaemon(true);
    return thread;
  }

  private final class CacheSink implements RouteKeeper.Sink {
    @Override
    public void take(Answer answer) {
      if (topics.contains(answer.topic())) {
        tell(cache.offer(answer));
      }
    }

    @Override
    public void setCutOff(boolean isCutOff) {
      cache.setCutOff(isCutOff).forEach(subscriptions::put);
    }
  }

  /** The settings of a client. */
  public static final class Builder {
    private static final Duration DEFAULT_HOLD = Duration.ofSeconds(120);
    private static final Duration DEFAULT_TIMEOUT = Duration.ofSeconds(3);

    private final List<Endpoint> endpoints;
    private ChannelCredentials credentials = InsecureChannelCredentials.create();
    private Supplier<String> token;
    private Duration hold = DEFAULT_HOLD;
    private Duration timeout = DEFAULT_TIMEOUT;

    private Builder(List<Endpoint> endpoints) {
      this.endpoints = endpoints;
    }

    /** Uses TLS with the authority's certificate (PEM), which must have issued the name servers' certificates. */
    public Builder tls(Path authority) throws IOException {
      return credentials(TlsChannelCredentials.newBuilder().trustManager(authority.toFile()).build());
    }

    /** Uses TLS, and shows a certificate with its key (PEM, PKCS #8, not encrypted). */
    public Builder tls(Path authority, Path certificate, Path key) throws IOException {
      return credentials(
          TlsChannelCredentials.newBuilder()
              .trustManager(authority.toFile())
              .keyManager(certificate.toFile(), key.toFile())
              .build());
    }

    /** Uses any credentials of gRPC. */
    public Builder credentials(ChannelCredentials chosen) {
      credentials = chosen;
      return this;
    }

    /** Sends a token with each call, for which the supplier is asked each time. */
    public Builder token(Supplier<String> supplier) {
      token = supplier;
      return this;
    }

    /** How long an unexplained loss of all brokers of a topic is held back: 120 s by default, zero for not at all. */
    public Builder hold(Duration duration) {
      hold = duration;
      return this;
    }

    /** How long a name server may take for an answer, 3 s by default. */
    public Builder timeout(Duration duration) {
      timeout = duration;
      return this;
    }

    /** Starts the client, which connects in the background. It succeeds even if no name server answers. */
    public RouteClient build() {
      return new RouteClient(this);
    }
  }
}
