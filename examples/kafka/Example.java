import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class Example {
    public static void main(String[] arguments) {
        Map<String, Object> settings = Map.of("bootstrap.servers", "127.0.0.1:9092");
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            producer.send(new ProducerRecord<>("hellos", 0, null, "hello"));
        }
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            var partition = new TopicPartition("hellos", 0);
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            var record = consumer.poll(Duration.ofSeconds(30)).iterator().next();
            System.out.println(record.offset() + " " + record.value());
        }
    }
}
