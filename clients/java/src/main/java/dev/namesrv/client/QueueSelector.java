package dev.namesrv.client;

import dev.namesrv.api.v1.BrokerAddr;
import dev.namesrv.api.v1.BrokerData;
import dev.namesrv.api.v1.QueueData;
import dev.namesrv.api.v1.TopicRouteData;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Predicate;
import java.util.stream.Stream;

/** The choice of the queue for the next message: round robin, or by the hash of a key. Any thread may use it. */
public final class QueueSelector {
  private static final int PERM_WRITE = 2;
  private static final long MASTER_ID = 0;

  private final AtomicInteger index = new AtomicInteger(ThreadLocalRandom.current().nextInt(1 << 16));

  /**
   * Returns the queues that a producer may send to: the writable ones of groups with a master, by name and number.
   *
   * <p>A static topic and a topic with an ordered configuration have none: their queues follow other rules.
   */
  public static List<MessageQueue> writableQueues(String topic, TopicRouteData route) {
    List<MessageQueue> queues = new ArrayList<>();
    for (QueueData data : route.getQueueDatasList()) {
      for (BrokerData group : route.getBrokerDatasList()) {
        boolean sameGroup =
            group.getBrokerName().equals(data.getBrokerName()) && group.getClusterName().equals(data.getClusterName());
        boolean isPlain = !data.hasMapping() && route.getOrderTopicConf().isEmpty();
        if (sameGroup && isPlain && (data.getPerm() & PERM_WRITE) != 0) {
          addQueues(queues, topic, data, group);
        }
      }
    }
    return queues;
  }

  private static void addQueues(List<MessageQueue> queues, String topic, QueueData data, BrokerData group) {
    boolean confirmed = !group.getUnconfirmedBrokerIdsList().contains(MASTER_ID);
    for (BrokerAddr addr : group.getBrokerAddrsList()) {
      if (addr.getBrokerId() == MASTER_ID) {
        for (int queueId = 0; queueId < data.getWriteQueueNums(); queueId++) {
          queues.add(
              new MessageQueue(
                  topic, data.getClusterName(), data.getBrokerName(), queueId, addr.getBrokerAddr(), confirmed));
        }
      }
    }
  }

  /**
   * Returns the next queue in turn, if possible of a confirmed master.
   *
   * @param queues at least one
   * @param failed the queue at which the last try failed, whose broker is avoided if possible; null for a first try
   */
  public MessageQueue next(List<MessageQueue> queues, MessageQueue failed) {
    Predicate<MessageQueue> other = queue -> failed == null || !queue.masterAddr().equals(failed.masterAddr());
    var wishes = Stream.<Predicate<MessageQueue>>of(other.and(MessageQueue::confirmed), other, queue -> true);
    var granted = wishes.map(wish -> queues.stream().filter(wish).toList());
    List<MessageQueue> best = granted.filter(chosen -> !chosen.isEmpty()).findFirst().orElseThrow();
    return best.get(Math.floorMod(index.getAndIncrement(), best.size()));
  }

  /**
   * Returns the queue of a key, the same one for as long as the queues are the same.
   *
   * <p>The hash is that of RocketMQ's SelectMessageQueueByHash, so that producers of both kinds agree.
   */
  public static MessageQueue ofKey(List<MessageQueue> queues, String key) {
    return queues.get(Math.abs(key.hashCode() % queues.size()));
  }
}
