import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Function;
import java.util.stream.IntStream;
import java.util.stream.LongStream;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * Redisson's locks, as a child of benches/peers: it reads orders line by line and answers each with
 * a line of numbers. The orders are those of ../go/main.go. Times are in ns. FAIRLOCK_BENCH_URL
 * names the server.
 */
public final class Peers {
    private static final long TTL_MS = 10_000;

    private record Subject(String name, Function<String, RLock> lock) {}

    private interface Body {
        void run(int thread, AtomicBoolean over) throws InterruptedException;
    }

    private static final List<RLock> held = new ArrayList<>();

    public static void main(String[] args) throws Exception {
        Config config = new Config();
        config.useSingleServer().setAddress(System.getenv("FAIRLOCK_BENCH_URL"));
        // The ttl of locks that are renewed; 30 s by default.
        config.setLockWatchdogTimeout(TTL_MS);
        RedissonClient redisson = Redisson.create(config);
        List<Subject> subjects = List.of(
            new Subject("Redisson 4.7 getLock (Java)", redisson::getLock),
            new Subject("Redisson 4.7 getFairLock (Java)", redisson::getFairLock));
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        for (String order = orders.readLine(); order != null; order = orders.readLine()) {
            System.out.println(answer(order.split(" "), subjects));
        }
        System.exit(0);
    }

    private static String answer(String[] order, List<Subject> subjects) throws Exception {
        switch (order[0]) {
            case "names":
                return String.join("\t", subjects.stream().map(Subject::name).toList());
            case "drop":
                held.forEach(RLock::unlock);
                held.clear();
                return "";
            default:
        }
        Function<String, RLock> lock = subjects.get(Integer.parseInt(order[1])).lock();
        String key = "redisson:" + order[1] + ":" + order[2];
        int count = Integer.parseInt(order[3]);
        LongStream numbers = switch (order[0]) {
            case "one_thread" -> oneThread(lock.apply(key), count);
            case "own_names" -> ownNames(lock, key, count, Long.parseLong(order[4]));
            case "one_name" -> oneName(lock, key, count, Long.parseLong(order[4]), Long.parseLong(order[5]));
            case "hold" -> hold(lock, key, count);
            default -> throw new IllegalArgumentException(order[0]);
        };
        return String.join(" ", numbers.mapToObj(Long::toString).toList());
    }

    private static LongStream oneThread(RLock lock, int cycles) {
        return IntStream.range(0, cycles).mapToLong(i -> cycle(lock));
    }

    private static LongStream ownNames(Function<String, RLock> locks, String key, int threads, long runMs)
            throws InterruptedException {
        List<LongStream.Builder> times = builders(threads);
        long elapsed = together(threads, runMs, (thread, over) -> {
            RLock lock = locks.apply(key + ":" + thread);
            while (!over.get()) {
                times.get(thread).add(cycle(lock));
            }
        });
        return LongStream.concat(LongStream.of(elapsed), concat(times));
    }

    private static LongStream oneName(
            Function<String, RLock> locks, String key, int threads, long runMs, long holdUs)
            throws InterruptedException {
        List<LongStream.Builder> taken = builders(threads);
        together(threads, runMs, (thread, over) -> {
            RLock lock = locks.apply(key);
            while (!over.get()) {
                long asked = System.nanoTime();
                lock.lock();
                long granted = System.nanoTime();
                if (holdUs > 0) {
                    TimeUnit.MICROSECONDS.sleep(holdUs);
                }
                long released = System.nanoTime();
                lock.unlock();
                taken.get(thread).add(thread).add(asked).add(granted).add(released);
            }
        });
        return concat(taken);
    }

    private static LongStream hold(Function<String, RLock> locks, String key, int count) {
        for (int i = 0; i < count; i++) {
            RLock lock = locks.apply(key + ":" + i);
            lock.lock();
            held.add(lock);
        }
        return LongStream.of(count);
    }

    private static long cycle(RLock lock) {
        long started = System.nanoTime();
        lock.lock();
        lock.unlock();
        return System.nanoTime() - started;
    }

    /** Runs the body in this many threads and returns how long they were asked to go on. */
    private static long together(int threads, long runMs, Body body) throws InterruptedException {
        AtomicBoolean over = new AtomicBoolean();
        List<Thread> all = IntStream.range(0, threads)
            .mapToObj(thread -> new Thread(() -> runUninterrupted(body, thread, over)))
            .toList();
        long started = System.nanoTime();
        all.forEach(Thread::start);
        Thread.sleep(runMs);
        over.set(true);
        long elapsed = System.nanoTime() - started;
        for (Thread thread : all) {
            thread.join();
        }
        return elapsed;
    }

    private static void runUninterrupted(Body body, int thread, AtomicBoolean over) {
        try {
            body.run(thread, over);
        } catch (InterruptedException e) {
            throw new IllegalStateException("nobody interrupts it", e);
        }
    }

    private static List<LongStream.Builder> builders(int count) {
        return IntStream.range(0, count).mapToObj(i -> LongStream.builder()).toList();
    }

    private static LongStream concat(List<LongStream.Builder> parts) {
        return parts.stream().flatMapToLong(LongStream.Builder::build);
    }
}
