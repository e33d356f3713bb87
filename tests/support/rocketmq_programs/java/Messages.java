import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * A producer and a push consumer. Throws what keeps a message from being sent or received.
 *
 * <pre>
 * send NAMESRV TOPIC COUNT [FIRST]   sends "message FIRST" and so on
 * receive NAMESRV TOPIC COUNT        waits until so many different messages have come
 * orderly NAMESRV TOPIC COUNT        sends to one queue and checks that all come in their order
 * start NAMESRV TOPIC                sends and receives all the time, and sends again what failed
 * progress                           waits until ten more messages have come
 * stop                               ends that, once each message that was sent has come
 * </pre>
 */
public final class Messages {
    private static final long SECONDS = 60;
    /** Clients ask for routes every 30 seconds if nothing is said: too seldom to notice what happens in a test. */
    private static final int POLL_MILLIS = 500;
    private static Traffic traffic;

    public static void main(String[] words) throws Exception {
        switch (words[0]) {
            case "send" -> send(words[1], words[2], Integer.parseInt(words[3]), words.length > 4 ? words[4] : "0");
            case "receive" -> receive(words[1], words[2], Integer.parseInt(words[3]));
            case "orderly" -> orderly(words[1], words[2], Integer.parseInt(words[3]));
            case "start" -> traffic = new Traffic(words[1], words[2]);
            case "progress" -> traffic.progress();
            case "stop" -> traffic.stop();
            default -> throw new IllegalArgumentException(words[0]);
        }
    }

    private static void send(String namesrv, String topic, int count, String first) throws Exception {
        DefaultMQProducer producer = producer(namesrv, topic);
        try {
            for (int number = 0; number < count; number++) {
                byte[] body = bytes("message " + (Integer.parseInt(first) + number));
                check(producer.send(new Message(topic, body), 10_000).getSendStatus() == SendStatus.SEND_OK, "not sent");
            }
        } finally {
            producer.shutdown();
        }
        System.out.println("sent " + count);
    }

    private static void receive(String namesrv, String topic, int count) throws Exception {
        Set<String> received = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer = consumer(namesrv, topic, received);
        try {
            await(() -> received.size() >= count, "received only " + received.size() + " of " + count);
        } finally {
            consumer.shutdown();
        }
        System.out.println("received " + received.size());
    }

    private static void orderly(String namesrv, String topic, int count) throws Exception {
        ConcurrentLinkedQueue<String> received = new ConcurrentLinkedQueue<>();
        DefaultMQPushConsumer consumer = unstarted(namesrv, topic);
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            messages.forEach(message -> received.add(text(message)));
            return ConsumeOrderlyStatus.SUCCESS;
        });
        DefaultMQProducer producer = producer(namesrv, topic);
        List<String> sent = new ArrayList<>();
        try {
            consumer.start();
            for (int number = 0; number < count; number++) {
                sent.add("message " + number);
                Message message = new Message(topic, bytes(sent.get(number)));
                producer.send(message, (queues, each, key) -> queues.get(queues.size() - 1), null, 10_000);
            }
            await(() -> received.size() >= count, "not all were received");
            check(sent.equals(new ArrayList<>(received)), "in another order: " + received);
        } finally {
            producer.shutdown();
            consumer.shutdown();
        }
        System.out.println("received in order " + count);
    }

    /** Messages all the time. */
    private static final class Traffic {
        private final Set<String> sent = ConcurrentHashMap.newKeySet();
        private final Set<String> received = ConcurrentHashMap.newKeySet();
        private final DefaultMQProducer producer;
        private final DefaultMQPushConsumer consumer;
        private final Thread sender;
        private volatile boolean ends;
        private volatile int failed;

        Traffic(String namesrv, String topic) throws Exception {
            producer = producer(namesrv, topic);
            consumer = consumer(namesrv, topic, received);
            sender = new Thread(() -> {
                for (int number = 0; !ends; number++) {
                    String text = "message " + number;
                    while (!ends && !isSent(topic, text)) {
                        failed++;
                    }
                    pause(10);
                }
            });
            sender.start();
        }

        void progress() throws Exception {
            int enough = received.size() + 10;
            await(() -> received.size() >= enough, "no messages come");
            System.out.println("received " + received.size());
        }

        void stop() throws Exception {
            ends = true;
            sender.join();
            await(() -> received.containsAll(sent), "lost");
            System.out.println("sent " + sent.size() + ", received all, failed " + failed);
            producer.shutdown();
            consumer.shutdown();
        }

        private boolean isSent(String topic, String text) {
            try {
                if (producer.send(new Message(topic, bytes(text))).getSendStatus() != SendStatus.SEND_OK) {
                    return false;
                }
                return sent.add(text);
            } catch (Exception error) {
                return false;
            }
        }
    }

    private static DefaultMQProducer producer(String namesrv, String topic) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("producers-of-" + topic);
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName(instance(namesrv));
        producer.setPollNameServerInterval(POLL_MILLIS);
        producer.setRetryTimesWhenSendFailed(5);
        producer.start();
        return producer;
    }

    private static DefaultMQPushConsumer consumer(String namesrv, String topic, Set<String> received) throws Exception {
        DefaultMQPushConsumer consumer = unstarted(namesrv, topic);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> received.add(text(message)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return consumer;
    }

    private static DefaultMQPushConsumer unstarted(String namesrv, String topic) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("consumers-of-" + topic);
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(instance(namesrv));
        consumer.setPollNameServerInterval(POLL_MILLIS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        // By default a consumer that ends does not wait for its listener, and never commits those messages' offsets.
        consumer.setAwaitTerminationMillisWhenShutdown(TimeUnit.SECONDS.toMillis(SECONDS));
        consumer.subscribe(topic, "*");
        return consumer;
    }

    /** Clients of one process share what they know, unless they say that they are others. */
    private static String instance(String namesrv) {
        return namesrv.replaceAll("\\W", "_");
    }

    private static void await(BooleanSupplier reached, String problem) {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(SECONDS);
        while (!reached.getAsBoolean()) {
            check(System.nanoTime() < deadline, problem);
            pause(20);
        }
    }

    private static void pause(long millis) {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    private static void check(boolean holds, String problem) {
        if (!holds) {
            throw new IllegalStateException(problem);
        }
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static String text(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }
}
