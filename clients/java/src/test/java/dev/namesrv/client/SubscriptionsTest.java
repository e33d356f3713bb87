package dev.namesrv.client;

import static dev.namesrv.client.Routes.answer;
import static dev.namesrv.client.Routes.route;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;

import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Tests of listeners that are slow or fail. */
@Timeout(value = 30, unit = TimeUnit.SECONDS)
class SubscriptionsTest {
  private final RouteCache cache = new RouteCache(0, () -> 0);
  private final Subscriptions subscriptions = new Subscriptions();
  private final LinkedBlockingQueue<RouteChange> seen = new LinkedBlockingQueue<>();
  private final CountDownLatch goOn = new CountDownLatch(1);

  @Test
  void changesThatWaitAreMergedAndAFailureEndsNothing() throws InterruptedException {
    subscriptions.add(
        change -> {
          seen.add(change);
          try {
            goOn.await();
          } catch (InterruptedException interrupted) {
            throw new IllegalStateException(interrupted);
          }
          throw new IllegalStateException("a listener's own failure");
        });
    subscriptions.put(cache.offer(answer(1, "A")));
    assertNull(seen.take().before());
    subscriptions.put(cache.offer(answer(2, "B")));
    subscriptions.put(cache.offer(answer(3, "C")));
    goOn.countDown();
    RouteChange merged = seen.take();
    assertEquals(route("A"), merged.before().route());
    assertEquals(route("C"), merged.after().route());
    subscriptions.close();
  }
}
