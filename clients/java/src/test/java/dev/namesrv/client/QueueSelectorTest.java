package dev.namesrv.client;

import static dev.namesrv.client.Routes.TOPIC;
import static dev.namesrv.client.Routes.group;
import static dev.namesrv.client.Routes.queues;
import static dev.namesrv.client.Routes.route;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;

import dev.namesrv.api.v1.StaticTopicMapping;
import dev.namesrv.api.v1.TopicRouteData;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

/** Tests of the queues to send to, and of the choice among them. */
class QueueSelectorTest {
  private final QueueSelector selector = new QueueSelector();

  private Map<String, Integer> picks(TopicRouteData route, int times, MessageQueue failed) {
    Map<String, Integer> counts = new HashMap<>();
    for (int pick = 0; pick < times; pick++) {
      var queue = selector.next(QueueSelector.writableQueues(TOPIC, route), failed);
      counts.merge(queue.brokerName() + queue.queueId(), 1, Integer::sum);
    }
    return counts;
  }

  @Test
  void groupsThatTakeNoMessagesHaveNoQueues() {
    var route =
        route("X").toBuilder()
            .addBrokerDatas(group("slave", 1))
            .addQueueDatas(queues("slave"))
            .addBrokerDatas(group("drained", 0))
            .addQueueDatas(queues("drained").setPerm(4))
            .addBrokerDatas(group("static", 0))
            .addQueueDatas(queues("static").setMapping(StaticTopicMapping.getDefaultInstance()))
            .addQueueDatas(queues("gone"))
            .build();
    var found = QueueSelector.writableQueues(TOPIC, route);
    assertEquals(List.of("X0", "X1"), found.stream().map(queue -> queue.brokerName() + queue.queueId()).toList());
    assertEquals("X:10911", found.get(0).masterAddr());
    var ordered = route.toBuilder().setOrderTopicConf("X:1").build();
    assertEquals(List.of(), QueueSelector.writableQueues(TOPIC, ordered));
  }

  @Test
  void queuesAreTakenInTurn() {
    assertEquals(Map.of("X0", 5, "X1", 5, "Y0", 5, "Y1", 5), picks(route("X", "Y"), 20, null));
  }

  @Test
  void theBrokerOfAFailureIsAvoidedIfThereIsAnother() {
    var failed = QueueSelector.writableQueues(TOPIC, route("X")).get(0);
    assertEquals(Map.of("Y0", 2, "Y1", 2), picks(route("X", "Y"), 4, failed));
    assertEquals(Map.of("X0", 2, "X1", 2), picks(route("X"), 4, failed));
  }

  @Test
  void anUnconfirmedMasterIsUsedOnlyIfTheOthersFail() {
    var route = route("Y").toBuilder();
    route.addQueueDatas(queues("X")).addBrokerDatas(group("X", 0).addUnconfirmedBrokerIds(0));
    assertEquals(Map.of("Y0", 2, "Y1", 2), picks(route.build(), 4, null));
    var failed = QueueSelector.writableQueues(TOPIC, route("Y")).get(0);
    assertEquals(Map.of("X0", 2, "X1", 2), picks(route.build(), 4, failed));
  }

  @Test
  void aKeyHasOneQueueAndKeysSpread() {
    var queues = QueueSelector.writableQueues(TOPIC, route("X", "Y"));
    assertEquals(QueueSelector.ofKey(queues, "order-1"), QueueSelector.ofKey(queues, "order-1"));
    // "a".hashCode() is 97; "polygenelubricants" has the hash Integer.MIN_VALUE.
    assertEquals(queues.get(1), QueueSelector.ofKey(queues, "a"));
    assertEquals(queues.get(0), QueueSelector.ofKey(queues, "polygenelubricants"));
    assertNotEquals(QueueSelector.ofKey(queues, "a"), QueueSelector.ofKey(queues, "b"));
  }
}
