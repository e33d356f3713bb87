import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collections;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/** RocketMQ 5's client, which speaks gRPC to a proxy: sends messages and receives them. Arguments: PROXY TOPIC COUNT. */
public final class GrpcMessages {
    public static void main(String[] words) throws Exception {
        String topic = words[1];
        int count = Integer.parseInt(words[2]);
        ClientServiceProvider provider = ClientServiceProvider.loadService();
        ClientConfiguration configuration =
            ClientConfiguration.newBuilder()
                .setEndpoints(words[0])
                .enableSsl(false)
                // A proxy that has just started is slow to answer its first calls.
                .setRequestTimeout(Duration.ofSeconds(30))
                .build();
        Set<String> received = ConcurrentHashMap.newKeySet();
        try (Producer producer =
                 provider.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic).build();
             SimpleConsumer consumer = provider.newSimpleConsumerBuilder()
                 .setClientConfiguration(configuration)
                 .setConsumerGroup("grpc-consumers")
                 .setAwaitDuration(Duration.ofSeconds(5))
                 .setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL))
                 .build()) {
            for (int number = 0; number < count; number++) {
                byte[] body = ("message " + number).getBytes(StandardCharsets.UTF_8);
                producer.send(provider.newMessageBuilder().setTopic(topic).setBody(body).build());
            }
            long deadline = System.nanoTime() + Duration.ofSeconds(60).toNanos();
            while (received.size() < count && System.nanoTime() < deadline) {
                for (MessageView message : consumer.receive(16, Duration.ofSeconds(30))) {
                    ByteBuffer body = message.getBody();
                    received.add(StandardCharsets.UTF_8.decode(body).toString());
                    consumer.ack(message);
                }
            }
        }
        if (received.size() < count) {
            throw new IllegalStateException("received only " + received.size() + " of " + count);
        }
        System.out.println("received " + received.size());
    }
}
