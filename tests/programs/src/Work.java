import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.zip.CRC32;

/** Keeps the collector, threads, native memory and a child process busy, and prints a checksum. */
public class Work {
    static long work(long seed) {
        long random = seed * 0x9e3779b97f4a7c15L + 1;
        Map<Long, String> tree = new TreeMap<>();
        Map<Long, byte[]> map = new HashMap<>();
        for (int i = 0; i < 150_000; i++) {
            random ^= random << 13;
            random ^= random >>> 7;
            random ^= random << 17;
            tree.put(random % 50_000, Long.toString(random));
            map.put(random % 20_000, new byte[(int) (random & 511)]);
        }
        CRC32 crc = new CRC32();
        for (Map.Entry<Long, String> entry : tree.entrySet()) {
            crc.update((entry.getKey() + entry.getValue()).getBytes());
        }
        long bytes = 0;
        for (byte[] block : map.values()) bytes += block.length;
        // Native memory: direct buffers and a deflater.
        java.nio.ByteBuffer direct = java.nio.ByteBuffer.allocateDirect(8 << 20);
        for (int i = 0; i < direct.capacity(); i += 8) direct.putLong(i, random + i);
        crc.update(direct);
        java.util.zip.Deflater deflater = new java.util.zip.Deflater();
        deflater.setInput(new byte[1 << 20]);
        deflater.finish();
        int packed = deflater.deflate(new byte[1 << 20]);
        deflater.end();
        return crc.getValue() ^ bytes << 20 ^ packed;
    }

    public static void main(String[] arguments) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(4);
        List<Future<Long>> results = new ArrayList<>();
        for (int i = 1; i <= 6; i++) {
            final long seed = i;
            results.add(pool.submit(() -> work(seed)));
        }
        StringBuilder sums = new StringBuilder("java:");
        for (Future<Long> result : results) sums.append(' ').append(result.get());
        pool.shutdown();
        System.gc();
        Process child = new ProcessBuilder("/bin/echo", "child").start();
        String said = new String(child.getInputStream().readAllBytes());
        if (child.waitFor() != 0 || !said.equals("child\n")) throw new IllegalStateException("child: " + said);
        System.out.println(sums);
    }
}
