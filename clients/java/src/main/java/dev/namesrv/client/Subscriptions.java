package dev.namesrv.client;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.function.Consumer;

/** The listeners to changes, each on a thread of its own: a listener that throws or blocks delays nobody else. */
final class Subscriptions {
  private static final System.Logger LOG = System.getLogger(Subscriptions.class.getName());

  private final List<Subscription> all = new CopyOnWriteArrayList<>();

  /** Calls a listener with each change, until the result is run. */
  Runnable add(Consumer<RouteChange> listener) {
    var added = new Subscription(listener);
    all.add(added);
    return () -> {
      all.remove(added);
      added.close();
    };
  }

  void put(RouteChange change) {
    all.forEach(one -> one.put(change));
  }

  void close() {
    all.forEach(Subscription::close);
  }

  /** One listener. Waiting changes of a topic are merged, so at most one change per topic waits for a slow listener. */
  private static final class Subscription {
    private final Consumer<RouteChange> listener;
    private final Map<String, RouteChange> waiting = new HashMap<>();
    private final ExecutorService thread =
        Executors.newSingleThreadExecutor(task -> EventLoop.daemon("route-client-listener", task));

    private Subscription(Consumer<RouteChange> listener) {
      this.listener = listener;
    }

    private synchronized void put(RouteChange change) {
      if (thread.isShutdown()) {
        return;
      }
      if (!waiting.containsKey(change.topic())) {
        thread.execute(() -> deliver(change.topic()));
      }
      waiting.merge(change.topic(), change, Subscription::merge);
    }

    private synchronized void close() {
      waiting.clear();
      thread.shutdown();
    }

    private void deliver(String topic) {
      RouteChange change;
      synchronized (this) {
        change = waiting.remove(topic);
      }
      try {
        if (change != null) { // the subscription is open
          listener.accept(change);
        }
      } catch (RuntimeException failure) {
        LOG.log(System.Logger.Level.ERROR, "a listener failed; it continues with the next change", failure);
      }
    }

    private static RouteChange merge(RouteChange earlier, RouteChange later) {
      var removals = new ArrayList<>(earlier.removals());
      removals.addAll(later.removals());
      return new RouteChange(later.topic(), earlier.before(), later.after(), removals);
    }
  }
}
