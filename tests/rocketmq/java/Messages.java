import java.nio.charset.StandardCharsets;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** Sends messages and receives each of them. Arguments: name server, topic, count. Exit code 0: all came. */
public final class Messages {
    public static void main(String[] arguments) throws Exception {
        String namesrv = arguments[0];
        String topic = arguments[1];
        int count = Integer.parseInt(arguments[2]);
        Set<String> received = ConcurrentHashMap.newKeySet();
        CountDownLatch all = new CountDownLatch(count);

        DefaultMQProducer producer = new DefaultMQProducer("producers-of-" + topic);
        producer.setNamesrvAddr(namesrv);
        producer.start();
        for (int number = 0; number < count; number++) {
            byte[] body = ("message " + number).getBytes(StandardCharsets.UTF_8);
            System.out.println(producer.send(new Message(topic, body), 10_000).getSendStatus());
        }

        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("consumers-of-" + topic);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> {
                if (received.add(new String(message.getBody(), StandardCharsets.UTF_8))) {
                    all.countDown();
                }
            });
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        boolean came = all.await(60, TimeUnit.SECONDS);
        System.out.println("received " + received.size() + " of " + count);
        consumer.shutdown();
        producer.shutdown();
        System.exit(came ? 0 : 1);
    }
}
