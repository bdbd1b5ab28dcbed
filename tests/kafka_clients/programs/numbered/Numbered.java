import java.io.BufferedOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Kafka's own client: java -cp ... Numbered.java HOST:PORT TOPIC PARTITIONS. __init__.py says what it prints. */
public class Numbered {
    static final int BURST = 10;
    static final long PAUSE_MS = 10;
    static final long UNANSWERED_MAX = 1000;

    static final PrintStream out =
        new PrintStream(new BufferedOutputStream(System.out, 1 << 16), false, StandardCharsets.UTF_8);

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        int partitions = Integer.parseInt(arguments[2]);
        CountDownLatch stopping = awaitStart();
        AtomicLong answered = new AtomicLong();
        long sent = 0;
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(
                settings(arguments[0]), new ByteArraySerializer(), new ByteArraySerializer())) {
            do {
                if (sent * partitions - answered.get() < UNANSWERED_MAX) {
                    long first = sent;
                    sent += BURST;
                    out.println("sent " + sent);
                    for (long number = first; number < sent; number++) {
                        for (int partition = 0; partition < partitions; partition++) {
                            send(producer, topic, partition, number, answered);
                        }
                    }
                }
                out.flush();
            } while (!stopping.await(PAUSE_MS, TimeUnit.MILLISECONDS));
            producer.flush();
        }
        out.flush();
    }

    static void send(
            KafkaProducer<byte[], byte[]> producer, String topic, int partition, long number, AtomicLong answered) {
        byte[] value = ("java " + number).getBytes(StandardCharsets.UTF_8);
        producer.send(new ProducerRecord<>(topic, partition, null, value), (metadata, error) -> {
            answered.incrementAndGet();
            if (error != null) {
                out.println("failed " + partition + " " + number + " " + error.toString().replace('\n', ' '));
            } else {
                out.println("acked " + metadata.partition() + " " + number + " " + metadata.offset());
            }
        });
    }

    static Properties settings(String bootstrap) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("linger.ms", "2");
        settings.put("batch.size", "1000");
        settings.put("reconnect.backoff.ms", "20");
        settings.put("reconnect.backoff.max.ms", "100");
        settings.put("retry.backoff.ms", "20");
        settings.put("retry.backoff.max.ms", "100");
        return settings;
    }

    /** Returns when the program shall begin, and counts down when it shall stop. */
    static CountDownLatch awaitStart() throws IOException {
        out.println("ready");
        out.flush();
        while (System.in.read() > '\n') {
        }
        CountDownLatch ended = new CountDownLatch(1);
        Thread reading = new Thread(() -> {
            try {
                System.in.readAllBytes();
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            } finally {
                ended.countDown();
            }
        });
        reading.setDaemon(true);
        reading.start();
        return ended;
    }
}
