package dev.namesrv.client;

import dev.namesrv.client.KnownRoute.Staleness;
import dev.namesrv.client.RouteCache.Answer;
import io.grpc.ChannelCredentials;
import io.grpc.InsecureChannelCredentials;
import io.grpc.Status;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledFuture;
import java.util.function.Consumer;
import java.util.function.Supplier;
import java.util.regex.Pattern;

/**
 * A client of name servers: the routes of topics, kept up to date by whichever name server answers.
 *
 * <p>Any thread may use it. Routes in the cache are returned without waiting, also while no name server can be reached.
 */
public final class RouteClient implements AutoCloseable {
  private static final System.Logger LOG = System.getLogger(RouteClient.class.getName());
  private static final int MAX_TOPIC_BYTES = 400;

  /** How long the event loop lives on for the callbacks of calls that a close has ended. */
  private static final long LAST_CALLBACKS_MILLIS = 1_000;

  /** Control characters and the like; of the separators, only the space is printable. */
  private static final Pattern NOT_PRINTABLE = Pattern.compile("[\\p{C}\\p{Z}&&[^ ]]");

  private final EventLoop loop = new EventLoop();
  private final Connections connections;
  private final RouteCache cache;
  private final KeptTopics topics = new KeptTopics();
  private final Lookups lookups;
  private final RouteKeeper keeper;
  private final Subscriptions subscriptions = new Subscriptions();
  private final QueueSelector selector = new QueueSelector();
  private ScheduledFuture<?> holdTimer;

  private RouteClient(Builder builder) {
    cache = new RouteCache(builder.hold.toMillis(), loop::nowMillis);
    connections = new Connections(builder.endpoints, builder.credentials, builder.token, loop);
    long timeoutMillis = builder.timeout.toMillis();
    lookups = new Lookups(connections, builder.endpoints, this::takeLookedUp, loop, timeoutMillis);
    var chooser = new EndpointChooser(builder.endpoints, new Random(), loop::nowMillis);
    Consumer<Boolean> cutOff = isCutOff -> cache.setCutOff(isCutOff).forEach(subscriptions::put);
    keeper = new RouteKeeper(connections, chooser, topics, this::take, cutOff, loop, timeoutMillis);
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
    run(() -> ask(added.stream().filter(topic -> cache.get(topic) == null).toList()));
  }

  /** Keeps a topic no longer, until it is asked for again. */
  public void forget(String topic) {
    run(
        () -> {
          lookups.forget(topic);
          topics.additions.remove(topic);
          cache.forget(topic);
          keeper.topicsChanged();
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
    String namesrv = Objects.toString(keeper.connectedTo(), null);
    return new ClientStatus(namesrv, keeper.lastError(), topics.additions.size(), cache.heldTopics());
  }

  /** Ends all calls and threads. A listener's call that is under way continues. */
  @Override
  public void close() {
    if (loop.isShutdown()) {
      return;
    }
    run(
        () -> {
          keeper.close();
          lookups.close();
          connections.close();
        });
    loop.after(LAST_CALLBACKS_MILLIS, loop::shutdown);
    subscriptions.close();
  }

  private CompletableFuture<KnownRoute> lookUp(String topic) {
    KnownRoute known = cache.get(topic);
    if (known != null && (known.route() != null || topics.isCurrent(topic))) {
      return CompletableFuture.completedFuture(known).thenApply(RouteClient::found);
    }
    return ask(List.of(topic))
        .get(topic)
        .handle(
            (done, failure) -> {
              KnownRoute now = cache.get(topic);
              if (failure == null || (now != null && now.route() != null)) {
                return found(now);
              }
              throw new CompletionException(failure);
            });
  }

  /** Looks topics up and then keeps them, except for refused names: they would break the whole watch. */
  private Map<String, CompletableFuture<Void>> ask(Collection<String> asked) {
    long added = asked.stream().filter(topic -> !topics.additions.containsKey(topic)).count();
    if (topics.additions.size() + lookups.size() + added > KeptTopics.MAX_TOPICS) {
      throw new IllegalStateException(KeptTopics.MAX_TOPICS + " topics are kept already: forget one first");
    }
    var results = lookups.lookUp(asked);
    results.forEach((topic, result) -> result.whenComplete((done, failure) -> keepUnanswered(topic, failure)));
    return results;
  }

  private void keepUnanswered(String topic, Throwable failure) {
    if (failure instanceof RouteException error && error.isElsewhere() && topics.add(topic)) {
      loop.execute(keeper::topicsChanged); // after the other topics of the lookup
    }
  }

  private void takeLookedUp(List<Answer> answers) {
    for (Answer answer : answers) {
      topics.add(answer.topic());
      topics.lookedUp(answer);
      tell(cache.offer(answer));
    }
    keeper.topicsChanged();
  }

  private void take(Answer answer) {
    if (topics.additions.containsKey(answer.topic())) {
      tell(cache.offer(answer));
    }
  }

  private void tell(RouteChange change) {
    if (change == null) {
      return;
    }
    if (change.after().staleness() == Staleness.HELD) {
      LOG.log(System.Logger.Level.WARNING, "topic {0} lost all brokers: its route stays for now", change.topic());
      armHoldTimer();
    }
    subscriptions.put(change);
  }

  /** All holds last equally long, so a timer that is set already ends first. */
  private void armHoldTimer() {
    OptionalLong ends = cache.nextHoldEndMillis();
    if (holdTimer == null && ends.isPresent()) {
      holdTimer = loop.after(ends.getAsLong() - loop.nowMillis(), this::expireHolds);
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

  private void run(Runnable work) {
    await(
        () -> {
          work.run();
          return CompletableFuture.completedFuture(null);
        });
  }

  private static KnownRoute found(KnownRoute known) {
    if (known.route() == null) {
      throw new TopicNotFoundException(known.topic(), known.namesrv());
    }
    return known;
  }

  /** Checks a name as name servers do: one refused name would end the watch of all topics. */
  private static String checked(String topic) {
    int size = topic.getBytes(StandardCharsets.UTF_8).length;
    if (NOT_PRINTABLE.matcher(topic).find() || size == 0 || size > MAX_TOPIC_BYTES) {
      throw new IllegalArgumentException(
          "a topic has 1 to " + MAX_TOPIC_BYTES + " bytes of printable characters, this one has " + size);
    }
    return topic;
  }

  /** The settings of a client. */
  public static final class Builder {
    private final List<Endpoint> endpoints;
    private ChannelCredentials credentials = InsecureChannelCredentials.create();
    private Supplier<String> token;
    private Duration hold = Duration.ofSeconds(120);
    private Duration timeout = Duration.ofSeconds(3);

    private Builder(List<Endpoint> endpoints) {
      this.endpoints = endpoints;
    }

    /** Uses credentials, as of gRPC's TlsChannelCredentials. */
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
