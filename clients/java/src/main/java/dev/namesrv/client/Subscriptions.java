package dev.namesrv.client;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.function.Consumer;

/** The listeners to changes, each on a thread of its own: a listener that throws or blocks delays nobody else. */
final class Subscriptions {
  private static final System.Logger LOG = System.getLogger(Subscriptions.class.getName());

  private final List<Subscription> all = new CopyOnWriteArrayList<>();

  /** Calls a listener with each change, until the result is run. */
  Runnable add(Consumer<RouteChange> listener) {
    var added = new Subscription(listener);
    all.add(added);
    added.thread.start();
    return () -> {
      all.remove(added);
      added.close();
    };
  }

  /** Passes a change on; null means none. */
  void put(RouteChange change) {
    if (change != null) {
      all.forEach(one -> one.put(change));
    }
  }

  void close() {
    all.forEach(Subscription::close);
  }

  /**
   * One listener. Waiting changes of a topic are merged, so that a slow listener costs at most one change per topic.
   */
  private static final class Subscription {
    private final Consumer<RouteChange> listener;
    private final Map<String, RouteChange> waiting = new LinkedHashMap<>();
    private final Thread thread = new Thread(this::run, "route-client-listener");
    private boolean closed;

    private Subscription(Consumer<RouteChange> listener) {
      this.listener = listener;
      thread.setDaemon(true);
    }

    private synchronized void put(RouteChange change) {
      waiting.merge(change.topic(), change, Subscription::merge);
      notifyAll();
    }

    private synchronized void close() {
      closed = true;
      notifyAll();
    }

    private void run() {
      try {
        for (RouteChange change = next(); change != null; change = next()) {
          try {
            listener.accept(change);
          } catch (RuntimeException failure) {
            LOG.log(System.Logger.Level.ERROR, "a listener failed; it continues with the next change", failure);
          }
        }
      } catch (InterruptedException interrupted) {
        Thread.currentThread().interrupt();
      }
    }

    private synchronized RouteChange next() throws InterruptedException {
      while (!closed && waiting.isEmpty()) {
        wait();
      }
      return closed ? null : waiting.remove(waiting.keySet().iterator().next());
    }

    /** Returns one change for two, or null if the later one undoes the earlier one. */
    private static RouteChange merge(RouteChange earlier, RouteChange later) {
      KnownRoute before = earlier.before();
      KnownRoute after = later.after();
      boolean sameRoute = Objects.equals(before == null ? null : before.route(), after.route());
      if (before != null && sameRoute && before.staleness() == after.staleness()) {
        return null;
      }
      var removals = new ArrayList<>(earlier.removals());
      removals.addAll(later.removals());
      return new RouteChange(later.topic(), before, after, removals);
    }
  }
}
