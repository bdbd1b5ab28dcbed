import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Properties;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.InvalidPartitionsException;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.InvalidTxnStateException;
import org.apache.kafka.common.errors.OffsetOutOfRangeException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Kafka's own client: java -cp ... Driver.java HOST:PORT PREFIX [CASE...]; without cases, all. */
public class Driver {
    static final long BASE_MS = 1_767_225_600_000L;
    static final Duration WAIT = Duration.ofSeconds(20);

    interface Case {
        void run() throws Exception;
    }

    final String bootstrap;
    final String prefix;
    final List<String> only;
    final Admin admin;

    Driver(String bootstrap, String prefix, List<String> only) {
        this.bootstrap = bootstrap;
        this.prefix = prefix;
        this.only = only;
        this.admin = Admin.create(common());
    }

    public static void main(String[] arguments) {
        List<String> given = List.of(arguments);
        Driver driver = new Driver(given.get(0), given.get(1), given.subList(2, given.size()));
        driver.run("codecs", driver::codecs);
        driver.run("acks", driver::acks);
        driver.run("idempotent", driver::idempotent);
        driver.run("auto_create", driver::autoCreate);
        driver.run("positions", driver::positions);
        driver.run("metadata", driver::metadata);
        driver.run("topics", driver::topics);
        driver.run("delete_records", driver::deleteRecords);
        driver.run("offsets", driver::offsets);
        driver.run("configs", driver::configs);
        driver.run("too_large", driver::tooLarge);
        driver.run("transactions", driver::transactions);
        driver.run("fencing", driver::fencing);
        driver.run("transaction_timeout", driver::transactionTimeout);
        driver.run("cluster", driver::cluster);
        driver.admin.close();
    }

    void run(String name, Case work) {
        if (!only.isEmpty() && !only.contains(name)) {
            return;
        }
        long began = System.nanoTime();
        String error = "null";
        try {
            work.run();
        } catch (Throwable thrown) {
            StringBuilder text = new StringBuilder(thrown.toString());
            for (StackTraceElement frame : thrown.getStackTrace()) {
                if (frame.getFileName() != null && frame.getFileName().equals("Driver.java")) {
                    text.append(" at line ").append(frame.getLineNumber());
                }
            }
            error = '"' + text.toString().replaceAll("[\\x00-\\x1f\"\\\\]", " ") + '"';
        }
        double seconds = (System.nanoTime() - began) / 1e9;
        System.out.printf("{\"case\": \"%s\", \"error\": %s, \"seconds\": %.2f}%n", name, error, seconds);
        System.out.flush();
    }

    // ---- cases

    void codecs() throws Exception {
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            String name = topic(codec, 1, Map.of());
            produce(records(name), "compression.type", codec, "linger.ms", "50");
            expectRecords(consume(name, 5, 0), records(name));
        }
    }

    void acks() throws Exception {
        String name = topic("acks", 1, Map.of());
        for (String setting : List.of("0", "1", "all")) {
            produce(records(name), "acks", setting, "enable.idempotence", "false");
        }
        List<ConsumerRecord<byte[], byte[]>> seen = consume(name, 15, 0);
        for (int at = 0; at < 15; at++) {
            expect(seen.get(at).offset(), (long) at);
        }
        for (int at = 0; at < 15; at += 5) {
            expectRecords(seen.subList(at, at + 5), records(name));
        }
    }

    void idempotent() throws Exception {
        String name = topic("idempotent", 1, Map.of());
        List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
        List<Long> wanted = new ArrayList<>();
        for (int number = 0; number < 2000; number++) {
            records.add(new ProducerRecord<>(name, 0, BASE_MS, null, bytes("" + number)));
            wanted.add((long) number);
        }
        expect(produce(records, "batch.size", "500"), wanted);
        expectRecords(consume(name, 2000, 0), records);
    }

    void autoCreate() throws Exception {
        String name = prefix + "-auto";
        expect(produce(records(name).subList(0, 1)), List.of(0L));
        expectRecords(consume(name, 1, 0), records(name).subList(0, 1));
    }

    void positions() throws Exception {
        String name = topic("positions", 1, Map.of());
        produce(records(name));
        TopicPartition partition = new TopicPartition(name, 0);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            consumer.assign(List.of(partition));
            expect(consumer.offsetsForTimes(Map.of(partition, BASE_MS + 2000)).get(partition).offset(), 2L);
            expect(consumer.beginningOffsets(List.of(partition)).get(partition), 0L);
            expect(consumer.endOffsets(List.of(partition)).get(partition), 5L);
            consumer.seekToBeginning(List.of(partition));
            expect(poll(consumer, 5).get(0).offset(), 0L);
            consumer.seekToEnd(List.of(partition));
            expect(consumer.position(partition), 5L);
            produce(records(name).subList(0, 1));
            expect(poll(consumer, 1).get(0).offset(), 5L);
        }
    }

    void metadata() throws Exception {
        String name = topic("metadata", 3, Map.of());
        var found = get(admin.describeTopics(List.of(name)).allTopicNames()).get(name);
        expect(found.partitions().stream().map(part -> part.partition()).toList(), List.of(0, 1, 2));
        expect(found.topicId().equals(org.apache.kafka.common.Uuid.ZERO_UUID), false);
        var nodes = get(admin.describeCluster().nodes());
        expect(found.partitions().stream().allMatch(part -> nodes.contains(part.leader())), true);
        expect(get(admin.listTopics().names()).contains(name), true);
        fails(UnknownTopicOrPartitionException.class,
            () -> get(admin.describeTopics(List.of(prefix + "-missing")).allTopicNames()));
    }

    void topics() throws Exception {
        String name = topic("topics", 2, Map.of());
        fails(TopicExistsException.class, () -> create(name, 1, Map.of()));
        fails(InvalidTopicException.class, () -> create("not/a/name", 1, Map.of()));
        fails(InvalidPartitionsException.class, () -> create(prefix + "-no-partitions", 0, Map.of()));
        get(admin.createPartitions(Map.of(name, NewPartitions.increaseTo(4))).all());
        fails(InvalidPartitionsException.class,
            () -> get(admin.createPartitions(Map.of(name, NewPartitions.increaseTo(3))).all()));
        get(admin.deleteTopics(List.of(name)).all());
        fails(UnknownTopicOrPartitionException.class, () -> get(admin.deleteTopics(List.of(name)).all()));
    }

    void deleteRecords() throws Exception {
        String name = topic("delete-records", 1, Map.of());
        produce(records(name));
        TopicPartition partition = new TopicPartition(name, 0);
        var deleted = admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(3)));
        expect(get(deleted.lowWatermarks().get(partition)).lowWatermark(), 3L);
        expect(consume(name, 1, 3).get(0).offset(), 3L);
        fails(OffsetOutOfRangeException.class,
            () -> get(admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(99))).all()));
    }

    void offsets() throws Exception {
        String name = topic("offsets", 1, Map.of());
        produce(records(name));
        expect(offset(name, OffsetSpec.earliest()), 0L);
        expect(offset(name, OffsetSpec.latest()), 5L);
        expect(offset(name, OffsetSpec.forTimestamp(BASE_MS + 1500)), 2L);
        expect(offset(name, OffsetSpec.forTimestamp(BASE_MS + 9999)), -1L);
        expect(offset(name, OffsetSpec.maxTimestamp()), 4L);
    }

    long offset(String name, OffsetSpec spec) throws Exception {
        TopicPartition partition = new TopicPartition(name, 0);
        return get(admin.listOffsets(Map.of(partition, spec)).all()).get(partition).offset();
    }

    void configs() throws Exception {
        String name = topic("configs", 1, Map.of("retention.ms", "1000000"));
        expectRetention(name, "1000000 DYNAMIC_TOPIC_CONFIG");
        alter(name, AlterConfigOp.OpType.SET, "2000000");
        expectRetention(name, "2000000 DYNAMIC_TOPIC_CONFIG");
        alter(name, AlterConfigOp.OpType.DELETE, "");
        expectRetention(name, "604800000 DEFAULT_CONFIG");
        fails(InvalidConfigurationException.class, () -> alter(name, AlterConfigOp.OpType.SET, "soon"));
    }

    void expectRetention(String name, String wanted) throws Exception {
        expectSoon(() -> retention(name), wanted);
    }

    String retention(String name) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, name);
        ConfigEntry entry = get(admin.describeConfigs(List.of(resource)).all()).get(resource).get("retention.ms");
        return entry.value() + " " + entry.source();
    }

    Void alter(String name, AlterConfigOp.OpType type, String value) throws Exception {
        Collection<AlterConfigOp> changes = List.of(new AlterConfigOp(new ConfigEntry("retention.ms", value), type));
        return get(admin.incrementalAlterConfigs(
            Map.of(new ConfigResource(ConfigResource.Type.TOPIC, name), changes)).all());
    }

    void tooLarge() throws Exception {
        String name = topic("too-large", 1, Map.of("max.message.bytes", "10000"));
        fails(RecordTooLargeException.class,
            () -> produce(List.of(new ProducerRecord<>(name, 0, BASE_MS, null, new byte[20_000]))));
        expect(produce(records(name).subList(0, 1)), List.of(0L));
    }

    void cluster() throws Exception {
        var described = admin.describeCluster();
        expect(get(described.clusterId()).isEmpty(), false);
        expect(get(described.nodes()).contains(get(described.controller())), true);
    }

    void transactions() throws Exception {
        String name = topic("transactions", 3, Map.of());
        try (KafkaProducer<byte[], byte[]> producer = begun("tx", 60_000)) {
            for (String letter : List.of("c", "a", "d")) {
                producer.beginTransaction();
                for (int partition = 0; partition < 3; partition++) {
                    producer.send(new ProducerRecord<>(name, partition, null, bytes(letter + partition)));
                }
                producer.flush(); // What is aborted is not sent otherwise.
                if (letter.equals("a")) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
        }
        for (int partition = 0; partition < 3; partition++) {
            expect(read(name, partition, 2, "read_committed"), List.of("0 c" + partition, "4 d" + partition));
            expect(read(name, partition, 3, "read_uncommitted"),
                List.of("0 c" + partition, "2 a" + partition, "4 d" + partition));
        }
    }

    void fencing() throws Exception {
        String name = topic("fencing", 1, Map.of());
        KafkaProducer<byte[], byte[]> old = begun("fenced", 60_000);
        try (KafkaProducer<byte[], byte[]> producer = begun("fenced", 60_000)) {
            fails(hasVersion2() ? InvalidProducerEpochException.class : ProducerFencedException.class, () -> {
                old.beginTransaction();
                get(old.send(new ProducerRecord<>(name, 0, null, bytes("old"))));
                return null;
            });
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(name, 0, null, bytes("new")));
            producer.commitTransaction();
        } finally {
            old.close(Duration.ZERO);
        }
        expect(read(name, 0, 1, "read_uncommitted"), List.of("0 new"));
        try {
            begun("slow", 900_001).close();
        } catch (KafkaException error) {
            expect(error.getMessage().contains("transaction timeout is larger than the maximum"), true);
            return;
        }
        throw new AssertionError("a time-out above the bound was taken");
    }

    void transactionTimeout() throws Exception {
        String name = topic("transaction-timeout", 1, Map.of());
        KafkaProducer<byte[], byte[]> producer = begun("late", 3000);
        try {
            producer.beginTransaction();
            get(producer.send(new ProducerRecord<>(name, 0, null, bytes("late"))));
            expect(produce(List.of(new ProducerRecord<>(name, 0, null, bytes("behind")))), List.of(1L));
            expect(read(name, 0, 1, "read_committed"), List.of("1 behind"));
            fails(hasVersion2() ? InvalidTxnStateException.class : ProducerFencedException.class, () -> {
                producer.commitTransaction();
                return null;
            });
        } finally {
            producer.close(Duration.ZERO);
        }
    }

    // ---- what they share

    /** Whether clients use version 2 of transactions (KIP-890), in which brokers refuse with other errors. */
    boolean hasVersion2() throws Exception {
        var version = get(admin.describeFeatures().featureMetadata()).finalizedFeatures().get("transaction.version");
        return version != null && version.maxVersionLevel() >= 2;
    }

    KafkaProducer<byte[], byte[]> begun(String id, int timeoutMs) {
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(
            common("transactional.id", prefix + "-" + id, "transaction.timeout.ms", "" + timeoutMs),
            new ByteArraySerializer(), new ByteArraySerializer());
        try {
            producer.initTransactions();
        } catch (RuntimeException error) {
            producer.close(Duration.ZERO);
            throw error;
        }
        return producer;
    }

    /** Offsets and values, from the beginning. */
    List<String> read(String topic, int partition, int count, String isolation) {
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(
                common("isolation.level", isolation), new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            TopicPartition one = new TopicPartition(topic, partition);
            consumer.assign(List.of(one));
            consumer.seekToBeginning(List.of(one));
            return poll(consumer, count).stream()
                .map(record -> record.offset() + " " + new String(record.value(), StandardCharsets.UTF_8)).toList();
        }
    }

    Properties common(String... more) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("client.id", "java");
        for (int at = 0; at < more.length; at += 2) {
            settings.put(more[at], more[at + 1]);
        }
        return settings;
    }

    String topic(String name, int partitions, Map<String, String> configs) throws Exception {
        String full = prefix + "-" + name;
        create(full, partitions, configs);
        expectSoon(() -> partitions(full), partitions);
        return full;
    }

    /** 0: the broker has not heard of the topic yet. */
    int partitions(String topic) throws Exception {
        try {
            return get(admin.describeTopics(List.of(topic)).allTopicNames()).get(topic).partitions().size();
        } catch (UnknownTopicOrPartitionException error) {
            return 0;
        }
    }

    Void create(String name, int partitions, Map<String, String> configs) throws Exception {
        return get(admin.createTopics(List.of(new NewTopic(name, partitions, (short) 1).configs(configs))).all());
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static List<ProducerRecord<byte[], byte[]>> records(String topic) {
        List<Header> headers = List.of(
            new RecordHeader("trace", bytes("7")), new RecordHeader("empty", new byte[0]),
            new RecordHeader("null", (byte[]) null), new RecordHeader("trace", bytes("8")));
        return List.of(
            new ProducerRecord<>(topic, 0, BASE_MS, bytes("k0"), bytes("v0"), headers),
            new ProducerRecord<>(topic, 0, BASE_MS + 1000, null, bytes("plain")),
            new ProducerRecord<byte[], byte[]>(topic, 0, BASE_MS + 2000, bytes("k2"), null),
            new ProducerRecord<>(topic, 0, BASE_MS + 3000, new byte[0], new byte[0],
                List.<Header>of(new RecordHeader("h", bytes("\u00e9")))),
            new ProducerRecord<>(topic, 0, BASE_MS + 4000, bytes("k4"), bytes("\u00e9".repeat(500))));
    }

    /** The records' offsets; the first error is thrown. */
    List<Long> produce(List<ProducerRecord<byte[], byte[]>> records, String... settings) throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(
                common(settings), new ByteArraySerializer(), new ByteArraySerializer())) {
            List<Future<RecordMetadata>> sent = records.stream().map(producer::send).toList();
            producer.flush();
            List<Long> offsets = new ArrayList<>();
            for (Future<RecordMetadata> one : sent) {
                RecordMetadata metadata = get(one);
                offsets.add(metadata.hasOffset() ? metadata.offset() : -1L);
            }
            return offsets;
        }
    }

    KafkaConsumer<byte[], byte[]> consumer() {
        return new KafkaConsumer<>(
            common("enable.auto.commit", "false"), new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    List<ConsumerRecord<byte[], byte[]>> consume(String topic, int count, long offset) {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            consumer.assign(List.of(new TopicPartition(topic, 0)));
            consumer.seek(new TopicPartition(topic, 0), offset);
            return poll(consumer, count);
        }
    }

    static List<ConsumerRecord<byte[], byte[]>> poll(KafkaConsumer<byte[], byte[]> consumer, int count) {
        List<ConsumerRecord<byte[], byte[]>> seen = new ArrayList<>();
        long until = System.nanoTime() + WAIT.toNanos();
        while (seen.size() < count) {
            if (System.nanoTime() > until) {
                throw new AssertionError("expected " + count + " records, saw " + seen.size());
            }
            consumer.poll(Duration.ofMillis(500)).forEach(seen::add);
        }
        return seen.subList(0, count);
    }

    static <T> T get(Future<T> future) throws Exception {
        try {
            return future.get(WAIT.toSeconds(), TimeUnit.SECONDS);
        } catch (ExecutionException failed) {
            throw failed.getCause() instanceof Exception cause ? cause : failed;
        }
    }

    static void expect(Object seen, Object wanted) {
        if (!Objects.deepEquals(seen, wanted)) {
            throw new AssertionError("expected " + wanted + ", saw " + seen);
        }
    }

    /** Kafka answers a change before its brokers have heard of it. */
    static void expectSoon(Callable<?> look, Object wanted) throws Exception {
        long until = System.nanoTime() + WAIT.toNanos();
        while (!look.call().equals(wanted) && System.nanoTime() < until) {
            Thread.sleep(10);
        }
        expect(look.call(), wanted);
    }

    static void fails(Class<? extends Exception> kind, Callable<?> work) throws Exception {
        try {
            work.call();
        } catch (Exception error) {
            if (kind.isInstance(error)) {
                return;
            }
            throw error;
        }
        throw new AssertionError("no " + kind.getSimpleName());
    }

    static void expectRecords(
            List<ConsumerRecord<byte[], byte[]>> seen, List<ProducerRecord<byte[], byte[]>> wanted) {
        expect(seen.size(), wanted.size());
        for (int at = 0; at < seen.size(); at++) {
            var one = seen.get(at);
            var other = wanted.get(at);
            expect(one.key(), other.key());
            expect(one.value(), other.value());
            expect(one.timestamp(), other.timestamp());
            expect(headers(one.headers()), headers(other.headers()));
        }
    }

    static String headers(Iterable<Header> headers) {
        List<String> texts = new ArrayList<>();
        headers.forEach(header -> texts.add(header.key() + "="
            + (header.value() == null ? null : new String(header.value(), StandardCharsets.UTF_8))));
        return texts.stream().collect(Collectors.joining(","));
    }
}
