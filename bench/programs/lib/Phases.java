import java.io.BufferedReader;
import java.io.FileReader;
import java.io.FileWriter;
import java.io.IOException;

/** The bench's protocol (protocol.py) for Java. */
final class Phases {
    /** The bytes that the program is to take in the class large; else 0. */
    static final long SIZE = Long.parseLong(System.getenv().getOrDefault("BENCH_SIZE", "0"));

    private Phases() {}

    private static void send(String text) throws IOException {
        String out = System.getenv("BENCH_PHASES");
        if (out == null) {
            System.out.print(text);
            return;
        }
        try (FileWriter writer = new FileWriter(out)) {
            writer.write(text);
        }
        try (BufferedReader reader = new BufferedReader(new FileReader(System.getenv("BENCH_GO")))) {
            reader.readLine();
        }
    }

    /** The set-up is done; what follows is measured. */
    static void steady() throws IOException {
        send("phase steady\n");
    }

    /** The measured work is done, and what it made is still there. */
    static void end(long answer) throws IOException {
        send("answer " + answer + "\nphase end\n");
    }
}
