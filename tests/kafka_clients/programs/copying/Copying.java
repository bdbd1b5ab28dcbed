import java.io.BufferedOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.errors.UnsupportedVersionException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Kafka's own client. __init__.py says what it is given and what it prints. */
public class Copying {
    static final int RECORDS_MAX = 20;
    static final int FATAL = 3;
    static final int PAUSE_MS = 50;
    static final double ABORTED = 0.3;
    static final long WAIT_MS = 120_000;

    static final PrintStream out =
        new PrintStream(new BufferedOutputStream(System.out, 1 << 12), false, StandardCharsets.UTF_8);

    final String bootstrap;
    final TopicPartition source;
    final String target;
    final int partitions;
    final String id;
    final String start;
    final Random random;
    final KafkaProducer<byte[], byte[]> producer;
    int count;

    Copying(String[] arguments) {
        bootstrap = arguments[0];
        source = new TopicPartition(arguments[1], Integer.parseInt(arguments[2]));
        target = arguments[3];
        partitions = Integer.parseInt(arguments[4]);
        id = arguments[5];
        start = arguments[6];
        random = new Random((arguments[7] + id + start).hashCode());
        Properties settings = common();
        settings.put("transactional.id", id);
        settings.put("linger.ms", "2");
        settings.put("max.block.ms", String.valueOf(WAIT_MS));
        producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    public static void main(String[] arguments) throws Exception {
        CountDownLatch stopping = awaitStart();
        try {
            new Copying(arguments).run(stopping);
        } catch (ProducerFencedException | OutOfOrderSequenceException | AuthorizationException
                | UnsupportedVersionException | TimeoutException fatal) {
            say("again fatal: " + words(fatal));
            // The producer's own thread would keep the program.
            Runtime.getRuntime().halt(FATAL);
        }
        out.flush();
        Runtime.getRuntime().halt(0);
    }

    void run(CountDownLatch stopping) throws Exception {
        producer.initTransactions();
        long place = place();
        say("place " + place);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer("read_committed")) {
            consumer.assign(List.of(source));
            consumer.seek(source, place);
            while (stopping.getCount() > 0) {
                List<ConsumerRecord<byte[], byte[]>> taken = new ArrayList<>();
                consumer.poll(Duration.ofMillis(PAUSE_MS)).forEach(taken::add);
                if (!taken.isEmpty() && !copy(taken)) {
                    consumer.seek(source, taken.get(0).offset());
                }
                Thread.sleep(random.nextInt(PAUSE_MS));
            }
        }
    }

    /** Whether it was committed. */
    boolean copy(List<ConsumerRecord<byte[], byte[]>> taken) throws InterruptedException {
        String name = id + "/" + start + "/" + ++count;
        say("began " + name);
        try {
            producer.beginTransaction();
            write(name, taken);
            if (random.nextDouble() >= ABORTED) {
                say("committing " + name);
                commit();
                say("committed " + name);
                return true;
            }
            say("aborting " + name);
        } catch (ProducerFencedException | OutOfOrderSequenceException | AuthorizationException
                | UnsupportedVersionException fatal) {
            throw fatal;
        } catch (KafkaException error) {
            say("again " + words(error));
        }
        producer.abortTransaction();
        say("aborted " + name);
        return false;
    }

    /** A time-out leaves it open whether it was committed: the call is made again. */
    void commit() {
        long giveUpAt = System.nanoTime() + WAIT_MS * 1_000_000;
        while (true) {
            try {
                producer.commitTransaction();
                return;
            } catch (TimeoutException error) {
                say("again " + words(error));
                if (System.nanoTime() > giveUpAt) {
                    throw error;
                }
            }
        }
    }

    void write(String name, List<ConsumerRecord<byte[], byte[]>> taken) throws InterruptedException {
        Set<Integer> written = new TreeSet<>();
        for (ConsumerRecord<byte[], byte[]> record : taken) {
            int to = (int) (record.offset() % partitions);
            written.add(to);
            ProducerRecord<byte[], byte[]> copy = new ProducerRecord<>(target, to, null, record.value());
            copy.headers().add("in", bytes(record.partition() + ":" + record.offset()));
            copy.headers().add("by", bytes(id));
            copy.headers().add("txn", bytes(name));
            producer.send(copy);
        }
        if (random.nextBoolean()) {
            for (int to = 0; to < partitions; to++) {
                written.add(to);
            }
        }
        for (int to : written) {
            byte[] value = bytes(name + " " + taken.size() + " " + written.size());
            ProducerRecord<byte[], byte[]> marker = new ProducerRecord<>(target, to, null, value);
            marker.headers().add("txn", bytes(name));
            producer.send(marker);
        }
    }

    /** Behind the last input whose copy is committed. */
    long place() throws InterruptedException {
        List<TopicPartition> places = new ArrayList<>();
        for (int number = 0; number < partitions; number++) {
            places.add(new TopicPartition(target, number));
        }
        long giveUpAt = System.nanoTime() + WAIT_MS * 1_000_000;
        Map<TopicPartition, Long> ends;
        try (KafkaConsumer<byte[], byte[]> all = consumer("read_uncommitted")) {
            ends = all.endOffsets(places);
        }
        long found = 0;
        try (KafkaConsumer<byte[], byte[]> reader = consumer("read_committed")) {
            reader.assign(places);
            reader.seekToBeginning(places);
            // The position passes aborted records and markers; another's open transaction holds it.
            while (places.stream().anyMatch(one -> reader.position(one) < ends.get(one))) {
                if (System.nanoTime() > giveUpAt) {
                    throw new TimeoutException("the output's stable end stays before " + ends);
                }
                for (ConsumerRecord<byte[], byte[]> record : reader.poll(Duration.ofMillis(PAUSE_MS))) {
                    Header by = record.headers().lastHeader("by");
                    if (by != null && Arrays.equals(by.value(), bytes(id))) {
                        String in = new String(record.headers().lastHeader("in").value(), StandardCharsets.UTF_8);
                        found = Math.max(found, Long.parseLong(in.split(":")[1]) + 1);
                    }
                }
            }
        }
        return found;
    }

    KafkaConsumer<byte[], byte[]> consumer(String isolation) {
        Properties settings = common();
        settings.put("isolation.level", isolation);
        settings.put("auto.offset.reset", "none");
        settings.put("enable.auto.commit", "false");
        settings.put("max.poll.records", String.valueOf(RECORDS_MAX));
        settings.put("default.api.timeout.ms", String.valueOf(WAIT_MS));
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    Properties common() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("reconnect.backoff.ms", "20");
        settings.put("reconnect.backoff.max.ms", "100");
        settings.put("retry.backoff.ms", "20");
        settings.put("retry.backoff.max.ms", "100");
        return settings;
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static String words(Exception error) {
        return error.toString().replace('\n', ' ');
    }

    /** At once: the program may be killed with the next call. */
    static void say(String line) {
        out.println(line);
        out.flush();
    }

    /** Returns when the program shall begin, and counts down when it shall stop. */
    static CountDownLatch awaitStart() throws IOException {
        say("ready");
        while (System.in.read() > '\n') {
        }
        CountDownLatch ended = new CountDownLatch(1);
        Thread reading = new Thread(() -> {
            try {
                System.in.readAllBytes();
            } catch (IOException error) {
                throw new java.io.UncheckedIOException(error);
            } finally {
                ended.countDown();
            }
        });
        reading.setDaemon(true);
        reading.start();
        return ended;
    }
}
