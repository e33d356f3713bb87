package dev.namesrv.client;

import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.function.LongSupplier;
import java.util.stream.IntStream;

/**
 * The choice of the name server to watch. Pure; belongs to the event loop.
 *
 * <p>It stays with a name server while that answers, goes to the next one at once, and waits only after a whole round.
 */
final class EndpointChooser {
  private static final double FIRST_BACKOFF_MILLIS = 200;
  private static final double MAX_BACKOFF_MILLIS = 10_000;
  private static final double BACKOFF_FACTOR = 1.6;

  /** A wait is 0.8 to 1.2 times its length: clients that failed together do not come back together. */
  private static final double JITTER = 0.2;

  /** Bounds the time that a name server asks for: a slip there must not exclude it for good. */
  private static final long MAX_RETRY_AFTER_MILLIS = 60_000;

  private final List<Endpoint> order;
  private final Random random;
  private final LongSupplier clockMillis;
  private final Map<Endpoint, Long> notBeforeMillis = new HashMap<>();
  private int current;
  private int failures;

  /** Shuffles the list, which has at least one endpoint. */
  EndpointChooser(List<Endpoint> endpoints, Random random, LongSupplier clockMillis) {
    this.order = new ArrayList<>(endpoints);
    this.random = random;
    this.clockMillis = clockMillis;
    Collections.shuffle(order, random);
  }

  Endpoint current() {
    return order.get(current);
  }

  /** Whether each name server has failed since the last success. */
  boolean allFailed() {
    return failures >= order.size();
  }

  void succeeded() {
    failures = 0;
  }

  /** Leaves the current name server, which asks to be left alone for a time of 0 or more, for the next one. */
  void failed(long retryAfterMillis) {
    failures++;
    if (retryAfterMillis > 0) {
      notBeforeMillis.put(current(), clockMillis.getAsLong() + Math.min(retryAfterMillis, MAX_RETRY_AFTER_MILLIS));
    }
    var next = IntStream.rangeClosed(1, order.size()).mapToObj(step -> (current + step) % order.size());
    current = next.min(Comparator.comparingLong(this::waitMillis)).orElseThrow();
  }

  /** Goes to any name server, the current one included, that does not want to be left alone. */
  void chooseAnew() {
    int[] free = IntStream.range(0, order.size()).filter(index -> waitMillis(index) == 0).toArray();
    current = free.length == 0 ? current : free[random.nextInt(free.length)];
  }

  /** Returns how long to wait before the current name server is called. */
  long delayMillis() {
    if (!allFailed()) {
      return waitMillis(current);
    }
    double step = FIRST_BACKOFF_MILLIS * Math.pow(BACKOFF_FACTOR, failures - order.size());
    double jitter = 1 - JITTER + 2 * JITTER * random.nextDouble();
    return Math.max((long) (Math.min(MAX_BACKOFF_MILLIS, step) * jitter), waitMillis(current));
  }

  private long waitMillis(int index) {
    return Math.max(0, notBeforeMillis.getOrDefault(order.get(index), 0L) - clockMillis.getAsLong());
  }
}
