// program: JVM, a HashMap of objects
// class: JVM
// version: java -version
// random: yes
// expect: 8999202250797
// large: 4g
// run: java -Xms512m -Xmx1g -XX:ActiveProcessorCount=2 -cp {built} {main}
// large-run: java {variant} -Xmx{mib}m -XX:ActiveProcessorCount=2 -cp {built} {main}
// variants: parallel:-XX:+UseParallelGC g1:-XX:+UseG1GC zgc:-XX:+UseZGC

import java.util.HashMap;
import java.util.SplittableRandom;

class JavaMap {
    record Item(long value, String name) {}

    public static void main(String[] arguments) throws Exception {
        int count = Phases.SIZE > 0 ? (int) (Phases.SIZE / 280) : 1_500_000;
        SplittableRandom random = new SplittableRandom(1);
        HashMap<Long, Item> map = new HashMap<>();
        long[] keys = new long[count];
        for (int i = 0; i < count; i++) {
            keys[i] = random.nextLong();
            map.put(keys[i], new Item(i, "item " + i));
        }
        Phases.steady();
        long total = 0;
        for (int i = 0; i < 12_000_000; i++) {
            Item item = map.get(keys[random.nextInt(count)]);
            total += item.value() + item.name().length();
        }
        Phases.end(total);
    }
}
