package dev.namesrv.client;

import dev.namesrv.api.v1.BrokerAddr;
import dev.namesrv.api.v1.BrokerData;
import dev.namesrv.api.v1.BrokerRemoval;
import dev.namesrv.api.v1.NamesrvHeader;
import dev.namesrv.api.v1.QueueData;
import dev.namesrv.api.v1.RemovalReason;
import dev.namesrv.api.v1.ResumePoint;
import dev.namesrv.api.v1.TopicRouteData;
import dev.namesrv.client.KnownRoute.Staleness;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.OptionalLong;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.LongSupplier;

/**
 * The known routes by topic, and the policy that holds a loss of all brokers back.
 *
 * <p>Registries that pushed an empty list after a restart have stopped whole fleets. So the client continues with the
 * brokers that it knows, unless the name server gives a convincing reason for each of them.
 *
 * <p>Pure: time comes from a clock. Any thread may call {@link #get}; everything else belongs to the event loop.
 */
final class RouteCache {
  /** Reasons that somebody decided or observed. The others only say that the name server hears nothing. */
  private static final Set<RemovalReason> REALLY_LEFT =
      EnumSet.of(
          RemovalReason.REMOVAL_REASON_UNREGISTERED,
          RemovalReason.REMOVAL_REASON_BROKER_DOWN,
          RemovalReason.REMOVAL_REASON_REPLACED,
          RemovalReason.REMOVAL_REASON_NOT_IN_REGISTRATION,
          RemovalReason.REMOVAL_REASON_DELETED_BY_OPERATOR,
          RemovalReason.REMOVAL_REASON_LOSS_CONFIRMED);

  private static final Comparator<QueueData> QUEUES_ORDER =
      Comparator.comparing(QueueData::getBrokerName).thenComparing(QueueData::getClusterName);
  private static final Comparator<BrokerData> GROUPS_ORDER =
      Comparator.comparing(BrokerData::getBrokerName).thenComparing(BrokerData::getClusterName);

  /** The answer of a name server about a topic. The route is null if it has no such topic. */
  record Answer(
      String topic, TopicRouteData route, String namesrv, String epoch, long revision, List<BrokerRemoval> removals) {
    static Answer of(String topic, TopicRouteData route, NamesrvHeader header, List<BrokerRemoval> removals) {
      TopicRouteData sorted = route == null ? null : sorted(route);
      return new Answer(topic, sorted, header.getNamesrvName(), header.getEpoch(), header.getRevision(), removals);
    }

    ResumePoint point() {
      return ResumePoint.newBuilder().setEpoch(epoch).setRevision(revision).build();
    }

    private boolean isOlderThan(Answer other) {
      return namesrv.equals(other.namesrv) && epoch.equals(other.epoch) && revision < other.revision;
    }

    private KnownRoute known() {
      return new KnownRoute(topic, route, Staleness.FRESH, namesrv, epoch, revision);
    }
  }

  private static final class Entry {
    private volatile KnownRoute known;
    private Answer last;
    private boolean held;
    private long heldUntilMillis;

    private Entry(Answer first) {
      known = first.known();
      last = first;
    }
  }

  private final long holdMillis;
  private final LongSupplier clockMillis;
  private final Map<String, Entry> entries = new ConcurrentHashMap<>();
  private volatile boolean cutOff;

  /**
   * @param holdMillis how long an unexplained loss of all brokers is held back; 0 means not at all
   * @param clockMillis a monotonic clock
   */
  RouteCache(long holdMillis, LongSupplier clockMillis) {
    this.holdMillis = holdMillis;
    this.clockMillis = clockMillis;
  }

  /** Returns what is known of a topic, or null before the first answer. */
  KnownRoute get(String topic) {
    Entry entry = entries.get(topic);
    return entry == null ? null : shown(entry.known);
  }

  /** Takes an answer in, or holds it back. Returns the change for users of the route, or null if there is none. */
  RouteChange offer(Answer answer) {
    Entry entry = entries.get(answer.topic());
    if (entry == null) {
      entries.put(answer.topic(), new Entry(answer));
      boolean isMissing = answer.route() == null;
      return isMissing ? null : new RouteChange(answer.topic(), null, get(answer.topic()), answer.removals());
    }
    if (answer.isOlderThan(entry.last)) {
      return null;
    }
    entry.last = answer;
    if (!isToBeHeld(entry.known.route(), answer)) {
      entry.held = false;
      return show(entry, answer.known(), answer.removals());
    }
    if (!entry.held) {
      entry.held = true;
      entry.heldUntilMillis = clockMillis.getAsLong() + holdMillis;
    }
    return show(entry, entry.known.with(Staleness.HELD), answer.removals());
  }

  /** Notes whether no name server keeps the routes up to date. Returns the changes of staleness. */
  List<RouteChange> setCutOff(boolean isCutOff) {
    List<RouteChange> changes = new ArrayList<>();
    if (isCutOff == cutOff) {
      return changes;
    }
    cutOff = isCutOff;
    for (Entry entry : entries.values()) {
      if (entry.known.route() != null && entry.known.staleness() == Staleness.FRESH) {
        KnownRoute before = entry.known.with(isCutOff ? Staleness.FRESH : Staleness.DISCONNECTED);
        changes.add(new RouteChange(before.topic(), before, shown(entry.known), List.of()));
      }
    }
    return changes;
  }

  /** Takes the losses whose time has run out. Returns the changes. */
  List<RouteChange> expireHolds() {
    long now = clockMillis.getAsLong();
    List<RouteChange> changes = new ArrayList<>();
    for (Entry entry : entries.values()) {
      if (entry.held && entry.heldUntilMillis <= now) {
        entry.held = false;
        changes.add(show(entry, entry.last.known(), entry.last.removals()));
      }
    }
    return changes;
  }

  /** Returns when the next hold ends, by the clock. */
  OptionalLong nextHoldEndMillis() {
    return entries.values().stream().filter(entry -> entry.held).mapToLong(entry -> entry.heldUntilMillis).min();
  }

  Set<String> heldTopics() {
    Set<String> topics = new TreeSet<>();
    entries.values().stream().filter(entry -> entry.held).forEach(entry -> topics.add(entry.known.topic()));
    return topics;
  }

  void forget(String topic) {
    entries.remove(topic);
  }

  /** The routes of missing topics have no staleness: nobody waits for changes of them. */
  private KnownRoute shown(KnownRoute known) {
    boolean isCut = cutOff && known.staleness() == Staleness.FRESH && known.route() != null;
    return isCut ? known.with(Staleness.DISCONNECTED) : known;
  }

  private RouteChange show(Entry entry, KnownRoute known, List<BrokerRemoval> removals) {
    KnownRoute before = entry.known;
    entry.known = known;
    if (Objects.equals(before.route(), known.route()) && before.staleness() == known.staleness()) {
      return null;
    }
    return new RouteChange(known.topic(), shown(before), shown(known), removals);
  }

  private boolean isToBeHeld(TopicRouteData old, Answer answer) {
    boolean losesAll = old != null && hasBrokers(old) && !(answer.route() != null && hasBrokers(answer.route()));
    return losesAll && holdMillis > 0 && !allReallyLeft(old, answer.removals());
  }

  private static boolean hasBrokers(TopicRouteData route) {
    return route.getBrokerDatasList().stream().anyMatch(group -> group.getBrokerAddrsCount() > 0);
  }

  private static boolean allReallyLeft(TopicRouteData old, List<BrokerRemoval> removals) {
    for (BrokerData group : old.getBrokerDatasList()) {
      for (BrokerAddr addr : group.getBrokerAddrsList()) {
        if (removals.stream().noneMatch(gone -> reallyLeft(gone, group, addr.getBrokerId()))) {
          return false;
        }
      }
    }
    return true;
  }

  /** Whether a removal is of this broker, of its whole group, or without a name of the whole topic. */
  private static boolean reallyLeft(BrokerRemoval gone, BrokerData group, long brokerId) {
    boolean isGroup =
        gone.getBrokerName().equals(group.getBrokerName()) && gone.getClusterName().equals(group.getClusterName());
    boolean isBroker = isGroup && (!gone.hasBrokerId() || gone.getBrokerId() == brokerId);
    return REALLY_LEFT.contains(gone.getReason()) && (gone.getBrokerName().isEmpty() || isBroker);
  }

  /** Equal routes of two name servers must be equal messages. */
  private static TopicRouteData sorted(TopicRouteData route) {
    return route.toBuilder()
        .clearQueueDatas()
        .addAllQueueDatas(route.getQueueDatasList().stream().sorted(QUEUES_ORDER).toList())
        .clearBrokerDatas()
        .addAllBrokerDatas(route.getBrokerDatasList().stream().sorted(GROUPS_ORDER).toList())
        .build();
  }
}
