import com.fasterxml.jackson.databind.JsonNode;
import java.io.BufferedReader;
import java.io.BufferedOutputStream;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.ObjectSerializationCache;

/**
 * What Kafka's own classes make of messages. A line in: api key, "request" or "response", version,
 * the body in hex behind "x". A line out: bytes that were left, the body written again, and the
 * message as Kafka's JSON.
 */
public class Opinion {
    public static void main(String[] arguments) throws Exception {
        var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        var out = new PrintStream(
            new BufferedOutputStream(new FileOutputStream(FileDescriptor.out), 1 << 20),
            false, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            var type = ApiMessageType.fromApiKey(Short.parseShort(words[0]));
            out.println(opinion(
                words[1].equals("request") ? type.newRequest() : type.newResponse(),
                Short.parseShort(words[2]),
                ByteBuffer.wrap(HexFormat.of().parseHex(words[3].substring(1)))));
        }
        out.flush();
    }

    private static String opinion(ApiMessage message, short version, ByteBuffer body)
            throws Exception {
        message.read(new ByteBufferAccessor(body), version);
        var cache = new ObjectSerializationCache();
        var again = ByteBuffer.allocate(message.size(cache, version));
        message.write(new ByteBufferAccessor(again), cache, version);
        var json = (JsonNode) Class.forName(message.getClass().getName() + "JsonConverter")
            .getMethod("write", message.getClass(), short.class, boolean.class)
            .invoke(null, message, version, false);
        return body.remaining() + " x" + HexFormat.of().formatHex(again.array()) + " " + json;
    }
}
