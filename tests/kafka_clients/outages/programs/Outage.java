import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Kafka's own client: java -cp ... Outage.java HOST:PORT PREFIX default|short INTERVAL_MS RECORD_BYTES. */
public class Outage {
    static final int PARTITIONS = 2;

    final String bootstrap;
    final String prefix;
    final boolean isShort;
    final long intervalMs;
    final int recordBytes;
    final CountDownLatch stopping = new CountDownLatch(1);
    final CountDownLatch ended = new CountDownLatch(1);

    interface Work {
        void run() throws Exception;
    }

    Outage(String[] arguments) {
        bootstrap = arguments[0];
        prefix = arguments[1];
        isShort = arguments[2].equals("short");
        intervalMs = Long.parseLong(arguments[3]);
        recordBytes = Integer.parseInt(arguments[4]);
    }

    public static void main(String[] arguments) throws Exception {
        Outage outage = new Outage(arguments);
        outage.start("writer", () -> outage.write("writer", outage.prefix));
        outage.start("reader", () -> outage.read("reader", outage.prefix));
        outage.administer();
        tell("ready");
        BufferedReader told = new BufferedReader(new InputStreamReader(System.in));
        for (String line = told.readLine(); line != null; line = told.readLine()) {
            if (line.equals("late")) {
                outage.start("late-writer", () -> outage.write("late-writer", outage.prefix + "-late"));
                outage.start("late-reader", () -> outage.read("late-reader", outage.prefix));
            } else if (line.equals("stop")) {
                outage.stopping.countDown();
            }
        }
        outage.ended.countDown();
        System.exit(0);
    }

    // ---- roles

    void write(String role, String topic) throws Exception {
        Properties settings = common(role, "linger.ms", "5");
        if (isShort) {
            settings.put("request.timeout.ms", "3000");
            settings.put("max.block.ms", "3000");
        }
        KafkaProducer<byte[], byte[]> producer =
            new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
        for (int number = 0; !stopping.await(intervalMs, TimeUnit.MILLISECONDS); number++) {
            String name = role + "-" + number;
            try {
                producer.send(new ProducerRecord<>(topic, number % PARTITIONS, null, value(name)), (placed, error) -> {
                    if (error != null) {
                        tell("failed", role, name, described(error));
                    } else {
                        tell("acked", role, placed.partition(), placed.offset(), name);
                    }
                });
            } catch (RuntimeException error) {
                tell("failed", role, name, "send: " + described(error));
            }
        }
        producer.flush();
        tell("flushed", role);
    }

    byte[] value(String name) {
        byte[] value = (name + " ").getBytes(StandardCharsets.UTF_8);
        int length = value.length;
        value = Arrays.copyOf(value, Math.max(recordBytes, length));
        Arrays.fill(value, length, value.length, (byte) '.');
        return value;
    }

    void read(String role, String topic) throws Exception {
        Properties settings = common(role, "auto.offset.reset", "none", "enable.auto.commit", "false");
        if (isShort) {
            settings.put("request.timeout.ms", "6000");
        }
        KafkaConsumer<byte[], byte[]> consumer =
            new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        List<TopicPartition> partitions = List.of(new TopicPartition(topic, 0), new TopicPartition(topic, 1));
        consumer.assign(partitions);
        for (TopicPartition partition : partitions) {
            consumer.seek(partition, 0);
        }
        while (true) {
            try {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    String name = new String(record.value(), StandardCharsets.UTF_8).split(" ", 2)[0];
                    tell("read", role, record.partition(), record.offset(), name);
                }
            } catch (RuntimeException error) {
                tell("error", role, described(error));
            }
        }
    }

    void administer() {
        Properties settings = common("admin");
        if (isShort) {
            settings.put("request.timeout.ms", "6000");
        }
        Admin admin = Admin.create(settings);
        String topic = prefix + "-admin";
        TopicPartition first = new TopicPartition(topic, 0);
        ConfigResource place = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        AlterConfigOp set = new AlterConfigOp(new ConfigEntry("retention.ms", "900000000"), AlterConfigOp.OpType.SET);
        AtomicInteger numbers = new AtomicInteger();
        repeat("create_topic", () -> admin.createTopics(
            List.of(new NewTopic(prefix + "-new-" + numbers.getAndIncrement(), 1, (short) 1))).all().get());
        repeat("alter_configs", () -> admin.incrementalAlterConfigs(Map.of(place, List.of(set))).all().get());
        repeat("describe_configs", () -> admin.describeConfigs(List.of(place)).all().get());
        repeat("list_offsets", () -> admin.listOffsets(Map.of(first, OffsetSpec.latest())).all().get());
        repeat("delete_records", () -> admin.deleteRecords(Map.of(first, RecordsToDelete.beforeOffset(1))).all().get());
        repeat("list_topics", () -> admin.listTopics().names().get());
    }

    /** Again and again until the end, each with the client's own time for a call. */
    void repeat(String name, Callable<?> call) {
        start(name, () -> {
            while (!ended.await(isShort ? 1000 : 5000, TimeUnit.MILLISECONDS)) {
                long began = System.nanoTime();
                String error = "";
                try {
                    call.call();
                } catch (ExecutionException thrown) {
                    error = described(thrown.getCause());
                } catch (Exception thrown) {
                    error = described(thrown);
                }
                tell("call", name, String.format("%.2f", (System.nanoTime() - began) / 1e9), error);
            }
        });
    }

    // ---- what they share

    Properties common(String role, String... more) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("client.id", role);
        for (int at = 0; at < more.length; at += 2) {
            settings.put(more[at], more[at + 1]);
        }
        return settings;
    }

    /** What ends a role is told, and shows as records that never come. */
    void start(String role, Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (Throwable error) {
                tell("error", role, "ended: " + described(error));
            }
        }, role);
        thread.setDaemon(true);
        thread.start();
    }

    static String described(Throwable error) {
        return error.getClass().getSimpleName() + ": " + error.getMessage();
    }

    static synchronized void tell(Object... fields) {
        StringBuilder line = new StringBuilder();
        for (Object field : fields) {
            line.append(line.length() == 0 ? "" : "\t").append(String.valueOf(field).replaceAll("\\s+", " "));
        }
        System.out.println(line);
        System.out.flush();
    }
}
