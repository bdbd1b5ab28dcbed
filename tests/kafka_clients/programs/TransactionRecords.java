import java.nio.ByteBuffer;
import java.util.HexFormat;
import java.util.Scanner;
import java.util.Set;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.coordinator.transaction.TransactionState;
import org.apache.kafka.coordinator.transaction.TxnTransitMetadata;
import org.apache.kafka.coordinator.transaction.generated.TransactionLogKey;
import org.apache.kafka.coordinator.transaction.generated.TransactionLogValue;
import org.apache.kafka.coordinator.transaction.generated.TransactionLogValueJsonConverter;
import org.apache.kafka.server.common.TransactionVersion;

/**
 * Kafka's own records of the transaction log, in hex, one a line. Without input: what its
 * coordinator writes ("key value" of an id in three states). A line "key value" of the input: id,
 * what Kafka makes of the value's bytes when it has read them, and their fields.
 */
public class TransactionRecords {
    private static final HexFormat HEX = HexFormat.of();
    private static final Set<TopicPartition> PARTITIONS = Set.of(
        new TopicPartition("a", 0), new TopicPartition("a", 3), new TopicPartition("b", 1));

    public static void main(String[] arguments) {
        if (arguments.length > 0) {
            written();
            return;
        }
        Scanner input = new Scanner(System.in);
        while (input.hasNext()) {
            read(HEX.parseHex(input.next()), HEX.parseHex(input.next()));
        }
    }

    private static void written() {
        for (short version = 1; version <= 2; version++) {
            write(new TxnTransitMetadata(7, -1, -1, (short) 0, (short) -1, 60000,
                TransactionState.EMPTY, Set.of(), -1, 1000, TransactionVersion.TV_0), version);
            write(new TxnTransitMetadata(7, -1, -1, (short) 5, (short) -1, 60000,
                TransactionState.ONGOING, PARTITIONS, 1500, 2000, TransactionVersion.TV_0), version);
            write(new TxnTransitMetadata(7, -1, -1, (short) 6, (short) -1, 60000,
                TransactionState.PREPARE_COMMIT, PARTITIONS, 1500, 3000, TransactionVersion.TV_2),
                version);
            write(new TxnTransitMetadata(7, -1, -1, (short) 6, (short) -1, 60000,
                TransactionState.COMPLETE_COMMIT, Set.of(), 1500, 4000, TransactionVersion.TV_2),
                version);
        }
    }

    private static void write(TxnTransitMetadata state, short version) {
        var log = kafka.coordinator.transaction.TransactionLog$.MODULE$;
        byte[] value = log.valueToBytes(state, TransactionVersion.fromFeatureLevel(version));
        System.out.println(HEX.formatHex(log.keyToBytes("tx-ü")) + " " + HEX.formatHex(value));
    }

    private static void read(byte[] key, byte[] value) {
        ByteBuffer keys = ByteBuffer.wrap(key);
        short keyVersion = keys.getShort();
        String id = new TransactionLogKey(new ByteBufferAccessor(keys), keyVersion).transactionalId();
        ByteBuffer values = ByteBuffer.wrap(value);
        short version = values.getShort();
        TransactionLogValue read = new TransactionLogValue(new ByteBufferAccessor(values), version);
        String again = HEX.formatHex(MessageUtil.toVersionPrefixedBytes(version, read));
        System.out.println(id + " " + again + " "
            + TransactionLogValueJsonConverter.write(read, version));
    }
}
