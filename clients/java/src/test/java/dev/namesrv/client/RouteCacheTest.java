package dev.namesrv.client;

import static dev.namesrv.client.Routes.TOPIC;
import static dev.namesrv.client.Routes.answer;
import static dev.namesrv.client.Routes.header;
import static dev.namesrv.client.Routes.route;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;

import dev.namesrv.client.KnownRoute.Staleness;
import dev.namesrv.client.RouteCache.Answer;
import java.util.List;
import org.junit.jupiter.api.Test;

/** Tests of the cache beyond the conformance cases: order of answers, exact times, staleness. */
class RouteCacheTest {
  private long nowMillis;
  private final RouteCache cache = new RouteCache(120_000, () -> nowMillis);

  @Test
  void anOlderAnswerOfTheSameEpochIsDropped() {
    cache.offer(answer(5, "X"));
    assertNull(cache.offer(answer(4, "Y")));
    assertEquals(route("X"), cache.get(TOPIC).route());
    cache.offer(Answer.of(TOPIC, route("Y"), header("f", 1), List.of()));
    assertEquals(route("Y"), cache.get(TOPIC).route());
  }

  @Test
  void theOrderOfGroupsIsNoChange() {
    cache.offer(answer(1, "X", "Y"));
    assertNull(cache.offer(answer(2, "Y", "X")));
  }

  @Test
  void aSecondLossDoesNotProlongTheHold() {
    cache.offer(answer(1, "X"));
    cache.offer(answer(2));
    nowMillis = 60_000;
    assertNull(cache.offer(answer(3)));
    assertEquals(120_000, cache.nextHoldEndMillis().getAsLong());
    nowMillis = 119_999;
    assertEquals(List.of(), cache.expireHolds());
    nowMillis = 120_000;
    RouteChange change = cache.expireHolds().get(0);
    assertEquals(Staleness.HELD, change.before().staleness());
    assertNull(change.after().route());
    assertFalse(cache.nextHoldEndMillis().isPresent());
  }

  @Test
  void aRouteWithoutBrokersIsALossToo() {
    cache.offer(answer(1, "X"));
    var empty = Answer.of(TOPIC, route(), header("e", 2), List.of());
    assertEquals(Staleness.HELD, cache.offer(empty).after().staleness());
    assertEquals(route("X"), cache.get(TOPIC).route());
  }

  @Test
  void aCutMakesFreshRoutesStaleUntilItEnds() {
    cache.offer(answer(1, "X"));
    assertEquals(Staleness.DISCONNECTED, cache.setCutOff(true).get(0).after().staleness());
    assertEquals(Staleness.DISCONNECTED, cache.get(TOPIC).staleness());
    assertEquals(List.of(), cache.setCutOff(true));
    assertEquals(Staleness.FRESH, cache.setCutOff(false).get(0).after().staleness());
  }
}
