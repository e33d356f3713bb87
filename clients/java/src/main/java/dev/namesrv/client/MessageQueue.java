package dev.namesrv.client;

/**
 * A queue of a topic.
 *
 * @param topic name of the topic
 * @param clusterName cluster of the broker group
 * @param brokerName name of the broker group
 * @param queueId number of the queue in the group
 * @param masterAddr where the master of the group takes messages
 * @param confirmed whether the name server has heard from the master since its own start
 */
public record MessageQueue(
    String topic, String clusterName, String brokerName, int queueId, String masterAddr, boolean confirmed) {}
