import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Producers of Kafka's own client that write the same records plain, idempotent, or in transactions.
 *
 * One process for all servers and kinds, so that its code is compiled when they take their turns. It
 * is told lines and answers each by one:
 *
 *   open SERVER TOPIC KIND PRODUCERS   connected producers, each with one transaction behind it
 *   write KIND RECORDS                 of each producer of the kind
 *   close                              all producers
 *
 * One producer writes to all partitions of the topic, several write to one each.
 */
public class Transacting {
    private static final int RECORD_BYTES = 1024;
    private static final int TRANSACTION_RECORDS = 1000;
    private static final int PARTITIONS = 4;
    private static final OperatingSystemMXBean SYSTEM =
        (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    private static final byte[] VALUE = new byte[RECORD_BYTES];

    private final Map<String, List<Writer>> writers = new HashMap<>();

    private static class Writer {
        final KafkaProducer<byte[], byte[]> producer;
        final String topic;
        final Integer partition;
        final boolean isTransactional;
        final AtomicReference<Exception> lost = new AtomicReference<>();

        Writer(String server, String topic, String kind, int number, Integer partition) {
            Properties given = new Properties();
            given.put("bootstrap.servers", server);
            given.put("acks", "all");
            given.put("enable.idempotence", kind.equals("plain") ? "false" : "true");
            given.put("max.in.flight.requests.per.connection", "5");
            given.put("batch.size", "131072");
            given.put("linger.ms", "5");
            this.topic = topic;
            this.partition = partition;
            isTransactional = kind.equals("transactional");
            if (isTransactional) {
                given.put("transactional.id", "bench-" + topic + "-" + number);
            }
            producer = new KafkaProducer<>(
                given, new ByteArraySerializer(), new ByteArraySerializer());
            if (isTransactional) {
                producer.initTransactions();
            }
        }

        /** Returns when all records are acknowledged, and committed. */
        Void write(int records) throws Exception {
            for (int number = 0; number < records; number++) {
                if (isTransactional && number % TRANSACTION_RECORDS == 0) {
                    if (number > 0) {
                        producer.commitTransaction();
                    }
                    producer.beginTransaction();
                }
                producer.send(new ProducerRecord<>(topic, partition, null, VALUE), (where, error) -> {
                    if (error != null) {
                        lost.compareAndSet(null, error);
                    }
                });
            }
            if (isTransactional) {
                producer.commitTransaction();
            }
            producer.flush();
            if (lost.get() != null) {
                throw lost.get();
            }
            return null;
        }
    }

    private void open(String server, String topic, String kind, int producers) throws Exception {
        List<Writer> opened = new ArrayList<>();
        writers.put(kind, opened);
        for (int number = 0; number < producers; number++) {
            Integer partition = producers == 1 ? null : number % PARTITIONS;
            opened.add(new Writer(server, topic, kind, number, partition));
        }
        writeAll(opened, TRANSACTION_RECORDS);
    }

    private void writeAll(List<Writer> those, int records) throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(those.size());
        try {
            List<Future<Void>> writing = new ArrayList<>();
            for (Writer writer : those) {
                writing.add(threads.submit(() -> writer.write(records)));
            }
            for (Future<Void> one : writing) {
                one.get();
            }
        } finally {
            threads.shutdownNow();
        }
    }

    private String write(String kind, int records) throws Exception {
        List<Writer> those = writers.get(kind);
        long cpu = SYSTEM.getProcessCpuTime();
        long began = System.nanoTime();
        writeAll(those, records);
        double seconds = (System.nanoTime() - began) / 1e9;
        double cpuSeconds = (SYSTEM.getProcessCpuTime() - cpu) / 1e9;
        long all = (long) records * those.size();
        return String.format(Locale.ROOT,
            "{\"records\": %d, \"bytes\": %d, \"seconds\": %.6f, \"cpu_s\": %.6f}",
            all, all * RECORD_BYTES, seconds, cpuSeconds);
    }

    private void close() {
        for (List<Writer> those : writers.values()) {
            for (Writer writer : those) {
                writer.producer.close();
            }
        }
        writers.clear();
    }

    public static void main(String[] arguments) throws Exception {
        for (int at = 0; at < RECORD_BYTES; at++) {
            VALUE[at] = (byte) at;
        }
        Transacting transacting = new Transacting();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ");
            if (words[0].equals("open")) {
                transacting.open(words[1], words[2], words[3], Integer.parseInt(words[4]));
                System.out.println("{}");
            } else if (words[0].equals("write")) {
                System.out.println(transacting.write(words[1], Integer.parseInt(words[2])));
            } else {
                transacting.close();
                System.out.println("{}");
            }
        }
    }
}
