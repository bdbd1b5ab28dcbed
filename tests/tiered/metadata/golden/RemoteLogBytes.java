import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.server.log.remote.metadata.storage.RemoteLogMetadataTopicPartitioner;
import org.apache.kafka.server.log.remote.metadata.storage.serialization.RemoteLogMetadataSerde;
import org.apache.kafka.server.log.remote.storage.RemoteLogMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentId;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadataUpdate;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;
import org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteMetadata;
import org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteState;

/**
 * Writes records.txt as Kafka 4.1.1 writes such records: name and hex; and the metadata partition of
 * partitions: topic id, partition, number of metadata partitions, number. Run it with
 * `java -cp JARS RemoteLogBytes.java > records.txt`, where JARS are Kafka's with its server.
 */
public class RemoteLogBytes {
    static final Uuid TOPIC = new Uuid(0x0011223344556677L, 0x8899aabbccddeeffL);
    static final Uuid SEGMENT = new Uuid(0xfedcba9876543210L, 0x0123456789abcdefL);
    static final RemoteLogSegmentId ID =
        new RemoteLogSegmentId(new TopicIdPartition(TOPIC, 7, "orders-ü"), SEGMENT);

    public static void main(String[] arguments) {
        Map<Integer, Long> one = Map.of(3, 1000L);
        Map<Integer, Long> several = new TreeMap<>(Map.of(3, 1000L, 5, 1500L, 9, 1999L));
        Map<Integer, Long> many = new TreeMap<>();
        for (int epoch = 0; epoch < 200; epoch++) many.put(epoch, 1000L + epoch);
        byte[] longest = new byte[128];
        for (int at = 0; at < longest.length; at++) longest[at] = (byte) at;
        Map<String, RemoteLogMetadata> records = new LinkedHashMap<>();
        records.put("segment_plain", segment(one, false));
        records.put("segment_several_epochs", segment(several, false));
        records.put("segment_many_epochs", segment(many, false));
        records.put("segment_txn_index_empty", segment(several, true));
        records.put("segment_custom_finished", segment(several, true).createWithUpdates(
            update(RemoteLogSegmentState.COPY_SEGMENT_FINISHED, new byte[] {1, 2, 3})));
        records.put("segment_custom_empty", segment(one, false).createWithUpdates(
            update(RemoteLogSegmentState.COPY_SEGMENT_FINISHED, new byte[0])));
        records.put("update_copied", update(RemoteLogSegmentState.COPY_SEGMENT_FINISHED, null));
        records.put("update_copied_custom",
            update(RemoteLogSegmentState.COPY_SEGMENT_FINISHED, longest));
        records.put("update_delete_started",
            update(RemoteLogSegmentState.DELETE_SEGMENT_STARTED, null));
        records.put("update_delete_finished",
            update(RemoteLogSegmentState.DELETE_SEGMENT_FINISHED, null));
        for (RemotePartitionDeleteState state : RemotePartitionDeleteState.values()) {
            records.put("partition_" + state.name().toLowerCase(), new RemotePartitionDeleteMetadata(
                ID.topicIdPartition(), state, 1_700_000_002_000L, 4));
        }
        RemoteLogMetadataSerde serde = new RemoteLogMetadataSerde();
        records.forEach((name, record) ->
            System.out.println(name + " " + HexFormat.of().formatHex(serde.serialize(record))));
        partitions();
    }

    static RemoteLogSegmentMetadata segment(Map<Integer, Long> epochs, boolean isTxnIndexEmpty) {
        return new RemoteLogSegmentMetadata(ID, 1000L, 1999L, 1_700_000_000_123L, 2,
            1_700_000_000_456L, 104_857_600, Optional.empty(),
            RemoteLogSegmentState.COPY_SEGMENT_STARTED, epochs, isTxnIndexEmpty);
    }

    static RemoteLogSegmentMetadataUpdate update(RemoteLogSegmentState state, byte[] custom) {
        return new RemoteLogSegmentMetadataUpdate(ID, 1_700_000_001_000L,
            Optional.ofNullable(custom).map(CustomMetadata::new), state, 3);
    }

    static void partitions() {
        Uuid[] topics = {TOPIC, SEGMENT, new Uuid(0L, 0L), new Uuid(-1L, -1L),
            new Uuid(Long.MIN_VALUE, Long.MAX_VALUE), new Uuid(0x123456789abcdefL, 42L)};
        for (Uuid topic : topics) {
            for (int partition : new int[] {0, 1, 7, 1_000_000, Integer.MAX_VALUE}) {
                for (int count : new int[] {1, 5, 50}) {
                    int found = new RemoteLogMetadataTopicPartitioner(count)
                        .metadataPartition(new TopicIdPartition(topic, partition, "any"));
                    System.out.printf("partition_of %016x%016x %d %d %d%n",
                        topic.getMostSignificantBits(), topic.getLeastSignificantBits(),
                        partition, count, found);
                }
            }
        }
    }
}
