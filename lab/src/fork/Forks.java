import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;

/**
 * Fills the heap with arrays that stay in use, says 'ready', then starts as many children, one after the other, as each
 * line on standard input asks for: the first argument is the program, the second says how many MiB to fill.
 */
public class Forks {
    private static final List<byte[]> KEPT = new ArrayList<>();

    public static void main(String[] arguments) throws Exception {
        // The JVM writes zeros over each. (-XX:+AlwaysPreTouch leaves large pages untouched under the serial collector.)
        for (int left = 4 * Integer.parseInt(arguments[1]); left > 0; left--) {
            KEPT.add(new byte[(1 << 18) - 32]);
        }
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready");
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            StringBuilder answer = new StringBuilder();
            for (int left = Integer.parseInt(line); left > 0; left--) {
                long start = System.nanoTime();
                int status = new ProcessBuilder(arguments[0]).start().waitFor();
                long taken = System.nanoTime() - start;
                if (status != 0) {
                    throw new IllegalStateException(arguments[0] + " ended with status " + status);
                }
                answer.append(taken).append(' ');
            }
            System.out.println(answer.toString().trim());
        }
    }
}
