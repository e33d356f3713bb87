package dev.namesrv.client;

import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;

/** The one thread of a client, to which everything but the cache's readers and the listeners belongs; and its clock. */
final class EventLoop extends ScheduledThreadPoolExecutor {
  private final long startNanos = System.nanoTime();

  EventLoop() {
    super(1, task -> daemon("route-client", task));
    setRemoveOnCancelPolicy(true);
    setExecuteExistingDelayedTasksAfterShutdownPolicy(false);
  }

  static Thread daemon(String name, Runnable task) {
    var thread = new Thread(task, name);
    thread.setDaemon(true);
    return thread;
  }

  /** Milliseconds since the start; monotonic. */
  long nowMillis() {
    return TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - startNanos);
  }

  ScheduledFuture<?> after(long millis, Runnable task) {
    return schedule(task, millis, TimeUnit.MILLISECONDS);
  }
}
