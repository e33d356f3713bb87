package dev.namesrv.client;

import dev.namesrv.api.v1.BrokerAddr;
import dev.namesrv.api.v1.BrokerData;
import dev.namesrv.api.v1.NamesrvHeader;
import dev.namesrv.api.v1.QueueData;
import dev.namesrv.api.v1.TopicRouteData;
import dev.namesrv.client.RouteCache.Answer;
import java.util.List;

/** Routes and answers for tests. */
final class Routes {
  static final String TOPIC = "T";

  private Routes() {}

  /** A route with a group of each name, which has a master and two queues. */
  static TopicRouteData route(String... groups) {
    var route = TopicRouteData.newBuilder();
    for (String group : groups) {
      route.addBrokerDatas(group(group, 0)).addQueueDatas(queues(group));
    }
    return route.build();
  }

  static QueueData.Builder queues(String group) {
    return QueueData.newBuilder()
        .setBrokerName(group)
        .setClusterName("c")
        .setReadQueueNums(2)
        .setWriteQueueNums(2)
        .setPerm(6);
  }

  static BrokerData.Builder group(String name, long brokerId) {
    var addr = BrokerAddr.newBuilder().setBrokerId(brokerId).setBrokerAddr(name + ":10911");
    return BrokerData.newBuilder().setBrokerName(name).setClusterName("c").addBrokerAddrs(addr);
  }

  static NamesrvHeader header(String epoch, long revision) {
    return NamesrvHeader.newBuilder().setNamesrvName("ns").setEpoch(epoch).setRevision(revision).build();
  }

  /** What a name server says at a revision; without groups, that there is no route. */
  static Answer answer(long revision, String... groups) {
    return Answer.of(TOPIC, groups.length == 0 ? null : route(groups), header("e", revision), List.of());
  }
}
