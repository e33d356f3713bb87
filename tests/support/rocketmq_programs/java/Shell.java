import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Set;
import java.util.stream.Collectors;

/**
 * Runs the main methods of classes in one process, as starting one for each takes seconds.
 *
 * A line of standard input is a class and its arguments, with tabs between. The answer is a line with "0" or "1" (it threw)
 * and a number of bytes, and then these bytes: what the class has printed.
 */
public final class Shell {
    public static void main(String[] unused) throws Exception {
        PrintStream answers = System.out;
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split("\t", -1);
            ByteArrayOutputStream said = new ByteArrayOutputStream();
            PrintStream says = new PrintStream(said, true, StandardCharsets.UTF_8);
            System.setOut(says);
            System.setErr(says);
            int code = 0;
            Waker waker = new Waker();
            waker.start();
            try {
                String[] arguments = Arrays.copyOfRange(words, 1, words.length);
                Class.forName(words[0]).getMethod("main", String[].class).invoke(null, (Object) arguments);
            } catch (InvocationTargetException error) {
                error.getCause().printStackTrace();
                code = 1;
            } finally {
                waker.ends = true;
                waker.join();
            }
            says.flush();
            byte[] bytes = said.toByteArray();
            answers.println(code + " " + bytes.length);
            answers.write(bytes);
            answers.flush();
        }
        System.exit(0);
    }

    /** Has clients of RocketMQ end at once: each waits, when it ends, for a thread that looks every three seconds. */
    private static final class Waker extends Thread {
        private final Set<Thread> before = executors();
        private volatile boolean ends;

        @Override
        public void run() {
            try {
                while (!ends) {
                    executors().stream().filter(thread -> !before.contains(thread)).forEach(Thread::interrupt);
                    Thread.sleep(50);
                }
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
        }

        private static Set<Thread> executors() {
            Thread[] threads = new Thread[Thread.activeCount() + 64];
            int count = Thread.enumerate(threads);
            return Arrays.stream(threads, 0, count)
                .filter(thread -> thread.getName().contains("NettyEventExecutor"))
                .collect(Collectors.toSet());
        }
    }
}
